// decode_logits cuda|host [PROMPT+]POSITIONS LIMIT[:POSITIONS][,...] PACKAGE...: what packages decode, for comparison.
//
// Every sequence begins with PROMPT tokens of its own, 8 unless said, and goes on greedily for POSITIONS positions.
// That is done in both queue modes for each LIMIT of SMs (0: all); where a limit has a number of positions of its own,
// for so many. The first way chooses the tokens; the others are given them and must find the same logits.
//
// One SM takes a hundred times as long as all of them, so the ways of all packages that use only one run at the same
// time, each on a session and in a thread of its own, after all others. They must be threads of one process: a GPU runs
// one process at a time.
//
//   PACKAGE.out.tokens   i32 [batch][PROMPT + POSITIONS]: those of the first way
//   PACKAGE.out.logits   f32 [POSITIONS][batch][vocabulary]: of the first way, what follows the tokens from the
//                        prompt's last on
//   PACKAGE.out.LIMIT-MODE.logits   the same of another way, only where it differs from the first in any bit
//   standard output      what was done: a line of JSON for each package, as soon as all its ways are done
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
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

struct Device {
  explicit Device(uint32_t kind) : mesh(runtime, rank_of(kind)), info(mesh.device_info()) {}
  static mkrt::RankOptions rank_of(uint32_t kind) {
    mkrt::RankOptions rank;
    rank.kind = kind;
    return rank;
  }
  mkrt::Runtime runtime;
  mkrt::Mesh mesh;
  mkrt::DeviceInfo info;
};

struct Model {
  Model(const Device& device, const std::string& package)
      : program(device.runtime, package), executable(program, device.mesh, 0, 8) {}
  uint32_t number(const char* key) const {
    return static_cast<uint32_t>(std::stoul(std::string(program.metadata(key))));
  }
  uint32_t tensor(const char* name) const { return program.find_tensor(name); }

  mkrt::Program program;
  mkrt::Executable executable;
};

void write_file(const std::string& path, const void* data, size_t bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  file.close();
  if (!file) throw std::runtime_error(path + " cannot be written");
}

// The ways of one package. They may run at the same time once the first is done.
class Comparison {
 public:
  Comparison(const Device& device, std::string package, uint32_t prompt_length, const std::vector<Way>& ways)
      : device_(device),
        package_(std::move(package)),
        ways_(ways),
        prompt_length_(prompt_length),
        positions_(ways.front().positions),
        results_(ways.size()),
        left_(ways.size()) {}

  // Runs those ways that take several SMs.
  void run_alone() {
    attempt([&] { load(); });
    for (const Way& way : ways_) {
      if (is_alone(way)) run(way, make_session().get());
    }
  }

  // Starts the others.
  void run_beside(std::vector<std::thread>& threads) {
    // All sessions first, in a row: the GPU's work queues are given to streams in turn, and work of the same queue
    // would wait for each other.
    for (const Way& way : ways_) sessions_.push_back(is_alone(way) ? nullptr : make_session());
    for (size_t i = 0; i < ways_.size(); ++i) {
      if (!is_alone(ways_[i])) threads.emplace_back([this, i] { run(ways_[i], sessions_[i].get()); });
    }
  }

  // After all threads have ended.
  bool failed() const { return !failure_.empty(); }

 private:
  uint32_t length() const { return prompt_length_ + positions_; }
  bool is_first(const Way& way) const { return &way == &ways_.front(); }
  bool is_alone(const Way& way) const { return is_first(way) || way.limit != 1; }

  template <class Call>
  void attempt(Call&& call) {
    {
      const std::lock_guard lock(mutex_);
      if (failed()) return;
    }
    try {
      call();
    } catch (const std::exception& failure) {
      const std::lock_guard lock(mutex_);
      failure_ = failure.what();
    }
  }

  void load() {
    model_ = std::make_unique<Model>(device_, package_);
    batch_ = model_->number("batch");
    vocabulary_ = model_->number("vocabulary");
    context_ = model_->number("context");
    if (length() > context_) throw std::runtime_error("the package's context is too short");
    // Whatever a step leaves out shows as NaN.
    logits_.assign(size_t{positions_} * row(), NAN);
    std::mt19937 random(batch_);
    tokens_.resize(size_t{batch_} * length());
    for (int32_t& token : tokens_) token = static_cast<int32_t>(random() % vocabulary_);
  }

  // Logits of one position.
  size_t row() const { return size_t{batch_} * vocabulary_; }

  std::unique_ptr<mkrt::Session> make_session() {
    std::unique_ptr<mkrt::Session> session;
    attempt([&] { session = std::make_unique<mkrt::Session>(model_->executable); });
    return session;
  }

  void run(const Way& way, mkrt::Session* session) {
    ordered_json result;
    attempt([&] {
      result["queue"] = way.queue_mode == MKRT_QUEUE_STATIC ? "static" : "dynamic";
      result["sm_limit"] = way.limit == 0 ? device_.info.worker_count : way.limit;
      result["positions"] = way.positions;
      const Clock::time_point begin = Clock::now();
      const bool same = is_first(way) ? choose(way, *session) : compare(way, *session);
      result["seconds"] = std::chrono::duration<double>(Clock::now() - begin).count();
      result["same_bits_as_first"] = same;
      if (!same) result["file"] = file_of(way);
    });
    const std::lock_guard lock(mutex_);
    results_[static_cast<size_t>(&way - ways_.data())] = std::move(result);
    if (--left_ == 0) report();
  }

  void report() const {
    ordered_json report;
    report["package"] = package_;
    report["device"] = device_.info.name;
    report["batch"] = batch_;
    report["vocabulary"] = vocabulary_;
    report["prompt_length"] = prompt_length_;
    report["positions"] = positions_;
    report["ways"] = results_;
    if (failed()) report["failure"] = failure_;
    const std::string line = report.dump() + "\n";
    std::fputs(line.c_str(), stdout);  // one call, so that lines of other packages do not come between
    std::fflush(stdout);
  }

  void step(const Way& way, mkrt::Session& session, uint32_t count) const {
    mkrt::ExecuteOptions options;
    options.step_count = count;
    options.queue_mode = way.queue_mode;
    options.worker_limit = way.limit;
    options.wait_limit = wait_limit;
    session.wait(session.execute(options));
  }

  // Puts every sequence at its beginning, its first `given` tokens being told, and decodes all but the last of the
  // prompt.
  void start(const Way& way, mkrt::Session& session, uint32_t given) const {
    for (uint32_t i = 0; i < batch_; ++i) {
      session.write<int32_t>(model_->tensor("tokens"), {&tokens_[size_t{i} * length()], given}, uint64_t{i} * context_);
    }
    session.write<int32_t>(model_->tensor("prompt_length"), std::vector<int32_t>(batch_, static_cast<int32_t>(given)));
    session.write<int32_t>(model_->tensor("active"), std::vector<int32_t>(batch_, 1));
    if (prompt_length_ > 1) step(way, session, prompt_length_ - 1);
  }

  // The first way: finds tokens and logits, and writes them.
  bool choose(const Way& way, mkrt::Session& session) {
    start(way, session, prompt_length_);
    for (uint32_t position = 0; position < positions_; ++position) {
      step(way, session, 1);
      float* const logits = &logits_[position * row()];
      session.read<float>(model_->tensor("logits"), {logits, row()});
      check_choices(session, logits, prompt_length_ + position);
    }
    for (uint32_t i = 0; i < batch_; ++i) {
      session.read<int32_t>(model_->tensor("tokens"), {&tokens_[size_t{i} * length()], length()},
                            uint64_t{i} * context_);
    }
    write_file(package_ + ".out.tokens", tokens_.data(), tokens_.size() * sizeof(int32_t));
    write_file(package_ + ".out.logits", logits_.data(), logits_.size() * sizeof(float));
    return true;
  }

  // Another way: true where every logit has the bits that the first found. Writes its logits otherwise.
  bool compare(const Way& way, mkrt::Session& session) const {
    bool same = true;
    std::vector<float> found(row()), others;
    start(way, session, length());
    for (uint32_t position = 0; position < way.positions; ++position) {
      step(way, session, 1);
      std::fill(found.begin(), found.end(), NAN);
      session.read<float>(model_->tensor("logits"), found);
      const float* const wanted = &logits_[position * row()];
      const bool equal = std::memcmp(wanted, found.data(), row() * sizeof(float)) == 0;
      if (same && !equal) others.assign(logits_.data(), wanted);
      same = same && equal;
      if (!same) others.insert(others.end(), found.begin(), found.end());
    }
    if (!same) write_file(file_of(way), others.data(), others.size() * sizeof(float));
    return same;
  }
  std::string file_of(const Way& way) const { return package_ + ".out." + way.name() + ".logits"; }

  // The greedy choice is the first of the largest.
  void check_choices(mkrt::Session& session, const float* logits, uint32_t place) const {
    for (uint32_t i = 0; i < batch_; ++i) {
      const float* const begin = logits + size_t{i} * vocabulary_;
      const auto best = static_cast<int32_t>(std::max_element(begin, begin + vocabulary_) - begin);
      const auto chosen = session.read_value<int32_t>(model_->tensor("tokens"), uint64_t{i} * context_ + place);
      if (chosen != best) {
        throw std::runtime_error("sequence " + std::to_string(i) + " chose token " + std::to_string(chosen) +
                                 " at place " + std::to_string(place) + ", the largest logit is that of " +
                                 std::to_string(best));
      }
    }
  }

  const Device& device_;
  const std::string package_;
  const std::vector<Way>& ways_;
  const uint32_t prompt_length_, positions_;
  std::unique_ptr<Model> model_;
  uint32_t batch_ = 0, vocabulary_ = 0, context_ = 0;
  // Written by the first way, read by the others.
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;
  // Of ways that run beside others, until all have ended: to give memory back waits for the whole GPU.
  std::vector<std::unique_ptr<mkrt::Session>> sessions_;
  std::mutex mutex_;  // of what follows, while ways run at the same time
  std::vector<ordered_json> results_;
  size_t left_;  // ways that are not done
  std::string failure_;
};

// A number, and what follows it.
uint32_t number(const char* text, char** out_end) { return static_cast<uint32_t>(std::strtoul(text, out_end, 10)); }

// "0,64:16".
std::vector<Way> parse_ways(const char* text, uint32_t positions) {
  std::vector<Way> ways;
  for (char* end = nullptr;; text = end + 1) {
    const uint32_t limit = number(text, &end);
    const uint32_t own = *end == ':' ? number(end + 1, &end) : positions;
    for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      ways.push_back({mode, limit, std::min(own, positions)});
    }
    if (*end == '\0') break;
    if (*end != ',') throw std::runtime_error("limits are numbers with commas between them");
  }
  // The first way's tokens and logits are what the others are held against.
  ways.front().positions = positions;
  return ways;
}

uint32_t parse_device(const std::string& name) {
  if (name != "cuda" && name != "host") throw std::runtime_error("the device is cuda or host");
  return name == "cuda" ? MKRT_DEVICE_CUDA : MKRT_DEVICE_HOST;
}

// Whether every way of every package could run.
bool run(int argument_count, char** arguments) {
  char* end = nullptr;
  uint32_t prompt_length = usual_prompt_length, positions = number(arguments[2], &end);
  if (*end == '+') {
    prompt_length = positions;
    positions = number(end + 1, nullptr);
  }
  if (prompt_length == 0 || positions == 0) throw std::runtime_error("no tokens, or no positions");
  const std::vector<Way> ways = parse_ways(arguments[3], positions);
  const Device device(parse_device(arguments[1]));
  std::vector<std::unique_ptr<Comparison>> comparisons;
  for (int i = 4; i < argument_count; ++i) {
    comparisons.push_back(std::make_unique<Comparison>(device, arguments[i], prompt_length, ways));
    comparisons.back()->run_alone();
  }
  std::vector<std::thread> threads;
  for (const auto& comparison : comparisons) comparison->run_beside(threads);
  for (std::thread& thread : threads) thread.join();
  return std::none_of(comparisons.begin(), comparisons.end(), [](const auto& c) { return c->failed(); });
}

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 5) {
    std::fprintf(stderr,
                 "usage: decode_logits cuda|host [PROMPT+]POSITIONS LIMIT[:POSITIONS][,LIMIT[:POSITIONS]...] "
                 "PACKAGE...\n");
    return 2;
  }
  try {
    return run(argument_count, arguments) ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "decode_logits: %s\n", failure.what());
    return 1;
  }
}
