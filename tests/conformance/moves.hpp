// Data movement between ranks through the public interface: what must hold on every device and for every number of
// ranks. Fresh random numbers each time, against sums in float64; outputs are poisoned first.
#pragma once

#include <cmath>
#include <cstring>
#include <random>

#include "decoding.hpp"
#include "move_schedule.hpp"

namespace mkrt::test {

using tools::Move;
using tools::MoveSchedule;

inline MoveSchedule move_schedule(const Target& target) {
  MoveSchedule schedule(std::string(MKRT_SOURCE_DIR) + "/isa/mkrt.llm.json", target.ranks);
  mkrt::compile::Options options;
  if (target.prepare) target.prepare(options);
  for (const mkrt::compile::ImageFile& image : options.images) schedule.image(image.target, image.path);
  return schedule;
}

// ---- Numbers: elements as bytes and as float64 ----

inline std::mt19937_64& move_random() {
  static std::mt19937_64 engine([] {
    const char* wanted = std::getenv("MKRT_TEST_SEED");
    const uint64_t seed = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : std::random_device()();
    MESSAGE("MKRT_TEST_SEED=" << seed);
    return seed;
  }());
  return engine;
}
inline uint64_t random_below(uint64_t bound) { return move_random()() % bound; }

// The number that an element's bits mean, and the largest error of rounding `value` to that type.
struct ElementType {
  std::string name;
  int exponent_bits, mantissa_bits;

  uint64_t bytes() const { return tools::dtype_bytes(name); }
  double number(uint32_t bits) const {
    const int exponent = static_cast<int>(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
    const double mantissa = bits & ((1u << mantissa_bits) - 1);
    const double whole = exponent > 0 ? 1u << mantissa_bits : 0;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double magnitude = std::ldexp(mantissa + whole, std::max(exponent, 1) - bias - mantissa_bits);
    return bits >> (exponent_bits + mantissa_bits) & 1 ? -magnitude : magnitude;
  }
  double rounding(double value) const {
    const double least = std::ldexp(1.0, 2 - (1 << (exponent_bits - 1)));
    return std::max(std::abs(value), least) * std::ldexp(1.0, -mantissa_bits - 1);
  }
  // A number of moderate size.
  uint32_t random_bits() const {
    const uint32_t bias = (1u << (exponent_bits - 1)) - 1;
    const auto exponent = static_cast<uint32_t>(bias - 4 + random_below(8));
    const auto rest = static_cast<uint32_t>(move_random()());
    return (rest >> 31) << (exponent_bits + mantissa_bits) | exponent << mantissa_bits |
           (rest & ((1u << mantissa_bits) - 1));
  }
};
inline const ElementType kF32{"f32", 8, 23}, kF16{"f16", 5, 10}, kBf16{"bf16", 8, 7};

// ---- Cases: an entry each of one program ----

enum class Collective { push, pull, all_gather, reduce_scatter, all_reduce, reduce_everything, push_all_reduce };

struct MoveCase {
  Collective collective;
  ElementType type;
  uint64_t part = 1;  // elements of a rank: of the copy, of the gathered, of what a rank adds up
  uint32_t sms = 1;
  bool in_place = false;
  bool registers = false;
  uint64_t in_offset = 0, out_offset = 0;  // elements

  // Elements of both tensors that are looked at: some behind the last must stay as they are.
  uint64_t looked_at(uint32_t ranks) const {
    return std::max(in_offset + brings(ranks), out_offset + gets(ranks)) + 16;
  }
  bool sums() const { return collective >= Collective::reduce_scatter; }
  // Elements of the input that a rank brings, and of the output that it has in the end.
  uint64_t brings(uint32_t ranks) const {
    return collective == Collective::reduce_scatter || collective == Collective::all_reduce ? part * ranks : part;
  }
  uint64_t gets(uint32_t ranks) const {
    return collective == Collective::all_gather || collective == Collective::all_reduce ? part * ranks : part;
  }
};

inline void add_case(MoveSchedule& schedule, const MoveCase& of, const std::string& entry) {
  Move move;
  move.opcode = of.sums() ? "reduce_" + of.type.name : "copy";
  move.in = "in." + of.type.name;
  move.out = (of.in_place ? "in." : "out.") + of.type.name;
  move.element_bytes = of.type.bytes();
  move.elements = of.part;
  move.sms = of.sms;
  move.registers = of.registers;
  move.in_offset = of.in_offset;
  move.out_offset = of.out_offset;
  switch (of.collective) {
    case Collective::push: return add_alone(schedule, entry, tools::peer_copy(move, false, schedule.ranks()));
    case Collective::pull: return add_alone(schedule, entry, tools::peer_copy(move, true, schedule.ranks()));
    case Collective::all_gather: return add_alone(schedule, entry, tools::all_gather(move));
    case Collective::reduce_scatter: return add_alone(schedule, entry, tools::reduce_scatter(move));
    case Collective::all_reduce: return add_alone(schedule, entry, tools::all_reduce(move));
    case Collective::reduce_everything: return add_alone(schedule, entry, tools::reduce_everything(move));
    case Collective::push_all_reduce: return add_push_all_reduce(schedule, entry, move, "parts");
  }
}

// All of a tensor's elements on every rank, as bits.
using Instances = std::vector<std::vector<uint32_t>>;

// A program of cases on a mesh.
class Mover {
 public:
  Mover(const Target& target, const std::vector<MoveCase>& cases)
      : target_(target), package_(write(target, cases, most_)), mesh_(runtime_, target.rank_options()) {
    program_ = mkrt::Program(runtime_, folder_.path());
    executable_ = mkrt::Executable(program_, mesh_);
    session_ = mkrt::Session(executable_);
  }

  void run(uint32_t entry, const Way& way, uint32_t steps = 1) {
    mkrt::ExecuteOptions options;
    options.entry = entry;
    options.step_count = steps;
    options.queue_mode = way.queue_mode;
    options.worker_limit = way.workers;
    session_.wait(session_.execute(options));
  }
  void write(const std::string& tensor, const ElementType& type, const Instances& instances) {
    for (uint32_t rank = 0; rank < target_.ranks; ++rank) {
      std::vector<uint8_t> bytes(instances[rank].size() * type.bytes());
      for (size_t i = 0; i < instances[rank].size(); ++i) {
        std::memcpy(&bytes[i * type.bytes()], &instances[rank][i], type.bytes());
      }
      session_.write<uint8_t>(program_.find_tensor(tensor), bytes, 0, rank);
    }
  }
  // The first `count` elements.
  Instances read(const std::string& tensor, const ElementType& type, uint64_t count) const {
    Instances instances(target_.ranks);
    for (uint32_t rank = 0; rank < target_.ranks; ++rank) {
      std::vector<uint8_t> bytes(count * type.bytes());
      session_.read<uint8_t>(program_.find_tensor(tensor), bytes, 0, rank);
      instances[rank].assign(count, 0);
      for (size_t i = 0; i < count; ++i) std::memcpy(&instances[rank][i], &bytes[i * type.bytes()], type.bytes());
    }
    return instances;
  }

 private:
  bool write(const Target& target, const std::vector<MoveCase>& cases, uint64_t& out_most) const {
    MoveSchedule schedule = move_schedule(target);
    for (const MoveCase& of : cases) out_most = std::max(out_most, of.looked_at(target.ranks));
    for (const ElementType& type : {kF32, kF16, kBf16}) {
      schedule.tensor("in." + type.name, type.name, out_most);
      schedule.tensor("out." + type.name, type.name, out_most);
    }
    schedule.tensor("parts", "f32", out_most * target.ranks);
    for (size_t i = 0; i < cases.size(); ++i) add_case(schedule, cases[i], "case " + std::to_string(i));
    schedule.write(folder_.path());
    return true;
  }

  Target target_;
  uint64_t most_ = 0;
  TemporaryFolder folder_;
  bool package_;
  mkrt::Runtime runtime_;
  mkrt::Mesh mesh_;
  mkrt::Program program_;
  mkrt::Executable executable_;
  mkrt::Session session_;
};

// Elements of the input that output element `i` of `rank` comes from: one of one rank, or one of each.
struct Origin {
  uint32_t first_rank, rank_count;
  uint64_t element;
};
inline Origin origin_of(const MoveCase& of, uint32_t ranks, uint32_t rank, uint64_t i) {
  switch (of.collective) {
    case Collective::push: return {(rank + ranks - 1) % ranks, 1, i};
    case Collective::pull: return {(rank + 1) % ranks, 1, i};
    case Collective::all_gather: return {static_cast<uint32_t>(i / of.part), 1, of.in_place ? i : i % of.part};
    case Collective::reduce_scatter: return {0, ranks, rank * of.part + i};
    default: return {0, ranks, i};
  }
}

// Compares every element of every rank with what it must be; what the case does not write must be what it was.
inline void compare(const MoveCase& of, uint32_t ranks, const Instances& in, const Instances& before,
                    const Instances& after) {
  uint64_t wrong = 0;
  const auto expect = [&](bool right) { wrong += right ? 0 : 1; };
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    for (uint64_t i = 0; i < after[rank].size(); ++i) {
      const uint32_t bits = after[rank][i];
      if (i < of.out_offset || i >= of.out_offset + of.gets(ranks)) {
        expect(bits == before[rank][i]);
        continue;
      }
      const Origin from = origin_of(of, ranks, rank, i - of.out_offset);
      if (!of.sums()) {
        expect(bits == in[from.first_rank][of.in_offset + from.element]);
        continue;
      }
      double sum = 0, magnitudes = 0;
      for (uint32_t r = 0; r < ranks; ++r) {
        const double value = of.type.number(in[r][of.in_offset + from.element]);
        sum += value;
        magnitudes += std::abs(value);
      }
      const double f32_error = (ranks - 1) * magnitudes * 0x1p-24;
      const double value = of.type.number(bits);
      expect(std::abs(value - sum) <= f32_error + of.type.rounding(std::abs(sum) + f32_error));
      // Where all have the same sum they have its very bits.
      if (of.gets(ranks) == of.brings(ranks)) expect(bits == after[0][i]);
    }
  }
  CHECK(wrong == 0);
}

inline void check_case(Mover& mover, const Target& target, const MoveCase& of, uint32_t entry) {
  CAPTURE(static_cast<int>(of.collective));
  CAPTURE(of.type.name);
  CAPTURE(of.part);
  CAPTURE(of.sms);
  CAPTURE(of.in_place);
  CAPTURE(of.registers);
  CAPTURE(of.in_offset);
  CAPTURE(of.out_offset);
  const std::string out = (of.in_place ? "in." : "out.") + of.type.name;
  const uint64_t count = of.looked_at(target.ranks);
  Instances in(target.ranks), first;
  for (std::vector<uint32_t>& instance : in) {
    for (uint64_t i = 0; i < count; ++i) instance.push_back(of.type.random_bits());
  }
  const Instances poison(target.ranks, std::vector<uint32_t>(count, of.type.bytes() == 4 ? 0x7fc5a5a5 : 0x7fc5));
  for (const Way& way : target.ways) {
    CAPTURE(way.queue_mode);
    CAPTURE(way.workers);
    if (!of.in_place) mover.write(out, of.type, poison);
    mover.write("in." + of.type.name, of.type, in);
    // In place a second step would add sums up.
    mover.run(entry, way, of.in_place && of.sums() ? 1 : 3);
    const Instances result = mover.read(out, of.type, count);
    if (first.empty()) {
      first = result;
      compare(of, target.ranks, in, of.in_place ? in : poison, result);
    }
    CHECK(result == first);  // the same bits in every way to run
    if (!of.in_place) CHECK(mover.read("in." + of.type.name, of.type, count) == in);
  }
}

// Every collective, type and number of SMs, with sizes up to `largest` elements of a rank that divide by nothing, at
// places that are aligned and that are not.
inline std::vector<MoveCase> move_cases(uint64_t largest) {
  std::vector<MoveCase> cases;
  // Of every order of magnitude.
  const auto size = [&] { return 1 + random_below(largest >> random_below(10)); };
  for (const ElementType& type : {kF32, kF16, kBf16}) {
    for (const Collective collective :
         {Collective::push, Collective::pull, Collective::all_gather, Collective::reduce_scatter,
          Collective::all_reduce, Collective::reduce_everything}) {
      const bool may_be_in_place = collective == Collective::all_gather || collective == Collective::all_reduce;
      for (const uint32_t sms : {1u, 2u, 3u, 8u, 20u}) cases.push_back({collective, type, size(), sms});
      for (const bool registers : {false, true}) {
        cases.push_back({collective, type, 1, 4, false, registers});
        // Parts of 16 bytes and a multiple of them, so that a copy engine may do it.
        cases.push_back({collective, type, (size() + 15) / 16 * 16, 2, may_be_in_place, registers});
        cases.push_back({collective, type, largest / 16 * 16, 3, false, registers, 16, 32});
        cases.push_back({collective, type, size(), 3, may_be_in_place, registers});
        cases.push_back({collective, type, size(), 2, false, registers, 1 + random_below(7), random_below(9)});
      }
    }
  }
  for (const uint32_t sms : {1u, 3u}) cases.push_back({Collective::push_all_reduce, kF32, size(), sms});
  cases.push_back({Collective::push_all_reduce, kF32, 2048, 1, false, true});
  return cases;
}

inline void check_moves(const Target& target, uint64_t largest) {
  CAPTURE(target.ranks);
  CAPTURE(target.devices);
  const std::vector<MoveCase> cases = move_cases(largest);
  Mover mover(target, cases);
  for (uint32_t i = 0; i < cases.size(); ++i) check_case(mover, target, cases[i], i);
}

// A step that copies `source`, adds the copies up in place and gives the sum to the next rank.
inline MoveSchedule move_chain(const Target& target, uint64_t part) {
  using nlohmann::ordered_json;
  const uint64_t elements = part * target.ranks;
  MoveSchedule schedule = move_schedule(target);
  for (const char* name : {"source", "work", "result"}) schedule.tensor(name, "f32", elements);
  schedule.entry("chain", {"filled", "reduced", "taken"});
  const auto add = [&](const Move& move, const ordered_json& wait, const ordered_json& signal) {
    ordered_json record = tools::move_record(move);
    record["wait"] = ordered_json::array({wait});
    record["signal"] = ordered_json::array({signal});
    schedule.record(record);
  };
  const Move copy{"copy", "source", "work", 4, elements, 3};
  add(copy, {{"counter", "taken"}, {"step", -1}}, {{"counter", "filled"}, {"rank", "all"}});
  const Move sum{"reduce_f32", "work", "work", 4, part, 2};
  add(tools::all_reduce(sum), "filled", {{"counter", "reduced"}, {"rank", "all"}});
  const Move give{"copy", "work", "result", 4, elements, 2};
  add(tools::peer_copy(give, false, target.ranks), "reduced", {{"counter", "taken"}, {"rank", "self"}});
  return schedule;
}

// Many steps of it in a row from the same sources: an edge between ranks that is missing shows as a sum of sums.
inline void check_move_chain(const Target& target, uint64_t part, uint32_t steps) {
  CAPTURE(target.ranks);
  TemporaryFolder folder;
  const uint64_t elements = part * target.ranks;
  move_chain(target, part).write(folder.path());
  const mkrt::Runtime runtime;
  const mkrt::Mesh mesh(runtime, target.rank_options());
  const mkrt::Program program(runtime, folder.path());
  const mkrt::Executable executable(program, mesh);
  mkrt::Session session(executable);
  for (const Way& way : target.ways) {
    CAPTURE(way.queue_mode);
    CAPTURE(way.workers);
    std::vector<float> expected(elements, 0.0f);
    for (uint32_t rank = 0; rank < target.ranks; ++rank) {
      std::vector<float> values(elements);
      for (float& value : values) value = static_cast<float>(random_below(1000)) / 8;  // sums are exact
      for (size_t i = 0; i < elements; ++i) expected[i] += values[i];
      session.write<float>(program.find_tensor("source"), values, 0, rank);
      session.write<float>(program.find_tensor("result"), std::vector<float>(elements, NAN), 0, rank);
    }
    mkrt::ExecuteOptions options;
    options.step_count = steps;
    options.queue_mode = way.queue_mode;
    options.worker_limit = way.workers;
    session.wait(session.execute(options));
    for (uint32_t rank = 0; rank < target.ranks; ++rank) {
      std::vector<float> result(elements, NAN);
      session.read<float>(program.find_tensor("result"), result, 0, rank);
      CHECK(result == expected);
    }
  }
}

// One tile of more than 2^32 bytes, and the same on 8 SMs: what lies at the beginning, beyond 2^32 and at the end.
inline void check_large_move(const Target& target) {
  constexpr uint64_t elements = (uint64_t{1} << 32) + 12'345;  // bytes
  TemporaryFolder folder;
  MoveSchedule schedule = move_schedule(target);
  for (const char* name : {"from", "to"}) schedule.tensor(name, "u8", elements);
  const std::vector<uint32_t> sms = {1, 8};
  for (const uint32_t count : sms) {
    add_alone(schedule, std::to_string(count), Move{"copy", "from", "to", 1, elements, count});
  }
  schedule.write(folder.path());
  const mkrt::Runtime runtime;
  const mkrt::Mesh mesh(runtime, target.rank_options());
  const mkrt::Program program(runtime, folder.path());
  const mkrt::Executable executable(program, mesh);
  mkrt::Session session(executable);
  const uint32_t from = program.find_tensor("from"), to = program.find_tensor("to");
  for (uint32_t entry = 0; entry < sms.size(); ++entry) {
    CAPTURE(sms[entry]);
    const std::vector<uint64_t> places = {0, (uint64_t{1} << 32) - 3'000, elements - 6'000};
    std::vector<std::vector<uint8_t>> values;
    for (const uint64_t place : places) {
      std::vector<uint8_t>& bytes = values.emplace_back(6'000);
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_below(256));
      session.write<uint8_t>(from, bytes, place);
    }
    mkrt::ExecuteOptions options;
    options.entry = entry;
    session.wait(session.execute(options));
    for (size_t i = 0; i < places.size(); ++i) {
      std::vector<uint8_t> bytes(6'000);
      session.read<uint8_t>(to, bytes, places[i]);
      CHECK(bytes == values[i]);
    }
  }
}

}  // namespace mkrt::test
