#include "compile/pack.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <future>
#include <utility>

#include "package/writer.hpp"

namespace mkrt::compile {
namespace {

// Bytes that are packed before they are written: large enough that a write costs little, small enough for the
// last-level cache, so that the copy into the page cache reads no memory.
constexpr uint64_t kPieceBytes = 4 << 20;

float load(SourceDtype dtype, const std::byte* source) noexcept {
  if (dtype == SourceDtype::f32) {
    float value;
    std::memcpy(&value, source, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, source, sizeof bits);
  return dtype == SourceDtype::f16 ? widen_f16(bits) : widen_bf16(bits);
}

// `count` elements as bf16. bf16 stays as it is, NaN payloads included.
void convert(SourceDtype dtype, const std::byte* source, uint64_t count, uint16_t* out) noexcept {
  if (dtype == SourceDtype::bf16) {
    std::memcpy(out, source, count * sizeof(uint16_t));
    return;
  }
  const uint64_t size = dtype_bytes(dtype);
  for (uint64_t i = 0; i < count; ++i) out[i] = round_to_bf16(load(dtype, source + i * size));
}

// A row of a source: nothing where the packed row is padding.
struct SourceRow {
  SourceDtype dtype = SourceDtype::bf16;
  const std::byte* data = nullptr;
};

SourceRow find_row(const BoundWeight& matrix, uint64_t row) noexcept {
  const Weight& weight = *matrix.weight;
  size_t part = 0;
  if (weight.layout == Weight::Layout::interleaved) {
    part = row / kBlockRows % 2;
    row = row / (2 * kBlockRows) * kBlockRows + row % kBlockRows;
  } else {
    while (part < weight.sources.size() && row >= weight.sources[part].taken.size) {
      row -= weight.sources[part++].taken.size;
    }
    if (part == weight.sources.size()) return {};
  }
  const Share& taken = weight.sources[part].taken;
  if (row >= taken.count) return {};
  const SourceTensor& source = matrix.sources[part];
  const uint64_t element = (taken.first + row) * weight.columns + weight.taken_columns.first;
  return {source.dtype, source.bytes.data() + element * dtype_bytes(source.dtype)};
}

// The first `columns` elements of a row into its place in a row of `blocks` blocks: 32 elements in each block, 256
// elements from block to block. What is left is filled with zeros.
void pack_row(const SourceRow& row, uint64_t columns, uint64_t blocks, uint16_t* out) noexcept {
  constexpr uint64_t block = kBlockRows * kBlockColumns;
  const uint64_t full = row.data ? columns / kBlockColumns : 0;
  const uint64_t size = dtype_bytes(row.dtype);
  const std::byte* source = row.data;
  for (uint64_t c = 0; c < full; ++c) {
    convert(row.dtype, source, kBlockColumns, out + c * block);
    source += kBlockColumns * size;
  }
  const uint64_t rest = row.data ? columns % kBlockColumns : 0;
  if (rest != 0) convert(row.dtype, source, rest, out + full * block);
  for (uint64_t c = full; c < blocks; ++c) {
    const uint64_t used = c == full ? rest : 0;
    std::fill(out + c * block + used, out + c * block + kBlockColumns, uint16_t{0});
  }
}

// A part of the file that is packed at once: some block rows of a matrix, or a whole vector.
struct Piece {
  const BoundWeight* weight = nullptr;
  uint64_t first_block = 0;
  uint64_t blocks = 0;
  uint64_t size = 0;  // bytes
};

std::vector<Piece> cut_into_pieces(const std::vector<BoundWeight>& weights) {
  std::vector<Piece> pieces;
  for (const BoundWeight& bound : weights) {
    const Weight& weight = *bound.weight;
    if (!weight.is_matrix()) {
      pieces.push_back({&bound, 0, 0, weight.size_bytes()});
      continue;
    }
    const uint64_t block_bytes = kBlockRows * weight.padded_columns() * sizeof(uint16_t);
    const uint64_t together = std::max<uint64_t>(kPieceBytes / block_bytes, 1);
    const uint64_t blocks = weight.padded_rows() / kBlockRows;
    for (uint64_t first = 0; first < blocks; first += together) {
      const uint64_t count = std::min(together, blocks - first);
      pieces.push_back({&bound, first, count, count * block_bytes});
    }
  }
  return pieces;
}

// `buffer` comes from the general allocator, which aligns for every element type.
void pack_piece(const Piece& piece, std::vector<std::byte>& buffer) {
  buffer.resize(piece.size);
  if (piece.weight->weight->is_matrix()) {
    pack_blocks(*piece.weight, piece.first_block, piece.blocks, reinterpret_cast<uint16_t*>(buffer.data()));
  } else {
    pack_vector(*piece.weight, reinterpret_cast<float*>(buffer.data()));
  }
}

}  // namespace

uint16_t round_to_bf16(float value) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // A NaN keeps its upper payload and becomes quiet: rounding could carry it into infinity.
  const auto quiet = static_cast<uint16_t>(bits >> 16 | 0x40);
  const auto rounded = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  return (bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded;
}

float widen_f16(uint16_t bits) noexcept {
  const uint32_t sign = uint32_t{bits} >> 15 << 31;
  const uint32_t magnitude = bits & 0x7fff;
  // Placed at f32's exponent, the value is too small by 2^112, for subnormal numbers too; the product is exact.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t special = magnitude << 13 | 0x7f800000;  // infinity and NaN
  return std::bit_cast<float>(sign | (magnitude >= 0x7c00 ? special : std::bit_cast<uint32_t>(scaled)));
}

float widen_bf16(uint16_t bits) noexcept { return std::bit_cast<float>(uint32_t{bits} << 16); }

void pack_blocks(const BoundWeight& matrix, uint64_t first_block, uint64_t blocks, uint16_t* out) {
  const uint64_t column_blocks = matrix.weight->padded_columns() / kBlockColumns;
  const uint64_t block_row = kBlockRows * matrix.weight->padded_columns();
  for (uint64_t block = 0; block < blocks; ++block) {
    for (uint64_t row = 0; row < kBlockRows; ++row) {
      pack_row(find_row(matrix, (first_block + block) * kBlockRows + row), matrix.weight->taken_columns.count,
               column_blocks, out + block * block_row + row * kBlockColumns);
    }
  }
}

void pack_vector(const BoundWeight& vector, float* out) {
  if (vector.weight->layout == Weight::Layout::values) {
    std::ranges::copy(vector.weight->values, out);
    return;
  }
  for (size_t part = 0; part < vector.sources.size(); ++part) {
    const SourceTensor& source = vector.sources[part];
    const Share& taken = vector.weight->sources[part].taken;
    const std::byte* first = source.bytes.data() + taken.first * dtype_bytes(source.dtype);
    for (uint64_t i = 0; i < taken.count; ++i) out[i] = load(source.dtype, first + i * dtype_bytes(source.dtype));
    std::fill(out + taken.count, out + taken.size, 0.0f);
    out += taken.size;
  }
}

void write_weights(const std::vector<BoundWeight>& weights, const std::string& path,
                   const std::function<void(uint64_t, uint64_t)>& progress) {
  std::vector<package::SafetensorsWriter::TensorSpec> tensors;
  tensors.reserve(weights.size());
  for (const BoundWeight& bound : weights) {
    tensors.push_back({bound.weight->name, bound.weight->dtype(), bound.weight->shape()});
  }
  package::SafetensorsWriter writer(path, tensors, progress);

  // While this thread writes a piece, another packs the next one.
  const std::vector<Piece> pieces = cut_into_pieces(weights);
  std::vector<std::byte> packed, next;
  pack_piece(pieces.front(), packed);
  for (size_t i = 0; i < pieces.size(); ++i) {
    std::future<void> packing;
    if (i + 1 < pieces.size()) packing = std::async(std::launch::async, [&] { pack_piece(pieces[i + 1], next); });
    writer.write(packed);
    if (packing.valid()) packing.get();
    std::swap(packed, next);
  }
  writer.finish();
}

}  // namespace mkrt::compile
