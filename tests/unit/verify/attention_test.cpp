// Records of mkrt.llm's own attention, as its definition has it, that would write to a row from two tiles.
#include "builder.hpp"
#include "package/isa.hpp"

namespace mkrt::verify::test {
namespace {

// One attention record over 3 sequences, 2 key-value heads and 4 splits, and operands by their names.
class Attention {
 public:
  static constexpr uint32_t kBatch = 3, kHeads = 2, kSplits = 4;
  static constexpr uint32_t kGroup = 2, kHeadSize = 4, kContext = 8;
  static constexpr uint64_t kRows = kContext * kHeadSize;

  Attention() {
    program_.isa = package::read_isa(MKRT_SOURCE_DIR "/isa/mkrt.llm.json");
    program_.entries.emplace_back().name = "decode";
    package::Entry& entry = program_.entries.back();
    entry.counters = {{"done", 0, 1}};
    entry.counter_count = 1;
    entry.tile_count = uint64_t{kBatch} * kHeads * kSplits;
    package::Record record;
    record.label = "attention";
    const auto opcode = std::find_if(program_.isa.opcodes.begin(), program_.isa.opcodes.end(),
                                     [](const package::OpcodeDefinition& o) { return o.name == "attention"; });
    record.opcode = static_cast<uint32_t>(opcode - program_.isa.opcodes.begin());
    record.grid = {kBatch, kHeads, kSplits, 1};
    record.dimensions = 3;
    record.tile_count = entry.tile_count;
    record.operands.resize(opcode->operands.size());
    record.parameters = {kGroup, kHeadSize, kContext, kSplits, 0, 0};
    record.waits.emplace_back().step_offset = -1;
    record.signals.emplace_back();
    entry.records.push_back(record);
    add("position", 1, {1, 0, 0});
    add("rotation", kHeadSize, {kHeadSize, 0, 0});
    add("q", kGroup * kHeadSize, {kHeads * kGroup * kHeadSize, kGroup * kHeadSize, 0});
    add("k", kHeadSize, {kHeads * kHeadSize, kHeadSize, 0});
    add("v", kHeadSize, {kHeads * kHeadSize, kHeadSize, 0});
    add("k_cache", kRows, {kHeads * kRows, kRows, 0});
    add("v_cache", kRows, {kHeads * kRows, kRows, 0});
    constexpr uint64_t out = kGroup * kHeadSize;
    add("out", out, {kHeads * out, out, 0});
    constexpr uint64_t workspace = uint64_t{kSplits} * kGroup * 16 * 3;
    add("workspace", workspace, {kHeads * workspace, workspace, 0});
  }

  std::optional<package::Operand>& operand(const std::string& name) {
    package::Record& record = program_.entries[0].records[0];
    const std::vector<package::OperandDefinition>& all = program_.isa.opcodes[record.opcode].operands;
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const package::OperandDefinition& o) { return o.name == name; });
    REQUIRE(found != all.end());
    return record.operands[static_cast<size_t>(found - all.begin())];
  }
  package::Program& program() { return program_; }

 private:
  // On a tensor of its own, with room for strides that are changed later.
  void add(const std::string& name, uint64_t size, const std::array<uint64_t, 3>& strides) {
    package::Tensor tensor;
    tensor.name = name;
    tensor.elements = 16384;
    tensor.shape = {tensor.elements};
    tensor.size_bytes = tensor.elements * 4;
    tensor.kind = MKRT_TENSOR_STATE;
    package::Operand slice;
    slice.tensor = static_cast<uint32_t>(program_.tensors.size());
    slice.size = size;
    slice.limit = 16384;
    std::copy(strides.begin(), strides.end(), slice.strides.begin());
    program_.tensors.push_back(tensor);
    operand(name) = slice;
  }

  package::Program program_;
};

constexpr std::array kShared{"k_cache", "v_cache", "out", "workspace"};

TEST_CASE("splits of one head share its caches, its result and its workspace") {
  CHECK_NOTHROW(check(Attention().program()));
}

TEST_CASE("sequences or heads that would write to the same places are refused") {
  for (const char* shared : kShared) {
    Attention attention;
    attention.operand(shared)->strides[0] = 0;
    check_refused(attention.program(), 0, Attention::kHeads * Attention::kSplits, 0, {"tile 0 [0, 0, 0]", shared});
    Attention other;
    other.operand(shared)->strides[1] = 0;
    check_refused(other.program(), 0, Attention::kSplits, 0, {"tile 0 [0, 0, 0]", shared});
  }
}

TEST_CASE("splits that share a cache must agree on the position, and on all else that they read") {
  for (const char* input : {"position", "rotation", "q", "k", "v"}) {
    Attention attention;
    attention.operand(input)->strides[2] = 1;
    const Refusal found = refusal(attention.program());
    CHECK_MESSAGE(contains(found.message, "differ in dimension 2"), found.message);
    CHECK_MESSAGE(contains(found.message, base::quoted(input)), found.message);
  }
  Attention with_ranks;
  with_ranks.operand("position")->rank = relative_rank(0, 2);
  CHECK(contains(refusal(with_ranks.program()).message, "differ in dimension 2"));
}

void give_splits_their_own(package::Operand& slice) {
  slice.strides = {Attention::kHeads * Attention::kSplits * slice.size, Attention::kSplits * slice.size, slice.size};
}

// Splits count in the workspace which of them comes last: where each had its own, all would write the shared result.
TEST_CASE("splits share their caches, their result and their workspace together or not at all") {
  Attention none;
  for (const char* own : kShared) {
    Attention attention;
    give_splits_their_own(*attention.operand(own));
    const Refusal found = refusal(attention.program());
    CHECK_MESSAGE(contains(found.message, "differ in dimension 2"), found.message);
    CHECK_MESSAGE(contains(found.message, base::quoted(own)), found.message);
    give_splits_their_own(*none.operand(own));
  }
  CHECK_NOTHROW(check(none.program()));
}

TEST_CASE("splits that share only parts of a result or a workspace are refused") {
  for (const char* shared : {"out", "workspace"}) {
    Attention attention;
    for (const char* own : kShared) give_splits_their_own(*attention.operand(own));
    attention.operand(shared)->strides[2] = 4;
    const Refusal found = refusal(attention.program());
    CHECK(found.record == 0);
    CHECK_MESSAGE(contains(found.message, base::quoted(shared)), found.message);
    CHECK_MESSAGE(contains(found.message, "no counter orders the two"), found.message);
  }
}

}  // namespace
}  // namespace mkrt::verify::test
