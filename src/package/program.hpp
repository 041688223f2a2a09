// A package in memory: what program.json and its weight files say, with names resolved to indices.
//
// Plain data. The reader (reader.hpp) builds it and guarantees what the comments here state; verify/ then checks the
// schedule's promises and fills in Wait::step_total. Every later layer takes a Program as const.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mkrt/device/table.h"
#include "mkrt/mkrt.h"
#include "package/safetensors.hpp"

namespace mkrt::package {

// Limits of the format that do not shape the encoded table. They bound what a hostile file can make later layers
// allocate and add up: counters take 64 bytes each on every rank (64 MiB at this limit), and their index sums stay far
// below 64 bits.
inline constexpr uint32_t max_entry_counters = 1u << 20;
inline constexpr uint32_t max_opcodes = 4096;
inline constexpr uint32_t max_opcode_constraints = 64;  // each is computed for each record
inline constexpr uint32_t max_opcode_faults = 64;
inline constexpr uint32_t max_record_tiles = INT32_MAX;
inline constexpr uint64_t max_entry_tiles = UINT32_MAX;
inline constexpr uint32_t max_counter_value = 1u << 30;        // what one step may add to a counter
inline constexpr uint64_t max_rank_bytes = uint64_t{1} << 62;  // of all tensors of a rank; leaves room for alignment

// Element types; values are those of the C header.
enum class Dtype : uint32_t {
  f32 = MKRT_DTYPE_F32,
  f16 = MKRT_DTYPE_F16,
  bf16 = MKRT_DTYPE_BF16,
  i32 = MKRT_DTYPE_I32,
  u32 = MKRT_DTYPE_U32,
  u8 = MKRT_DTYPE_U8,
};

// Bytes of one element.
constexpr uint64_t dtype_size(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::f32:
    case Dtype::i32:
    case Dtype::u32: return 4;
    case Dtype::f16:
    case Dtype::bf16: return 2;
    case Dtype::u8: return 1;
  }
  return 0;
}

// How an instruction uses an operand; src/package/README.md defines each.
enum class Access : uint8_t { read, write, read_write, append, gather };

constexpr bool is_write(Access access) noexcept { return access != Access::read && access != Access::gather; }
// Whether an operand may mean every rank's instance at once: what is written is repeated, what is gathered is read at
// each.
constexpr bool may_name_all_ranks(Access access) noexcept {
  return access == Access::write || access == Access::gather;
}

enum class ParameterType : uint8_t { u32, i32, f32 };

struct OperandDefinition {
  std::string name;
  Access access = Access::read;
  std::vector<Dtype> dtypes;  // allowed ones, at least one
  bool optional = false;
  std::vector<uint32_t> shared_dimensions{};  // of the grid, ascending; empty unless access is append
  bool whole = false;                         // no limit may cut a slice
  bool constant = false;                      // the tensor is a weight
};

struct ParameterDefinition {
  std::string name;
  ParameterType type = ParameterType::u32;
};

// A product of factors on each side, such as "weight.size == tile_rows * pad(columns, 32)".
struct ConstraintFactor {
  enum class Kind : uint8_t { constant, parameter, operand_size, operand_rows, grid };
  Kind kind = Kind::constant;
  uint32_t index = 0;     // of the parameter, operand or grid dimension
  uint64_t constant = 1;  // the value of a constant
  uint64_t pad_to = 1;    // the factor is rounded up to a multiple of this
};
struct Constraint {
  enum class Relation : uint8_t { equal, less_equal, greater_equal };
  std::vector<ConstraintFactor> left;
  Relation relation = Relation::equal;
  std::vector<ConstraintFactor> right;
  std::string text;  // as written, for messages
};

struct OpcodeDefinition {
  std::string name;
  std::vector<OperandDefinition> operands;      // at most MKRT_RECORD_OPERANDS
  std::vector<ParameterDefinition> parameters;  // at most MKRT_RECORD_PARAMETERS
  std::vector<Constraint> constraints;
  std::vector<std::string> faults;  // sentences; fault number i + 1 is faults[i]
};

struct IsaDefinition {
  std::string name;
  uint32_t version = 0;
  std::vector<OpcodeDefinition> opcodes;  // the opcode's number is its index
  uint64_t fingerprint = 0;               // of all of the above; isa.hpp computes it
};

struct Image {
  std::string target;  // such as "sm_90a"
  std::string file;    // relative to the package's folder, exists
};

struct Tensor {
  std::string name;
  Dtype dtype = Dtype::f32;
  std::vector<uint64_t> shape;  // at most MKRT_MAX_DIMENSIONS, no zero
  uint64_t elements = 0;        // product of the shape
  uint64_t size_bytes = 0;
  uint32_t kind = MKRT_TENSOR_SCRATCH;
  // Weights: where the bytes of each rank lie, rank_count entries. Others: empty.
  std::vector<SafetensorsView> sources;
};

// A slice of a tensor, in elements; see mkrt_operand for the meaning of the fields. Its last byte's offset, rank share
// and all rows included and `limit` left aside, fits in 63 bits for every tile and rank.
struct Operand {
  uint32_t tensor = 0;
  uint64_t offset = 0;
  uint64_t rank_stride = 0;  // the own rank number times this is added to the offset
  std::array<uint64_t, MKRT_TILE_DIMENSIONS> strides{};
  uint64_t size = 0;   // elements of a row, at least 1
  uint64_t limit = 0;  // at least 1; `size` plus the largest index sum where the file gives none
  uint32_t rows = 1;
  uint64_t row_stride = 0;
  mkrt_rank_selector rank{MKRT_RANK_SELF, 0xff, 0};
};

// Offsets, counts and strides of waits and signals are at most max_entry_counters each; whether the counters lie in
// their array is for verify/ to check.
struct Wait {
  uint32_t counter = 0;  // index of the first counter of the named array, in the entry's numbering
  uint32_t count = 1;
  uint32_t array = 0;  // index of the counter array
  std::array<uint32_t, MKRT_TILE_DIMENSIONS> strides{};
  std::array<uint32_t, MKRT_TILE_DIMENSIONS> divide{1, 1, 1, 1};
  uint32_t value = 0;  // 0: everything that one step adds
  int32_t step_offset = 0;
  uint32_t step_total = 0;  // what one step adds to each of the counters; 0 until verify/ has checked the program
};

struct Signal {
  uint32_t counter = 0;
  uint32_t array = 0;
  std::array<uint32_t, MKRT_TILE_DIMENSIONS> strides{};
  std::array<uint32_t, MKRT_TILE_DIMENSIONS> divide{1, 1, 1, 1};
  mkrt_rank_selector rank{MKRT_RANK_SELF, 0xff, 0};
};

struct Record {
  uint32_t opcode = 0;
  std::string label;
  std::array<uint32_t, MKRT_TILE_DIMENSIONS> grid{1, 1, 1, 1};  // each at least 1
  uint32_t dimensions = 1;                                      // of the grid as written
  uint64_t first_tile = 0;
  uint64_t tile_count = 1;                       // at most 2^31 - 1
  std::vector<std::optional<Operand>> operands;  // one for each of the opcode's, absent ones empty
  std::vector<uint32_t> parameters;              // one for each of the opcode's, as bits
  std::vector<Wait> waits;
  std::vector<Signal> signals;
};

struct CounterArray {
  std::string name;
  uint32_t first = 0;  // number of its first counter in the entry
  uint32_t size = 1;
};

struct Entry {
  std::string name;
  std::vector<CounterArray> counters;
  uint32_t counter_count = 0;
  std::vector<Record> records;
  uint64_t tile_count = 0;  // of one step, at most 2^32 - 1
};

struct Metadata {
  std::string key;
  std::string value;
};

struct Program {
  std::string path;  // the package's folder
  uint32_t rank_count = 1;
  IsaDefinition isa;
  std::vector<Image> images;
  std::vector<Metadata> metadata;
  std::vector<std::shared_ptr<const SafetensorsFile>> weight_files;
  std::vector<Tensor> tensors;
  std::vector<Entry> entries;
};

}  // namespace mkrt::package
