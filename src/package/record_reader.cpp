#include "package/record_reader.hpp"

#include <algorithm>
#include <bit>

#include "base/checked.hpp"
#include "base/failure.hpp"
#include "package/isa.hpp"

namespace mkrt::package {

namespace {

using base::checked_add;
using base::checked_multiply;
using base::text;

// Member `key`, or `otherwise` where it is left out.
uint64_t count_or(const JsonView& view, std::string_view key, uint64_t otherwise, uint64_t least, uint64_t most) {
  const auto member = view.find(key);
  return member ? member->unsigned_integer(least, most) : otherwise;
}

uint32_t number_of(const JsonView& view, const NameIndex& names, std::string_view what) {
  const std::string& name = view.name();
  if (const auto number = names.find(name)) return *number;
  view.fail(text(what, " ", base::quoted(name), " does not exist"));
}

// One number for each dimension of the grid as written; those that it lacks keep their value.
template <class Value>
void read_dimensions(const JsonView& view, std::string_view key, const Record& record, uint64_t least, uint64_t most,
                     std::array<Value, MKRT_TILE_DIMENSIONS>& out) {
  const auto array = view.find(key);
  if (!array) return;
  if (array->expect_array() != record.dimensions) {
    array->fail(text("needs one element for each of the grid's ", record.dimensions, " dimensions"));
  }
  for (uint32_t d = 0; d < record.dimensions; ++d) {
    out[d] = static_cast<Value>(array->element(d).unsigned_integer(least, most));
  }
}

void read_grid(const JsonView& view, Record& out) {
  out.dimensions = static_cast<uint32_t>(view.expect_array(1, MKRT_TILE_DIMENSIONS));
  for (uint32_t d = 0; d < out.dimensions; ++d) {
    const uint64_t size = view.element(d).unsigned_integer(1, max_record_tiles);
    out.grid[d] = static_cast<uint32_t>(size);
    if (!checked_multiply(out.tile_count, size) || out.tile_count > max_record_tiles) {
      view.fail(text("makes more than ", max_record_tiles, " tiles"));
    }
  }
}

mkrt_rank_selector read_rank(const JsonView& view, const Record& record, uint32_t rank_count) {
  if (view.is_string()) {
    const std::string& name = view.string(0, SIZE_MAX);
    if (name == "self") return {MKRT_RANK_SELF, 0xff, 0};
    if (name == "all") return {MKRT_RANK_ALL, 0xff, 0};
    view.fail(text(base::quoted(name), " is not \"self\", \"all\", a rank or an object"));
  }
  if (!view.is_object()) {
    return {MKRT_RANK_FIXED, 0xff, static_cast<uint16_t>(view.unsigned_integer(0, rank_count - 1))};
  }
  view.expect_members({"offset"}, {"dimension"});
  mkrt_rank_selector out{MKRT_RANK_RELATIVE, 0xff, 0};
  out.offset = static_cast<uint16_t>(view.member("offset").unsigned_integer(0, rank_count - 1));
  if (const auto dimension = view.find("dimension")) {
    out.dimension = static_cast<uint8_t>(dimension->unsigned_integer(0, record.dimensions - 1));
  }
  return out;
}

/* ---- operands --------------------------------------------------------------------------------------------------- */

// Elements from the first tile's slice to the last one's; nothing where that does not fit.
std::optional<uint64_t> largest_index_sum(const Operand& operand, const Record& record) {
  uint64_t sum = 0;
  for (uint32_t d = 0; d < MKRT_TILE_DIMENSIONS; ++d) {
    uint64_t part = operand.strides[d];
    if (!checked_multiply(part, record.grid[d] - 1) || !checked_add(sum, part)) return std::nullopt;
  }
  return sum;
}

// Whether the last byte of all tiles and ranks has an offset of 63 bits.
bool extent_fits(const Operand& operand, uint64_t index_sum, uint32_t rank_count, uint64_t element_size) {
  uint64_t end = operand.offset;
  uint64_t rank_share = operand.rank_stride;
  uint64_t rows = operand.row_stride;
  return checked_multiply(rank_share, rank_count - 1) && checked_multiply(rows, operand.rows - 1) &&
         checked_add(end, rank_share) && checked_add(end, index_sum) && checked_add(end, rows) &&
         checked_add(end, operand.size) && checked_multiply(end, element_size);
}

void read_slice(const JsonView& view, const Record& record, const Tensor& tensor, uint32_t rank_count, Operand& out) {
  out.offset = count_or(view, "offset", 0, 0, max_count);
  out.rank_stride = count_or(view, "rank_stride", 0, 0, max_count);
  out.size = count_or(view, "size", tensor.elements, 1, max_count);
  out.rows = static_cast<uint32_t>(count_or(view, "rows", 1, 1, UINT32_MAX));
  out.row_stride = count_or(view, "row_stride", 0, 0, max_count);
  if (out.rows > 1 && !view.find("row_stride")) view.fail("has several rows but no \"row_stride\"");
  read_dimensions(view, "strides", record, 0, max_count, out.strides);
  const auto index_sum = largest_index_sum(out, record);
  if (!index_sum || !extent_fits(out, *index_sum, rank_count, dtype_size(tensor.dtype))) {
    view.fail("ends at a byte that does not fit in 63 bits");
  }
  out.limit = count_or(view, "limit", *index_sum + out.size, 1, max_count);
  if (const auto rank = view.find("rank")) out.rank = read_rank(*rank, record, rank_count);
}

// What the operand's access mode allows.
void check_access(const JsonView& view, const Operand& operand, const Tensor& tensor,
                  const OperandDefinition& definition) {
  if (std::find(definition.dtypes.begin(), definition.dtypes.end(), tensor.dtype) == definition.dtypes.end()) {
    view.fail(text("tensor ", base::quoted(tensor.name), " has dtype ", dtype_name(tensor.dtype),
                   ", which the opcode does not take here"));
  }
  if (tensor.kind == MKRT_TENSOR_WEIGHT && is_write(definition.access)) {
    view.fail(text("writes to the weight ", base::quoted(tensor.name)));
  }
  if (tensor.kind == MKRT_TENSOR_WEIGHT && operand.rank.mode != MKRT_RANK_SELF) {
    view.fail(text("names another rank's weight ", base::quoted(tensor.name)));
  }
  if (operand.rank.mode == MKRT_RANK_ALL && !may_name_all_ranks(definition.access)) {
    view.fail("reads from \"all\" ranks");
  }
}

Operand read_operand(const JsonView& view, const Record& record, const RecordContext& context,
                     const OperandDefinition& definition) {
  Operand out;
  if (view.is_string()) {
    out.tensor = number_of(view, context.tensors, "tensor");
    out.size = out.limit = context.program.tensors[out.tensor].elements;
  } else {
    view.expect_members({"tensor"},
                        {"offset", "rank_stride", "size", "rows", "row_stride", "strides", "limit", "rank"});
    out.tensor = number_of(view.member("tensor"), context.tensors, "tensor");
    read_slice(view, record, context.program.tensors[out.tensor], context.program.rank_count, out);
  }
  check_access(view, out, context.program.tensors[out.tensor], definition);
  return out;
}

template <class Definition>
void expect_known(const JsonView& view, const std::vector<Definition>& definitions, std::string_view what,
                  const std::string& opcode) {
  view.each_member([&](const std::string& name, const JsonView&) {
    const bool known = std::any_of(definitions.begin(), definitions.end(),
                                   [&](const Definition& definition) { return definition.name == name; });
    if (!known) view.fail(text("opcode ", base::quoted(opcode), " has no ", what, " ", base::quoted(name)));
  });
}

void read_operands(const JsonView& view, const RecordContext& context, const OpcodeDefinition& opcode, Record& out) {
  expect_known(view, opcode.operands, "operand", opcode.name);
  for (const OperandDefinition& definition : opcode.operands) {
    const auto operand = view.find(definition.name);
    if (!operand && !definition.optional) view.fail(text("lacks the operand ", base::quoted(definition.name)));
    out.operands.push_back(operand ? std::optional(read_operand(*operand, out, context, definition)) : std::nullopt);
  }
}

/* ---- parameters, waits, signals --------------------------------------------------------------------------------- */

uint32_t read_parameter(const JsonView& view, ParameterType type) {
  switch (type) {
    case ParameterType::u32: return static_cast<uint32_t>(view.unsigned_integer(0, UINT32_MAX));
    case ParameterType::i32: return static_cast<uint32_t>(view.integer(INT32_MIN, INT32_MAX));
    case ParameterType::f32: break;
  }
  return std::bit_cast<uint32_t>(view.number());
}

void read_parameters(const JsonView& record, const OpcodeDefinition& opcode, Record& out) {
  const auto view = record.find("parameters");
  if (view) expect_known(*view, opcode.parameters, "parameter", opcode.name);
  for (const ParameterDefinition& definition : opcode.parameters) {
    const auto value = view ? view->find(definition.name) : std::nullopt;
    if (!value) (view ? *view : record).fail(text("lacks the parameter ", base::quoted(definition.name)));
    out.parameters.push_back(read_parameter(*value, definition.type));
  }
}

// The part that waits and signals share: which counters.
template <class Reference>
void read_counters(const JsonView& view, const JsonView& name, const Record& record, const RecordContext& context,
                   Reference& out) {
  out.array = number_of(name, context.counters, "counter");
  out.counter = context.arrays[out.array].first;
  if (!view.is_object()) return;
  out.counter += static_cast<uint32_t>(count_or(view, "offset", 0, 0, max_entry_counters));
  read_dimensions(view, "strides", record, 0, max_entry_counters, out.strides);
  read_dimensions(view, "divide", record, 1, UINT32_MAX, out.divide);
}

Wait read_wait(const JsonView& view, const Record& record, const RecordContext& context) {
  Wait out;
  if (view.is_string()) {
    read_counters(view, view, record, context, out);
    return out;
  }
  view.expect_members({"counter"}, {"offset", "count", "strides", "divide", "value", "step"});
  read_counters(view, view.member("counter"), record, context, out);
  out.count = static_cast<uint32_t>(count_or(view, "count", 1, 1, max_entry_counters));
  out.value = static_cast<uint32_t>(count_or(view, "value", 0, 1, max_counter_value));
  if (const auto step = view.find("step")) out.step_offset = static_cast<int32_t>(step->integer(-1, 0));
  return out;
}

Signal read_signal(const JsonView& view, const Record& record, const RecordContext& context) {
  Signal out;
  if (view.is_string()) {
    read_counters(view, view, record, context, out);
    return out;
  }
  view.expect_members({"counter"}, {"offset", "strides", "divide", "rank"});
  read_counters(view, view.member("counter"), record, context, out);
  if (const auto rank = view.find("rank")) out.rank = read_rank(*rank, record, context.program.rank_count);
  return out;
}

}  // namespace

Record read_record(const JsonView& view, const RecordContext& context) {
  view.expect_members({"op", "tiles", "operands"}, {"label", "parameters", "wait", "signal"});
  Record out;
  if (const auto label = view.find("label")) out.label = label->string(0, max_name_bytes);
  out.opcode = number_of(view.member("op"), context.opcodes, "opcode");
  const OpcodeDefinition& opcode = context.program.isa.opcodes[out.opcode];
  read_grid(view.member("tiles"), out);
  read_parameters(view, opcode, out);
  read_operands(view.member("operands"), context, opcode, out);
  if (const auto waits = view.find("wait")) {
    waits->expect_array(0, MKRT_RECORD_WAITS);
    waits->each_element([&](const JsonView& wait) { out.waits.push_back(read_wait(wait, out, context)); });
  }
  if (const auto signals = view.find("signal")) {
    signals->expect_array(0, MKRT_RECORD_SIGNALS);
    signals->each_element([&](const JsonView& signal) { out.signals.push_back(read_signal(signal, out, context)); });
  }
  return out;
}

}  // namespace mkrt::package
