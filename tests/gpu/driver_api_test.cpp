// Compares the driver's types and constants that src/cuda declares with those of cuda.h. Compiling it is the test.
#include <cuda.h>

#include "cuda/driver_api.hpp"

namespace mkrt::cuda {

static_assert(sizeof(Result) == sizeof(CUresult) && sizeof(DeviceNumber) == sizeof(CUdevice));
static_assert(sizeof(DevicePointer) == sizeof(CUdeviceptr) && sizeof(Uuid) == sizeof(CUuuid));
static_assert(result_success == static_cast<Result>(CUDA_SUCCESS));
static_assert(result_out_of_memory == static_cast<Result>(CUDA_ERROR_OUT_OF_MEMORY));
static_assert(result_not_ready == static_cast<Result>(CUDA_ERROR_NOT_READY));

static_assert(int{attribute_multiprocessor_count} == int{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT});
static_assert(int{attribute_compute_major} == int{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR});
static_assert(int{attribute_compute_minor} == int{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR});
static_assert(int{attribute_cooperative_launch} == int{CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH});
static_assert(int{attribute_shared_memory_per_block_optin} ==
              int{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN});
static_assert(int{function_max_threads_per_block} == int{CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK});
static_assert(int{function_max_dynamic_shared_bytes} == int{CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES});

static_assert(int{stream_non_blocking} == int{CU_STREAM_NON_BLOCKING});
static_assert(host_memory_portable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(host_memory_mapped == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(proc_address_default == static_cast<uint64_t>(CU_GET_PROC_ADDRESS_DEFAULT));

static_assert(int{launch_attribute_cooperative} == int{CU_LAUNCH_ATTRIBUTE_COOPERATIVE});
static_assert(sizeof(LaunchAttribute) == sizeof(CUlaunchAttribute));
static_assert(offsetof(LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
static_assert(sizeof(LaunchConfig) == sizeof(CUlaunchConfig));
static_assert(offsetof(LaunchConfig, block_x) == offsetof(CUlaunchConfig, blockDimX));
static_assert(offsetof(LaunchConfig, shared_memory_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
static_assert(offsetof(LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
static_assert(offsetof(LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
static_assert(offsetof(LaunchConfig, attribute_count) == offsetof(CUlaunchConfig, numAttrs));

}  // namespace mkrt::cuda
