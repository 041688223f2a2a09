#include "cli/format.hpp"

#include <algorithm>
#include <cstdio>

#include "mkrt/mkrt.h"

namespace mkrt::cli {
namespace {

bool is_numeric(const std::string& cell) { return !cell.empty() && cell[0] >= '0' && cell[0] <= '9'; }

// Width of a cell on a terminal: one column a code point.
size_t width(const std::string& cell) {
  return static_cast<size_t>(std::count_if(cell.begin(), cell.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string format_number(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string format_bytes(uint64_t bytes) {
  if (bytes < 1000) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1000;
  const char* unit = "kB";
  for (const char* larger : {"MB", "GB", "TB", "PB", "EB"}) {
    if (value < 999.5) break;
    value /= 1000;
    unit = larger;
  }
  return format_number(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + " " + unit;
}

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  std::vector<bool> numeric;
  for (size_t row = 0; row < rows.size(); ++row) {
    widths.resize(std::max(widths.size(), rows[row].size()));
    numeric.resize(widths.size(), true);
    for (size_t i = 0; i < rows[row].size(); ++i) {
      widths[i] = std::max(widths[i], width(rows[row][i]));
      if (row > 0 && !is_numeric(rows[row][i])) numeric[i] = false;
    }
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string gap(widths[i] - width(row[i]), ' ');
      line += numeric[i] ? gap + row[i] : row[i] + gap;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string dtype_name(uint32_t dtype) {
  switch (dtype) {
    case MKRT_DTYPE_F32: return "f32";
    case MKRT_DTYPE_F16: return "f16";
    case MKRT_DTYPE_BF16: return "bf16";
    case MKRT_DTYPE_I32: return "i32";
    case MKRT_DTYPE_U32: return "u32";
    case MKRT_DTYPE_U8: return "u8";
    default: return "?";
  }
}

std::string tensor_kind_name(uint32_t kind) {
  switch (kind) {
    case MKRT_TENSOR_WEIGHT: return "weight";
    case MKRT_TENSOR_STATE: return "state";
    case MKRT_TENSOR_INPUT: return "input";
    case MKRT_TENSOR_OUTPUT: return "output";
    case MKRT_TENSOR_SCRATCH: return "scratch";
    default: return "?";
  }
}

std::string device_kind_name(uint32_t kind) {
  switch (kind) {
    case MKRT_DEVICE_HOST: return "host";
    case MKRT_DEVICE_CUDA: return "cuda";
    default: return "?";
  }
}

}  // namespace mkrt::cli
