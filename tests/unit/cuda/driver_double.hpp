// A CUDA driver for tests: simulated devices in host memory behind the table that src/cuda calls.
//
// What it keeps an eye on, each a violation that fails the test when the double goes:
//  - memory, pinned memory, registrations of memory, streams, modules and retained contexts that are not given back, or
//    given back twice, or that the double never gave out;
//  - memory that is registered while it is pinned already, or freed while it is registered;
//  - calls without a current context, or with another context than that of the objects they name;
//  - contexts that are popped without a push, or still pushed when a thread ends;
//  - mapped memory that is freed in another order than unmap, release, free of the addresses;
//  - descriptors of memory, for other processes or from them, that are not closed;
//  - memory of whatever kind that is given back while something on its way on a stream uses it;
//  - addresses that a copy, a fill or a kernel uses and that lie in no memory of the device;
//  - launches that the device could not take, or that are not cooperative;
//  - use of the default stream, which would wait for the application's work;
//  - streams that are asked or waited for while they are capturing, or while another is, by a thread whose mode forbids
//    it.
// Device addresses are host addresses with a bias that no processor can read through: host code that uses one crashes.
//
// Memory that is created can be mapped at several addresses, so one double stands for the drivers of several processes
// that map each other's.
//
// Streams are threads, so work overlaps as on a device. A launch runs the encoded table with the code of a host
// instruction set and keeps queue, epoch, report, timeline and trace as include/mkrt/device/launch.h says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver.hpp"
#include "mkrt/device/launch.h"
#include "mkrt/host_isa.h"

namespace mkrt::cuda {
struct StreamWork;
}

namespace mkrt::cuda::test {

struct SimulatedDevice {
  std::string name = "Simulated GPU";
  int major = 9;
  int minor = 0;
  int multiprocessors = 4;
  int shared_memory = 200'000;  // of a block
  int largest_block = 1024;
  bool cooperative = true;
  bool virtual_memory = true;
  bool posix_handles = true;
  bool fabric_handles = false;
  size_t granularity = 65'536;  // of memory that is mapped; a power of two, at least 4096
  size_t memory = size_t{1} << 30;
};

// What a kernel image says of itself. `bytes()` is a file that module_load takes.
struct FakeImage {
  mkrt_image_info info{};
  bool has_info = true;
  bool has_kernel = true;
  bool has_traced_kernel = true;
  uint64_t info_size = sizeof(mkrt_image_info);

  // An image of this library's launch interface for an instruction set.
  explicit FakeImage(uint64_t isa_fingerprint);
  std::string bytes() const;
};

struct Launch {
  uint32_t grid = 0, block = 0, shared_memory = 0;
  Stream stream = nullptr;
  mkrt_launch parameters{};
};

class DriverDouble {
 public:
  explicit DriverDouble(std::vector<SimulatedDevice> devices = {SimulatedDevice{}});
  DriverDouble(const DriverDouble&) = delete;
  DriverDouble& operator=(const DriverDouble&) = delete;
  // Fails the test for every violation that was not taken. At most one double lives at a time.
  ~DriverDouble();

  std::shared_ptr<const Driver> driver() const;
  // The table of the double that lives: for runtime::CudaDevices.
  static std::shared_ptr<const Driver> open();

  // Kernels of images with this set's fingerprint run its instructions; it outlives the double.
  void add_isa(const mkrt_host_isa& isa);

  // From now on, call number `number` (from 1) returns `result`; with `all_after` all later ones as well. Calls that
  // give something back do it nevertheless, as the driver does when it reports an earlier failure.
  void fail_call(uint64_t number, Result result, bool all_after = false);
  // The same where only calls of the calling thread count: a test's threads may stand for processes.
  void fail_call_of_this_thread(uint64_t number, Result result, bool all_after = false);
  void fail_none() { fail_call(0, result_success); }
  uint64_t call_count() const;      // since the last fail_call
  std::string failed_call() const;  // the first that was made to fail, such as "memory_allocate"; empty: none yet
  // The next launch is taken, never runs, and its context is lost.
  void break_next_launch(Result result);
  // Kernels of the context end where they are; from now on every call in it returns `result`.
  void lose(Context context, Result result);
  void wait_for(Context context);  // until nothing of it is on its way
  Context primary_context(int ordinal);
  // Whether streams begin with their work only when somebody waits for it, as slow a device as there can be.
  void put_work_off(bool off);
  // Calls `call` whenever device memory is about to be given back, but for what `call` gives back itself.
  void on_release(std::function<void()> call);
  // The table lacks a function from now on.
  void forget(const char* name);
  // What the path from one device to another can do; all devices reach each other unless they are told not to.
  void set_path(int from, int to, bool access, bool atomics);
  // Larger allocations fail for lack of room.
  void set_free_memory(int device, size_t bytes);

  // What an application does by itself; not counted as calls, given back by the double.
  Context create_context(int ordinal);
  Stream create_stream(Context context);
  DevicePointer allocate(Context context, size_t bytes);
  void free(DevicePointer address);
  void push(Context context);
  void pop();
  std::vector<Context> context_stack() const;  // of this thread
  // A capture in the driver's default mode, which looks at what every thread does.
  struct Graph {
    std::shared_ptr<const std::vector<StreamWork>> work;
  };
  void begin_capture(Stream stream);
  Graph end_capture(Stream stream);
  void replay(const Graph& graph, Stream stream);

  // Objects that are given out at the moment, but for the application's own.
  size_t live_objects() const;
  // The most host memory that was pinned at a time, allocated or registered.
  size_t most_pinned_bytes() const;
  // The most memory of a device that the library had at a time.
  uint64_t most_memory(int ordinal) const;
  std::vector<Launch> launches() const;
  std::vector<std::string> take_violations();

  class State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace mkrt::cuda::test
