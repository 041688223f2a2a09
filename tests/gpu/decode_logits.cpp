// decode_logits PACKAGE OUTPUT [PROMPT+]POSITIONS [LIMIT[:POSITIONS]...]: what a package decodes on the GPU, for
// comparison.
//
// Every sequence begins with PROMPT tokens of its own, 8 unless said, and goes on greedily for POSITIONS positions.
// That is done in both queue modes for each LIMIT of SMs (0: all); where a limit has a number of positions of its own,
// for so many. The first way chooses the tokens; the others are given them and must find the same logits.
//
//   OUTPUT.tokens   i32 [batch][PROMPT + POSITIONS]: those of the first way
//   OUTPUT.logits   f32 [POSITIONS][batch][vocabulary]: what follows the tokens from the prompt's last on, of the first
//   way OUTPUT.LIMIT-MODE.logits   the same of another way, only where it differs from the first in any bit standard
//   output   what was done, as JSON
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "mkrt/mkrt.hpp"

namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr uint32_t usual_prompt_length = 8;
// A step on one SM of a tool that checks every access can take minutes.
constexpr auto wait_limit = std::chrono::minutes(10);

struct Way {
  uint32_t queue_mode;
  uint32_t limit;
  uint32_t positions;
  std::string name() const {
    return std::to_string(limit) + (queue_mode == MKRT_QUEUE_STATIC ? "-static" : "-dynamic");
  }
};

struct Model {
  explicit Model(const char* package)
      : mesh(runtime, cuda()), program(runtime, package), executable(program, mesh, 0, 8), session(executable) {}
  static mkrt::RankOptions cuda() {
    mkrt::RankOptions rank;
    rank.kind = MKRT_DEVICE_CUDA;
    return rank;
  }
  uint32_t number(const char* key) const {
    return static_cast<uint32_t>(std::stoul(std::string(program.metadata(key))));
  }
  uint32_t tensor(const char* name) const { return program.find_tensor(name); }

  mkrt::Runtime runtime;
  mkrt::Mesh mesh;
  mkrt::Program program;
  mkrt::Executable executable;
  mkrt::Session session;
};

void write_file(const std::string& path, const void* data, size_t bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  if (!file) throw std::runtime_error(path + " cannot be written");
}

class Comparison {
 public:
  Comparison(const char* package, std::string output, uint32_t prompt_length, uint32_t positions)
      : model_(package), output_(std::move(output)), prompt_length_(prompt_length), positions_(positions) {
    batch_ = model_.number("batch");
    vocabulary_ = model_.number("vocabulary");
    context_ = model_.number("context");
    if (prompt_length_ + positions_ > context_) throw std::runtime_error("the package's context is too short");
    // Whatever a step leaves out shows as NaN.
    logits_.assign(size_t{positions} * batch_ * vocabulary_, NAN);
    scratch_.resize(size_t{batch_} * vocabulary_);
    std::mt19937 random(batch_);
    tokens_.resize(size_t{batch_} * length());
    for (int32_t& token : tokens_) token = static_cast<int32_t>(random() % vocabulary_);
  }

  ordered_json run(const std::vector<Way>& ways) {
    ordered_json report;
    const mkrt::DeviceInfo device = model_.mesh.device_info();
    report["device"] = device.name;
    report["batch"] = batch_;
    report["vocabulary"] = vocabulary_;
    report["prompt_length"] = prompt_length_;
    report["positions"] = positions_;
    for (const Way& way : ways) {
      ordered_json one;
      one["queue"] = way.queue_mode == MKRT_QUEUE_STATIC ? "static" : "dynamic";
      one["sm_limit"] = way.limit == 0 ? device.worker_count : way.limit;
      one["positions"] = way.positions;
      const Clock::time_point begin = Clock::now();
      const bool first = &way == &ways.front();
      const bool same = decode(way, first);
      one["seconds"] = std::chrono::duration<double>(Clock::now() - begin).count();
      one["same_bits_as_first"] = same;
      if (!same) one["file"] = output_ + "." + way.name() + ".logits";
      report["ways"].push_back(one);
      if (first) write_first();
    }
    return report;
  }

 private:
  uint32_t length() const { return prompt_length_ + positions_; }

  void step(const Way& way, uint32_t count) {
    mkrt::ExecuteOptions options;
    options.step_count = count;
    options.queue_mode = way.queue_mode;
    options.worker_limit = way.limit;
    options.wait_limit = wait_limit;
    model_.session.wait(model_.session.execute(options));
  }

  // Puts every sequence at its beginning, its first `given` tokens being told.
  void start(uint32_t given) {
    model_.session.reset();
    for (uint32_t i = 0; i < batch_; ++i) {
      model_.session.write<int32_t>(model_.tensor("tokens"), {&tokens_[size_t{i} * length()], given},
                                    uint64_t{i} * context_);
    }
    model_.session.write<int32_t>(model_.tensor("prompt_length"),
                                  std::vector<int32_t>(batch_, static_cast<int32_t>(given)));
    model_.session.write<int32_t>(model_.tensor("active"), std::vector<int32_t>(batch_, 1));
  }

  // True where every logit has the bits that the first way found.
  bool decode(const Way& way, bool first) {
    bool same = true;
    std::vector<float> others;
    start(first ? prompt_length_ : length());
    if (prompt_length_ > 1) step(way, prompt_length_ - 1);
    const uint32_t logits = model_.tensor("logits");
    for (uint32_t position = 0; position < way.positions; ++position) {
      step(way, 1);
      float* const mine = &logits_[size_t{position} * batch_ * vocabulary_];
      if (first) {
        model_.session.read<float>(logits, {mine, scratch_.size()});
        check_choices(mine, prompt_length_ + position);
        continue;
      }
      model_.session.read<float>(logits, scratch_);
      const bool equal = std::memcmp(mine, scratch_.data(), scratch_.size() * sizeof(float)) == 0;
      if (same && !equal) others.assign(logits_.begin(), logits_.begin() + (mine - logits_.data()));
      same = same && equal;
      if (!same) others.insert(others.end(), scratch_.begin(), scratch_.end());
    }
    if (first) {
      for (uint32_t i = 0; i < batch_; ++i) {
        model_.session.read<int32_t>(model_.tensor("tokens"), {&tokens_[size_t{i} * length()], length()},
                                     uint64_t{i} * context_);
      }
    }
    if (!same) write_file(output_ + "." + way.name() + ".logits", others.data(), others.size() * sizeof(float));
    return same;
  }

  // The greedy choice is the first of the largest.
  void check_choices(const float* logits, uint32_t place) {
    for (uint32_t i = 0; i < batch_; ++i) {
      const float* const begin = logits + size_t{i} * vocabulary_;
      const auto best = static_cast<int32_t>(std::max_element(begin, begin + vocabulary_) - begin);
      const auto chosen = model_.session.read_value<int32_t>(model_.tensor("tokens"), uint64_t{i} * context_ + place);
      if (chosen != best) {
        throw std::runtime_error("sequence " + std::to_string(i) + " chose token " + std::to_string(chosen) +
                                 " at place " + std::to_string(place) + ", the largest logit is that of " +
                                 std::to_string(best));
      }
    }
  }

  void write_first() {
    write_file(output_ + ".tokens", tokens_.data(), tokens_.size() * sizeof(int32_t));
    write_file(output_ + ".logits", logits_.data(), logits_.size() * sizeof(float));
  }

  Model model_;
  std::string output_;
  uint32_t prompt_length_, positions_, batch_ = 0, vocabulary_ = 0, context_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<float> logits_, scratch_;
};

// A number, and what follows it.
uint32_t number(const char* text, char** out_end) { return static_cast<uint32_t>(std::strtoul(text, out_end, 10)); }

// "64" or "64:16".
std::vector<Way> parse_ways(int count, char** arguments, uint32_t positions) {
  std::vector<Way> ways;
  for (int i = 0; i < count; ++i) {
    char* end = nullptr;
    const uint32_t limit = number(arguments[i], &end);
    const uint32_t own = *end == ':' ? number(end + 1, nullptr) : positions;
    for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      ways.push_back({mode, limit, std::min(own, positions)});
    }
  }
  if (ways.empty()) ways = {{MKRT_QUEUE_DYNAMIC, 0, positions}, {MKRT_QUEUE_STATIC, 0, positions}};
  // The first way's tokens and logits are what the others are held against.
  ways.front().positions = positions;
  return ways;
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 4) {
    std::fprintf(stderr, "usage: decode_logits PACKAGE OUTPUT [PROMPT+]POSITIONS [LIMIT[:POSITIONS]...]\n");
    return 2;
  }
  try {
    char* end = nullptr;
    uint32_t prompt_length = usual_prompt_length, positions = number(arguments[3], &end);
    if (*end == '+') {
      prompt_length = positions;
      positions = number(end + 1, nullptr);
    }
    if (prompt_length == 0 || positions == 0) throw std::runtime_error("no tokens, or no positions");
    Comparison comparison(arguments[1], arguments[2], prompt_length, positions);
    const ordered_json report = comparison.run(parse_ways(argument_count - 4, arguments + 4, positions));
    std::printf("%s\n", report.dump(1).c_str());
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "decode_logits: %s\n", failure.what());
    return 1;
  }
  return 0;
}
