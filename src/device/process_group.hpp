// The processes that a mesh goes over: who has which ranks, what they tell each other, who is lost.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

#include "base/descriptor.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::device {

// Everything that is collective goes through `together`: it succeeds in all processes or throws in all.
class ProcessGroup {
 public:
  struct Process {
    uint32_t first_rank = 0;
    uint32_t rank_count = 0;
    uint32_t system_id = 0;  // what people know it by
    base::Descriptor watch;
  };

  // This process alone, with `ranks` ranks.
  explicit ProcessGroup(uint32_t ranks);
  // Collective. `keep` is kept alive as long as the extension's function may be called. Throws Failure.
  ProcessGroup(const mkrt_process_extension& extension, uint32_t ranks, std::shared_ptr<void> keep);

  bool alone() const noexcept { return processes_.size() == 1; }
  uint32_t own() const noexcept { return extension_.process; }
  uint32_t size() const noexcept { return static_cast<uint32_t>(processes_.size()); }
  uint32_t rank_count() const noexcept { return rank_count_; }
  const Process& process(uint32_t number) const noexcept { return processes_[number]; }
  uint32_t first_rank() const noexcept { return processes_[own()].first_rank; }
  uint32_t local_rank_count() const noexcept { return processes_[own()].rank_count; }
  bool is_local(uint32_t rank) const noexcept { return rank - first_rank() < local_rank_count(); }
  uint32_t process_of(uint32_t rank) const noexcept;
  uint32_t most_ranks() const noexcept;  // that one of the processes has

  // Whether file descriptors of the others have come here. Where the system gave none to pass yet, it is believed.
  bool passes_descriptors() const noexcept { return passes_descriptors_; }

  // A process that has ended, or `size()`. It stays so. Any thread; allocates nothing.
  uint32_t lost() noexcept;

  // Held by a collective call of several all-gathers, so that those of two threads do not mix: they look alike.
  std::unique_lock<std::mutex> turn() noexcept {
    return alone() ? std::unique_lock<std::mutex>() : std::unique_lock(turn_mutex_);
  }
  // Number of the next all-gather, with the turn held. Where that one succeeds, it is the same in all processes, and no
  // other has it: what is made in it can be known by it.
  uint32_t next_call() const noexcept { return next_call_; }

  // What a process contributes to a collective call, and what it gets.
  template <class Value>
  struct Part {
    Value value{};
    int descriptor = -1;  // for all others; stays the process's own
  };
  template <class Value>
  struct Gathered {
    std::vector<Value> values;                  // by process
    std::vector<base::Descriptor> descriptors;  // by process; none from the own one
  };

  // Runs `make`, which returns this process's Part, and returns those of all. `call` names the call of mkrt.h. Throws
  // in every process where `make` threw in one of them or where one makes another call, with a sentence that names it.
  template <class Value>
  Gathered<Value> together(const char* call, const std::function<Part<Value>()>& make) {
    static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= most_bytes);
    std::vector<Bytes> all;
    Gathered<Value> gathered;
    gather(
        call,
        [&](Bytes& bytes) {
          const Part<Value> part = make();
          std::memcpy(bytes.data(), &part.value, sizeof(Value));
          return part.descriptor;
        },
        all, gathered.descriptors);
    gathered.values.resize(all.size());
    for (size_t i = 0; i < all.size(); ++i) std::memcpy(&gathered.values[i], all[i].data(), sizeof(Value));
    return gathered;
  }
  // The same for calls that have nothing to tell but whether they worked.
  void agree(const char* call, const std::function<void()>& part);

 private:
  static constexpr size_t most_bytes = 64;
  using Bytes = std::array<std::byte, most_bytes>;
  struct Message;

  void gather(const char* call, const std::function<int(Bytes&)>& make, std::vector<Bytes>& out_all,
              std::vector<base::Descriptor>& out_descriptors);
  void exchange(const Message& own, int descriptor, std::vector<Message>& out_all,
                std::vector<base::Descriptor>& out_descriptors);

  mkrt_process_extension extension_{};
  std::shared_ptr<void> keep_;
  std::vector<Process> processes_;
  uint32_t rank_count_ = 0;
  bool passes_descriptors_ = true;
  std::mutex turn_mutex_;
  std::mutex mutex_;        // of one all-gather after the other
  uint32_t next_call_ = 0;  // number of the all-gather
  bool broken_ = false;     // one failed here: elsewhere it may have succeeded
  std::atomic<uint32_t> lost_{UINT32_MAX};
};

// Throws in every process where not all create a session of the same executable, as numbered by next_call.
void check_same_executable(std::span<const uint32_t> numbers);

// Fills an error for a process that was lost. Allocates nothing.
mkrt_status report_lost(const ProcessGroup& group, uint32_t process, mkrt_error* out_error) noexcept;

}  // namespace mkrt::device
