#include "verify/slices.hpp"

#include "base/failure.hpp"
#include "verify/arithmetic.hpp"
#include "verify/groups.hpp"

namespace mkrt::verify {
namespace {

using package::Constraint;
using package::ConstraintFactor;
using package::Operand;
using package::Record;
using package::Tensor;

// A factor's products and its share of the constraint's name.
constexpr uint64_t kConstraintSteps = 16;

// One operand of one record, with the texts that its failures need.
struct Slice {
  const Context& context;
  uint32_t record_index;
  const Record& record;
  const package::OperandDefinition& definition;
  const Operand& operand;
  const Tensor& tensor;

  std::string text() const {
    return base::text("operand ", base::quoted(definition.name), " on tensor ", base::quoted(tensor.name));
  }
  [[noreturn]] void fail(const std::string& problem) const {
    fail_record(context, record_index, base::text(text(), " ", problem));
  }
  [[noreturn]] void fail_last_tile(uint32_t rank, const std::string& problem) const {
    fail_tile(context, record_index, record.tile_count - 1, rank, base::text(text(), " ", problem));
  }
};

void check_selector(const Slice& slice, const mkrt_rank_selector& selector) {
  if (slice.definition.constant && slice.tensor.kind != MKRT_TENSOR_WEIGHT) {
    slice.fail("is no weight, but the instruction may read it before it waits");
  }
  if (slice.tensor.kind == MKRT_TENSOR_WEIGHT) {
    if (package::is_write(slice.definition.access)) slice.fail("is written, but weights are constant");
    if (selector.mode != MKRT_RANK_SELF) slice.fail("names another rank, but weights exist only on their own");
  }
  if (selector.mode == MKRT_RANK_ALL && !package::may_name_all_ranks(slice.definition.access)) {
    slice.fail("is read from all ranks; only operands of access \"write\" or \"gather\" may name all");
  }
}

// Tiles that share an append slice decide by what they read which of them writes what: they must read the same. What
// they append to is part of that: those that count in one slice which of them is last may write another one then.
void check_sharing(const Slice& slice) {
  for (uint32_t d : slice.definition.shared_dimensions) {
    if (slice.record.grid[d] == 1 || slice.operand.strides[d] != 0) continue;
    for (size_t other = 0; other < slice.record.operands.size(); ++other) {
      const package::OperandDefinition& definition = slice.context.opcode(slice.record_index).operands[other];
      const std::optional<Operand>& operand = slice.record.operands[other];
      if (!operand || definition.access == package::Access::write) continue;
      const bool same_rank = operand->rank.mode != MKRT_RANK_RELATIVE || operand->rank.dimension != d;
      if (operand->strides[d] == 0 && same_rank) continue;
      slice.fail(base::text("is shared by tiles that differ in dimension ", d, ", in which operand ",
                            base::quoted(definition.name), " differs; they must read and append to the same"));
    }
  }
}

// Everything becomes bytes in the encoded table, so everything must fit in 63 bits as bytes, used or not.
void check_magnitudes(const Slice& slice) {
  const Operand& operand = slice.operand;
  const uint64_t element = package::dtype_size(slice.tensor.dtype);
  const auto check = [&](Checked elements, const char* what) {
    if (!(elements * element).fits_63_bits()) slice.fail(base::text("has a ", what, " that is too large"));
  };
  check(operand.offset, "offset");
  check(Checked(operand.rank_stride) * (slice.context.rank_count() - 1), "rank_stride");
  for (uint64_t stride : operand.strides) check(stride, "stride");
  check(operand.size, "size");
  check(operand.limit, "limit");
  check(operand.row_stride, "row_stride");
}

// Strides are not negative, so the last tile's last row on the last rank ends last: if it lies in the tensor, all do.
void check_bounds(const Slice& slice) {
  const Operand& operand = slice.operand;
  const uint32_t last_rank = slice.context.rank_count() - 1;
  Checked start = 0;
  for (size_t d = 0; d < operand.strides.size(); ++d) {
    start = start + Checked(slice.record.grid[d] - 1) * operand.strides[d];
  }
  const Checked row_end = start + operand.size;
  if (!row_end.fits_63_bits()) slice.fail_last_tile(0, "starts beyond 63 bits");
  if (start.value() >= operand.limit) {
    slice.fail_last_tile(0, base::text("starts at ", start.value(), ", which is not below its limit ", operand.limit));
  }
  if (slice.definition.whole && row_end.value() > operand.limit) {
    slice.fail_last_tile(0, base::text("ends at ", row_end.value(), ", beyond its limit ", operand.limit,
                                       ", but the instruction needs all of it"));
  }
  const uint64_t cut_end = row_end.value() < operand.limit ? row_end.value() : operand.limit;
  const Checked end = Checked(operand.offset) + Checked(operand.rank_stride) * last_rank +
                      Checked(operand.rows - 1) * operand.row_stride + cut_end;
  if (!end.fits_63_bits()) slice.fail_last_tile(last_rank, "ends beyond 63 bits");
  if (end.value() > slice.tensor.elements) {
    slice.fail_last_tile(last_rank,
                         base::text("ends at element ", end.value(), ", but the tensor has ", slice.tensor.elements));
  }
}

// `factor` in `record`; absent operands were sorted out before.
Checked factor_value(const ConstraintFactor& factor, const Record& record) {
  uint64_t value = factor.constant;
  switch (factor.kind) {
    case ConstraintFactor::Kind::constant: break;
    case ConstraintFactor::Kind::parameter: value = record.parameters[factor.index]; break;
    case ConstraintFactor::Kind::operand_size: value = record.operands[factor.index]->size; break;
    case ConstraintFactor::Kind::operand_rows: value = record.operands[factor.index]->rows; break;
    case ConstraintFactor::Kind::grid: value = record.grid[factor.index]; break;
  }
  if (factor.pad_to <= 1) return value;
  return (Checked(value / factor.pad_to) + (value % factor.pad_to == 0 ? 0 : 1)) * factor.pad_to;
}

Checked product_value(const std::vector<ConstraintFactor>& product, const Record& record) {
  Checked value = 1;
  for (const ConstraintFactor& factor : product) value = value * factor_value(factor, record);
  return value;
}

bool names_absent_operand(const std::vector<ConstraintFactor>& product, const Record& record) {
  for (const ConstraintFactor& factor : product) {
    const bool of_operand =
        factor.kind == ConstraintFactor::Kind::operand_size || factor.kind == ConstraintFactor::Kind::operand_rows;
    if (of_operand && !record.operands[factor.index]) return true;
  }
  return false;
}

bool holds(uint64_t left, Constraint::Relation relation, uint64_t right) {
  switch (relation) {
    case Constraint::Relation::equal: return left == right;
    case Constraint::Relation::less_equal: return left <= right;
    case Constraint::Relation::greater_equal: return left >= right;
  }
  return false;
}

void check_constraint(const Context& context, uint32_t record_index, const Constraint& constraint) {
  const Record& record = context.entry.records[record_index];
  if (names_absent_operand(constraint.left, record) || names_absent_operand(constraint.right, record)) return;
  const Checked left = product_value(constraint.left, record);
  const Checked right = product_value(constraint.right, record);
  const std::string name =
      "constraint \"" + constraint.text + "\" of opcode " + base::quoted(context.opcode(record_index).name);
  if (!left.fits() || !right.fits()) fail_record(context, record_index, name + " overflows 64 bits");
  if (!holds(left.value(), constraint.relation, right.value())) {
    fail_record(context, record_index,
                base::text(name, " does not hold: its sides are ", left.value(), " and ", right.value()));
  }
}

}  // namespace

void check_slices(const Context& context, uint32_t record_index, Effort& effort) {
  const Record& record = context.entry.records[record_index];
  const package::OpcodeDefinition& opcode = context.opcode(record_index);
  for (size_t number = 0; number < record.operands.size(); ++number) {
    if (!record.operands[number]) continue;
    const Operand& operand = *record.operands[number];
    const Slice slice{
        context, record_index, record, opcode.operands[number], operand, context.program.tensors[operand.tensor]};
    check_rank_selector(context, record_index, operand.rank, slice.text());
    check_selector(slice, operand.rank);
    check_sharing(slice);
    check_magnitudes(slice);
    check_bounds(slice);
  }
  for (const Constraint& constraint : opcode.constraints) {
    effort.charge(kConstraintSteps * (constraint.left.size() + constraint.right.size()));
    check_constraint(context, record_index, constraint);
  }
}

}  // namespace mkrt::verify
