// The CUDA driver as a host application sees it: opened beside mkrt, for tests and benchmarks that adopt contexts and
// streams, capture graphs, or measure what the driver itself takes. Declared here, so that no CUDA header is needed.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace mkrt::test {

// X(result name, parameters, symbol): everything that the driver exports under this name has this signature for good.
#define MKRT_TEST_DRIVER(X)                                                                                           \
  X(initialize, (unsigned flags), "cuInit")                                                                           \
  X(driver_version, (int* out_version), "cuDriverGetVersion")                                                         \
  X(error_text, (int result, const char** out_text), "cuGetErrorString")                                              \
  X(device_get, (int* out_device, int ordinal), "cuDeviceGet")                                                        \
  X(device_attribute, (int* out_value, int attribute, int device), "cuDeviceGetAttribute")                            \
  X(context_create, (void** out_context, unsigned flags, int device), "cuCtxCreate_v2")                               \
  X(context_destroy, (void* context), "cuCtxDestroy_v2")                                                              \
  X(context_get_current, (void** out_context), "cuCtxGetCurrent")                                                     \
  X(context_set_current, (void* context), "cuCtxSetCurrent")                                                          \
  X(primary_retain, (void** out_context, int device), "cuDevicePrimaryCtxRetain")                                     \
  X(primary_release, (int device), "cuDevicePrimaryCtxRelease_v2")                                                    \
  X(stream_create, (void** out_stream, unsigned flags), "cuStreamCreate")                                             \
  X(stream_destroy, (void* stream), "cuStreamDestroy_v2")                                                             \
  X(stream_synchronize, (void* stream), "cuStreamSynchronize")                                                        \
  X(stream_query, (void* stream), "cuStreamQuery")                                                                    \
  X(allocate, (uint64_t * out_address, size_t bytes), "cuMemAlloc_v2")                                                \
  X(release, (uint64_t address), "cuMemFree_v2")                                                                      \
  X(host_allocate, (void** out_memory, size_t bytes, unsigned flags), "cuMemHostAlloc")                               \
  X(host_register, (void* memory, size_t bytes, unsigned flags), "cuMemHostRegister_v2")                              \
  X(host_unregister, (void* memory), "cuMemHostUnregister")                                                           \
  X(host_release, (void* memory), "cuMemFreeHost")                                                                    \
  X(copy_to_device, (uint64_t to, const void* from, size_t bytes, void* stream), "cuMemcpyHtoDAsync_v2")              \
  X(copy_to_host, (void* to, uint64_t from, size_t bytes, void* stream), "cuMemcpyDtoHAsync_v2")                      \
  X(capture_begin, (void* stream, int mode), "cuStreamBeginCapture_v2")                                               \
  X(capture_end, (void* stream, void** out_graph), "cuStreamEndCapture")                                              \
  X(graph_instantiate, (void** out_executable, void* graph, unsigned long long flags), "cuGraphInstantiateWithFlags") \
  X(graph_launch, (void* executable, void* stream), "cuGraphLaunch")                                                  \
  X(graph_executable_destroy, (void* executable), "cuGraphExecDestroy")                                               \
  X(graph_destroy, (void* graph), "cuGraphDestroy")                                                                   \
  X(module_load, (void** out_module, const void* image), "cuModuleLoadData")                                          \
  X(module_unload, (void* module), "cuModuleUnload")                                                                  \
  X(module_function, (void** out_function, void* module, const char* name), "cuModuleGetFunction")                    \
  X(function_set, (void* function, int attribute, int value), "cuFuncSetAttribute")                                   \
  X(launch,                                                                                                           \
    (void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,           \
     unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, void** extra),                         \
    "cuLaunchKernel")                                                                                                 \
  X(launch_extended, (const void* config, void* function, void** parameters, void** extra), "cuLaunchKernelEx")

constexpr unsigned stream_non_blocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr int capture_global = 0;            // CU_STREAM_CAPTURE_MODE_GLOBAL
constexpr int capture_thread_local = 1;      // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

class Driver {
 public:
  // Opens and initializes it. Throws std::runtime_error.
  Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error(dlerror());
#define MKRT_TEST_LOAD(name, parameters, symbol) name = reinterpret_cast<int(*) parameters>(find(symbol));
    MKRT_TEST_DRIVER(MKRT_TEST_LOAD)
#undef MKRT_TEST_LOAD
    check(initialize(0), "cuInit");
  }
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

#define MKRT_TEST_MEMBER(name, parameters, symbol) int(*name) parameters = nullptr;
  MKRT_TEST_DRIVER(MKRT_TEST_MEMBER)
#undef MKRT_TEST_MEMBER

  // What the driver says of a result.
  std::string describe(int result) const {
    const char* text = nullptr;
    error_text(result, &text);
    return "driver error " + std::to_string(result) + ": " + (text == nullptr ? "?" : text);
  }
  void check(int result, const char* what) const {
    if (result != 0) throw std::runtime_error(std::string(what) + ": " + describe(result));
  }

 private:
  void* find(const char* symbol) const {
    void* address = dlsym(library_, symbol);
    if (address == nullptr) throw std::runtime_error(std::string("the driver has no ") + symbol);
    return address;
  }

  void* library_;  // never closed: the driver does not survive it in every version
};

}  // namespace mkrt::test
