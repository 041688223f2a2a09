// A small program with a fake image, for any number of ranks, and GPUs of the double to run it on.
#pragma once

#include <doctest/doctest.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/failure.hpp"
#include "base/hooks.hpp"
#include "cuda/cuda.hpp"
#include "device/device.hpp"
#include "driver_double.hpp"
#include "package/program.hpp"
#include "temporary_folder.hpp"
#include "test_schedule.hpp"

namespace mkrt::cuda::test {

// Entries of the program.
enum EntryNumber : uint32_t {
  entry_step,   // hashes weights and state, and what the other ranks made of theirs, into the state
  entry_count,  // total += 1, one record
  entry_hold,   // runs until host::test::hold() is false
  entry_stuck,  // its second record waits for what never comes
  entry_fault,  // its third record faults
  entry_apart,  // its second record waits for what comes on rank 0 alone
};

constexpr uint32_t width = 13;  // elements of the state on a rank

struct Work {
  // `weight_bytes`: of each of two weight tensors, at least 4 * width.
  explicit Work(uint64_t weight_bytes = 4096, uint32_t ranks = 1);
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Changes the image's file.
  void write_image(const FakeImage& image) const;
  // Lets the weights lie in a file, whose path it returns, as those of a package do; before, they lie in memory.
  std::string move_weights_to_file();

  mkrt::test::TemporaryFolder folder;
  std::vector<uint32_t> weights;  // of both tensors, for each rank
  std::shared_ptr<package::Program> program;
  uint32_t state = 0, total = 0;
};

// The state after `steps` steps from `begin`, as the host device computes it.
std::vector<uint32_t> host_result(const Work& work, const std::vector<uint32_t>& begin, uint32_t steps);
std::vector<uint32_t> random_state(uint32_t ranks = 1);

using RankDescs = std::span<const mkrt_rank_desc>;
std::unique_ptr<device::Mesh> make_mesh(const DriverDouble& gpu, RankDescs ranks,
                                        const mkrt_device_memory_extension* device_memory = nullptr);
inline std::unique_ptr<device::Mesh> make_mesh(const DriverDouble& gpu, const mkrt_rank_desc& rank,
                                               const mkrt_device_memory_extension* device_memory = nullptr) {
  return make_mesh(gpu, {&rank, 1}, device_memory);
}
mkrt_rank_desc rank_desc(uint32_t ordinal = 0);
std::vector<mkrt_rank_desc> rank_descs(std::initializer_list<uint32_t> ordinals);

// Mesh, executable and session on the first GPU, or where it is said.
struct OnGpu {
  OnGpu(const DriverDouble& gpu, const Work& work, const mkrt_rank_desc& rank = rank_desc(),
        const device::LoadOptions& options = {}, const mkrt_device_memory_extension* device_memory = nullptr)
      : OnGpu(gpu, work, RankDescs(&rank, 1), options, device_memory) {}
  OnGpu(const DriverDouble& gpu, const Work& work, RankDescs ranks, const device::LoadOptions& options = {},
        const mkrt_device_memory_extension* device_memory = nullptr);

  std::unique_ptr<device::Mesh> mesh;
  std::unique_ptr<device::Executable> executable;
  std::unique_ptr<device::Session> session;
};

// The state of all ranks, one after the other.
void write_state(device::Session& session, const Work& work, const std::vector<uint32_t>& state);
std::vector<uint32_t> read_state(device::Session& session, const Work& work);
uint32_t read_total(device::Session& session, const Work& work, uint32_t rank = 0);

// Runs to the end; the status is required to be OK.
void run(device::Session& session, const device::ExecuteRequest& request);

inline constexpr uint64_t no_limit = UINT64_MAX;
inline constexpr uint64_t millisecond = 1'000'000;

// A double that knows the program's instructions.
struct Gpu : DriverDouble {
  explicit Gpu(std::vector<SimulatedDevice> devices = {SimulatedDevice{}}) : DriverDouble(std::move(devices)) {
    add_isa(host::test::test_isa());
  }
};

// Keeps op_hold from returning while it lives.
class Hold {
 public:
  Hold() : before_(host::test::held().load()) { host::test::hold() = true; }
  ~Hold() { release(); }
  void release() { host::test::hold() = false; }
  void wait_until_held() const {
    while (host::test::held().load() == before_) std::this_thread::yield();
  }

 private:
  uint64_t before_;
};

// Enqueues; the status is required to be OK. Returns the timeline value.
uint64_t enqueue(device::Session& session, const device::ExecuteRequest& request);

// The failure that `call` throws.
template <class Call>
base::Failure failure_of(Call&& call) {
  try {
    call();
  } catch (const base::Failure& failure) {
    return failure;
  }
  FAIL("nothing was thrown");
  return {MKRT_OK, ""};
}

}  // namespace mkrt::cuda::test
