#include "base/failure.hpp"

namespace mkrt::base {

namespace {

constexpr size_t shown_name_bytes = 64;
constexpr size_t shown_path_bytes = 160;

bool continues_utf8(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

void append_printable(std::string& out, std::string_view bytes) {
  constexpr char digits[] = "0123456789abcdef";
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    if (value < 0x20 || value == 0x7f) {
      out += "\\x";
      out += digits[value >> 4];
      out += digits[value & 15];
    } else {
      out += byte;
    }
  }
}

}  // namespace

std::string quoted(std::string_view name) {
  size_t size = name.size();
  if (size > shown_name_bytes) {
    size = shown_name_bytes;
    while (size > 0 && continues_utf8(name[size])) --size;
  }
  std::string out = "\"";
  append_printable(out, name.substr(0, size));
  if (size < name.size()) out += "...";
  out += '"';
  return out;
}

std::string shown_path(std::string_view path) {
  size_t start = 0;
  if (path.size() > shown_path_bytes) {
    start = path.size() - shown_path_bytes;
    while (start < path.size() && continues_utf8(path[start])) ++start;
  }
  std::string out = start > 0 ? "..." : "";
  append_printable(out, path.substr(start));
  return out;
}

}  // namespace mkrt::base
