// Decoding through the public interface, measured against a float64 decoder that shares no code with the project and
// against the stored answers of a real model: what must hold on every device. Every queue mode and worker count must
// give the same bits.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "compile/compile.hpp"
#include "mkrt/mkrt.hpp"
#include "random_model.hpp"
#include "reference_decoder.hpp"
#include "temporary_folder.hpp"

namespace mkrt::test {

using nlohmann::json;

struct Way {
  uint32_t queue_mode;
  uint32_t workers;  // 0: all
};

// Sanitizers make everything many times slower, and look at the code rather than at its results: checks then run in
// fewer of the ways that take all of the same code.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Both queue modes with each of these numbers of workers.
inline std::vector<Way> ways_with(const std::vector<uint32_t>& workers) {
  std::vector<Way> ways;
  for (const uint32_t count : workers) {
    ways.push_back({MKRT_QUEUE_DYNAMIC, count});
    ways.push_back({MKRT_QUEUE_STATIC, count});
  }
  return ways;
}

// Where packages run, and in which ways.
struct Target {
  mkrt::RankOptions rank;  // of each
  std::vector<Way> ways;
  std::function<void(mkrt::compile::Options&)> prepare;  // what the compiler must know of the device
  uint32_t ranks = 1;
  uint32_t devices = 1;                        // CUDA: ranks are on this one and those after it, in turn
  const mkrt_extension* extensions = nullptr;  // of the mesh, whose other ranks may be in other processes

  std::vector<mkrt::RankOptions> rank_options() const {
    std::vector<mkrt::RankOptions> options(ranks, rank);
    for (uint32_t i = 0; i < ranks; ++i) options[i].ordinal += i % devices;
    return options;
  }
};

inline void compile(const Target& target, mkrt::compile::Options options) {
  if (target.prepare) target.prepare(options);
  options.ranks = target.ranks;
  mkrt::compile::compile_model(options);
}
inline void compile_novelist(const Target& target, const std::string& output, uint32_t batch, uint32_t context = 0) {
  mkrt::compile::Options options;
  options.model = std::string(MKRT_TEST_DATA) + "/novelist";
  options.output = output;
  options.batch = batch;
  options.context = context;
  compile(target, options);
}

// A package on a mesh, with a session. What is written goes to every rank of this process; what is read must be the
// same on all of them.
class Model {
 public:
  Model(const std::string& package, const Target& target)
      : mesh_(runtime_, target.rank_options(), target.extensions),
        program_(runtime_, package),
        executable_(program_, mesh_),
        session_(executable_) {
    batch = std::stoul(std::string(program_.metadata("batch")));
    context = std::stoul(std::string(program_.metadata("context")));
    vocabulary = std::stoul(std::string(program_.metadata("vocabulary")));
  }

  mkrt::Session& session() { return session_; }
  const mkrt::Program& program() const { return program_; }
  const mkrt::Executable& executable() const { return executable_; }
  const mkrt::Mesh& mesh() const { return mesh_; }

  void reset() { session_.reset(); }
  void step(const Way& way, uint32_t count = 1) {
    mkrt::ExecuteOptions options;
    options.step_count = count;
    options.queue_mode = way.queue_mode;
    options.worker_limit = way.workers;
    session_.wait(session_.execute(options));
  }
  void start(size_t sequence, const std::vector<int32_t>& prompt) {
    for (const uint32_t rank : ranks()) {
      session_.write<int32_t>(program_.find_tensor("tokens"), prompt, sequence * context, rank);
    }
    set("prompt_length", sequence, static_cast<int32_t>(prompt.size()));
    set("active", sequence, 1);
  }
  void set(const char* tensor, size_t index, int32_t value) {
    for (const uint32_t rank : ranks()) {
      session_.write_value<int32_t>(program_.find_tensor(tensor), value, index, rank);
    }
  }
  int32_t get(const char* tensor, size_t index) const {
    const int32_t value = session_.read_value<int32_t>(program_.find_tensor(tensor), index, ranks().front());
    for (const uint32_t rank : ranks()) {
      REQUIRE(session_.read_value<int32_t>(program_.find_tensor(tensor), index, rank) == value);
    }
    return value;
  }
  int32_t token(size_t sequence, size_t position) const { return get("tokens", sequence * context + position); }
  std::vector<float> logits(size_t sequence) const {
    std::vector<float> values(vocabulary, NAN);
    session_.read<float>(program_.find_tensor("logits"), values, sequence * vocabulary, ranks().front());
    for (const uint32_t rank : ranks()) {
      std::vector<float> theirs(vocabulary, NAN);
      session_.read<float>(program_.find_tensor("logits"), theirs, sequence * vocabulary, rank);
      REQUIRE(std::memcmp(theirs.data(), values.data(), vocabulary * sizeof(float)) == 0);
    }
    return values;
  }

  size_t batch = 0, context = 0, vocabulary = 0;

 private:
  std::vector<uint32_t> ranks() const {
    const mkrt::LocalRanks local = mesh_.local_ranks();
    std::vector<uint32_t> ranks(local.count);
    std::iota(ranks.begin(), ranks.end(), local.first);
    return ranks;
  }

  mkrt::Runtime runtime_;
  mkrt::Mesh mesh_;
  mkrt::Program program_;
  mkrt::Executable executable_;
  mkrt::Session session_;
};

// |values - expected| / |expected|, Euclidean.
inline double relative_error(const std::vector<float>& values, const std::vector<double>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    difference += (values[i] - expected[i]) * (values[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(difference / size);
}

inline int32_t best(const std::vector<float>& logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Raises `largest` to `error`; what is no number is worse than every number.
inline void raise(double& largest, double error) {
  if (!(error <= largest)) largest = std::isnan(error) ? INFINITY : error;
}

// What one way of running gave: for each step, each sequence's logits (those of active sequences).
using Trace = std::vector<std::vector<float>>;
inline std::vector<float> joined(const Trace& trace) {
  std::vector<float> all;
  for (const std::vector<float>& one : trace) all.insert(all.end(), one.begin(), one.end());
  return all;
}

constexpr size_t kPrompt = 24;
constexpr size_t kSteps = 40;

// Sequences begin one after the other, so that each is at a position of its own: given tokens first, then its choices.
inline Trace run(
    Model& model, const std::vector<std::vector<int32_t>>& prompts, const Way& way,
    const std::function<void(size_t sequence, size_t position, int32_t token, const std::vector<float>&)>& look) {
  model.reset();
  Trace trace;
  for (size_t step = 0; step < kSteps; ++step) {
    if (step < model.batch) model.start(step, prompts[step]);
    model.step(way);
    for (size_t sequence = 0; sequence < std::min(model.batch, step + 1); ++sequence) {
      const size_t position = step - sequence;
      REQUIRE(model.get("positions", sequence) == static_cast<int32_t>(position + 1));
      trace.push_back(model.logits(sequence));
      if (look) look(sequence, position, model.token(sequence, position), trace.back());
    }
  }
  return trace;
}

inline bool same_bits(const Trace& a, const Trace& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() || std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0)
      return false;
  }
  return true;
}

// Largest relative error of a random model of this shape, all sequences and positions.
inline void check_random_model(const Target& target, const std::string& shape, uint32_t batch, uint32_t splits,
                               const std::function<void(nlohmann::ordered_json&)>& change = {}) {
  CAPTURE(shape);
  CAPTURE(batch);
  CAPTURE(splits);
  const TemporaryFolder folder;
  mkrt::tools::RandomModel random_model;
  random_model.config = mkrt::tools::shape_config(shape);
  if (change) change(random_model.config);
  // Large enough that every layer moves the logits, which 0.02 does not at such widths.
  random_model.deviation = 0.1;
  random_model.seed = batch * 100 + splits;
  mkrt::tools::write_random_model(random_model, folder.path("model"));
  mkrt::compile::Options options;
  options.model = folder.path("model");
  options.output = folder.path("package");
  options.batch = batch;
  options.splits = splits;
  compile(target, options);

  Model model(folder.path("package"), target);
  std::mt19937 random(batch);
  std::vector<std::vector<int32_t>> prompts(batch, std::vector<int32_t>(kPrompt));
  for (auto& prompt : prompts) {
    for (int32_t& token : prompt) token = static_cast<int32_t>(random() % model.vocabulary);
  }
  std::vector<mkrt::reference::Decoder> decoders(batch, mkrt::reference::Decoder(folder.path("model")));

  double largest = 0;
  size_t compared = 0, wrong_choices = 0;
  const Trace first = run(model, prompts, target.ways.front(),
                          [&](size_t sequence, size_t position, int32_t token, const std::vector<float>& logits) {
                            const auto expected = decoders[sequence].step(static_cast<size_t>(token));
                            raise(largest, relative_error(logits, expected));
                            ++compared;
                            const int32_t next = model.token(sequence, position + 1);
                            const bool given = position + 1 < kPrompt;
                            wrong_choices += next != (given ? prompts[sequence][position + 1] : best(logits));
                          });
  MESSAGE(shape << ", batch " << batch << ", splits " << splits << ": relative error up to " << largest << " in "
                << compared << " steps");
  CHECK(largest < 1e-2);
  CHECK(wrong_choices == 0);
  for (const Way& way : target.ways) {
    CAPTURE(way.queue_mode);
    CAPTURE(way.workers);
    CHECK(same_bits(first, run(model, prompts, way, {})));
  }
}

// The relative error of the logits of any step, at most.
inline double largest_error(const Trace& trace, const Trace& expected) {
  REQUIRE(trace.size() == expected.size());
  double largest = 0;
  for (size_t i = 0; i < trace.size(); ++i) {
    raise(largest, relative_error(trace[i], {expected[i].begin(), expected[i].end()}));
  }
  return largest;
}

// The same random model on one rank and on several, fed with the same tokens: the largest relative difference of
// logits.
inline void check_against_one_rank(const Target& target, const std::string& shape, uint32_t batch,
                                   const std::function<void(nlohmann::ordered_json&)>& change = {}) {
  CAPTURE(shape);
  CAPTURE(batch);
  CAPTURE(target.ranks);
  const TemporaryFolder folder;
  mkrt::tools::RandomModel random_model;
  random_model.config = mkrt::tools::shape_config(shape);
  if (change) change(random_model.config);
  // Of a few columns, smaller weights would leave all logits close to each other.
  if (shape.starts_with("tiny")) random_model.deviation = 0.1;
  random_model.seed = batch;
  mkrt::tools::write_random_model(random_model, folder.path("model"));
  Target alone = target;
  alone.ranks = 1;
  std::mt19937 random(batch);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Trace> traces;
  for (const Target& one : {alone, target}) {
    mkrt::compile::Options options;
    options.model = folder.path("model");
    options.output = folder.path("package");
    options.batch = batch;
    compile(one, options);
    Model model(folder.path("package"), one);
    while (prompts.size() < batch) {
      // Longer than the run: nothing is chosen, so that both see the same tokens to the end.
      std::vector<int32_t>& prompt = prompts.emplace_back(kSteps + 1);
      for (int32_t& token : prompt) token = static_cast<int32_t>(random() % model.vocabulary);
    }
    for (const Way& way : one.ways) {
      traces.push_back(run(model, prompts, way, {}));
      if (one.ranks > 1) CHECK(same_bits(traces.back(), traces[alone.ways.size()]));
    }
  }
  const double largest = largest_error(traces.back(), traces.front());
  MESSAGE(shape << ", batch " << batch << ", " << target.ranks << " ranks: relative difference up to " << largest);
  CHECK(traces.front().size() > kSteps / 2);
  CHECK(largest < 2e-3);
}

inline void check_unusual_models(const Target& target) {
  check_random_model(target, "tiny-llama", 2, 0, [](auto& config) {
    config["attention_bias"] = true;
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  });
  check_random_model(target, "tiny-qwen3", 2, 2, [](auto& config) {
    config["attention_bias"] = true;
    config["head_dim"] = 256;
  });
  // More heads of a group than a GPU works on at once.
  check_random_model(target, "tiny-llama", 2, 2, [](auto& config) {
    config["num_attention_heads"] = 9;
    config["num_key_value_heads"] = 1;
    config["head_dim"] = 128;
  });
  check_random_model(target, "tiny-mistral", 1, 0, [](auto& config) {
    config["head_dim"] = 2;
    config["vocab_size"] = 8209;
  });
}

struct Golden {
  std::string prompt;
  std::vector<int32_t> prompt_ids, greedy_ids;
  json steps;
};

inline std::vector<Golden> read_golden() {
  std::ifstream file(std::string(MKRT_TEST_DATA) + "/novelist/golden.json");
  const json golden = json::parse(file);
  std::vector<Golden> cases;
  for (const json& one : golden.at("cases")) {
    cases.push_back({one["prompt"], one["prompt_ids"], one["greedy_ids"], one["steps"]});
  }
  return cases;
}

constexpr double kTolerance = 0.02;

// All cases as one batch. Where the stored top two are closer than the tolerance either token is right; the stored
// token is then put in its place, so that the following steps stay comparable.
inline Trace run_golden(Model& model, const std::vector<Golden>& cases, const Way& way, double& largest,
                        size_t& wrong) {
  model.reset();
  for (size_t i = 0; i < cases.size(); ++i) model.start(i, cases[i].prompt_ids);
  std::vector<std::vector<float>> trace;
  std::vector<size_t> chosen(cases.size());
  for (bool going = true; going;) {
    model.step(way);
    going = false;
    for (size_t i = 0; i < cases.size(); ++i) {
      const Golden& golden = cases[i];
      const auto position = static_cast<size_t>(model.get("positions", i));
      if (position < golden.prompt_ids.size()) {
        going = true;
        continue;
      }
      if (chosen[i] == golden.greedy_ids.size()) continue;
      const json& step = golden.steps[chosen[i]];
      trace.push_back(model.logits(i));
      for (size_t k = 0; k < step["top_ids"].size(); ++k) {
        const double stored = step["top_logits"][k];
        raise(largest, std::abs(trace.back()[step["top_ids"][k].get<size_t>()] - stored));
      }
      const int32_t wanted = golden.greedy_ids[chosen[i]++];
      const double margin = step["top_logits"][0].get<double>() - step["top_logits"][1].get<double>();
      wrong += model.token(i, position) != wanted && margin > kTolerance;
      model.set("tokens", i * model.context + position, wanted);
      if (chosen[i] == golden.greedy_ids.size()) model.set("active", i, 0);
      going = going || chosen[i] < golden.greedy_ids.size();
    }
  }
  return trace;
}

// A real model gives the stored tokens and logits, whatever runs it.
inline void check_golden(const Target& target) {
  const TemporaryFolder folder;
  const std::vector<Golden> cases = read_golden();
  compile_novelist(target, folder.path("package"), static_cast<uint32_t>(cases.size()));
  Model model(folder.path("package"), target);
  Trace first;
  for (const Way& way : target.ways) {
    CAPTURE(way.queue_mode);
    CAPTURE(way.workers);
    double largest = 0;
    size_t wrong = 0;
    const Trace trace = run_golden(model, cases, way, largest, wrong);
    CHECK(trace.size() == 5 * 96);
    CHECK(wrong == 0);
    CHECK(largest < kTolerance);
    if (first.empty()) {
      first = trace;
      MESSAGE("logits differ from the stored ones by up to " << largest);
    }
    CHECK(same_bits(first, trace));
  }
}

// The real model on several ranks, fed with the stored tokens, has the logits of one rank.
inline void check_golden_against_one_rank(const Target& target) {
  CAPTURE(target.ranks);
  const std::vector<Golden> cases = read_golden();
  Target alone = target;
  alone.ranks = 1;
  std::vector<Trace> traces;
  for (const Target& one : {alone, target}) {
    const TemporaryFolder folder;
    compile_novelist(one, folder.path("package"), static_cast<uint32_t>(cases.size()));
    Model model(folder.path("package"), one);
    double from_stored = 0;
    size_t wrong = 0;
    traces.push_back(run_golden(model, cases, one.ways.front(), from_stored, wrong));
  }
  const double largest = largest_error(traces.back(), traces.front());
  MESSAGE("novelist, " << target.ranks << " ranks: relative difference up to " << largest);
  CHECK(traces.front().size() == 5 * 96);
  CHECK(largest < 2e-3);
}

// Many steps in one execute choose what single steps choose, and end with the same logits.
inline void check_steps_together(const Target& target) {
  const TemporaryFolder folder;
  compile_novelist(target, folder.path("package"), 1);
  Model model(folder.path("package"), target);
  for (const Golden& golden : read_golden()) {
    const auto steps = static_cast<uint32_t>(golden.prompt_ids.size() + 63);
    Trace logits;
    std::vector<std::vector<int32_t>> chosen;
    const auto note = [&] {
      REQUIRE(model.get("positions", 0) == static_cast<int32_t>(steps));
      logits.push_back(model.logits(0));
      chosen.emplace_back();
      for (uint32_t i = 0; i <= steps; ++i) chosen.back().push_back(model.token(0, i));
    };
    model.reset();
    model.start(0, golden.prompt_ids);
    for (uint32_t step = 0; step < steps; ++step) model.step(target.ways.back());
    note();
    for (const Way& way : target.ways) {
      CAPTURE(way.queue_mode);
      CAPTURE(way.workers);
      model.reset();
      model.start(0, golden.prompt_ids);
      model.step(way, steps);
      note();
      CHECK(chosen.back() == chosen.front());
      CHECK(same_bits({logits.back()}, {logits.front()}));
    }
  }
}

// A sequence stops at a stop token and at the end of its list, and the others go on.
inline void check_stops(const Target& target) {
  const TemporaryFolder folder;
  const std::vector<Golden> cases = read_golden();
  compile_novelist(target, folder.path("package"), 2, 30);
  Model model(folder.path("package"), target);
  const Golden& golden = cases[0];
  // The first sequence's third choice becomes a stop token of both; it must be the first of its kind there.
  const int32_t stop = golden.greedy_ids[2];
  REQUIRE(std::count(golden.greedy_ids.begin(), golden.greedy_ids.begin() + 2, stop) == 0);
  model.set("stop_tokens", 0, stop);
  model.set("stop_count", 0, 1);
  model.start(0, golden.prompt_ids);
  model.start(1, cases[4].prompt_ids);
  model.step(target.ways.front(), 60);
  const size_t end = golden.prompt_ids.size() + 2;
  CHECK(model.get("active", 0) == 0);
  CHECK(model.get("positions", 0) == static_cast<int32_t>(end));
  CHECK(model.token(0, end) == stop);
  CHECK(model.token(0, end + 1) == 0);
  CHECK(model.get("active", 1) == 0);
  const int32_t last = model.get("positions", 1);
  CHECK((last == 29 || model.token(1, static_cast<size_t>(last)) == stop));
}

}  // namespace mkrt::test
