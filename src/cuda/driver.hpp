// The table of driver functions, filled when the driver is opened.
#pragma once

#include <memory>
#include <string>

#include "cuda/driver_api.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::cuda {

// X(result name, parameter list, driver symbol, CUDA version at which its present signature appeared).
// The version is asked for exactly, so that a newer driver gives the function that this code was written against.
#define MKRT_CUDA_REQUIRED(X)                                                                                          \
  X(initialize, (unsigned flags), cuInit, 2000)                                                                        \
  X(driver_version, (int* out_version), cuDriverGetVersion, 2020)                                                      \
  X(device_count, (int* out_count), cuDeviceGetCount, 2000)                                                            \
  X(device_get, (DeviceNumber * out_device, int ordinal), cuDeviceGet, 2000)                                           \
  X(device_name, (char* out_name, int length, DeviceNumber device), cuDeviceGetName, 2000)                             \
  X(device_uuid, (Uuid * out_uuid, DeviceNumber device), cuDeviceGetUuid, 11040)                                       \
  X(device_attribute, (int* out_value, DeviceAttribute attribute, DeviceNumber device), cuDeviceGetAttribute, 2000)    \
  X(device_memory, (size_t * out_bytes, DeviceNumber device), cuDeviceTotalMem, 3020)                                  \
  X(primary_context_retain, (Context * out_context, DeviceNumber device), cuDevicePrimaryCtxRetain, 7000)              \
  X(primary_context_release, (DeviceNumber device), cuDevicePrimaryCtxRelease, 11000)                                  \
  X(context_push, (Context context), cuCtxPushCurrent, 4000)                                                           \
  X(context_pop, (Context * out_context), cuCtxPopCurrent, 4000)                                                       \
  X(context_device, (DeviceNumber * out_device), cuCtxGetDevice, 2000)                                                 \
  X(memory_info, (size_t * out_free, size_t * out_total), cuMemGetInfo, 3020)                                          \
  X(memory_allocate, (DevicePointer * out_address, size_t bytes), cuMemAlloc, 3020)                                    \
  X(memory_free, (DevicePointer address), cuMemFree, 3020)                                                             \
  X(host_allocate, (void** out_memory, size_t bytes, unsigned flags), cuMemHostAlloc, 2020)                            \
  X(host_free, (void* memory), cuMemFreeHost, 2000)                                                                    \
  X(host_device_pointer, (DevicePointer * out_address, void* memory, unsigned flags), cuMemHostGetDevicePointer, 3020) \
  X(copy_to_device, (DevicePointer to, const void* from, size_t bytes, Stream stream), cuMemcpyHtoDAsync, 3020)        \
  X(copy_to_host, (void* to, DevicePointer from, size_t bytes, Stream stream), cuMemcpyDtoHAsync, 3020)                \
  X(fill_bytes, (DevicePointer to, unsigned char value, size_t bytes, Stream stream), cuMemsetD8Async, 3020)           \
  X(stream_create, (Stream * out_stream, unsigned flags), cuStreamCreate, 2000)                                        \
  X(stream_destroy, (Stream stream), cuStreamDestroy, 4000)                                                            \
  X(stream_query, (Stream stream), cuStreamQuery, 2000)                                                                \
  X(stream_synchronize, (Stream stream), cuStreamSynchronize, 2000)                                                    \
  X(capture_status, (Stream stream, CaptureStatus * out_status), cuStreamIsCapturing, 10000)                           \
  X(capture_mode, (CaptureMode * in_out_mode), cuThreadExchangeStreamCaptureMode, 10010)                               \
  X(module_load, (Module * out_module, const void* image), cuModuleLoadData, 2000)                                     \
  X(module_unload, (Module module), cuModuleUnload, 2000)                                                              \
  X(module_function, (Function * out_function, Module module, const char* name), cuModuleGetFunction, 2000)            \
  X(module_global, (DevicePointer * out_address, size_t * out_bytes, Module module, const char* name),                 \
    cuModuleGetGlobal, 3020)                                                                                           \
  X(function_attribute, (int* out_value, FunctionAttribute attribute, Function function), cuFuncGetAttribute, 2020)    \
  X(function_set_attribute, (Function function, FunctionAttribute attribute, int value), cuFuncSetAttribute, 9000)     \
  X(launch, (const LaunchConfig* config, Function function, void** parameters, void** extra), cuLaunchKernelEx, 11060)

// Missing ones turn a convenience off.
#define MKRT_CUDA_OPTIONAL(X)                                                             \
  X(error_name, (Result result, const char** out_name), cuGetErrorName, 6000)             \
  X(error_text, (Result result, const char** out_text), cuGetErrorString, 6000)           \
  X(host_register, (void* memory, size_t bytes, unsigned flags), cuMemHostRegister, 6050) \
  X(host_unregister, (void* memory), cuMemHostUnregister, 4000)

// Meshes of several ranks need all of these. Where one is missing, such a mesh is refused.
#define MKRT_CUDA_RANKS(X)                                                                                             \
  X(device_can_access_peer, (int* out_value, DeviceNumber device, DeviceNumber peer), cuDeviceCanAccessPeer, 4000)     \
  X(peer_attribute, (int* out_value, PeerAttribute attribute, DeviceNumber device, DeviceNumber peer),                 \
    cuDeviceGetP2PAttribute, 8000)                                                                                     \
  X(memory_granularity, (size_t * out_bytes, const MemoryProperties* properties, MemoryGranularity which),             \
    cuMemGetAllocationGranularity, 10020)                                                                              \
  X(address_reserve,                                                                                                   \
    (DevicePointer * out_address, size_t bytes, size_t alignment, DevicePointer wanted, unsigned long long flags),     \
    cuMemAddressReserve, 10020)                                                                                        \
  X(address_free, (DevicePointer address, size_t bytes), cuMemAddressFree, 10020)                                      \
  X(memory_create,                                                                                                     \
    (PhysicalMemory * out_memory, size_t bytes, const MemoryProperties* properties, unsigned long long flags),         \
    cuMemCreate, 10020)                                                                                                \
  X(memory_release, (PhysicalMemory memory), cuMemRelease, 10020)                                                      \
  X(memory_map, (DevicePointer address, size_t bytes, size_t offset, PhysicalMemory memory, unsigned long long flags), \
    cuMemMap, 10020)                                                                                                   \
  X(memory_unmap, (DevicePointer address, size_t bytes), cuMemUnmap, 10020)                                            \
  X(memory_set_access, (DevicePointer address, size_t bytes, const MemoryAccess* access, size_t count),                \
    cuMemSetAccess, 10020)

// Meshes of several processes need these as well.
#define MKRT_CUDA_PROCESSES(X)                                                                           \
  X(memory_export, (void* out_handle, PhysicalMemory memory, int handle_type, unsigned long long flags), \
    cuMemExportToShareableHandle, 10020)                                                                 \
  X(memory_import, (PhysicalMemory * out_memory, void* handle, int handle_type), cuMemImportFromShareableHandle, 10020)

struct Driver {
#define MKRT_CUDA_MEMBER(name, parameters, symbol, version) Result(MKRT_CUDA_CALL* name) parameters = nullptr;
  MKRT_CUDA_REQUIRED(MKRT_CUDA_MEMBER)
  MKRT_CUDA_OPTIONAL(MKRT_CUDA_MEMBER)
  MKRT_CUDA_RANKS(MKRT_CUDA_MEMBER)
  MKRT_CUDA_PROCESSES(MKRT_CUDA_MEMBER)
#undef MKRT_CUDA_MEMBER

  // Throws Failure(OUT_OF_MEMORY or DRIVER) where the result is not success; `what` completes "could not ...".
  void check(Result result, const std::string& what) const;
  // The first function that several ranks need and the driver lacks, or nullptr.
  const char* missing_for_ranks() const noexcept;
  // The first of those that only several processes need.
  const char* missing_for_processes() const noexcept;
  // "CUDA_ERROR_INVALID_VALUE (1): invalid argument", as far as the driver tells.
  std::string describe(Result result) const;
};

// Fills an error for a driver call that failed on the execute path. Allocates nothing.
mkrt_status driver_error(const Driver& driver, Result result, const char* what, int32_t rank,
                         mkrt_error* out_error) noexcept;

// Opens and initializes the system's driver. Throws Failure(DEVICE) with the reason: no driver, one that is too old, a
// stub library, or no device. Each call opens it anew; the driver itself is a singleton of the process.
std::shared_ptr<const Driver> open_driver();

}  // namespace mkrt::cuda
