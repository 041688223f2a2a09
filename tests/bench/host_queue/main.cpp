// What the host machine costs apart from the instructions: an execute, a tile, a dependency, a change of turns.
//
// Each table starts with what the machine itself takes for the bare act, measured in the same run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "host/spin.hpp"
#include "test_schedule.hpp"

namespace {

using namespace mkrt;
using namespace mkrt::host::test;
using host::now_ns;

struct Summary {
  double median;
  double p95;
};

// Nanoseconds that `action` takes, of `count` calls; `pause_us` before each, in which workers may fall asleep.
Summary measure(int count, int pause_us, const std::function<void()>& action) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    if (pause_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(pause_us));
    const uint64_t start = now_ns();
    action();
    times.push_back(static_cast<double>(now_ns() - start));
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() * 95 / 100]};
}

void print(const char* what, uint32_t workers, const char* mode, const Summary& summary, double divide,
           const char* unit) {
  std::printf("%-44s %7u  %-8s %12.2f %12.2f  %s\n", what, workers, mode, summary.median / divide, summary.p95 / divide,
              unit);
}

void print_header(const char* title) {
  std::printf("\n%-44s %7s  %-8s %12s %12s\n", title, "workers", "queue", "median", "p95");
}

void run(device::Session& session, const device::ExecuteRequest& what) {
  uint64_t value = 0;
  mkrt_error error = make_error();
  if (session.execute(what, &value, &error) != MKRT_OK || session.wait(value, UINT64_MAX, &error) != MKRT_OK) {
    std::fprintf(stderr, "%s\n", error.message);
    std::exit(1);
  }
}

// A second thread that answers: what a round trip costs without mkrt.
class SleepingPartner {
 public:
  SleepingPartner() : thread_([this] { answer(); }) {}
  ~SleepingPartner() {
    ask(-1);
    thread_.join();
  }
  void round_trip() {
    ask(1);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return state_ == 0; });
  }

 private:
  void ask(int state) {
    const std::lock_guard lock(mutex_);
    state_ = state;
    changed_.notify_all();
  }
  void answer() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return state_ != 0; });
      if (state_ < 0) return;
      state_ = 0;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int state_ = 0;
  std::thread thread_;
};

// Entries: 0 one empty tile; 1 many empty tiles; 2 the same, each with a wait that is met and a signal; 3 a chain in
// which each tile waits for the one before.
constexpr uint32_t many = 100'000;
constexpr uint32_t chain = 1'000;

std::shared_ptr<const package::Program> make_program() {
  ScheduleBuilder builder;
  builder.entry("empty");
  builder.record("empty", op_nothing);
  builder.entry("tiles");
  builder.record("tiles", op_nothing, {many, 1, 1, 1});
  builder.entry("ordered tiles");
  const uint32_t ready = builder.counter("ready");
  const uint32_t done = builder.counter("done");
  builder.record("ready", op_nothing).signals = {builder.signal(ready)};
  package::Record& ordered = builder.record("tiles", op_nothing, {many, 1, 1, 1});
  ordered.waits = {builder.wait(ready)};
  ordered.signals = {builder.signal(done)};
  builder.entry("chain");
  const uint32_t link = builder.counter("link", chain);
  for (uint32_t i = 0; i < chain; ++i) {
    package::Record& record = builder.record("link", op_nothing);
    if (i > 0) record.waits = {builder.wait(link + i - 1)};
    record.signals = {builder.signal(link + i)};
  }
  return builder.finish();
}

const char* mode_name(uint32_t mode) { return mode == MKRT_QUEUE_STATIC ? "static" : "dynamic"; }

void measure_executes(const std::shared_ptr<const package::Program>& program, const std::vector<uint32_t>& counts) {
  print_header("An empty execute, there and back");
  SleepingPartner partner;
  print("  condition variable, answered by a thread", 1, "-", measure(2000, 0, [&] { partner.round_trip(); }), 1e3,
        "us");
  print("  the same, asked every 2 ms", 1, "-", measure(300, 2000, [&] { partner.round_trip(); }), 1e3, "us");
  for (const uint32_t workers : counts) {
    const auto mesh = make_mesh(1, workers);
    const auto executable = mesh->load(program, {});
    const auto session = executable->create_session();
    for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      const auto once = [&] { run(*session, request(0, 1, mode)); };
      print("  one after the other", workers, mode_name(mode), measure(5000, 0, once), 1e3, "us");
      print("  one every 2 ms: workers asleep", workers, mode_name(mode), measure(300, 2000, once), 1e3, "us");
    }
  }
}

void measure_tiles(const std::shared_ptr<const package::Program>& program, const std::vector<uint32_t>& counts) {
  print_header("An empty tile, all workers together");
  std::atomic<uint64_t> queue{0};
  const auto take_all = [&] {
    for (uint32_t i = 0; i < many; ++i) queue.fetch_add(1, std::memory_order_relaxed);
  };
  print("  an atomic add alone", 1, "-", measure(50, 0, take_all), many, "ns");
  for (const uint32_t workers : counts) {
    const auto mesh = make_mesh(1, workers);
    const auto executable = mesh->load(program, {});
    const auto session = executable->create_session();
    for (const uint32_t mode : {MKRT_QUEUE_DYNAMIC, MKRT_QUEUE_STATIC}) {
      const auto measure_entry = [&](uint32_t entry) {
        return measure(30, 0, [&] { run(*session, request(entry, 1, mode)); });
      };
      print("  without waits and signals", workers, mode_name(mode), measure_entry(1), many, "ns");
      print("  one wait that is met, one signal", workers, mode_name(mode), measure_entry(2), many, "ns");
      print("  each waits for the one before", workers, mode_name(mode), measure_entry(3), chain, "ns");
    }
  }
}

void measure_turns(const std::shared_ptr<const package::Program>& program, const std::vector<uint32_t>& counts) {
  print_header("An execute of 64 that are in flight");
  for (const uint32_t workers : counts) {
    const auto mesh = make_mesh(1, workers);
    const auto executable = mesh->load(program, {});
    const auto first = executable->create_session();
    const auto second = executable->create_session();
    const auto submit = [&](device::Session& session, int count) {
      uint64_t value = 0;
      for (int i = 0; i < count; ++i) session.execute(request(0), &value, nullptr);
      return value;
    };
    print("  all of one session", workers, "dynamic",
          measure(200, 0, [&] { first->wait(submit(*first, 64), UINT64_MAX, nullptr); }), 64e3, "us");
    print("  half and half of two sessions", workers, "dynamic",
          measure(200, 0,
                  [&] {
                    const uint64_t value = submit(*first, 32);
                    second->wait(submit(*second, 32), UINT64_MAX, nullptr);
                    first->wait(value, UINT64_MAX, nullptr);
                  }),
          64e3, "us");
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures what the host machine costs apart from its instructions");
  std::vector<uint32_t> counts = {1, std::max(1u, std::thread::hardware_concurrency())};
  app.add_option("--workers", counts, "Worker counts to measure");
  CLI11_PARSE(app, argc, argv);
  const auto program = make_program();
  measure_executes(program, counts);
  measure_tiles(program, counts);
  measure_turns(program, counts);
  return 0;
}
