// Faults of tiles that do not come alone, through the public interface: what must hold on every device.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "moves.hpp"

namespace mkrt::test {

// Two sequences that choose their next tokens in one record, one tile each.
class TwoChoices {
 public:
  static constexpr int32_t length = 16;  // of each token list
  static constexpr int32_t candidates = 40;

  explicit TwoChoices(const Target& target) : mesh_(runtime_, target.rank_options()) {
    write_package(target);
    program_ = mkrt::Program(runtime_, folder_.path());
    executable_ = mkrt::Executable(program_, mesh_);
    session_ = mkrt::Session(executable_);
  }

  mkrt::Session& session() { return session_; }
  // Fresh candidates, and both sequences at these positions.
  void start(int32_t first, int32_t second) {
    session_.reset();
    std::vector<float> values(2 * candidates);
    std::vector<int32_t> indices(2 * candidates);
    for (float& value : values) value = static_cast<float>(random_below(1'000'000));
    for (int32_t& index : indices) index = static_cast<int32_t>(random_below(1'000'000));
    for (int sequence : {0, 1}) {
      const size_t best = sequence * candidates + random_below(candidates);
      values[best] = 2e6f;
      best_[sequence] = indices[best];
    }
    write<float>("best_value", values);
    write<int32_t>("best_index", indices);
    write<int32_t>("tokens", std::vector<int32_t>(2 * length, -1));
    write<int32_t>("prompt_length", {1, 1});
    write<int32_t>("position", {first, second});
    write<int32_t>("active", {1, 1});
  }
  uint64_t execute(const Way& way, uint32_t steps) {
    mkrt::ExecuteOptions options;
    options.step_count = steps;
    options.queue_mode = way.queue_mode;
    options.worker_limit = way.workers;
    return session_.execute(options);
  }
  // Whether the sequence went on from `position` by `steps` of its best candidate.
  bool chose(int sequence, int32_t position, int32_t steps) const {
    std::vector<int32_t> tokens(2 * length);
    session_.read<int32_t>(program_.find_tensor("tokens"), tokens);
    std::vector<int32_t> expected(length, -1);
    std::fill_n(expected.begin() + position + 1, steps, best_[sequence]);
    return std::equal(expected.begin(), expected.end(), tokens.begin() + sequence * length) &&
           session_.read_value<int32_t>(program_.find_tensor("position"), static_cast<size_t>(sequence)) ==
               position + steps;
  }

 private:
  template <class Element>
  void write(const char* tensor, const std::vector<Element>& values) {
    session_.write<Element>(program_.find_tensor(tensor), values);
  }
  void write_package(const Target& target) const {
    MoveSchedule schedule = move_schedule(target);
    nlohmann::ordered_json operands;
    const auto operand = [&](const char* name, const char* dtype, int32_t size) {
      schedule.tensor(name, dtype, 2 * static_cast<uint64_t>(size));
      operands[name] = {{"tensor", name}, {"size", size}, {"strides", {size}}};
    };
    operand("best_value", "f32", candidates);
    operand("best_index", "i32", candidates);
    operand("prompt_length", "i32", 1);
    operand("stop_tokens", "i32", 8);
    operand("stop_count", "i32", 1);
    operand("tokens", "i32", length);
    operand("position", "i32", 1);
    operand("active", "i32", 1);
    schedule.entry("choose", {"chosen"});
    schedule.record({{"op", "choose"},
                     {"tiles", {2}},
                     {"operands", operands},
                     {"wait", {{{"counter", "chosen"}, {"step", -1}}}},
                     {"signal", {"chosen"}}});
    schedule.write(folder_.path());
  }

  TemporaryFolder folder_;
  mkrt::Runtime runtime_;
  mkrt::Mesh mesh_;
  mkrt::Program program_;
  mkrt::Executable executable_;
  mkrt::Session session_;
  int32_t best_[2] = {};
};

// One of two tiles faults: a worker that has both has begun with the second when it learns of the first.
inline void check_fault_before_another_tile(const Target& target) {
  TwoChoices two(target);
  for (const Way& way : target.ways) {
    CAPTURE(way.queue_mode);
    CAPTURE(way.workers);
    for (uint32_t round = 0; round < 100; ++round) {
      CAPTURE(round);
      const bool second = round % 4 == 3;
      constexpr int32_t outside = TwoChoices::length;
      two.start(second ? 3 : outside, second ? outside : 3);
      mkrt_error error = MKRT_ERROR_INIT;
      const uint64_t value = two.execute(way, 1 + round % 3);
      const mkrt_status status = mkrt_session_wait(two.session().get(), value, 10'000'000'000, &error);
      if (status == MKRT_ERROR_TIMEOUT) {
        // Destructors would wait for what hangs.
        std::fprintf(stderr, "round %u with %u workers, queue mode %u: no end within 10 s of a fault\n", round,
                     way.workers, way.queue_mode);
        std::_Exit(1);
      }
      CHECK(status == MKRT_ERROR_FAULT);
      CHECK(error.record == 0);
      CHECK(error.tile == (second ? 1 : 0));
      CHECK(error.step == 0);
      CHECK(std::string(error.message).find("the position is outside the token list") != std::string::npos);
      CHECK(mkrt_execute(two.session().get(), nullptr, nullptr, &error) == MKRT_ERROR_SESSION_FAILED);
    }
    two.start(2, 7);
    two.session().wait(two.execute(way, 4));
    CHECK(two.chose(0, 2, 4));
    CHECK(two.chose(1, 7, 4));
  }
}

}  // namespace mkrt::test
