#include "driver_double.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "kernel_double.hpp"

#if defined(__linux__)
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace mkrt::cuda {

// What the driver's handles point to.
struct ContextObject {
  int device = 0;
  // What every call reports once the context is lost.
  std::atomic<Result> failure{result_success};
};

// StreamWork that uses memory at `addresses`, for as long as it is on its way.
struct StreamWork {
  std::vector<uint64_t> addresses;
  std::function<void()> run;
};

struct StreamObject {
  Context context = nullptr;
  bool of_application = false;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool running = false;  // a piece of work that was taken out
  bool wanted = false;   // somebody waits for it
  bool ending = false;
  bool capturing = false;
  std::vector<StreamWork> captured;
  std::thread thread;
};

struct ModuleObject {
  Context context = nullptr;
  DevicePointer info_address = 0;  // 0: it has none
  uint64_t info_size = 0;
  mkrt_image_info info{};
  std::unique_ptr<FunctionObject> kernel, traced_kernel;
};

struct FunctionObject {
  ModuleObject* module = nullptr;
  int dynamic_shared_bytes = 48 * 1024;  // what a block may have without being asked for
};

namespace test {
namespace {

constexpr Result result_invalid_value = 1;
constexpr Result result_invalid_device = 101;
constexpr Result result_invalid_image = 200;
constexpr Result result_invalid_context = 201;
constexpr Result result_invalid_handle = 400;
constexpr Result result_already_registered = 712;
constexpr Result result_not_registered = 713;
constexpr Result result_capture_unsupported = 900;

constexpr CaptureMode capture_global{};  // what a thread begins with

// Added to a host address it gives a device address, which no processor can use as a host one.
constexpr uint64_t bias = uint64_t{1} << 57;

constexpr uint64_t image_magic = 0x6d6b7274'66616b65;
struct ImageFile {
  uint64_t magic;
  uint64_t info_size;
  uint64_t has_info, has_kernel, has_traced_kernel;
  mkrt_image_info info;
};

// The double that lives.
std::atomic<DriverDouble::State*> current{nullptr};

// The calling thread's contexts. A thread that ends with one left was unbalanced.
struct ContextStack {
  std::vector<Context> contexts;
  ~ContextStack();
};
thread_local ContextStack stack;
thread_local CaptureMode capture_mode_of_thread = capture_global;

#if defined(__linux__)
// Reserved addresses.
class AddressRange {
 public:
  AddressRange(size_t bytes, size_t alignment) : all_(bytes + alignment) {
    begin_ = ::mmap(nullptr, all_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (begin_ == MAP_FAILED) std::abort();
    data_ = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(begin_) + alignment - 1) / alignment * alignment);
  }
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  ~AddressRange() { ::munmap(begin_, all_); }
  std::byte* data() const { return data_; }

 private:
  size_t all_;
  void* begin_;
  std::byte* data_;
};

// Pages that lie at any number of addresses, as memory does that several processes have mapped. Who uses an address
// where they do not lie any more crashes.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes), file_(::memfd_create("simulated device memory", MFD_CLOEXEC)) {
    const std::vector<unsigned char> nothing(bytes, 0xa5);  // what lies there means nothing
    if (::write(file_, nothing.data(), bytes) != static_cast<ssize_t>(bytes)) std::abort();
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::close(file_); }

  void map(std::byte* at) const {
    if (::mmap(at, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, 0) == MAP_FAILED) std::abort();
  }
  void unmap(std::byte* at) const {
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (::mmap(at, bytes_, PROT_NONE, flags, -1, 0) == MAP_FAILED) std::abort();
  }
  // A descriptor for others, who close it.
  int share() const { return ::fcntl(file_, F_DUPFD_CLOEXEC, 0); }
  bool has(int descriptor) const { return descriptor == file_; }
  uint64_t number() const { return number_of(file_); }
  // The same for all descriptors of the same pages; 0: the descriptor is of no file.
  static uint64_t number_of(int descriptor) {
    struct stat file {};
    return ::fstat(descriptor, &file) == 0 ? file.st_ino : 0;
  }
  // Descriptors of this process.
  static std::vector<int> open_descriptors() {
    std::vector<int> all;
    DIR* const folder = ::opendir("/proc/self/fd");
    while (const dirent* entry = folder == nullptr ? nullptr : ::readdir(folder))
      all.push_back(std::atoi(entry->d_name));
    if (folder != nullptr) ::closedir(folder);
    return all;
  }

 private:
  size_t bytes_;
  int file_;
};
#else
// Where pages cannot lie at two addresses they are the range's own, and there are no handles for others.
class AddressRange {
 public:
  AddressRange(size_t bytes, size_t alignment) : data_(static_cast<std::byte*>(std::aligned_alloc(alignment, bytes))) {}
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;
  ~AddressRange() { std::free(data_); }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {}
  void map(std::byte* at) const { std::memset(at, 0xa5, bytes_); }
  void unmap(std::byte*) const {}
  int share() const { return -1; }
  bool has(int) const { return false; }
  uint64_t number() const { return 0; }
  static uint64_t number_of(int) { return 0; }
  static std::vector<int> open_descriptors() { return {}; }

 private:
  size_t bytes_;
};
#endif

}  // namespace

class DriverDouble::State {
 public:
  explicit State(std::vector<SimulatedDevice> devices) : devices_(std::move(devices)), primaries_(devices_.size()) {
    for (size_t i = 0; i < devices_.size(); ++i) {
      free_bytes_.push_back(devices_[i].memory);
      primaries_[i].object.device = static_cast<int>(i);
    }
  }

  // ---- counting and failing --------------------------------------------------------------------------------------

  template <class Call>
  Result enter(const char* name, Call&& call) {
    Result injected = result_success;
    {
      const std::lock_guard lock(mutex_);
      const bool counted = fail_thread_ == std::thread::id() || fail_thread_ == std::this_thread::get_id();
      if (counted) ++calls_;
      if (counted && fail_at_ != 0 && (calls_ == fail_at_ || (fail_after_ && calls_ > fail_at_))) {
        injected = fail_with_;
        if (failed_.empty()) failed_ = name;
        blind_ |= lets_wait(name);
      }
    }
    if (injected == result_success) injected = lost(name);
    if (injected != result_success && !gives_back(name)) return injected;
    const Result result = call();
    return injected != result_success ? injected : result;
  }
  // The failure of the current context, for a call that needs one.
  static Result lost(const std::string& name) {
    const bool needs_none = name.starts_with("device_") || name.starts_with("primary_context_") ||
                            name.starts_with("context_p") || name == "initialize" || name == "driver_version" ||
                            name == "peer_attribute";
    return needs_none || stack.contexts.empty() ? result_success : stack.contexts.back()->failure.load();
  }
  // Without these nobody can know when work is over. Where one failed by itself, work is over with it.
  static bool lets_wait(const std::string& name) { return name == "stream_synchronize" || name == "context_push"; }

  static bool gives_back(const std::string& name) {
    return name == "context_pop" || name == "memory_free" || name == "host_free" || name == "stream_destroy" ||
           name == "module_unload" || name == "primary_context_release" || name == "memory_unmap" ||
           name == "memory_release" || name == "address_free" || name == "host_unregister";
  }

  void violate(std::string what) {
    const std::lock_guard lock(mutex_);
    violations_.push_back(std::move(what));
  }

  // ---- devices ---------------------------------------------------------------------------------------------------

  Result initialize(unsigned) { return result_success; }
  Result driver_version(int* out) {
    *out = 13000;
    return result_success;
  }
  Result device_count(int* out) {
    *out = static_cast<int>(devices_.size());
    return result_success;
  }
  // Device numbers differ from ordinals, so that mixing them up shows.
  static constexpr int number_base = 40;
  SimulatedDevice* device(DeviceNumber number) {
    const size_t ordinal = static_cast<size_t>(number - number_base);
    if (number >= number_base && ordinal < devices_.size()) return &devices_[ordinal];
    violate("a device number that does not exist");
    return nullptr;
  }
  Result device_get(DeviceNumber* out, int ordinal) {
    if (ordinal < 0 || static_cast<size_t>(ordinal) >= devices_.size()) return result_invalid_device;
    *out = number_base + ordinal;
    return result_success;
  }
  Result device_name(char* out, int length, DeviceNumber number) {
    const SimulatedDevice* found = device(number);
    if (found == nullptr) return result_invalid_device;
    std::snprintf(out, static_cast<size_t>(length), "%s", found->name.c_str());
    return result_success;
  }
  Result device_uuid(Uuid* out, DeviceNumber number) {
    if (device(number) == nullptr) return result_invalid_device;
    std::memset(out->bytes, 0x10 + number - number_base, sizeof(out->bytes));
    return result_success;
  }
  Result device_attribute(int* out, DeviceAttribute attribute, DeviceNumber number) {
    const SimulatedDevice* found = device(number);
    if (found == nullptr) return result_invalid_device;
    switch (attribute) {
      case attribute_multiprocessor_count: *out = found->multiprocessors; break;
      case attribute_compute_major: *out = found->major; break;
      case attribute_compute_minor: *out = found->minor; break;
      case attribute_cooperative_launch: *out = found->cooperative ? 1 : 0; break;
      case attribute_shared_memory_per_block_optin: *out = found->shared_memory; break;
      case attribute_virtual_memory: *out = found->virtual_memory ? 1 : 0; break;
      case attribute_posix_memory_handles: *out = found->posix_handles ? 1 : 0; break;
      case attribute_fabric_memory_handles: *out = found->fabric_handles ? 1 : 0; break;
      default: return result_invalid_value;
    }
    return result_success;
  }
  Result device_memory(size_t* out, DeviceNumber number) {
    const SimulatedDevice* found = device(number);
    if (found == nullptr) return result_invalid_device;
    *out = found->memory;
    return result_success;
  }

  // ---- contexts --------------------------------------------------------------------------------------------------

  Result primary_context_retain(Context* out, DeviceNumber number) {
    if (device(number) == nullptr) return result_invalid_device;
    const std::lock_guard lock(mutex_);
    Primary& primary = primaries_[static_cast<size_t>(number - number_base)];
    if (++primary.retained == 1) primary.object.failure = result_success;
    *out = &primary.object;
    return result_success;
  }
  Result primary_context_release(DeviceNumber number) {
    if (device(number) == nullptr) return result_invalid_device;
    Context released = nullptr;
    {
      const std::lock_guard lock(mutex_);
      Primary& primary = primaries_[static_cast<size_t>(number - number_base)];
      if (primary.retained == 0) {
        violations_.push_back("a primary context is released more often than retained");
        return result_invalid_context;
      }
      if (--primary.retained == 0) released = &primary.object;
    }
    if (released != nullptr) check_empty(released);
    return result_success;
  }
  bool alive(Context context) {
    const std::lock_guard lock(mutex_);
    return std::any_of(primaries_.begin(), primaries_.end(),
                       [&](const Primary& p) { return &p.object == context && p.retained > 0; }) ||
           application_contexts_.count(context) > 0;
  }
  Result context_push(Context context) {
    if (!alive(context)) {
      violate("a context that does not exist is pushed");
      return result_invalid_context;
    }
    stack.contexts.push_back(context);
    return result_success;
  }
  Result context_pop(Context* out) {
    if (stack.contexts.empty()) {
      violate("a context is popped that was not pushed");
      return result_invalid_context;
    }
    *out = stack.contexts.back();
    stack.contexts.pop_back();
    return result_success;
  }
  Result context_device(DeviceNumber* out) {
    const Context context = require_context("context_device");
    if (context == nullptr) return result_invalid_context;
    *out = number_base + context->device;
    return result_success;
  }
  // The current context; a violation where there is none.
  Context require_context(const char* call) {
    if (!stack.contexts.empty()) return stack.contexts.back();
    violate(std::string(call) + " without a current context");
    return nullptr;
  }
  // Whether `owner` is current; a violation where it is not. What gives back works anyway: after a push that was made
  // to fail there may be nothing current, and the driver knows the owner.
  bool require_owner(Context owner, const char* call) {
    if (!stack.contexts.empty() && stack.contexts.back() == owner) return true;
    {
      const std::lock_guard lock(mutex_);
      if (gives_back(call) && !failed_.empty()) return true;
    }
    violate(std::string(call) + (stack.contexts.empty() ? " without a current context" : " in another's context"));
    return gives_back(call);
  }

  // ---- memory ----------------------------------------------------------------------------------------------------

  struct Block {
    std::unique_ptr<std::byte, decltype(&std::free)> memory;
    size_t bytes;
    Context context;
    bool of_application;
  };

  Result memory_info(size_t* out_free, size_t* out_total) {
    const Context context = require_context("memory_info");
    if (context == nullptr) return result_invalid_context;
    const std::lock_guard lock(mutex_);
    *out_free = free_bytes_[static_cast<size_t>(context->device)];
    *out_total = devices_[static_cast<size_t>(context->device)].memory;
    return result_success;
  }
  Result memory_allocate(DevicePointer* out, size_t bytes) {
    const Context context = require_context("memory_allocate");
    if (context == nullptr) return result_invalid_context;
    const Result result = take(context, bytes, false, out);
    if (result == result_success) count_memory(context->device, static_cast<ptrdiff_t>(bytes));
    return result;
  }
  // Device memory that the library has; what modules take is not among it.
  void count_memory(int device, ptrdiff_t bytes) {
    const std::lock_guard lock(mutex_);
    MemoryCount& count = memory_counts_[device];
    count.now += bytes;
    count.most = std::max(count.most, count.now);
  }
  struct MemoryCount {
    ptrdiff_t now = 0, most = 0;
  };
  Result take(Context context, size_t bytes, bool of_application, DevicePointer* out) {
    const std::lock_guard lock(mutex_);
    size_t& free = free_bytes_[static_cast<size_t>(context->device)];
    if (bytes == 0) return result_invalid_value;
    if (bytes > free) return result_out_of_memory;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    std::memset(memory, 0xa5, bytes);  // what lies there means nothing
    free -= bytes;
    *out = reinterpret_cast<uintptr_t>(memory) + bias;
    memory_.emplace(*out, Block{{memory, &std::free}, bytes, context, of_application});
    return result_success;
  }
  Result memory_free(DevicePointer address) {
    Context owner = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const auto found = memory_.find(address);
      if (found == memory_.end()) {
        violations_.push_back("device memory is freed that was not allocated or is freed already");
        return result_invalid_value;
      }
      if (found->second.of_application) violations_.push_back("device memory of the application is freed");
      owner = found->second.context;
    }
    require_owner(owner, "memory_free");
    const size_t bytes = end_use(memory_, address, owner);
    tell_release();
    count_memory(owner->device, -static_cast<ptrdiff_t>(bytes));
    const std::lock_guard lock(mutex_);
    free_bytes_[static_cast<size_t>(owner->device)] += bytes;
    memory_.erase(address);
    return result_success;
  }
  // Waits until nothing is on its way in the context, as the driver does before it frees memory. That something uses
  // the memory is a violation all the same: the wait is promised nowhere.
  template <class Blocks>
  size_t end_use(const Blocks& blocks, uint64_t address, Context owner) {
    std::unique_lock lock(mutex_);
    const size_t bytes = blocks.at(address).bytes;
    wait_unused(lock, address, bytes, "freed");
    lock.unlock();
    wait_for_context(owner);
    return bytes;
  }
  void tell_release() {
    std::function<void()> tell;
    {
      const std::lock_guard lock(mutex_);
      tell = std::exchange(on_release_, nullptr);
    }
    if (!tell) return;
    tell();
    const std::lock_guard lock(mutex_);
    on_release_ = std::move(tell);
  }
  Result host_allocate(void** out, size_t bytes, unsigned flags) {
    const Context context = require_context("host_allocate");
    if (context == nullptr) return result_invalid_context;
    if ((flags & ~(host_memory_portable | host_memory_mapped)) != 0) return result_invalid_value;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
    std::memset(memory, 0xa5, bytes);
    *out = memory;
    const std::lock_guard lock(mutex_);
    pinned_.emplace(reinterpret_cast<uintptr_t>(memory) + bias, Block{{memory, &std::free}, bytes, context, false});
    count_pinned();
    return result_success;
  }
  Result host_free(void* memory) {
    const uint64_t address = reinterpret_cast<uintptr_t>(memory) + bias;
    Context owner = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const auto found = pinned_.find(address);
      if (found == pinned_.end()) {
        violations_.push_back("pinned memory is freed that was not allocated or is freed already");
        return result_invalid_value;
      }
      owner = found->second.context;
    }
    require_owner(owner, "host_free");
    end_use(pinned_, address, owner);
    const std::lock_guard lock(mutex_);
    pinned_.erase(address);
    return result_success;
  }
  // Memory of the library that the device reads, until it is told that it may not any more.
  struct Registration {
    size_t bytes;
    Context context;
  };
  Result host_register(void* memory, size_t bytes, unsigned flags) {
    const Context context = require_context("host_register");
    if (context == nullptr) return result_invalid_context;
    if (bytes == 0 || flags != 0 || !is_mapped(memory, bytes)) return result_invalid_value;
    const uint64_t address = reinterpret_cast<uintptr_t>(memory) + bias;
    const std::lock_guard lock(mutex_);
    if (overlaps(registered_, address, bytes) || overlaps(pinned_, address, bytes)) {
      violations_.push_back("memory is registered that is pinned already");
      return result_already_registered;
    }
    registered_.emplace(address, Registration{bytes, context});
    count_pinned();
    return result_success;
  }
  Result host_unregister(void* memory) {
    const uint64_t address = reinterpret_cast<uintptr_t>(memory) + bias;
    Registration registration{};
    {
      const std::lock_guard lock(mutex_);
      const auto found = registered_.find(address);
      if (found == registered_.end()) {
        violations_.push_back("memory is unregistered that was not registered or is unregistered already");
        return result_not_registered;
      }
      registration = found->second;
    }
    if (!is_mapped(memory, registration.bytes)) violate("memory was freed while it was registered");
    require_owner(registration.context, "host_unregister");
    std::unique_lock lock(mutex_);
    wait_unused(lock, address, registration.bytes, "unregistered");
    registered_.erase(address);
    return result_success;
  }
  // Whether the process has pages there; where the system does not tell, it is believed.
  static bool is_mapped(const void* memory, size_t bytes) {
#if defined(__linux__)
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory) / page * page;
    const size_t length = reinterpret_cast<uintptr_t>(memory) + bytes - begin;
    std::vector<unsigned char> present((length + page - 1) / page);
    return mincore(reinterpret_cast<void*>(begin), length, present.data()) == 0;
#else
    return true;
#endif
  }
  template <class Blocks>
  static bool overlaps(const Blocks& blocks, uint64_t address, size_t bytes) {
    const auto next = blocks.lower_bound(address);
    if (next != blocks.end() && next->first < address + bytes) return true;
    return next != blocks.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address;
  }
  // With the mutex held.
  void count_pinned() {
    size_t bytes = 0;
    for (const auto& block : pinned_) bytes += block.second.bytes;
    for (const auto& registration : registered_) bytes += registration.second.bytes;
    most_pinned_ = std::max(most_pinned_, bytes);
  }
  Result host_device_pointer(DevicePointer* out, void* memory, unsigned) {
    if (require_context("host_device_pointer") == nullptr) return result_invalid_context;
    const std::lock_guard lock(mutex_);
    const uint64_t address = reinterpret_cast<uintptr_t>(memory) + bias;
    if (pinned_.count(address) == 0) return result_invalid_value;
    *out = address;
    return result_success;
  }

  // ---- mapped memory ---------------------------------------------------------------------------------------------

  static constexpr size_t least_granularity = 4096;

  // A range of reserved addresses; host memory stands for whatever is mapped there.
  struct Range {
    std::unique_ptr<AddressRange> addresses;
    size_t bytes;
  };
  // Memory by itself, of which each process that has it has a handle.
  struct Allocation {
    int device;
    size_t bytes;
    int handle_types;  // in which it can be handed on
    Pages pages;
  };
  struct Physical {
    std::shared_ptr<Allocation> allocation;
    bool mapped;
  };
  struct Mapping {
    size_t bytes;
    PhysicalMemory memory;
    std::set<int> access;  // devices
  };

  struct Path {
    bool access = true, atomics = true;
  };
  std::optional<Path> path(DeviceNumber from, DeviceNumber to) {
    if (device(from) == nullptr || device(to) == nullptr) return {};
    if (from == to) violate("a path of a device to itself is asked for");
    const std::lock_guard lock(mutex_);
    return paths_[{from - number_base, to - number_base}];
  }
  Result device_can_access_peer(int* out, DeviceNumber from, DeviceNumber to) {
    const std::optional<Path> found = path(from, to);
    if (!found) return result_invalid_device;
    *out = found->access ? 1 : 0;
    return result_success;
  }
  Result peer_attribute(int* out, PeerAttribute attribute, DeviceNumber from, DeviceNumber to) {
    const std::optional<Path> found = path(from, to);
    if (!found) return result_invalid_device;
    if (attribute != peer_access_supported && attribute != peer_native_atomics) return result_invalid_value;
    *out = (attribute == peer_access_supported ? found->access : found->atomics) ? 1 : 0;
    return result_success;
  }
  // The device of properties that make sense, or nullptr.
  const SimulatedDevice* device_of(const MemoryProperties& properties) {
    const SimulatedDevice* found = device(properties.location.id);
    if (found == nullptr || properties.type != memory_pinned_on_device ||
        properties.location.type != memory_location_device || !found->virtual_memory) {
      return nullptr;
    }
    const int can =
        (found->posix_handles ? memory_handle_posix : 0) | (found->fabric_handles ? memory_handle_fabric : 0);
    return (properties.handle_types & ~can) == 0 ? found : nullptr;
  }
  Result memory_granularity(size_t* out, const MemoryProperties* properties, MemoryGranularity which) {
    const SimulatedDevice* found = device_of(*properties);
    if (found == nullptr || which != granularity_recommended) return result_invalid_value;
    *out = found->granularity;
    return result_success;
  }
  Result address_reserve(DevicePointer* out, size_t bytes, size_t alignment, DevicePointer wanted,
                         unsigned long long flags) {
    if (bytes == 0 || bytes % least_granularity != 0 || alignment == 0 || alignment % least_granularity != 0 ||
        wanted != 0 || flags != 0) {
      return result_invalid_value;
    }
    auto addresses = std::make_unique<AddressRange>(bytes, alignment);
    *out = reinterpret_cast<uintptr_t>(addresses->data()) + bias;
    const std::lock_guard lock(mutex_);
    ranges_.emplace(*out, Range{std::move(addresses), bytes});
    return result_success;
  }
  Result address_free(DevicePointer address, size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = ranges_.find(address);
    if (found == ranges_.end() || found->second.bytes != bytes) {
      violations_.push_back("addresses are freed that were not reserved or are freed already");
      return result_invalid_value;
    }
    const auto mapping = mappings_.lower_bound(address);
    if (mapping != mappings_.end() && mapping->first < address + bytes) {
      violations_.push_back("addresses are freed where memory is mapped");
      return result_invalid_value;
    }
    ranges_.erase(found);
    return result_success;
  }
  Result memory_create(PhysicalMemory* out, size_t bytes, const MemoryProperties* properties,
                       unsigned long long flags) {
    if (require_context("memory_create") == nullptr) return result_invalid_context;
    const SimulatedDevice* found = device_of(*properties);
    if (found == nullptr || bytes == 0 || bytes % found->granularity != 0 || flags != 0) {
      return result_invalid_value;
    }
    const int device = properties->location.id - number_base;
    {
      const std::lock_guard lock(mutex_);
      size_t& free = free_bytes_[static_cast<size_t>(device)];
      if (bytes > free) return result_out_of_memory;
      free -= bytes;
      *out = ++last_physical_;
      std::shared_ptr<Allocation> allocation(new Allocation{device, bytes, properties->handle_types, Pages(bytes)});
      physical_.emplace(*out, Physical{std::move(allocation), false});
    }
    count_memory(device, static_cast<ptrdiff_t>(bytes));
    return result_success;
  }
  Result memory_export(void* out, PhysicalMemory memory, int handle_type, unsigned long long flags) {
    const std::lock_guard lock(mutex_);
    const auto found = physical_.find(memory);
    if (found == physical_.end() || flags != 0) return result_invalid_value;
    const Allocation& allocation = *found->second.allocation;
    if (handle_type == 0 || (handle_type & ~allocation.handle_types) != 0) return result_invalid_value;
    if (handle_type == memory_handle_posix) {
      const int descriptor = allocation.pages.share();
      std::memcpy(out, &descriptor, sizeof(descriptor));
      exported_.insert(allocation.pages.number());
    } else {
      FabricHandle handle{};
      std::memcpy(handle.bytes, &memory, sizeof(memory));
      std::memcpy(out, &handle, sizeof(handle));
    }
    return result_success;
  }
  Result memory_import(PhysicalMemory* out, void* handle, int handle_type) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Allocation> allocation;
    if (handle_type == memory_handle_posix) {
      const uint64_t number = Pages::number_of(static_cast<int>(reinterpret_cast<intptr_t>(handle)));
      for (const auto& [id, known] : physical_) {
        if (number != 0 && known.allocation->pages.number() == number) allocation = known.allocation;
      }
    } else if (handle_type == memory_handle_fabric) {
      PhysicalMemory memory = 0;
      std::memcpy(&memory, handle, sizeof(memory));
      const auto found = physical_.find(memory);
      if (found != physical_.end()) allocation = found->second.allocation;
    }
    if (allocation == nullptr || (allocation->handle_types & handle_type) == 0) return result_invalid_value;
    *out = ++last_physical_;
    physical_.emplace(*out, Physical{std::move(allocation), false});
    return result_success;
  }
  // Descriptors of memory that the library got for other processes, or from them, and did not close. With the mutex
  // held.
  size_t open_exports() const {
    if (exported_.empty()) return 0;
    size_t count = 0;
    for (const int descriptor : Pages::open_descriptors()) {
      const bool own = std::any_of(physical_.begin(), physical_.end(),
                                   [&](const auto& known) { return known.second.allocation->pages.has(descriptor); });
      if (!own && exported_.count(Pages::number_of(descriptor)) != 0) ++count;
    }
    return count;
  }
  Result memory_release(PhysicalMemory memory) {
    tell_release();
    std::shared_ptr<Allocation> released;
    {
      const std::lock_guard lock(mutex_);
      const auto found = physical_.find(memory);
      if (found == physical_.end() || found->second.mapped) {
        violations_.push_back("memory is released that does not exist, is released already, or is mapped");
        return result_invalid_value;
      }
      released = std::move(found->second.allocation);
      physical_.erase(found);
      if (released.use_count() > 1) return result_success;  // other processes have it
      free_bytes_[static_cast<size_t>(released->device)] += released->bytes;
    }
    count_memory(released->device, -static_cast<ptrdiff_t>(released->bytes));
    return result_success;
  }
  Result memory_map(DevicePointer address, size_t bytes, size_t offset, PhysicalMemory memory,
                    unsigned long long flags) {
    const std::lock_guard lock(mutex_);
    auto range = ranges_.upper_bound(address);
    const auto found = physical_.find(memory);
    if (range == ranges_.begin() || found == physical_.end() || flags != 0) return result_invalid_value;
    --range;
    const uint64_t start = address - range->first;
    const size_t granularity = devices_[static_cast<size_t>(found->second.allocation->device)].granularity;
    if (address % granularity != 0 || start >= range->second.bytes || bytes > range->second.bytes - start ||
        offset != 0 || bytes != found->second.allocation->bytes || found->second.mapped) {
      return result_invalid_value;
    }
    const auto next = mappings_.lower_bound(address);
    if (next != mappings_.end() && next->first < address + bytes) return result_invalid_value;
    if (next != mappings_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address) {
      return result_invalid_value;
    }
    found->second.mapped = true;
    found->second.allocation->pages.map(range->second.addresses->data() + start);
    mappings_.emplace(address, Mapping{bytes, memory, {}});
    return result_success;
  }
  // Returns when no stream uses the memory any more; that one did is a violation.
  void wait_unused(std::unique_lock<std::mutex>& lock, uint64_t address, size_t bytes, const char* done) {
    const auto used = [&] {
      const auto use = in_use_.lower_bound(address);
      return use != in_use_.end() && *use < address + bytes;
    };
    if (!used()) return;
    // Where nobody could wait, because that call was made to fail, work goes on, as it would not after a real failure.
    if (!blind_) violations_.push_back(std::string("memory is ") + done + " that a stream still uses");
    for (const auto* all : {&streams_, &destroyed_}) {
      for (const auto& stream : *all) want(*stream);
    }
    use_ended_.wait(lock, [&] { return !used(); });
  }
  Result memory_unmap(DevicePointer address, size_t bytes) {
    std::unique_lock lock(mutex_);
    const auto found = mappings_.find(address);
    if (found == mappings_.end() || found->second.bytes != bytes) {
      violations_.push_back("memory is unmapped that is not mapped");
      return result_invalid_value;
    }
    wait_unused(lock, address, bytes, "unmapped");
    Physical& physical = physical_.at(found->second.memory);
    physical.mapped = false;
    physical.allocation->pages.unmap(reinterpret_cast<std::byte*>(address - bias));
    mappings_.erase(found);
    return result_success;
  }
  Result memory_set_access(DevicePointer address, size_t bytes, const MemoryAccess* access, size_t count) {
    if (require_context("memory_set_access") == nullptr) return result_invalid_context;
    const std::lock_guard lock(mutex_);
    const auto found = mappings_.find(address);
    if (found == mappings_.end() || found->second.bytes != bytes || count == 0) return result_invalid_value;
    const int owner = physical_.at(found->second.memory).allocation->device;
    for (size_t i = 0; i < count; ++i) {
      const int device = access[i].location.id - number_base;
      if (access[i].location.type != memory_location_device || access[i].flags != memory_access_read_write ||
          device < 0 || static_cast<size_t>(device) >= devices_.size()) {
        return result_invalid_value;
      }
      if (device != owner && !paths_[{device, owner}].access) return result_invalid_device;
      found->second.access.insert(device);
    }
    return result_success;
  }

  // Host memory behind a range of a device's addresses, in memory that `device` can reach.
  std::byte* translate(int device, uint64_t address, uint64_t bytes, const char* what) {
    const std::lock_guard lock(mutex_);
    for (const auto* blocks : {&memory_, &pinned_}) {
      auto block = blocks->upper_bound(address);
      if (block == blocks->begin()) continue;
      --block;
      const uint64_t offset = address - block->first;
      if (offset > block->second.bytes || bytes > block->second.bytes - offset) continue;
      if (blocks == &memory_ && block->second.context->device != device) continue;
      return block->second.memory.get() + offset;
    }
    auto mapping = mappings_.upper_bound(address);
    if (mapping != mappings_.begin()) {
      --mapping;
      const uint64_t offset = address - mapping->first;
      if (offset <= mapping->second.bytes && bytes <= mapping->second.bytes - offset &&
          mapping->second.access.count(device) != 0) {
        return reinterpret_cast<std::byte*>(address - bias);
      }
    }
    violations_.push_back(std::string(what) + " lies in no memory of the device");
    return nullptr;
  }
  bool is_pinned(const void* memory) {
    const std::lock_guard lock(mutex_);
    const uint64_t address = reinterpret_cast<uintptr_t>(memory) + bias;
    return overlaps(pinned_, address, 1) || overlaps(registered_, address, 1);
  }

  // ---- streams ---------------------------------------------------------------------------------------------------

  Result stream_create(Stream* out, unsigned flags) {
    const Context context = require_context("stream_create");
    if (context == nullptr) return result_invalid_context;
    if (flags != stream_non_blocking) violate("a stream that waits for the application's default stream");
    *out = make_stream(context, false);
    return result_success;
  }
  Stream make_stream(Context context, bool of_application) {
    auto stream = std::make_shared<StreamObject>();
    stream->context = context;
    stream->of_application = of_application;
    stream->thread = std::thread([this, object = stream.get()] { work_off(*object); });
    const std::lock_guard lock(mutex_);
    return streams_.emplace_back(std::move(stream)).get();
  }
  void work_off(StreamObject& stream) {
    std::unique_lock lock(stream.mutex);
    for (;;) {
      stream.changed.wait(lock,
                          [&] { return stream.ending || (!stream.work.empty() && (stream.wanted || !work_waits_)); });
      if (stream.work.empty()) return;
      const std::function<void()> work = std::move(stream.work.front());
      stream.work.pop_front();
      stream.running = true;
      lock.unlock();
      work();
      lock.lock();
      stream.running = false;
      stream.wanted &= !stream.work.empty();
      stream.changed.notify_all();
    }
  }
  static void want(StreamObject& stream) {
    const std::lock_guard lock(stream.mutex);
    stream.wanted = !stream.work.empty();
    stream.changed.notify_all();
  }
  static void drain(StreamObject& stream) {
    want(stream);
    std::unique_lock lock(stream.mutex);
    stream.changed.wait(lock, [&] { return stream.work.empty() && !stream.running; });
  }
  static void enqueue(StreamObject& stream, std::function<void()> work) {
    const std::lock_guard lock(stream.mutex);
    stream.work.push_back(std::move(work));
    stream.changed.notify_all();
  }
  // The same for work that uses memory at `addresses`; part of a graph where the stream is capturing.
  void enqueue_use(StreamObject& stream, std::vector<uint64_t> addresses, std::function<void()> run) {
    StreamWork work{std::move(addresses), std::move(run)};
    {
      const std::lock_guard lock(stream.mutex);
      if (stream.capturing) {
        stream.captured.push_back(std::move(work));
        return;
      }
    }
    enqueue_work(stream, std::move(work));
  }
  void enqueue_work(StreamObject& stream, StreamWork work) {
    {
      const std::lock_guard lock(mutex_);
      in_use_.insert(work.addresses.begin(), work.addresses.end());
    }
    enqueue(stream, [this, work = std::move(work), &stream] {
      if (stream.context->failure == result_success) work.run();
      const std::lock_guard lock(mutex_);
      for (const uint64_t address : work.addresses) in_use_.erase(in_use_.find(address));
      use_ended_.notify_all();
    });
  }

  void begin_capture(Stream stream) {
    const std::lock_guard lock(stream->mutex);
    stream->capturing = true;
    ++captures_;
  }
  std::vector<StreamWork> end_capture(Stream stream) {
    const std::lock_guard lock(stream->mutex);
    stream->capturing = false;
    --captures_;
    return std::exchange(stream->captured, {});
  }
  Result capture_status(Stream stream, CaptureStatus* out) {
    if (require_stream(stream, "capture_status") == nullptr) return result_invalid_handle;
    const std::lock_guard lock(stream->mutex);
    *out = static_cast<CaptureStatus>(stream->capturing ? 1 : capture_none);
    return result_success;
  }
  Result capture_mode(CaptureMode* in_out) {
    if (require_context("capture_mode") == nullptr) return result_invalid_context;
    std::swap(*in_out, capture_mode_of_thread);
    return result_success;
  }
  // Whether a stream may be asked or waited for. Where it may not, a capture is spoilt.
  bool may_ask(StreamObject& stream, const std::string& call) {
    std::unique_lock lock(stream.mutex);
    const bool capturing = stream.capturing;
    lock.unlock();
    if (!capturing && (captures_ == 0 || capture_mode_of_thread == capture_relaxed)) return true;
    violate(call + (capturing ? " of a stream that is capturing" : " while a stream is capturing"));
    return false;
  }
  void wait_for_context(Context context) {
    std::vector<std::shared_ptr<StreamObject>> streams;
    {
      const std::lock_guard lock(mutex_);
      for (const auto* all : {&streams_, &destroyed_}) {
        for (const auto& stream : *all) {
          if (stream->context == context) streams.push_back(stream);
        }
      }
    }
    for (const auto& stream : streams) drain(*stream);
  }
  // A stream that exists, in its own context; nullptr and a violation otherwise.
  Stream require_stream(Stream stream, const char* call) {
    if (stream == nullptr) {
      violate(std::string(call) + " on the default stream");
      return nullptr;
    }
    {
      const std::lock_guard lock(mutex_);
      if (std::none_of(streams_.begin(), streams_.end(), [&](const auto& known) { return known.get() == stream; })) {
        violations_.push_back(std::string(call) + " on a stream that does not exist");
        return nullptr;
      }
    }
    return require_owner(stream->context, call) ? stream : nullptr;
  }
  Result stream_destroy(Stream stream) {
    if (require_stream(stream, "stream_destroy") == nullptr) return result_invalid_handle;
    if (stream->of_application) {
      violate("a stream of the application is destroyed");
      return result_success;
    }
    if (is_idle(*stream)) {
      end_stream(stream);
      return result_success;
    }
    // The driver does not wait: what is on its way goes on.
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(streams_.begin(), streams_.end(), [&](const auto& known) { return known.get() == stream; });
    destroyed_.push_back(std::move(*found));
    streams_.erase(found);
    return result_success;
  }
  static bool is_idle(StreamObject& stream) {
    const std::lock_guard lock(stream.mutex);
    return stream.work.empty() && !stream.running;
  }
  void end_stream(Stream stream) {
    drain(*stream);
    {
      const std::lock_guard lock(stream->mutex);
      stream->ending = true;
      stream->changed.notify_all();
    }
    stream->thread.join();
    const std::lock_guard lock(mutex_);
    std::erase_if(streams_, [&](const auto& known) { return known.get() == stream; });
  }
  Result stream_query(Stream stream) {
    if (require_stream(stream, "stream_query") == nullptr) return result_invalid_handle;
    if (!may_ask(*stream, "stream_query")) return result_capture_unsupported;
    want(*stream);
    return is_idle(*stream) ? result_success : result_not_ready;
  }
  Result stream_synchronize(Stream stream) {
    if (require_stream(stream, "stream_synchronize") == nullptr) return result_invalid_handle;
    if (!may_ask(*stream, "stream_synchronize")) return result_capture_unsupported;
    drain(*stream);
    return stream->context->failure;
  }

  // ---- copies ----------------------------------------------------------------------------------------------------

  // A word is written whole: kernels look at it meanwhile.
  static void write_bytes(std::byte* to, const std::byte* from, size_t bytes) {
    if (bytes == sizeof(uint32_t) && reinterpret_cast<uintptr_t>(to) % sizeof(uint32_t) == 0) {
      uint32_t word = 0;
      std::memcpy(&word, from, sizeof(word));
      std::atomic_ref(*reinterpret_cast<uint32_t*>(to)).store(word, std::memory_order_relaxed);
    } else {
      std::memcpy(to, from, bytes);
    }
  }
  Result copy_to_device(DevicePointer to, const void* from, size_t bytes, Stream stream) {
    if (require_stream(stream, "copy_to_device") == nullptr) return result_invalid_handle;
    std::byte* target = translate(stream->context->device, to, bytes, "the target of a copy");
    if (target == nullptr) return result_invalid_value;
    const auto* source = static_cast<const std::byte*>(from);
    if (is_pinned(from)) {
      enqueue_use(*stream, {to, reinterpret_cast<uintptr_t>(from) + bias}, [=] { write_bytes(target, source, bytes); });
    } else {  // the driver keeps a copy of its own
      enqueue_use(*stream, {to}, [target, copy = std::vector<std::byte>(source, source + bytes)] {
        write_bytes(target, copy.data(), copy.size());
      });
    }
    return result_success;
  }
  Result copy_to_host(void* to, DevicePointer from, size_t bytes, Stream stream) {
    if (require_stream(stream, "copy_to_host") == nullptr) return result_invalid_handle;
    const std::byte* source = translate(stream->context->device, from, bytes, "the source of a copy");
    if (source == nullptr) return result_invalid_value;
    const bool pinned = is_pinned(to);
    enqueue_use(*stream, {from, reinterpret_cast<uintptr_t>(to) + bias}, [=] { std::memcpy(to, source, bytes); });
    if (!pinned) drain(*stream);
    return stream->context->failure;
  }
  Result fill_bytes(DevicePointer to, unsigned char value, size_t bytes, Stream stream) {
    if (require_stream(stream, "fill_bytes") == nullptr) return result_invalid_handle;
    std::byte* target = translate(stream->context->device, to, bytes, "the target of a fill");
    if (target == nullptr) return result_invalid_value;
    enqueue_use(*stream, {to}, [=] { std::memset(target, value, bytes); });
    return result_success;
  }

  // ---- modules and launches --------------------------------------------------------------------------------------

  Result module_load(Module* out, const void* image) {
    const Context context = require_context("module_load");
    if (context == nullptr) return result_invalid_context;
    ImageFile file{};
    std::memcpy(&file.magic, image, sizeof(file.magic));
    if (file.magic != image_magic) return result_invalid_image;
    std::memcpy(&file, image, sizeof(file));
    auto module = std::make_unique<ModuleObject>();
    module->context = context;
    module->info = file.info;
    if (file.has_info != 0) {
      module->info_size = file.info_size;
      if (take(context, std::max<size_t>(file.info_size, sizeof(file.info)), false, &module->info_address) !=
          result_success) {
        return result_out_of_memory;
      }
      std::memcpy(reinterpret_cast<void*>(module->info_address - bias), &file.info, sizeof(file.info));
    }
    if (file.has_kernel != 0) {
      module->kernel = std::make_unique<FunctionObject>();
      module->kernel->module = module.get();
    }
    if (file.has_traced_kernel != 0) {
      module->traced_kernel = std::make_unique<FunctionObject>();
      module->traced_kernel->module = module.get();
    }
    const std::lock_guard lock(mutex_);
    *out = modules_.emplace_back(std::move(module)).get();
    return result_success;
  }
  bool require_module(Module module, const char* call) {
    {
      const std::lock_guard lock(mutex_);
      if (std::none_of(modules_.begin(), modules_.end(), [&](const auto& known) { return known.get() == module; })) {
        violations_.push_back(std::string(call) + " of a module that does not exist");
        return false;
      }
    }
    return require_owner(module->context, call);
  }
  Result module_unload(Module module) {
    if (!require_module(module, "module_unload")) return result_invalid_handle;
    wait_for_context(module->context);
    const std::lock_guard lock(mutex_);
    if (module->info_address != 0) {
      free_bytes_[static_cast<size_t>(module->context->device)] += memory_.at(module->info_address).bytes;
      memory_.erase(module->info_address);
    }
    std::erase_if(modules_, [&](const auto& known) { return known.get() == module; });
    return result_success;
  }
  Result module_function(Function* out, Module module, const char* name) {
    if (!require_module(module, "module_function")) return result_invalid_handle;
    const std::string_view wanted = name;
    FunctionObject* const found = wanted == "mkrt_run"          ? module->kernel.get()
                                  : wanted == "mkrt_run_traced" ? module->traced_kernel.get()
                                                                : nullptr;
    if (found == nullptr) return result_not_found;
    *out = found;
    return result_success;
  }
  Result module_global(DevicePointer* out, size_t* out_bytes, Module module, const char* name) {
    if (!require_module(module, "module_global")) return result_invalid_handle;
    if (module->info_address == 0 || std::string(name) != "mkrt_image") return result_not_found;
    *out = module->info_address;
    *out_bytes = module->info_size;
    return result_success;
  }
  Result function_attribute(int* out, FunctionAttribute attribute, Function function) {
    if (!require_module(function->module, "function_attribute")) return result_invalid_handle;
    if (attribute != function_max_threads_per_block) return result_invalid_value;
    *out = device_of(function).largest_block;
    return result_success;
  }
  Result function_set_attribute(Function function, FunctionAttribute attribute, int value) {
    if (!require_module(function->module, "function_set_attribute")) return result_invalid_handle;
    if (attribute != function_max_dynamic_shared_bytes || value > device_of(function).shared_memory) {
      return result_invalid_value;
    }
    function->dynamic_shared_bytes = value;
    return result_success;
  }
  const SimulatedDevice& device_of(Function function) const {
    return devices_[static_cast<size_t>(function->module->context->device)];
  }

  Result launch(const LaunchConfig* config, Function function, void** parameters, void** extra) {
    if (!require_module(function->module, "launch")) return result_invalid_handle;
    Stream stream = require_stream(config->stream, "launch");
    if (stream == nullptr) return result_invalid_handle;
    check_config(*config, function);
    if (extra != nullptr) violate("a launch with extra parameters");
    test::Launch seen;
    seen.grid = config->grid_x;
    seen.block = config->block_x;
    seen.shared_memory = config->shared_memory_bytes;
    seen.stream = stream;
    std::memcpy(&seen.parameters, parameters[0], sizeof(mkrt_launch));
    const bool traces = function == function->module->traced_kernel.get();
    if (traces != (seen.parameters.trace != 0)) violate("a launch whose kernel traces and trace do not go together");
    const mkrt_host_isa* isa = nullptr;
    Result broken = result_success;
    {
      const std::lock_guard lock(mutex_);
      launches_.push_back(seen);
      for (const mkrt_host_isa* known : isas_) {
        if (known->fingerprint == function->module->info.isa_fingerprint) isa = known;
      }
      broken = std::exchange(break_next_, result_success);
    }
    if (isa == nullptr) {
      violate("a launch of an instruction set that the double was not given");
      return result_invalid_image;
    }
    std::vector<uint64_t> used = control_words(seen.parameters, stream->context->device);
    used.push_back(seen.parameters.report);
    enqueue_use(*stream, std::move(used), [this, seen, isa, broken, stream] {
      std::atomic<Result>& failure = stream->context->failure;
      if (broken != result_success) {
        failure = broken;
        return;
      }
      const int device = stream->context->device;
      const std::string wrong = run_kernel(
          seen.parameters, seen.grid, *isa,
          [this, device](uint64_t address, uint64_t bytes, const char* what) {
            return translate(device, address, bytes, what);
          },
          [&failure] { return failure != result_success; });
      if (!wrong.empty()) violate(wrong);
    });
    return result_success;
  }
  // Where those of every rank of a launch are.
  std::vector<uint64_t> control_words(const mkrt_launch& launch, int device) {
    const uint64_t bytes = launch.rank_count * sizeof(int64_t);
    const std::byte* deltas = translate(device, launch.rank_delta, bytes, "a launch's rank deltas");
    std::vector<uint64_t> all;
    for (uint32_t rank = 0; deltas != nullptr && rank < launch.rank_count; ++rank) {
      int64_t delta = 0;
      std::memcpy(&delta, deltas + rank * sizeof(delta), sizeof(delta));
      all.push_back(launch.control + static_cast<uint64_t>(delta));
    }
    return all;
  }
  void check_config(const LaunchConfig& config, Function function) {
    const SimulatedDevice& device = device_of(function);
    if (config.grid_x == 0 || config.grid_x > static_cast<unsigned>(device.multiprocessors) || config.grid_y != 1 ||
        config.grid_z != 1) {
      violate("a launch whose blocks are not resident together");
    }
    if (config.block_x != function->module->info.block_size || config.block_y != 1 || config.block_z != 1) {
      violate("a launch with blocks of another size than the image's");
    }
    if (config.shared_memory_bytes > static_cast<unsigned>(function->dynamic_shared_bytes)) {
      violate("a launch with more shared memory than was asked for");
    }
    bool cooperative = false;
    for (unsigned i = 0; i < config.attribute_count; ++i) {
      cooperative |=
          config.attributes[i].id == launch_attribute_cooperative && config.attributes[i].value.cooperative == 1;
    }
    if (!cooperative) violate("a launch that is not cooperative");
  }

  Result error_name(Result result, const char** out) {
    *out = result == result_out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_SIMULATED";
    return result_success;
  }
  Result error_text(Result, const char** out) {
    *out = "a simulated failure";
    return result_success;
  }

  // ---- what is left ----------------------------------------------------------------------------------------------

  void check_empty(Context context) {
    const std::lock_guard lock(mutex_);
    const auto count = [&](const auto& blocks) {
      return std::count_if(blocks.begin(), blocks.end(), [&](const auto& block) {
        return block.second.context == context && !block.second.of_application;
      });
    };
    const auto mine = [&](const auto& object) { return object->context == context; };
    if (count(memory_) != 0) violations_.push_back("device memory outlives its context");
    if (count(pinned_) != 0) violations_.push_back("pinned memory outlives its context");
    if (std::any_of(registered_.begin(), registered_.end(),
                    [&](const auto& r) { return r.second.context == context; })) {
      violations_.push_back("registered memory outlives its context");
    }
    if (std::any_of(modules_.begin(), modules_.end(), mine)) violations_.push_back("a module outlives its context");
    if (std::any_of(streams_.begin(), streams_.end(), [&](const auto& s) { return mine(s) && !s->of_application; })) {
      violations_.push_back("a stream outlives its context");
    }
  }
  size_t live_objects() {
    const std::lock_guard lock(mutex_);
    size_t count = pinned_.size() + registered_.size() + modules_.size() + ranges_.size() + physical_.size() +
                   mappings_.size() + open_exports();
    for (const auto& block : memory_) count += block.second.of_application ? 0 : 1;
    for (const auto& stream : streams_) count += stream->of_application ? 0 : 1;
    for (const Primary& primary : primaries_) count += static_cast<size_t>(primary.retained);
    return count;
  }
  void end() {
    std::vector<Stream> streams;
    {
      const std::lock_guard lock(mutex_);
      for (const auto* all : {&streams_, &destroyed_}) {
        for (const auto& stream : *all) streams.push_back(stream.get());
      }
    }
    for (Stream stream : streams) end_stream(stream);
  }

  struct Primary {
    ContextObject object;
    int retained = 0;
  };

  std::mutex mutex_;  // of everything below
  std::vector<SimulatedDevice> devices_;
  std::vector<Primary> primaries_;
  std::vector<size_t> free_bytes_;
  std::set<Context> application_contexts_;
  std::vector<std::unique_ptr<ContextObject>> application_context_objects_;
  std::map<uint64_t, Block> memory_, pinned_;    // by device address
  std::map<uint64_t, Registration> registered_;  // by device address
  size_t most_pinned_ = 0;
  std::map<uint64_t, Range> ranges_;      // by device address
  std::map<uint64_t, Mapping> mappings_;  // by device address
  std::map<PhysicalMemory, Physical> physical_;
  PhysicalMemory last_physical_ = 0;
  std::set<uint64_t> exported_;  // numbers of pages
  std::map<std::pair<int, int>, Path> paths_;
  std::multiset<uint64_t> in_use_;  // by what streams still have to do; of a launch, every rank's control words
  std::condition_variable use_ended_;
  std::vector<std::shared_ptr<StreamObject>> streams_;    // shared with who waits for one that another thread destroys
  std::vector<std::shared_ptr<StreamObject>> destroyed_;  // with work on its way
  std::vector<std::unique_ptr<ModuleObject>> modules_;
  std::vector<const mkrt_host_isa*> isas_;
  std::vector<test::Launch> launches_;
  std::vector<std::string> violations_;
  Result break_next_ = result_success;
  uint64_t calls_ = 0;
  uint64_t fail_at_ = 0;
  std::thread::id fail_thread_;  // whose calls count; none: everybody's
  Result fail_with_ = result_success;
  bool fail_after_ = false;
  std::string failed_;
  bool blind_ = false;                        // a call without which nobody knows that work is over was made to fail
  std::map<int, MemoryCount> memory_counts_;  // by ordinal
  std::function<void()> on_release_;
  std::atomic<bool> work_waits_{false};
  std::atomic<int> captures_{0};
  Driver table_;
};

namespace {

ContextStack::~ContextStack() {
  DriverDouble::State* state = current.load();
  if (state != nullptr && !contexts.empty()) state->violate("a thread ends with a context that it did not pop");
}

// A function of the table for each of the state's.
template <auto member>
struct Entry;
template <class... Arguments, Result (DriverDouble::State::*member)(Arguments...)>
struct Entry<member> {
  static inline const char* name = nullptr;
  static Result MKRT_CUDA_CALL call(Arguments... arguments) {
    DriverDouble::State& state = *current.load();
    return state.enter(name, [&] { return (state.*member)(arguments...); });
  }
  // Asking what a result means is no call that could fail.
  static Result MKRT_CUDA_CALL ask(Arguments... arguments) { return (current.load()->*member)(arguments...); }
};

}  // namespace

FakeImage::FakeImage(uint64_t isa_fingerprint) {
  info.launch_version = MKRT_LAUNCH_VERSION;
  info.launch_size = sizeof(mkrt_launch);
  info.record_size = sizeof(mkrt_record);
  info.block_size = 384;
  info.isa_fingerprint = isa_fingerprint;
  info.fixed_shared_bytes = 40'000;
  info.page_bytes = 16'384;
  info.minimum_pages = 2;
  info.preferred_pages = 8;
  info.maximum_pages = 16;
  info.maximum_shared_bytes = UINT32_MAX;
  info.row_padding = 16;
  info.minimum_row_bytes = 4096;
  std::fill(std::begin(info.ranked_operands), std::end(info.ranked_operands), UINT32_MAX);
}

std::string FakeImage::bytes() const {
  const ImageFile file{image_magic, info_size, has_info ? 1u : 0u, has_kernel ? 1u : 0u, has_traced_kernel ? 1u : 0u,
                       info};
  return {reinterpret_cast<const char*>(&file), sizeof(file)};
}

DriverDouble::DriverDouble(std::vector<SimulatedDevice> devices) : state_(std::make_shared<State>(std::move(devices))) {
  State* none = nullptr;
  if (!current.compare_exchange_strong(none, state_.get())) std::abort();  // a test's mistake
  capture_mode_of_thread = capture_global;
#define MKRT_DOUBLE_BIND(function, parameters, symbol, version) \
  Entry<& State::function>::name = #function;                   \
  state_->table_.function = Entry<&State::function>::call;
  MKRT_CUDA_REQUIRED(MKRT_DOUBLE_BIND)
  MKRT_CUDA_RANKS(MKRT_DOUBLE_BIND)
  MKRT_CUDA_PROCESSES(MKRT_DOUBLE_BIND)
  MKRT_DOUBLE_BIND(host_register, , , )
  MKRT_DOUBLE_BIND(host_unregister, , , )
#undef MKRT_DOUBLE_BIND
  state_->table_.error_name = Entry<&State::error_name>::ask;
  state_->table_.error_text = Entry<&State::error_text>::ask;
}

DriverDouble::~DriverDouble() {
  if (!stack.contexts.empty()) state_->violate("the test's own thread ends with a context that it did not pop");
  stack.contexts.clear();
  if (live_objects() != 0) state_->violate(std::to_string(live_objects()) + " objects of the driver are left");
  for (const std::string& violation : take_violations()) FAIL_CHECK(violation);
  state_->end();
  current = nullptr;
}

std::shared_ptr<const Driver> DriverDouble::driver() const { return {state_, &state_->table_}; }

std::shared_ptr<const Driver> DriverDouble::open() {
  // Whoever holds the table must not outlive the double, so nothing is shared here.
  State* state = current.load();
  const Result result = state->table_.initialize(0);
  if (result != result_success) state->table_.check(result, "initialize the driver");
  return {std::shared_ptr<const Driver>(), &state->table_};
}

void DriverDouble::add_isa(const mkrt_host_isa& isa) { state_->isas_.push_back(&isa); }

void DriverDouble::fail_call(uint64_t number, Result result, bool all_after) {
  const std::lock_guard lock(state_->mutex_);
  state_->calls_ = 0;
  state_->fail_at_ = number;
  state_->fail_with_ = result;
  state_->fail_after_ = all_after;
  state_->fail_thread_ = {};
  state_->failed_.clear();
  state_->blind_ = false;
}

void DriverDouble::fail_call_of_this_thread(uint64_t number, Result result, bool all_after) {
  fail_call(number, result, all_after);
  const std::lock_guard lock(state_->mutex_);
  state_->fail_thread_ = std::this_thread::get_id();
}

uint64_t DriverDouble::call_count() const {
  const std::lock_guard lock(state_->mutex_);
  return state_->calls_;
}

std::string DriverDouble::failed_call() const {
  const std::lock_guard lock(state_->mutex_);
  return state_->failed_;
}

void DriverDouble::break_next_launch(Result result) {
  const std::lock_guard lock(state_->mutex_);
  state_->break_next_ = result;
}

void DriverDouble::lose(Context context, Result result) { context->failure = result; }

void DriverDouble::wait_for(Context context) { state_->wait_for_context(context); }

Context DriverDouble::primary_context(int ordinal) { return &state_->primaries_[static_cast<size_t>(ordinal)].object; }

void DriverDouble::put_work_off(bool off) {
  state_->work_waits_ = off;
  const std::lock_guard lock(state_->mutex_);
  for (const auto* all : {&state_->streams_, &state_->destroyed_}) {
    for (const auto& stream : *all) State::want(*stream);
  }
}

void DriverDouble::on_release(std::function<void()> call) {
  const std::lock_guard lock(state_->mutex_);
  state_->on_release_ = std::move(call);
}

uint64_t DriverDouble::most_memory(int ordinal) const {
  const std::lock_guard lock(state_->mutex_);
  return static_cast<uint64_t>(state_->memory_counts_[ordinal].most);
}

void DriverDouble::begin_capture(Stream stream) { state_->begin_capture(stream); }

DriverDouble::Graph DriverDouble::end_capture(Stream stream) {
  return {std::make_shared<const std::vector<StreamWork>>(state_->end_capture(stream))};
}

void DriverDouble::replay(const Graph& graph, Stream stream) {
  for (const StreamWork& work : *graph.work) state_->enqueue_work(*stream, work);
}

void DriverDouble::forget(const char* name) {
#define MKRT_DOUBLE_FORGET(function, parameters, symbol, version) \
  if (std::string(name) == #function) state_->table_.function = nullptr;
  MKRT_CUDA_OPTIONAL(MKRT_DOUBLE_FORGET)
  MKRT_CUDA_RANKS(MKRT_DOUBLE_FORGET)
  MKRT_CUDA_PROCESSES(MKRT_DOUBLE_FORGET)
#undef MKRT_DOUBLE_FORGET
}

void DriverDouble::set_path(int from, int to, bool access, bool atomics) {
  const std::lock_guard lock(state_->mutex_);
  state_->paths_[{from, to}] = {access, atomics};
}

void DriverDouble::set_free_memory(int device, size_t bytes) {
  const std::lock_guard lock(state_->mutex_);
  state_->free_bytes_[static_cast<size_t>(device)] = bytes;
}

Context DriverDouble::create_context(int device) {
  const std::lock_guard lock(state_->mutex_);
  Context context = state_->application_context_objects_.emplace_back(std::make_unique<ContextObject>()).get();
  context->device = device;
  state_->application_contexts_.insert(context);
  return context;
}

Stream DriverDouble::create_stream(Context context) { return state_->make_stream(context, true); }

DevicePointer DriverDouble::allocate(Context context, size_t bytes) {
  DevicePointer address = 0;
  return state_->take(context, bytes, true, &address) == result_success ? address : 0;
}

void DriverDouble::free(DevicePointer address) {
  Context owner = nullptr;
  {
    const std::lock_guard lock(state_->mutex_);
    owner = state_->memory_.at(address).context;
  }
  state_->wait_for_context(owner);
  const std::lock_guard lock(state_->mutex_);
  state_->free_bytes_[static_cast<size_t>(owner->device)] += state_->memory_.at(address).bytes;
  state_->memory_.erase(address);
}

void DriverDouble::push(Context context) { stack.contexts.push_back(context); }
void DriverDouble::pop() { stack.contexts.pop_back(); }
std::vector<Context> DriverDouble::context_stack() const { return stack.contexts; }

size_t DriverDouble::live_objects() const { return state_->live_objects(); }

size_t DriverDouble::most_pinned_bytes() const {
  const std::lock_guard lock(state_->mutex_);
  return state_->most_pinned_;
}

std::vector<Launch> DriverDouble::launches() const {
  const std::lock_guard lock(state_->mutex_);
  return state_->launches_;
}

std::vector<std::string> DriverDouble::take_violations() {
  const std::lock_guard lock(state_->mutex_);
  return std::exchange(state_->violations_, {});
}

}  // namespace test
}  // namespace mkrt::cuda
