// What the parts of this benchmark share: which ranks there are, and how an entry is timed.
#pragma once

#include <functional>
#include <memory>

#include "bench.hpp"
#include "move_schedule.hpp"
#include "temporary_folder.hpp"

namespace mkrt::bench {

using mkrt::test::TemporaryFolder;

// What is measured.
struct Machine {
  uint32_t kind = MKRT_DEVICE_CUDA;
  uint32_t devices = 1;         // of that kind
  std::vector<uint32_t> ranks;  // numbers of ranks to measure with, ascending

  bool host() const { return kind == MKRT_DEVICE_HOST; }
  std::vector<mkrt::RankOptions> rank_options(uint32_t count) const {
    std::vector<mkrt::RankOptions> options(count);
    for (uint32_t i = 0; i < count; ++i) {
      options[i].kind = kind;
      options[i].ordinal = host() ? 0 : i % devices;
      options[i].worker_count = host() ? 2 : 0;
    }
    return options;
  }
  // Host threads share cores with everything else: static mode would wait for whichever does not run.
  uint32_t queue_mode() const { return host() ? MKRT_QUEUE_DYNAMIC : MKRT_QUEUE_STATIC; }
  bool shares(uint32_t count) const { return count > devices; }
  // Figures of ranks that share a device say nothing of links.
  ordered_json describe(uint32_t count) const {
    ordered_json description = {{"ranks", count}, {"devices", std::min(count, devices)}};
    if (shares(count)) description["note"] = "ranks share a device: no figure here is one of a link between devices";
    return description;
  }
};

// Adds the kernels of this build, where the machine needs any.
void add_images(const Machine& machine, tools::MoveSchedule& schedule);

// A program on a mesh with a session.
class Runner {
 public:
  Runner(const Machine& machine, const std::string& package, uint32_t ranks)
      : queue_mode_(machine.queue_mode()),
        mesh_(runtime_, machine.rank_options(ranks)),
        program_(runtime_, package),
        executable_(program_, mesh_, 0, 8),
        session_(executable_) {}

  const mkrt::Program& program() const { return program_; }
  mkrt::Session& session() { return session_; }
  uint32_t workers() const { return mesh_.device_info().worker_count; }

  // Microseconds of a step, one for each of `samples` executes. An execute has as many steps as last some milliseconds,
  // so that launching it does not count.
  std::vector<double> time(const std::string& entry, double milliseconds = 3, int samples = 7) {
    mkrt::ExecuteOptions options;
    options.entry = program_.find_entry(entry);
    options.queue_mode = queue_mode_;
    const auto run = [&](uint32_t steps) {
      options.step_count = steps;
      const Clock::time_point begin = Clock::now();
      session_.wait(session_.execute(options));
      return seconds_since(begin) * 1e6 / steps;
    };
    run(2);
    const double estimate = run(5);
    const auto steps = static_cast<uint32_t>(std::clamp(milliseconds * 1e3 / estimate, 3.0, 5000.0));
    std::vector<double> microseconds(static_cast<size_t>(samples));
    for (double& sample : microseconds) sample = run(steps);
    return microseconds;
  }

 private:
  uint32_t queue_mode_;
  mkrt::Runtime runtime_;
  mkrt::Mesh mesh_;
  mkrt::Program program_;
  mkrt::Executable executable_;
  mkrt::Session session_;
};

// The median all-reduce of each size, for the comparison with NCCL.
struct AllReduce {
  uint64_t bytes;
  double microseconds;
  std::string way;
};

ordered_json measure_flags(const Machine& machine, uint32_t ranks);
ordered_json measure_copies(const Machine& machine, uint32_t ranks);
ordered_json measure_all_reduces(const Machine& machine, uint32_t ranks, std::vector<AllReduce>& out_best);
// `ours`: what measure_all_reduces found on as many ranks as there are devices.
ordered_json measure_nccl(const Machine& machine, const std::vector<AllReduce>& ours);
ordered_json measure_decoding(const Machine& machine);

}  // namespace mkrt::bench
