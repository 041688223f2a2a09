// beside PACKAGE [CONTEXT]: milliseconds a token in both queue modes while others keep 16 multiprocessors busy.
//
// A launch is cooperative: it begins when every one of its blocks has an SM with room for it, and from then on no block
// of others fits beside one that takes an SM's shared memory. So what others do can only be one of these:
//  - thin: their blocks are small enough to share an SM with the launch, and take issue slots of its warps. Where they
//  do
//    not fit the launch waits until they are gone, which is said instead of figures;
//  - whole: they keep 16 SMs for long. With a worker limit that leaves those free the launch runs beside them; without
//    one it would wait, so that is not measured;
//  - coming and going: they take 16 SMs for 200 us and leave them for as long, again and again. A launch waits for its
//    turn, and once it runs they wait;
//  - another process: its 16 SMs are whole for long, and the driver gives the processes turns on the entire device.
// The figures of each have their counterpart without others, with the same worker limit.
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "busy_kernel.hpp"
#include "decoder.hpp"

namespace {

using namespace mkrt::bench;
using mkrt::test::Driver;

constexpr uint32_t busy_sms = 16;
constexpr uint32_t steps = 64;
constexpr int repeats = 5;
// Others' kernels end by themselves after so long, whatever happens to this program.
constexpr uint64_t longest_ns = 4'000'000'000;
constexpr uint64_t short_ns = 200'000;

double median(const std::vector<double>& samples) { return percentile(samples, 0.5); }

// Both modes in turn, in both ways to ask for steps.
ordered_json measure_modes(Decoder& decoder, uint32_t context, uint32_t worker_limit) {
  constexpr uint32_t modes[] = {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC};
  std::vector<double> together[2], single[2];
  for (int repeat = -1; repeat < repeats; ++repeat) {
    for (int mode = 0; mode < 2; ++mode) {
      decoder.go_to(context - steps / 2);
      const Clock::time_point begin = Clock::now();
      decoder.run(steps, modes[mode], Asking::together, worker_limit);
      const double milliseconds = seconds_since(begin) * 1e3 / steps;
      decoder.go_to(context - steps / 2);
      const std::vector<double> each = decoder.time_each(steps, modes[mode], worker_limit);
      if (repeat < 0) continue;
      together[mode].push_back(milliseconds);
      single[mode].insert(single[mode].end(), each.begin(), each.end());
    }
  }
  const auto figures = [](const std::vector<double>(&of)[2]) {
    return ordered_json{{"dynamic_ms_per_token", summary(of[0])},
                        {"static_ms_per_token", summary(of[1])},
                        {"dynamic_to_static", median(of[0]) / median(of[1])}};
  };
  return {{"many_steps_an_execute", figures(together)}, {"one_step_an_execute", figures(single)}};
}

// Kernels of 200 us with pauses as long, from a thread of its own while it lives.
class ComingAndGoing {
 public:
  explicit ComingAndGoing(BusyKernel& kernel) : kernel_(kernel), begin_(Clock::now()), thread_([this] { work(); }) {}
  ComingAndGoing(const ComingAndGoing&) = delete;
  ComingAndGoing& operator=(const ComingAndGoing&) = delete;
  ~ComingAndGoing() { finish(); }

  // Ends it; the share of the time in which a kernel ran.
  double finish() {
    if (thread_.joinable()) {
      ended_ = true;
      thread_.join();
      share_ = static_cast<double>(kernels_) * static_cast<double>(short_ns) / 1e9 / seconds_since(begin_);
    }
    return share_;
  }

 private:
  void work() {
    kernel_.make_current();
    while (!ended_) {
      kernel_.start(short_ns);
      kernel_.wait();
      ++kernels_;
      const Clock::time_point pause = Clock::now();
      while (seconds_since(pause) * 1e9 < static_cast<double>(short_ns)) {
      }
    }
  }

  BusyKernel& kernel_;
  Clock::time_point begin_;
  std::atomic<bool> ended_{false};
  uint64_t kernels_ = 0;  // the thread's until it has ended
  double share_ = 0;
  std::thread thread_;
};

// This program again, as a process that keeps SMs busy until its input ends.
class OtherProcess {
 public:
  OtherProcess() {
    int input[2], output[2];
    if (pipe2(input, O_CLOEXEC) != 0 || pipe2(output, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
    char name[] = "beside", option[] = "--busy";
    char* arguments[] = {name, option, nullptr};
    const int status = posix_spawn(&process_, "/proc/self/exe", &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(input[0]);
    close(output[1]);
    input_ = input[1];
    output_ = output[0];
    if (status != 0) throw std::runtime_error("no other process");
  }
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;
  ~OtherProcess() {
    close(input_);
    close(output_);
    if (process_ > 0) waitpid(process_, nullptr, 0);
  }
  // Whether its kernel has begun, after at most 20 s.
  bool began() const {
    pollfd wait{output_, POLLIN, 0};
    char word = 0;
    return poll(&wait, 1, 20'000) == 1 && read(output_, &word, 1) == 1;
  }

 private:
  pid_t process_ = -1;
  int input_ = -1, output_ = -1;
};

// What that process does.
int be_busy() {
  const Driver driver;
  BusyKernel kernel(driver, BusyKernel::Kind::whole, busy_sms);
  kernel.start(longest_ns * 5);
  if (write(STDOUT_FILENO, "b", 1) != 1) return 1;
  char word = 0;
  while (read(STDIN_FILENO, &word, 1) > 0) {
  }
  return 0;  // its end stops the kernel
}

int be_busy_or_say_why() {
  try {
    return be_busy();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "the other process: %s\n", failure.what());
    return 1;
  }
}

class Measurement {
 public:
  Measurement(const char* package, uint32_t context)
      : decoder_(package),
        context_(context),
        limit_(decoder_.describe_device()["sms"].get<uint32_t>() - busy_sms),
        whole_(driver_, BusyKernel::Kind::whole, busy_sms),
        thin_(driver_, BusyKernel::Kind::thin, busy_sms) {
    decoder_.fill(context + steps);
  }

  ordered_json measure() {
    add("nobody else", 0, measure_modes(decoder_, context_, 0));
    add("nobody else", limit_, measure_modes(decoder_, context_, limit_));
    add("thin blocks on 16 SMs", 0, beside(thin_, 0));
    add("whole blocks on 16 SMs", limit_, beside(whole_, limit_));
    for (const uint32_t limit : {0u, limit_}) {
      ComingAndGoing others(whole_);
      ordered_json figures = measure_modes(decoder_, context_, limit);
      figures["others_run_for"] = others.finish();
      add("whole blocks on 16 SMs, 200 us long, 200 us apart", limit, std::move(figures));
    }
    add("another process with whole blocks on 16 SMs", 0, beside_process());
    return {{"benchmark", "beside"},
            {"device", decoder_.describe_device()},
            {"context", context_},
            {"busy_sms", busy_sms},
            {"results", results_}};
  }

 private:
  // While a kernel runs from before the first execute to after the last.
  ordered_json beside(BusyKernel& kernel, uint32_t worker_limit) {
    decoder_.go_to(context_);
    kernel.start(longest_ns);
    decoder_.run(1, MKRT_QUEUE_STATIC, Asking::one_by_one, worker_limit);
    // Checked before and after: a launch that finds no room waits for the kernel's end.
    ordered_json figures;
    if (kernel.running()) figures = measure_modes(decoder_, context_, worker_limit);
    const bool fits = kernel.running();
    kernel.stop();
    if (fits) return figures;
    return {{"remark", "the launch waited until the others' kernel had ended, or took longer than it lasts"}};
  }

  ordered_json beside_process() {
    const OtherProcess others;
    if (!others.began()) return {{"remark", "the other process could not begin"}};
    return measure_modes(decoder_, context_, 0);
  }

  void add(const char* others, uint32_t worker_limit, ordered_json figures) {
    ordered_json result{{"others", others}, {"worker_limit", worker_limit}};
    result.update(figures);
    std::fprintf(stderr, "%-52s workers %3s", others, worker_limit == 0 ? "all" : std::to_string(worker_limit).c_str());
    for (const char* asking : {"many_steps_an_execute", "one_step_an_execute"}) {
      if (!figures.contains(asking)) continue;
      const ordered_json& of = figures[asking];
      std::fprintf(stderr, "  %s: dynamic %.4f static %.4f ms", asking, of["dynamic_ms_per_token"]["p50"].get<double>(),
                   of["static_ms_per_token"]["p50"].get<double>());
    }
    std::fprintf(stderr, "%s\n", figures.contains("remark") ? "  (waited)" : "");
    results_.push_back(std::move(result));
  }

  Decoder decoder_;
  uint32_t context_;
  uint32_t limit_;
  Driver driver_;
  BusyKernel whole_, thin_;
  ordered_json results_ = ordered_json::array();
};

}  // namespace

int main(int argument_count, char** arguments) {
  if (argument_count < 2) {
    std::fprintf(stderr, "usage: beside PACKAGE [CONTEXT]\n");
    return 2;
  }
  if (std::strcmp(arguments[1], "--busy") == 0) return be_busy_or_say_why();
  const auto context = static_cast<uint32_t>(argument_count > 2 ? std::strtoul(arguments[2], nullptr, 10) : 128);
  return report("beside", [&] { return Measurement(arguments[1], context).measure(); });
}
