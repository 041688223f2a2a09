// The part of the CUDA driver's interface that mkrt uses, declared here so that no CUDA header is needed.
//
// Values and layouts are the binary interface of the driver, which never changes once published; tests/unit/cuda
// compares them with cuda.h where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mkrt::cuda {

#if defined(_WIN32)
#define MKRT_CUDA_CALL __stdcall
#else
#define MKRT_CUDA_CALL
#endif

using Result = int;
using DeviceNumber = int;
using DevicePointer = unsigned long long;
using Context = struct ContextObject*;
using Stream = struct StreamObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using PhysicalMemory = unsigned long long;

inline constexpr Result result_success = 0;
inline constexpr Result result_out_of_memory = 2;
inline constexpr Result result_not_found = 500;
inline constexpr Result result_not_ready = 600;

struct Uuid {
  uint8_t bytes[16];
};

enum DeviceAttribute : int {
  attribute_multiprocessor_count = 16,
  attribute_compute_major = 75,
  attribute_compute_minor = 76,
  attribute_cooperative_launch = 95,
  attribute_shared_memory_per_block_optin = 97,
  attribute_virtual_memory = 102,
  attribute_posix_memory_handles = 103,
  attribute_fabric_memory_handles = 128,
};

enum PeerAttribute : int {
  peer_access_supported = 2,
  peer_native_atomics = 3,
};

enum FunctionAttribute : int {
  function_max_threads_per_block = 0,
  function_max_dynamic_shared_bytes = 8,
};

enum CaptureMode : int { capture_relaxed = 2 };
enum CaptureStatus : int { capture_none = 0 };

inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned host_memory_portable = 1;
inline constexpr unsigned host_memory_mapped = 2;
inline constexpr uint64_t proc_address_default = 0;

// Memory whose addresses and pages are asked for separately, and mapped where they are wanted.
inline constexpr int memory_pinned_on_device = 1;
inline constexpr int memory_location_device = 1;
inline constexpr int memory_handle_none = 0;
inline constexpr int memory_handle_posix = 1;
inline constexpr int memory_handle_fabric = 8;
inline constexpr int memory_access_read_write = 3;
enum MemoryGranularity : int { granularity_recommended = 1 };

struct MemoryLocation {
  int type;
  int id;
};
struct MemoryProperties {
  int type;
  int handle_types;  // in which it can be handed to another process
  MemoryLocation location;
  void* windows_attributes;
  unsigned char flags[8];
};
static_assert(sizeof(MemoryProperties) == 16 + sizeof(void*) + 8);
// What is passed around where a handle is no file descriptor.
struct FabricHandle {
  unsigned char bytes[64];
};
struct MemoryAccess {
  MemoryLocation location;
  int flags;
};
static_assert(sizeof(MemoryAccess) == 12);

enum LaunchAttributeId : int { launch_attribute_cooperative = 2 };
struct LaunchAttribute {
  LaunchAttributeId id;
  char padding[4];
  union {
    char bytes[64];
    int cooperative;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72 && offsetof(LaunchAttribute, value) == 8);

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_memory_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56 && offsetof(LaunchConfig, stream) == 32);

}  // namespace mkrt::cuda
