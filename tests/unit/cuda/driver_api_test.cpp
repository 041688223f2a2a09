// driver_api.hpp declares the driver's interface anew, so that no toolkit is needed. Where there is one, its headers
// must agree: constants, layouts, and the signature of every function at the version at which it is looked up.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <type_traits>

#include "cuda/driver.hpp"

using namespace mkrt::cuda;

namespace {

// Passed in the same way: pointers and handles as pointers, numbers and enumerations of one size.
template <class Ours, class Theirs>
constexpr bool alike = sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs) &&
                       std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
                       (std::is_pointer_v<Ours> || (std::is_integral_v<Ours> || std::is_enum_v<Ours>) ==
                                                       (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>));

template <class Ours, class Theirs>
struct Signature : std::false_type {};
template <class OurResult, class... Ours, class TheirResult, class... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct Signature<OurResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<alike<OurResult, TheirResult> && (alike<Ours, Theirs> && ...)> {};

}  // namespace

TEST_CASE("every function of the table has the signature that its version has"){
#define MKRT_CHECK_SIGNATURE(name, parameters, symbol, version)                                \
  {                                                                                            \
    constexpr bool same = Signature<decltype(Driver::name), PFN_##symbol##_v##version>::value; \
    CHECK_MESSAGE(same, #symbol);                                                              \
  }
    MKRT_CUDA_REQUIRED(MKRT_CHECK_SIGNATURE) MKRT_CUDA_OPTIONAL(MKRT_CHECK_SIGNATURE)
        MKRT_CUDA_RANKS(MKRT_CHECK_SIGNATURE) MKRT_CUDA_PROCESSES(MKRT_CHECK_SIGNATURE)
#undef MKRT_CHECK_SIGNATURE
}

TEST_CASE("signatures that differ are told apart") {
  CHECK(!Signature<Result (*)(int), CUresult (*)(CUdeviceptr)>::value);
  CHECK(!Signature<Result (*)(int), CUresult (*)(CUcontext)>::value);
  CHECK(!Signature<Result (*)(int), CUresult (*)(int, int)>::value);
}

TEST_CASE("constants have the values of cuda.h") {
  CHECK(result_success == CUDA_SUCCESS);
  CHECK(result_out_of_memory == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(result_not_found == CUDA_ERROR_NOT_FOUND);
  CHECK(result_not_ready == CUDA_ERROR_NOT_READY);
  CHECK(int{attribute_multiprocessor_count} == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  CHECK(int{attribute_compute_major} == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  CHECK(int{attribute_compute_minor} == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  CHECK(int{attribute_cooperative_launch} == CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
  CHECK(int{attribute_shared_memory_per_block_optin} == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  CHECK(int{attribute_virtual_memory} == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
  CHECK(int{attribute_posix_memory_handles} == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
  CHECK(int{attribute_fabric_memory_handles} == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
  CHECK(int{peer_access_supported} == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED);
  CHECK(int{peer_native_atomics} == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
  CHECK(memory_pinned_on_device == CU_MEM_ALLOCATION_TYPE_PINNED);
  CHECK(memory_location_device == CU_MEM_LOCATION_TYPE_DEVICE);
  CHECK(memory_handle_none == CU_MEM_HANDLE_TYPE_NONE);
  CHECK(memory_handle_posix == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CHECK(memory_handle_fabric == CU_MEM_HANDLE_TYPE_FABRIC);
  CHECK(memory_access_read_write == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(int{granularity_recommended} == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  CHECK(int{function_max_threads_per_block} == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  CHECK(int{function_max_dynamic_shared_bytes} == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  CHECK(int{capture_relaxed} == CU_STREAM_CAPTURE_MODE_RELAXED);
  CHECK(int{capture_none} == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(stream_non_blocking == CU_STREAM_NON_BLOCKING);
  CHECK(host_memory_portable == CU_MEMHOSTALLOC_PORTABLE);
  CHECK(host_memory_mapped == CU_MEMHOSTALLOC_DEVICEMAP);
  CHECK(proc_address_default == CU_GET_PROC_ADDRESS_DEFAULT);
  CHECK(int{launch_attribute_cooperative} == CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
}

TEST_CASE("structs have the layout of cuda.h") {
  CHECK(sizeof(Uuid) == sizeof(CUuuid));
  CHECK(sizeof(MemoryProperties) == sizeof(CUmemAllocationProp));
  CHECK(offsetof(MemoryProperties, handle_types) == offsetof(CUmemAllocationProp, requestedHandleTypes));
  CHECK(offsetof(MemoryProperties, location.type) == offsetof(CUmemAllocationProp, location.type));
  CHECK(offsetof(MemoryProperties, location.id) == offsetof(CUmemAllocationProp, location.id));
  CHECK(offsetof(MemoryProperties, windows_attributes) == offsetof(CUmemAllocationProp, win32HandleMetaData));
  CHECK(offsetof(MemoryProperties, flags) == offsetof(CUmemAllocationProp, allocFlags));
  CHECK(sizeof(FabricHandle) == sizeof(CUmemFabricHandle));
  CHECK(sizeof(MemoryAccess) == sizeof(CUmemAccessDesc));
  CHECK(offsetof(MemoryAccess, flags) == offsetof(CUmemAccessDesc, flags));
  CHECK(sizeof(LaunchAttribute) == sizeof(CUlaunchAttribute));
  CHECK(offsetof(LaunchAttribute, id) == offsetof(CUlaunchAttribute, id));
  CHECK(offsetof(LaunchAttribute, value) == offsetof(CUlaunchAttribute, value));
  CHECK(sizeof(LaunchAttribute::value) == sizeof(CUlaunchAttributeValue));
  CHECK(offsetof(LaunchAttribute, value.cooperative) == offsetof(CUlaunchAttribute, value.cooperative));
  CHECK(sizeof(LaunchConfig) == sizeof(CUlaunchConfig));
  CHECK(offsetof(LaunchConfig, grid_x) == offsetof(CUlaunchConfig, gridDimX));
  CHECK(offsetof(LaunchConfig, grid_z) == offsetof(CUlaunchConfig, gridDimZ));
  CHECK(offsetof(LaunchConfig, block_x) == offsetof(CUlaunchConfig, blockDimX));
  CHECK(offsetof(LaunchConfig, block_z) == offsetof(CUlaunchConfig, blockDimZ));
  CHECK(offsetof(LaunchConfig, shared_memory_bytes) == offsetof(CUlaunchConfig, sharedMemBytes));
  CHECK(offsetof(LaunchConfig, stream) == offsetof(CUlaunchConfig, hStream));
  CHECK(offsetof(LaunchConfig, attributes) == offsetof(CUlaunchConfig, attrs));
  CHECK(offsetof(LaunchConfig, attribute_count) == offsetof(CUlaunchConfig, numAttrs));
}
