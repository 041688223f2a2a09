// Random small schedules against the oracle: what is accepted is clean, and what is clean is accepted.
#include <random>

#include "builder.hpp"
#include "oracle.hpp"

namespace mkrt::verify::test {
namespace {

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed) {}

  package::Program make() {
    ranks_ = pick({1, 1, 2, 3});
    Builder builder(ranks_);
    tensors_.clear();
    arrays_.clear();
    const uint32_t tensor_count = between(1, 3);
    for (uint32_t t = 0; t < tensor_count; ++t) tensors_.push_back(builder.tensor("t" + std::to_string(t), 48));
    const uint32_t record_count = pick({1, 2, 3, 4, 5, 6});
    for (uint32_t r = 0; r < record_count; ++r) add_record(builder, r);
    close_loop(builder);
    return builder.program();
  }

  // A small change somewhere: most break the schedule, or come close to it.
  void mutate(package::Program& program) {
    package::Entry& entry = program.entries[0];
    package::Record& record = entry.records[random_() % entry.records.size()];
    switch (between(0, 9)) {
      case 0:
        if (!record.waits.empty()) record.waits.erase(record.waits.begin() + random_() % record.waits.size());
        break;
      case 1:
        if (!record.waits.empty()) mutate_wait(entry, record);
        break;
      case 2:
        if (!record.signals.empty()) mutate_signal(record);
        break;
      case 3:
        if (!record.waits.empty()) record.waits.push_back(record.waits.front()), mutate_wait(entry, record);
        record.waits.resize(std::min<size_t>(record.waits.size(), 4));
        break;
      default:
        if (!record.operands.empty()) mutate_operand(record);
    }
  }

  uint32_t between(uint32_t low, uint32_t high) { return low + random_() % (high - low + 1); }
  bool chance(uint32_t percent) { return random_() % 100 < percent; }
  std::mt19937& random() { return random_; }

 private:
  // A counter array and how its record's tiles signal it.
  struct Array {
    uint32_t number = 0;
    uint32_t size = 1;
    uint32_t grid = 1;      // of the record, first dimension
    uint32_t divide = 1;    // tiles of the first dimension to one counter
    uint64_t per_tile = 0;  // elements that a tile of the record writes to `tensor`, side by side; 0: otherwise
    uint32_t tensor = 0;
    bool to_all = false;
  };

  uint32_t pick(std::initializer_list<uint32_t> values) { return *(values.begin() + random_() % values.size()); }

  void add_record(Builder& builder, uint32_t r) {
    const uint32_t rows = pick({1, 2, 3, 4});
    const std::vector<uint32_t> grid = chance(30) ? std::vector<uint32_t>{rows, between(1, 2)} : std::vector{rows};
    Array own;
    own.grid = rows;
    own.divide = pick({1, 2, rows});
    if (rows % own.divide != 0 && chance(80)) own.divide = 1;  // otherwise the last counter gets less than the others
    own.size = (rows - 1) / own.divide + 1;
    own.to_all = ranks_ > 1 && chance(80);
    own.number = builder.counter("c" + std::to_string(r), own.size);
    builder.record("r" + std::to_string(r), grid);
    if (!arrays_.empty()) {
      if (chance(40)) {
        add_pipelined(builder, own);
      } else {
        add_after_all(builder, own);
      }
    } else {
      add_write(builder, own);
    }
    if (chance(20)) add_any_operand(builder);
    builder.signal({.counter = own.number,
                    .strides = {1},
                    .divide = {own.divide, 1, 1, 1},
                    .rank = own.to_all ? kAll : (ranks_ > 1 && chance(20) ? relative_rank(1) : kSelf)});
    if (chance(10)) builder.signal({.counter = own.number, .rank = any_rank(grid.size())});
    arrays_.push_back(own);
  }

  mkrt_rank_selector any_rank(size_t dimensions) {
    switch (between(0, 3)) {
      case 0: return kAll;
      case 1: return fixed_rank(static_cast<uint16_t>(random_() % ranks_));
      case 2: return relative_rank(static_cast<uint16_t>(random_() % 4), static_cast<uint8_t>(random_() % dimensions));
      default: return relative_rank(static_cast<uint16_t>(random_() % 4));
    }
  }

  // Reads the part of an earlier record's output that is ready.
  void add_pipelined(Builder& builder, Array& own) {
    const Array& source = chance(90) ? arrays_.back() : arrays_[random_() % arrays_.size()];
    const uint32_t tiles_each = std::max<uint32_t>(1, source.grid / own.grid);
    const uint32_t counters_each = std::max<uint32_t>(1, tiles_each / source.divide);
    if (counters_each * own.grid > source.size) return add_after_all(builder, own);
    builder.wait({.counter = source.number, .count = counters_each, .strides = {counters_each}});
    if (source.per_tile != 0) {
      const uint64_t size = source.per_tile * counters_each * source.divide;
      if (size * own.grid <= 48) builder.read({.tensor = source.tensor, .size = size, .strides = {size}});
    }
    if (chance(80)) add_write(builder, own);
  }

  void add_after_all(Builder& builder, Array& own) {
    const Array& source = chance(90) ? arrays_.back() : arrays_[random_() % arrays_.size()];
    builder.wait({.counter = source.number, .count = source.size, .value = chance(5) ? 1u : 0u});
    if (chance(70)) builder.read({.tensor = tensors_[random_() % tensors_.size()]});
    if (chance(80)) add_write(builder, own);
  }

  // Slices of different tiles side by side, in one of several forms.
  void add_write(Builder& builder, Array& own) {
    const uint32_t columns = builder.last_record().grid[1];
    Slice slice{.tensor = tensors_[random_() % tensors_.size()]};
    if (chance(50)) {  // all of a tile in one piece
      slice.size = between(1, 3);
      slice.strides = {slice.size * columns, slice.size};
      own.tensor = slice.tensor;
      own.per_tile = slice.size * columns;
    } else {  // columns of a matrix
      const uint64_t width = uint64_t{own.grid} * columns * 2;
      slice.size = 2;
      slice.strides = {2 * uint64_t{columns}, 2};
      slice.rows = 2;
      slice.row_stride = width - (chance(30) ? 1 : 0);
      if (slice.row_stride < width) slice.limit = chance(80) ? width - 1 : 0;
    }
    if (ranks_ > 1 && chance(40)) {
      slice.rank = chance(50) ? kAll : relative_rank(1, chance(50) ? 0 : 0xff);
      slice.rank_stride = 48 / ranks_;
      slice.size = 1;
      slice.rows = 1;
      slice.limit = 0;
      own.per_tile = 0;
    }
    builder.operand(chance(25) ? Access::read_write : Access::write, slice);
    if (chance(30)) builder.operand(slice.rank.mode == MKRT_RANK_ALL ? Access::gather : Access::read, slice);
  }

  void add_any_operand(Builder& builder) {
    Slice slice{.tensor = tensors_[random_() % tensors_.size()]};
    slice.offset = random_() % 8;
    slice.size = between(1, 4);
    slice.strides = {random_() % 8, random_() % 4};
    slice.rows = between(1, 2);
    slice.row_stride = random_() % 10;
    const Access access = static_cast<Access>(pick({0, 0, 0, 1, 2, 3, 3, 4}));
    if (access == Access::append && chance(50)) slice.strides[1] = 0;
    if (access == Access::append && chance(20)) slice.strides[0] = 0;
    if (ranks_ > 1 && chance(40)) slice.rank = any_rank(builder.last_record().dimensions);
    if (!package::may_name_all_ranks(access) && slice.rank.mode == MKRT_RANK_ALL) slice.rank = kSelf;
    if (access != Access::append) {
      builder.operand(access, slice);
      return;
    }
    std::vector<uint32_t> shared_dimensions;
    for (uint32_t d = 0; d < 2; ++d) {
      if (chance(60)) shared_dimensions.push_back(d);
    }
    builder.append(slice, shared_dimensions);
  }

  // The first records wait for the last ones of the step before.
  void close_loop(Builder& builder) {
    const Array& last = arrays_.back();
    for (package::Record& record : builder.entry().records) {
      const bool is_first = &record == &builder.entry().records.front();
      if (!chance(is_first ? 95 : 15) || record.waits.size() == 4) continue;
      package::Wait wait;
      wait.array = last.number;
      wait.counter = builder.entry().counters[last.number].first;
      wait.count = last.size;
      wait.step_offset = -1;
      record.waits.push_back(wait);
    }
  }

  void mutate_wait(package::Entry& entry, package::Record& record) {
    package::Wait& wait = record.waits[random_() % record.waits.size()];
    switch (between(0, 4)) {
      case 0: wait.value = between(0, 3); break;
      case 1: wait.count = between(1, 2); break;
      case 2: wait.strides[0] = between(0, 1); break;
      case 3: wait.divide[0] = between(1, 3); break;
      default:
        wait.array = static_cast<uint32_t>(random_() % entry.counters.size());
        wait.counter = entry.counters[wait.array].first;
        wait.count = 1;
    }
  }

  void mutate_signal(package::Record& record) {
    package::Signal& signal = record.signals[random_() % record.signals.size()];
    switch (between(0, 2)) {
      case 0: signal.divide[0] = between(1, 3); break;
      case 1: signal.strides[0] = between(0, 1); break;
      default: signal.rank = any_rank(record.dimensions);
    }
  }

  void mutate_operand(package::Record& record) {
    package::Operand& operand = *record.operands[random_() % record.operands.size()];
    switch (between(0, 6)) {
      case 0: operand.offset += 1; break;
      case 1: operand.size += 1, operand.limit += 1; break;
      case 2: operand.strides[0] = random_() % 6; break;
      case 3: operand.row_stride += 1; break;
      case 4: operand.rank_stride = random_() % 12; break;
      case 5: operand.tensor = tensors_[random_() % tensors_.size()]; break;
      default: operand.limit = std::max<uint64_t>(1, operand.limit - 1);
    }
  }

  std::mt19937 random_;
  uint32_t ranks_ = 1;
  std::vector<uint32_t> tensors_;
  std::vector<Array> arrays_;
};

// Whether verify accepts the program; `words` becomes the refusal's sentence.
bool accepts(package::Program& program, std::string& words) {
  try {
    check(program);
    return true;
  } catch (const base::Failure& failure) {
    REQUIRE(failure.status() == MKRT_ERROR_SCHEDULE);
    words = failure.message();
    return false;
  }
}

// Whether the refusal is of something that the oracle takes as given.
bool is_about_form(const std::string& words) {
  for (const char* form : {"outside its", "ends at element", "below its limit", "from all ranks"}) {
    if (contains(words, form)) return true;
  }
  return false;
}

TEST_CASE("random schedules that are accepted are clean by brute force, and nearly all clean ones are accepted") {
  Generator generator(20261130);
  uint32_t clean = 0, accepted = 0, faulty = 0, large = 0;
  for (uint32_t round = 0; round < 20000; ++round) {
    package::Program program = generator.make();
    if (generator.chance(50)) generator.mutate(program);
    if (generator.chance(20)) generator.mutate(program);
    std::string words;
    const bool is_accepted = accepts(program, words);
    if (!is_accepted && is_about_form(words)) continue;
    const Oracle oracle(program);
    INFO("round " << round << ", refusal: " << words);
    (oracle.problem().empty() ? clean : faulty) += 1;
    if (!is_accepted) continue;
    REQUIRE(oracle.problem() == "");
    ++accepted;
    for (uint32_t r = 0; r < program.entries[0].records.size(); ++r) {
      const std::vector<package::Wait>& waits = program.entries[0].records[r].waits;
      for (uint32_t w = 0; w < waits.size(); ++w) CHECK(waits[w].step_total == oracle.step_total(r, w));
    }
    if (program.rank_count > 1 && program.entries[0].records.size() > 2) ++large;
    CHECK(oracle.one_worker_finishes(generator.random()));
    CHECK(oracle.random_run_has_no_race(generator.random()));
  }
  MESSAGE("clean " << clean << " (" << large << " large), of these accepted " << accepted << ", faulty " << faulty);
  CHECK(clean > 2000);
  CHECK(large > 300);
  CHECK(faulty > 2000);
  // The check refuses hardly anything that is clean: tiles that share an append slice otherwise than by strides of 0.
  CHECK(accepted * 1000 >= clean * 995);
}

TEST_CASE("what brute force calls a race is one when tiles really run at random") {
  Generator generator(7);
  uint32_t racy = 0, seen = 0;
  for (uint32_t round = 0; round < 2000; ++round) {
    package::Program program = generator.make();
    generator.mutate(program);
    std::string words;
    if (accepts(program, words) || is_about_form(words)) continue;
    const Oracle oracle(program);
    if (oracle.problem() != "a conflict without order") continue;
    ++racy;
    bool is_seen = false;
    for (uint32_t run = 0; run < 8 && !is_seen; ++run) is_seen = !oracle.random_run_has_no_race(generator.random());
    seen += is_seen ? 1 : 0;
  }
  MESSAGE("races " << racy << ", seen in eight runs " << seen);
  CHECK(racy > 300);
  CHECK(seen * 100 > racy * 95);
}

}  // namespace
}  // namespace mkrt::verify::test
