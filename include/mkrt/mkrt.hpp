/* mkrt for C++17 and later: owning handles, views and exceptions around mkrt.h.
 *
 * SPDX-License-Identifier: MIT
 *
 * Everything here is inline and calls the C interface, which stays the reference: units, threads, errors and lifetimes
 * are as mkrt.h says for the function of the same name. What this header adds:
 *  - Handles are classes that own and can be moved, not copied. Those that were moved from, closed, or made without
 *    arguments (all but Runtime) are empty; calling them throws Error with MKRT_ERROR_HANDLE. The order of destruction
 *    does not matter.
 *  - Failures throw mkrt::Error, which carries the whole mkrt_error. The exception crosses only your own code: the
 *    library behind the C interface never throws.
 *  - Bytes and elements are passed as mkrt::Span, to which arrays, std::vector, std::array and std::span convert.
 *
 * A model in ten lines:
 *
 *     mkrt::Runtime runtime;
 *     mkrt::Mesh mesh(runtime);
 *     mkrt::Program program(runtime, "model.mkrt");
 *     mkrt::Executable executable(program, mesh);
 *     mkrt::Session session(executable);
 *     session.write<int32_t>(program.find_tensor("tokens"), prompt);
 *     session.wait(session.execute({.step_count = 32}));       // C++20; in C++17 set the fields one by one
 *     std::vector<int32_t> tokens(64);
 *     session.read<int32_t>(program.find_tensor("tokens"), tokens);
 *
 * Since 0.1. */
#ifndef MKRT_MKRT_HPP_
#define MKRT_MKRT_HPP_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "mkrt/mkrt.h"

namespace mkrt {

/* A call failed. Since 0.1. */
class Error : public std::exception {
 public:
  explicit Error(const mkrt_error& error) noexcept : error_(error) {}

  mkrt_status status() const noexcept { return error_.status; }
  /* "MKRT_ERROR_FILE" for MKRT_ERROR_FILE. */
  const char* status_name() const noexcept { return mkrt_status_name(error_.status); }
  /* The sentence that says what went wrong. */
  const char* what() const noexcept override { return error_.message; }
  /* All of it: rank, worker, record, tile, counter. */
  const mkrt_error& error() const noexcept { return error_; }

 private:
  mkrt_error error_;
};

/* Elements that lie one after the other and belong to somebody else, as std::span of C++20. Since 0.1. */
template <class T>
class Span {
 public:
  constexpr Span() noexcept = default;
  constexpr Span(T* data, size_t size) noexcept : data_(data), size_(size) {}
  template <size_t count>
  constexpr Span(T (&array)[count]) noexcept : data_(array), size_(count) {}
  /* Anything that has data() and size() of this element type: std::vector, std::array, std::span, std::string. */
  template <class Container, class Pointer = decltype(std::declval<Container&>().data()),
            class = decltype(std::declval<Container&>().size()),
            class = std::enable_if_t<std::is_convertible_v<std::remove_pointer_t<Pointer> (*)[], T (*)[]>>>
  constexpr Span(Container&& container) noexcept : data_(container.data()), size_(container.size()) {}

  constexpr T* data() const noexcept { return data_; }
  constexpr size_t size() const noexcept { return size_; }
  constexpr size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  constexpr bool empty() const noexcept { return size_ == 0; }
  constexpr T& operator[](size_t index) const { return data_[index]; }
  constexpr T* begin() const noexcept { return data_; }
  constexpr T* end() const noexcept { return data_ + size_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

/* MKRT_VERSION of the library that is loaded; compare with that of the header. Since 0.1. */
inline uint32_t library_version() noexcept { return mkrt_version(); }

namespace detail {

inline void check(mkrt_status status, mkrt_error& error) {
  if (status == MKRT_OK) return;
  if (error.status == MKRT_OK) { /* not written: the library does not know an mkrt_error of this size */
    error.status = status;
    std::strcpy(error.message, "the library that was loaded is of another version than the header mkrt.hpp");
  }
  throw Error(error);
}

/* Calls a function of the C interface whose last argument is `out_error`. */
template <class Function, class... Arguments>
void call(Function function, Arguments... arguments) {
  mkrt_error error = MKRT_ERROR_INIT;
  check(function(arguments..., &error), error);
}

/* Owns what `destroy` gives back. */
template <class Pointee, void (*destroy)(Pointee*)>
class Handle {
 public:
  Handle() noexcept = default;
  /* Takes a handle of the C interface over. */
  explicit Handle(Pointee* pointer) noexcept : pointer_(pointer) {}
  Handle(Handle&& other) noexcept : pointer_(other.release()) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) own(other.release());
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { close(); }

  /* The handle for the C interface, still owned here. */
  Pointee* get() const noexcept { return pointer_; }
  explicit operator bool() const noexcept { return pointer_ != nullptr; }
  /* Gives the handle up: the caller destroys it. */
  Pointee* release() noexcept { return std::exchange(pointer_, nullptr); }
  /* Destroys the handle now. */
  void close() noexcept { own(nullptr); }

 protected:
  void own(Pointee* pointer) noexcept {
    if (Pointee* old = std::exchange(pointer_, pointer)) destroy(old);
  }

 private:
  Pointee* pointer_ = nullptr;
};

/* Byte offset of an element; what does not fit in 64 bits becomes an offset that no tensor has. */
template <class T>
constexpr uint64_t byte_offset(uint64_t element) noexcept {
  return element > UINT64_MAX / sizeof(T) ? UINT64_MAX : element * sizeof(T);
}

inline mkrt_device_info empty_device_info() noexcept {
  mkrt_device_info info{};
  info.struct_size = sizeof(info);
  return info;
}

}  // namespace detail

/* One device. `name` and `target` are copies. Since 0.1. */
struct DeviceInfo {
  uint32_t kind = 0;         /* MKRT_DEVICE_HOST or MKRT_DEVICE_CUDA */
  uint32_t ordinal = 0;      /* number among the devices of its kind */
  uint32_t worker_count = 0; /* SMs, or logical processors or threads of the host */
  uint64_t memory_bytes = 0;
  uint64_t memory_free = 0;
  std::array<uint8_t, 16> uuid{}; /* zero for the host */
  uint32_t compute_major = 0;
  uint32_t compute_minor = 0;
  std::string name;
  std::string target;

  explicit DeviceInfo(const mkrt_device_info& info)
      : kind(info.kind),
        ordinal(info.ordinal),
        worker_count(info.worker_count),
        memory_bytes(info.memory_bytes),
        memory_free(info.memory_free),
        compute_major(info.compute_major),
        compute_minor(info.compute_minor),
        name(info.name),
        target(info.target) {
    std::memcpy(uuid.data(), info.uuid, sizeof(info.uuid));
  }
};

/* One instance of the library. Since 0.1. */
class Runtime : public detail::Handle<mkrt_runtime, mkrt_runtime_destroy> {
 public:
  using Handle::Handle;
  /* Creates a runtime with defaults. */
  Runtime() {
    mkrt_runtime* created = nullptr;
    detail::call(mkrt_runtime_create, nullptr, &created);
    own(created);
  }
  /* Creates a runtime with the host's hooks and extensions; `desc.struct_size` is set here. */
  explicit Runtime(mkrt_runtime_desc desc) {
    desc.struct_size = sizeof(desc);
    mkrt_runtime* created = nullptr;
    detail::call(mkrt_runtime_create, &desc, &created);
    own(created);
  }

  uint32_t device_count() const {
    uint32_t count = 0;
    detail::call(mkrt_runtime_device_count, get(), &count);
    return count;
  }
  DeviceInfo device_info(uint32_t index) const {
    mkrt_device_info info = detail::empty_device_info();
    detail::call(mkrt_runtime_device_info, get(), index, &info);
    return DeviceInfo(info);
  }
};

/* One rank of a mesh; the defaults are those of mkrt_rank_desc. Since 0.1. */
struct RankOptions {
  uint32_t kind = MKRT_DEVICE_DEFAULT;
  uint32_t ordinal = 0;
  uint32_t worker_count = 0;
  std::array<uint8_t, 16> uuid{}; /* CUDA: zero: by ordinal */
  void* context = nullptr;
  void* stream = nullptr;
};

/* A ready-made exchange between processes of one machine. Since 0.1. */
class Exchange : public detail::Handle<mkrt_exchange, mkrt_exchange_destroy> {
 public:
  using Handle::Handle;
  Exchange() noexcept = default;
  /* Connects this process, number `process` of `process_count`, with the others; the defaults are those of
   * mkrt_exchange_desc. */
  Exchange(const Runtime& runtime, const std::string& address, uint32_t process, uint32_t process_count,
           std::chrono::nanoseconds timeout = std::chrono::nanoseconds(0)) {
    mkrt_exchange_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.process = process;
    desc.process_count = process_count;
    desc.address = address.c_str();
    desc.timeout_ns = static_cast<uint64_t>(timeout.count());
    mkrt_exchange* created = nullptr;
    detail::call(mkrt_exchange_create, runtime.get(), &desc, &created);
    own(created);
  }

  /* For the `extensions` of a Mesh: `&extension.base`. */
  mkrt_process_extension extension() const {
    mkrt_process_extension extension{};
    extension.base.struct_size = sizeof(extension);
    detail::call(mkrt_exchange_get_extension, get(), &extension);
    return extension;
  }
};

/* Ranks of one process: `count` ranks from `first` on. Since 0.1. */
struct LocalRanks {
  uint32_t first = 0;
  uint32_t count = 0;
};

/* The devices that programs run on. Since 0.1. */
class Mesh : public detail::Handle<mkrt_mesh, mkrt_mesh_destroy> {
 public:
  using Handle::Handle;
  Mesh() noexcept = default;
  /* Creates a mesh of one rank on the default device. */
  explicit Mesh(const Runtime& runtime) : Mesh(runtime, RankOptions{}) {}
  /* Creates a mesh of one rank. */
  Mesh(const Runtime& runtime, const RankOptions& rank) : Mesh(runtime, Span<const RankOptions>(&rank, 1)) {}
  /* Creates a mesh with one rank for each description; at least one. `extensions`: a chain for mkrt_mesh_desc.next. */
  Mesh(const Runtime& runtime, Span<const RankOptions> ranks, const mkrt_extension* extensions = nullptr) {
    std::vector<mkrt_rank_desc> descriptions;
    descriptions.reserve(ranks.size());
    for (const RankOptions& rank : ranks) {
      mkrt_rank_desc description{};
      description.struct_size = sizeof(description);
      description.kind = rank.kind;
      description.ordinal = rank.ordinal;
      description.worker_count = rank.worker_count;
      std::memcpy(description.uuid, rank.uuid.data(), sizeof(description.uuid));
      description.context = rank.context;
      description.stream = rank.stream;
      descriptions.push_back(description);
    }
    mkrt_mesh_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.next = extensions;
    desc.rank_count = static_cast<uint32_t>(descriptions.size());
    desc.ranks = descriptions.data();
    mkrt_mesh* created = nullptr;
    detail::call(mkrt_mesh_create, runtime.get(), &desc, &created);
    own(created);
  }

  uint32_t rank_count() const {
    uint32_t count = 0;
    detail::call(mkrt_mesh_rank_count, get(), &count);
    return count;
  }
  /* The ranks of this process; all where there are no others. */
  LocalRanks local_ranks() const {
    LocalRanks ranks;
    detail::call(mkrt_mesh_local_ranks, get(), &ranks.first, &ranks.count);
    return ranks;
  }
  DeviceInfo device_info(uint32_t rank = 0) const {
    mkrt_device_info info = detail::empty_device_info();
    detail::call(mkrt_mesh_device_info, get(), rank, &info);
    return DeviceInfo(info);
  }
};

/* The strings of these four belong to the program that was asked. Since 0.1. */
struct ProgramInfo {
  uint32_t rank_count = 0;
  uint32_t entry_count = 0;
  uint32_t tensor_count = 0;
  uint64_t weight_bytes = 0;  /* a rank */
  uint64_t session_bytes = 0; /* a rank, for each session */
  uint64_t isa_fingerprint = 0;
  std::string_view isa_name;
};
struct EntryInfo {
  uint32_t record_count = 0;
  uint32_t counter_count = 0;
  uint64_t tile_count = 0; /* of one step on one rank */
  std::string_view name;
};
struct RecordInfo {
  uint32_t wait_count = 0;
  uint32_t signal_count = 0;
  uint32_t grid[4] = {}; /* the last dimension counts fastest */
  uint64_t tile_count = 0;
  uint64_t bytes_read = 0; /* of weights, by one rank's tiles */
  std::string_view opcode;
  std::string_view label;
};
struct TensorInfo {
  uint32_t dtype = 0; /* MKRT_DTYPE_... */
  uint32_t kind = 0;  /* MKRT_TENSOR_... */
  uint32_t dimension_count = 0;
  uint64_t shape[MKRT_MAX_DIMENSIONS] = {}; /* elements, outermost first */
  uint64_t size_bytes = 0;                  /* on each rank */
  std::string_view name;

  Span<const uint64_t> dimensions() const noexcept { return {shape, dimension_count}; }
};

/* A package that was read and verified. Since 0.1. */
class Program : public detail::Handle<mkrt_program, mkrt_program_destroy> {
 public:
  using Handle::Handle;
  Program() noexcept = default;
  /* Loads the package at `path`: its folder, or its program.json. */
  Program(const Runtime& runtime, const char* path) {
    mkrt_program_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.path = path;
    mkrt_program* created = nullptr;
    detail::call(mkrt_program_load, runtime.get(), &desc, &created);
    own(created);
  }
  Program(const Runtime& runtime, const std::string& path) : Program(runtime, path.c_str()) {}

  ProgramInfo info() const {
    mkrt_program_info info{};
    info.struct_size = sizeof(info);
    detail::call(mkrt_program_get_info, get(), &info);
    return {info.rank_count,    info.entry_count,     info.tensor_count, info.weight_bytes,
            info.session_bytes, info.isa_fingerprint, info.isa_name};
  }
  EntryInfo entry_info(uint32_t entry) const {
    mkrt_entry_info info{};
    info.struct_size = sizeof(info);
    detail::call(mkrt_program_entry_info, get(), entry, &info);
    return {info.record_count, info.counter_count, info.tile_count, info.name};
  }
  RecordInfo record_info(uint32_t entry, uint32_t record) const {
    mkrt_record_info info{};
    info.struct_size = sizeof(info);
    detail::call(mkrt_program_record_info, get(), entry, record, &info);
    return {info.wait_count, info.signal_count, {info.grid[0], info.grid[1], info.grid[2], info.grid[3]},
            info.tile_count, info.bytes_read,   info.opcode,
            info.label};
  }
  TensorInfo tensor_info(uint32_t tensor) const {
    mkrt_tensor_info info{};
    info.struct_size = sizeof(info);
    detail::call(mkrt_program_tensor_info, get(), tensor, &info);
    TensorInfo result;
    result.dtype = info.dtype;
    result.kind = info.kind;
    result.dimension_count = info.dimension_count;
    for (uint32_t d = 0; d < info.dimension_count; ++d) result.shape[d] = info.shape[d];
    result.size_bytes = info.size_bytes;
    result.name = info.name;
    return result;
  }

  /* Index of a name; throws MKRT_ERROR_NOT_FOUND. Ask once and keep it. */
  uint32_t find_entry(const char* name) const {
    uint32_t index = 0;
    detail::call(mkrt_program_find_entry, get(), name, &index);
    return index;
  }
  uint32_t find_entry(const std::string& name) const { return find_entry(name.c_str()); }
  uint32_t find_tensor(const char* name) const {
    uint32_t index = 0;
    detail::call(mkrt_program_find_tensor, get(), name, &index);
    return index;
  }
  uint32_t find_tensor(const std::string& name) const { return find_tensor(name.c_str()); }
  /* A value of the package's metadata; it belongs to the program. Throws MKRT_ERROR_NOT_FOUND. */
  std::string_view metadata(const char* key) const {
    const char* value = nullptr;
    detail::call(mkrt_program_metadata, get(), key, &value);
    return value;
  }
  std::string_view metadata(const std::string& key) const { return metadata(key.c_str()); }
};

/* A program on a mesh. Since 0.1. */
class Executable : public detail::Handle<mkrt_executable, mkrt_executable_destroy> {
 public:
  using Handle::Handle;
  Executable() noexcept = default;
  /* `memory_budget`: most bytes of device memory a rank, 0: no limit. `loader_threads`: that bring weights to CUDA
   * devices, the calling one included; 0: 1. */
  Executable(const Program& program, const Mesh& mesh, uint64_t memory_budget = 0, uint32_t loader_threads = 0) {
    mkrt_executable_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.loader_threads = loader_threads;
    desc.memory_budget = memory_budget;
    mkrt_executable* created = nullptr;
    detail::call(mkrt_executable_create, program.get(), mesh.get(), &desc, &created);
    own(created);
  }
};

/* What to execute; the defaults are those of mkrt_execute_desc. Since 0.1. */
struct ExecuteOptions {
  uint32_t entry = 0;
  uint32_t step_count = 1;
  uint32_t queue_mode = MKRT_QUEUE_DYNAMIC;
  uint32_t worker_limit = 0;              /* 0: all workers of the mesh */
  std::chrono::nanoseconds wait_limit{0}; /* 0: 10 seconds; not negative */
};

/* One stream of work. One thread at a time, except query, wait and cancel. Since 0.1. */
class Session : public detail::Handle<mkrt_session, mkrt_session_destroy> {
 public:
  using Handle::Handle;
  Session() noexcept = default;
  explicit Session(const Executable& executable) {
    mkrt_session* created = nullptr;
    detail::call(mkrt_session_create, executable.get(), &created);
    own(created);
  }

  /* Makes every tensor and counter zero and clears a failure. */
  void reset() { detail::call(mkrt_session_reset, get()); }

  /* Copies elements to an input or state tensor, from element `offset` on. T is the element's type in memory: float,
   * int32_t, uint32_t, uint8_t, or any trivial type of two bytes for f16 and bf16. It is always named, never deduced
   * (which is what common_type_t does here), because a wrong one would copy wrong bytes. */
  template <class T>
  void write(uint32_t tensor, Span<const std::common_type_t<T>> values, uint64_t offset = 0, uint32_t rank = 0) {
    static_assert(std::is_trivially_copyable_v<T>, "tensors hold plain data");
    detail::call(mkrt_session_write, get(), rank, tensor, detail::byte_offset<T>(offset),
                 static_cast<const void*>(values.data()), static_cast<uint64_t>(values.size_bytes()));
  }
  /* Copies elements of an input, output or state tensor, from element `offset` on, until `out_values` is full. */
  template <class T>
  void read(uint32_t tensor, Span<std::common_type_t<T>> out_values, uint64_t offset = 0, uint32_t rank = 0) const {
    static_assert(std::is_trivially_copyable_v<T>, "tensors hold plain data");
    detail::call(mkrt_session_read, get(), rank, tensor, detail::byte_offset<T>(offset),
                 static_cast<uint64_t>(out_values.size_bytes()), static_cast<void*>(out_values.data()));
  }
  /* One element. */
  template <class T>
  void write_value(uint32_t tensor, T value, uint64_t offset = 0, uint32_t rank = 0) {
    write<T>(tensor, Span<const T>(&value, 1), offset, rank);
  }
  template <class T>
  T read_value(uint32_t tensor, uint64_t offset = 0, uint32_t rank = 0) const {
    T value{};
    read<T>(tensor, Span<T>(&value, 1), offset, rank);
    return value;
  }
  /* Address of an input, output or state tensor in the rank's memory. */
  void* tensor_address(uint32_t tensor, uint32_t rank = 0) const {
    void* address = nullptr;
    detail::call(mkrt_session_tensor_address, get(), rank, tensor, &address);
    return address;
  }

  /* Enqueues and returns the value that the timeline will reach. */
  uint64_t execute(const ExecuteOptions& options = {}) {
    mkrt_execute_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.entry = options.entry;
    desc.step_count = options.step_count;
    desc.queue_mode = options.queue_mode;
    desc.worker_limit = options.worker_limit;
    desc.wait_limit_ns = static_cast<uint64_t>(options.wait_limit.count());
    uint64_t value = 0;
    detail::call(mkrt_execute, get(), &desc, &value);
    return value;
  }
  /* Value that the timeline has reached. */
  uint64_t query() const {
    uint64_t value = 0;
    detail::call(mkrt_session_query, get(), &value);
    return value;
  }
  /* Waits without a limit of its own; executes have theirs. */
  void wait(uint64_t value) const { detail::call(mkrt_session_wait, get(), value, UINT64_MAX); }
  /* Waits for at most `timeout`; false where the time passed and the work goes on. */
  bool wait_for(uint64_t value, std::chrono::nanoseconds timeout) const {
    const uint64_t limit = timeout.count() < 0 ? 0 : static_cast<uint64_t>(timeout.count());
    mkrt_error error = MKRT_ERROR_INIT;
    const mkrt_status status = mkrt_session_wait(get(), value, limit, &error);
    if (status == MKRT_ERROR_TIMEOUT) return false;
    detail::check(status, error);
    return true;
  }
  /* Makes everything in flight stop soon. */
  void cancel() const { detail::call(mkrt_session_cancel, get()); }

  /* Traces the first `tiles_per_worker` tiles of every worker from the next execute on; 0 ends it. */
  void trace(uint32_t tiles_per_worker) { detail::call(mkrt_session_trace, get(), tiles_per_worker); }
  /* The first tiles that a worker ran in the last execute, until `out_tiles` is full. */
  void read_trace(uint32_t worker, Span<mkrt_trace_tile> out_tiles) const {
    detail::call(mkrt_session_read_trace, get(), worker, static_cast<uint32_t>(out_tiles.size()), out_tiles.data());
  }
};

}  // namespace mkrt

#endif  // MKRT_MKRT_HPP_
