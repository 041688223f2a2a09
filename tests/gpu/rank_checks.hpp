// What must hold for models on several ranks, whether they share a GPU or have one each.
#pragma once

#include <chrono>
#include <thread>

#include "gpu.hpp"
#include "long_text.hpp"

namespace mkrt::test {

// Enough heads for four ranks; with two key-value heads, ranks beyond the second share one.
inline void set_heads(nlohmann::ordered_json& config) {
  config["num_attention_heads"] = 8;
  config["num_key_value_heads"] = 2;
}

// Golden cases, random models against the float64 decoder and against one rank, many steps in one execute.
inline void check_rank_results(const Target& target) {
  CAPTURE(target.ranks);
  CAPTURE(target.devices);
  check_golden(target);
  check_golden_against_one_rank(target);
  check_steps_together(target);
  check_stops(target);
  for (const char* shape : {"tiny-llama", "tiny-qwen3"}) {
    check_random_model(target, shape, 3, 2, set_heads);
    for (const uint32_t batch : {1, 16}) check_against_one_rank(target, shape, batch, set_heads);
  }
}

// Two texts of 10 000 tokens are the same, and the other queue mode's as well.
inline void check_long_runs(const Target& target) {
  const Novelist novelist(target);
  Model model(novelist.package(), target);
  const LongText first = write_long_text(model, {MKRT_QUEUE_DYNAMIC, 0}, 10'000);
  CHECK(first.tokens.size() >= 10'000);
  CHECK(first == write_long_text(model, {MKRT_QUEUE_DYNAMIC, 0}, 10'000));
  CHECK(first == write_long_text(model, {MKRT_QUEUE_STATIC, 0}, 10'000));
}

// A cancel stops all ranks within 5 ms, a fault is that of the tile that found it, and a reset session works as a new
// one.
inline void check_rank_failures(const Target& target) {
  CAPTURE(target.ranks);
  const Novelist novelist(target);
  const Golden golden = read_golden().front();
  Model model(novelist.package(), target);
  const auto decode = [&](const Way& way) {
    model.start(0, golden.prompt_ids);
    model.step(way, 40);
    std::vector<int32_t> tokens;
    for (size_t i = 0; i <= 40; ++i) tokens.push_back(model.token(0, i));
    return tokens;
  };
  const std::vector<int32_t> expected = decode({MKRT_QUEUE_DYNAMIC, 0});
  using Clock = std::chrono::steady_clock;
  double longest = 0;
  for (const Way& way : target.ways) {
    CAPTURE(way.queue_mode);
    CAPTURE(way.workers);
    mkrt::ExecuteOptions options;
    options.queue_mode = way.queue_mode;
    options.worker_limit = way.workers;
    for (int round = 0; round < 5; ++round) {
      model.reset();
      model.start(0, golden.prompt_ids);
      options.step_count = 1'000'000;  // seconds
      const uint64_t value = model.session().execute(options);
      std::this_thread::sleep_for(std::chrono::milliseconds(3 + round));
      const Clock::time_point cancelled = Clock::now();
      model.session().cancel();
      mkrt_error error = MKRT_ERROR_INIT;
      CHECK(mkrt_session_wait(model.session().get(), value, UINT64_MAX, &error) == MKRT_ERROR_CANCELLED);
      longest = std::max(longest, std::chrono::duration<double, std::milli>(Clock::now() - cancelled).count());
    }
    model.reset();
    model.start(0, {1, 2, 3, static_cast<int32_t>(model.vocabulary), 5});
    options.step_count = 8;
    const mkrt_error fault = error_of([&] { model.session().wait(model.session().execute(options)); });
    CHECK(fault.status == MKRT_ERROR_FAULT);
    CHECK(fault.rank >= 0);
    CHECK(fault.rank < static_cast<int32_t>(target.ranks));
    CHECK(fault.step == 3);
    CHECK(contains(fault.message, "the token is outside the vocabulary"));
    model.reset();
    CHECK(decode(way) == expected);
  }
  MESSAGE("from a cancel to the end of the execute on all ranks: at most " << longest << " ms");
  CHECK(longest < 5);
}

// Sessions of one mesh that run at the same time give what each gives alone.
inline void check_rank_sessions(const Target& target) {
  const Novelist novelist(target);
  const std::vector<Golden> cases = read_golden();
  Model model(novelist.package(), target);
  const auto tokens_of = [&](mkrt::Session& session, const Golden& golden) {
    for (uint32_t rank = 0; rank < target.ranks; ++rank) {
      session.write<int32_t>(model.program().find_tensor("tokens"), golden.prompt_ids, 0, rank);
      session.write_value<int32_t>(model.program().find_tensor("prompt_length"),
                                   static_cast<int32_t>(golden.prompt_ids.size()), 0, rank);
      session.write_value<int32_t>(model.program().find_tensor("active"), 1, 0, rank);
    }
    mkrt::ExecuteOptions options;
    options.step_count = 5;
    uint64_t value = 0;
    for (uint32_t step = 0; step < 60; step += 5) {
      options.queue_mode = step / 5 % 2;
      value = session.execute(options);
    }
    session.wait(value);
    std::vector<int32_t> tokens(61);
    session.read<int32_t>(model.program().find_tensor("tokens"), tokens, 0, target.ranks - 1);
    return tokens;
  };
  std::vector<std::vector<int32_t>> alone, together(cases.size());
  for (const Golden& golden : cases) {
    model.reset();
    alone.push_back(tokens_of(model.session(), golden));
  }
  std::vector<mkrt::Session> sessions;
  for (size_t i = 0; i < cases.size(); ++i) sessions.emplace_back(model.executable());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < cases.size(); ++i) {
    threads.emplace_back([&, i] { together[i] = tokens_of(sessions[i], cases[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(together == alone);
}

// Making and destroying executables and sessions leaves every device's memory as it was.
inline void check_rank_memory(const Target& target) {
  const Novelist novelist(target);
  const mkrt::Runtime runtime;
  const mkrt::Mesh mesh(runtime, target.rank_options());
  const mkrt::Program program(runtime, novelist.package());
  std::vector<uint64_t> before;
  for (int round = 0; round < 10; ++round) {
    {
      const mkrt::Executable executable(program, mesh, 0, 4);
      mkrt::Session first(executable), second(executable);
      mkrt::ExecuteOptions options;
      options.step_count = 1000;
      first.execute(options);
      second.wait(second.execute());
      first.close();  // cancels what is in flight
    }
    std::vector<uint64_t> now;
    for (uint32_t rank = 0; rank < target.ranks; ++rank) now.push_back(mesh.device_info(rank).memory_free);
    if (round == 1) before = now;
    if (round > 1) CHECK(now == before);
  }
}

}  // namespace mkrt::test
