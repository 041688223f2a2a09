// Handles: what the opaque pointers of mkrt.h point to.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "base/failure.hpp"
#include "base/hooks.hpp"
#include "base/report.hpp"
#include "exchange/socket_exchange.hpp"
#include "mkrt/mkrt.h"
#include "runtime/executable.hpp"
#include "runtime/mesh.hpp"
#include "runtime/program.hpp"
#include "runtime/runtime.hpp"
#include "runtime/session.hpp"

namespace mkrt::abi {

// What the first word of a shell says. Random numbers, so that other memory does not look like a handle.
enum class Tag : uint64_t {
  freed = 0,
  runtime = 0x9b1c5d6fe3a40711,
  mesh = 0xc2704be8915fd623,
  program = 0x5ae93f1077c8b245,
  executable = 0xe64d82b95c130f67,
  session = 0x3d05a7f4286be989,
  exchange = 0x84f1c63a9e2057bd,
  destroyed = 0x7f98e60d4ba1c2ab,
};

// "mesh" for Tag::mesh; nullptr for what is no handle.
const char* tag_name(Tag tag) noexcept;

// The start of every shell.
struct ShellHeader {
  explicit ShellHeader(Tag kind) noexcept : tag(kind) {}
  std::atomic<Tag> tag;  // atomic so that only one of two mistaken concurrent destroys of a handle acts
};

// Keeps the shells of the last `capacity` destroyed handles, so that a call on one of them is an error instead of a
// read of freed memory.
class Quarantine {
 public:
  explicit Quarantine(std::shared_ptr<const base::Hooks> hooks) noexcept : hooks_(std::move(hooks)) {}
  Quarantine(const Quarantine&) = delete;
  Quarantine& operator=(const Quarantine&) = delete;
  ~Quarantine();

  // Takes an empty shell, and frees the one that has been here longest where there are `capacity` already.
  void put(ShellHeader* shell) noexcept;

 private:
  static constexpr size_t capacity = 256;  // mkrt.h promises it
  void free(ShellHeader* shell) const noexcept;

  std::shared_ptr<const base::Hooks> hooks_;
  std::mutex mutex_;
  std::array<ShellHeader*, capacity> shells_{};
  size_t next_ = 0;
};

// What all handles of one runtime share.
struct Instance {
  explicit Instance(std::shared_ptr<runtime::Runtime> created)
      : runtime(std::move(created)), quarantine(runtime->hooks()) {}
  std::shared_ptr<runtime::Runtime> runtime;
  Quarantine quarantine;
};

template <class ObjectType, Tag kind>
struct Shell : ShellHeader {
  using Object = ObjectType;
  static constexpr Tag own_tag = kind;

  Shell(std::shared_ptr<Instance> shared, std::shared_ptr<Object> held) noexcept
      : ShellHeader(kind), instance(std::move(shared)), object(std::move(held)) {}

  std::shared_ptr<Instance> instance;
  std::shared_ptr<Object> object;
};

}  // namespace mkrt::abi

struct mkrt_runtime : mkrt::abi::Shell<mkrt::runtime::Runtime, mkrt::abi::Tag::runtime> {
  using Shell::Shell;
};
struct mkrt_mesh : mkrt::abi::Shell<mkrt::runtime::Mesh, mkrt::abi::Tag::mesh> {
  using Shell::Shell;
};
struct mkrt_exchange : mkrt::abi::Shell<mkrt::exchange::SocketExchange, mkrt::abi::Tag::exchange> {
  using Shell::Shell;
};
struct mkrt_program : mkrt::abi::Shell<mkrt::runtime::Program, mkrt::abi::Tag::program> {
  using Shell::Shell;
};
struct mkrt_executable : mkrt::abi::Shell<mkrt::runtime::Executable, mkrt::abi::Tag::executable> {
  using Shell::Shell;
};
struct mkrt_session : mkrt::abi::Shell<mkrt::runtime::Session, mkrt::abi::Tag::session> {
  using Shell::Shell;
};

namespace mkrt::abi {

// All shells have one size, so that the quarantine can free them without knowing their type.
constexpr size_t shell_size = sizeof(mkrt_runtime);
constexpr size_t shell_alignment = alignof(mkrt_runtime);
static_assert(sizeof(mkrt_mesh) == shell_size && sizeof(mkrt_exchange) == shell_size &&
              sizeof(mkrt_program) == shell_size && sizeof(mkrt_executable) == shell_size &&
              sizeof(mkrt_session) == shell_size);

// Wraps an object in a new handle.
template <class Handle>
Handle* make_handle(std::shared_ptr<Instance> instance, std::shared_ptr<typename Handle::Object> object) {
  const auto& hooks = *instance->runtime->hooks();
  void* memory = hooks.allocate(shell_size, shell_alignment, "a handle");
  return new (memory) Handle(std::move(instance), std::move(object));
}

// The tag that `handle` carries, Tag::freed where there can be none.
inline Tag tag_of(const void* handle) noexcept {
  if (handle == nullptr || reinterpret_cast<uintptr_t>(handle) % shell_alignment != 0) return Tag::freed;
  return static_cast<const ShellHeader*>(handle)->tag.load(std::memory_order_relaxed);
}

// Writes why `handle` is not of type `wanted`; returns MKRT_ERROR_HANDLE.
mkrt_status report_handle(const void* handle, Tag wanted, mkrt_error* out_error) noexcept;

// MKRT_OK, or MKRT_ERROR_HANDLE with the reason in `*out_error`.
template <class Handle>
mkrt_status check_handle(const Handle* handle, mkrt_error* out_error) noexcept {
  if (tag_of(handle) == Handle::own_tag) [[likely]]
    return MKRT_OK;
  return report_handle(handle, Handle::own_tag, out_error);
}

// The same for code that throws.
template <class Handle>
void require_handle(const Handle* handle) {
  mkrt_error error = MKRT_ERROR_INIT;
  if (check_handle(handle, &error) != MKRT_OK) throw base::Failure(MKRT_ERROR_HANDLE, error.message);
}

// Empties the shell and puts it into quarantine. Does nothing for what is not a live handle of this type: the caller
// cannot be told, and destroying twice must not take the process down.
template <class Handle>
void destroy_handle(Handle* handle) noexcept {
  if (tag_of(handle) != Handle::own_tag) return;
  Tag expected = Handle::own_tag;
  if (!handle->tag.compare_exchange_strong(expected, Tag::destroyed)) return;
  // The instance may go with the object; it is released last, after the shell is in its quarantine.
  const std::shared_ptr<Instance> instance = std::move(handle->instance);
  const std::shared_ptr<typename Handle::Object> object = std::move(handle->object);
  instance->quarantine.put(handle);
}

}  // namespace mkrt::abi
