// A kernel that keeps multiprocessors busy, for benchmarks of what happens beside others' work.
#pragma once

#include <cstdint>

#include "driver.hpp"

namespace mkrt::bench {

class BusyKernel {
 public:
  enum class Kind {
    whole,  // blocks that take an SM's shared memory: nothing else fits beside one
    thin,   // blocks of one warp, 32 registers a thread and no shared memory, which an SM may have room for
  };

  // In the primary context of device 0, which the library uses too, and on a stream of its own. The first launch is
  // here: loading a kernel while another one runs may wait for that one.
  BusyKernel(const test::Driver& driver, Kind kind, uint32_t busy_sms) : driver_(driver), kind_(kind), sms_(busy_sms) {
    driver_.check(driver_.device_get(&device_, 0), "cuDeviceGet");
    driver_.check(driver_.primary_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
    make_current();
    driver_.check(driver_.stream_create(&stream_, test::stream_non_blocking), "cuStreamCreate");
    driver_.check(driver_.module_load(&module_, text), "cuModuleLoadData");
    driver_.check(driver_.module_function(&kernel_, module_, "busy"), "cuModuleGetFunction");
    driver_.check(driver_.device_attribute(&device_sms_, attribute_sms, device_), "cuDeviceGetAttribute");
    if (kind_ == Kind::whole) {
      driver_.check(driver_.device_attribute(&shared_bytes_, attribute_shared_bytes, device_), "cuDeviceGetAttribute");
      driver_.check(driver_.function_set(kernel_, function_shared_bytes, shared_bytes_), "cuFuncSetAttribute");
    }
    void* memory = nullptr;
    driver_.check(driver_.host_allocate(&memory, sizeof(uint32_t) * 2, host_mapped), "cuMemHostAlloc");
    stop_ = static_cast<volatile uint32_t*>(memory);
    start(0);
    wait();
  }
  BusyKernel(const BusyKernel&) = delete;
  BusyKernel& operator=(const BusyKernel&) = delete;
  ~BusyKernel() {
    make_current();
    stop();
    driver_.host_release(const_cast<uint32_t*>(stop_));
    driver_.module_unload(module_);
    driver_.stream_destroy(stream_);
    driver_.context_set_current(nullptr);
    driver_.primary_release(device_);
  }

  // In each thread that calls one of the others.
  void make_current() const { driver_.check(driver_.context_set_current(context_), "cuCtxSetCurrent"); }

  // Begins to keep the SMs busy for so long, or until stop().
  void start(uint64_t nanoseconds) {
    stop_[0] = 0;
    auto address = reinterpret_cast<uint64_t>(stop_);  // the same on the device
    // A whole block takes an SM, whichever; thin ones go to all and leave those that are not meant.
    const bool whole = kind_ == Kind::whole;
    uint32_t most = whole ? UINT32_MAX : sms_;
    void* parameters[] = {&address, &nanoseconds, &most};
    driver_.check(driver_.launch(kernel_, whole ? sms_ : static_cast<unsigned>(device_sms_), 1, 1, whole ? 256 : 32, 1,
                                 1, static_cast<unsigned>(shared_bytes_), stream_, parameters, nullptr),
                  "cuLaunchKernel");
  }
  void wait() { driver_.check(driver_.stream_synchronize(stream_), "cuStreamSynchronize"); }
  // False once its time was over.
  bool running() const { return driver_.stream_query(stream_) == not_ready; }
  void stop() {
    stop_[0] = 1;
    wait();
  }

 private:
  // As the driver numbers them: CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT and _MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_MEMHOSTALLOC_DEVICEMAP, CUDA_ERROR_NOT_READY.
  static constexpr int attribute_sms = 16, attribute_shared_bytes = 97, function_shared_bytes = 8, not_ready = 600;
  static constexpr unsigned host_mapped = 2;

  // Four chains of products, so that a warp has an instruction ready in nearly every cycle; some 2000 of them between
  // two looks at the clock and at the word in host memory, a few microseconds.
  static constexpr char text[] = R"(.version 7.0
.target sm_80
.address_size 64
.visible .entry busy(.param .u64 stop, .param .u64 nanoseconds, .param .u32 sms)
.maxnreg 32
{
  .reg .pred away, again, odd;
  .reg .u32 own, most, flag, turn;
  .reg .u64 word, length, begin, now;
  .reg .f32 a, b, c, d;
  ld.param.u64 word, [stop];
  ld.param.u64 length, [nanoseconds];
  ld.param.u32 most, [sms];
  mov.u32 own, %smid;
  setp.ge.u32 away, own, most;
  @away ret;
  mov.u64 begin, %globaltimer;
  mov.f32 a, 0f3F000000;
  mov.f32 b, 0f3E800000;
  mov.f32 c, 0f3E000000;
  mov.f32 d, 0f3D800000;
WORK:
  mov.u32 turn, 0;
TURN:
  fma.rn.f32 a, a, a, 0f3E800000;
  fma.rn.f32 b, b, b, 0f3E800000;
  fma.rn.f32 c, c, c, 0f3E800000;
  fma.rn.f32 d, d, d, 0f3E800000;
  add.u32 turn, turn, 1;
  setp.lt.u32 again, turn, 512;
  @again bra TURN;
  ld.volatile.global.u32 flag, [word];
  mov.u64 now, %globaltimer;
  sub.u64 now, now, begin;
  setp.lt.u64 again, now, length;
  setp.eq.and.u32 again, flag, 0, again;
  @again bra WORK;
  add.f32 a, a, b;
  add.f32 c, c, d;
  add.f32 a, a, c;
  setp.lt.f32 odd, a, 0f00000000;
  @odd st.volatile.global.u32 [word+4], own;
  ret;
}
)";

  const test::Driver& driver_;
  Kind kind_;
  uint32_t sms_;
  int device_ = 0, device_sms_ = 0, shared_bytes_ = 0;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  void* module_ = nullptr;
  void* kernel_ = nullptr;
  volatile uint32_t* stop_ =
      nullptr;  // in host memory: [0] ends the kernel, [1] keeps its arithmetic from being removed
};

}  // namespace mkrt::bench
