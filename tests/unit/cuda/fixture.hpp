// A small program with a fake image, and a GPU of the double to run it on.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>
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
  entry_step,   // hashes weights and state into the state
  entry_count,  // total += 1, one record
  entry_hold,   // runs until host::test::hold() is false
  entry_stuck,  // its second record waits for what never comes
  entry_fault,  // its third record faults
};

constexpr uint32_t width = 13;  // elements of the state

struct Work {
  // `weight_bytes`: of each of two weight tensors, at least 4 * width.
  explicit Work(uint64_t weight_bytes = 4096);
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Changes the image's file.
  void write_image(const FakeImage& image) const;
  // Lets the weights lie in a file, whose path it returns, as those of a package do; before, they lie in memory.
  std::string move_weights_to_file();

  mkrt::test::TemporaryFolder folder;
  std::vector<uint32_t> weights;  // of both tensors
  std::shared_ptr<package::Program> program;
  uint32_t state = 0, total = 0;
};

// The state after `steps` steps from `begin`, as the host device computes it.
std::vector<uint32_t> host_result(const Work& work, const std::vector<uint32_t>& begin, uint32_t steps);
std::vector<uint32_t> random_state();

std::unique_ptr<device::Mesh> make_mesh(const DriverDouble& gpu, const mkrt_rank_desc& rank,
                                        const mkrt_device_memory_extension* device_memory = nullptr);
mkrt_rank_desc rank_desc();

// Mesh, executable and session on the first GPU.
struct OnGpu {
  OnGpu(const DriverDouble& gpu, const Work& work, const mkrt_rank_desc& rank = rank_desc(),
        const device::LoadOptions& options = {}, const mkrt_device_memory_extension* device_memory = nullptr);

  std::unique_ptr<device::Mesh> mesh;
  std::unique_ptr<device::Executable> executable;
  std::unique_ptr<device::Session> session;
};

void write_state(device::Session& session, const Work& work, const std::vector<uint32_t>& state);
std::vector<uint32_t> read_state(device::Session& session, const Work& work);
uint32_t read_total(device::Session& session, const Work& work);

// Runs to the end; the status is required to be OK.
void run(device::Session& session, const device::ExecuteRequest& request);

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
