// What the processes of a mesh share of one session: every rank's heap, and how far each process is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "device/process_group.hpp"
#include "host/shared_memory.hpp"
#include "host/turn.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::host {

// Each process has a part of the memory, made by itself: its state, then the heaps of its ranks. The state is written
// by this process only, but for the one word with which everybody ends what runs. Nothing in it is a lock, so a process
// that is gone leaves nothing behind that others wait for.
//
// Executes are counted by phases, in which a reset begins a new generation. A process that has begun phase p runs tiles
// of it when all have, and has ended it when its workers touch nothing of the session any more.
class SharedSession {
 public:
  // Collective: makes this process's part and gets those of the others. `heap_bytes` is a multiple of 256,
  // `executable` its number, as given to all. Throws Failure.
  SharedSession(device::ProcessGroup& group, uint32_t executable, uint64_t heap_bytes);
  ~SharedSession();
  // Maps all parts. Throws Failure.
  void map();

  device::ProcessGroup& group() const noexcept { return group_; }
  std::byte* heap(uint32_t rank) const noexcept;

  // This process's own steps. One thread at a time.
  void begin(uint32_t entry, uint32_t step_count) noexcept;
  void end() noexcept;
  void start_generation() noexcept;  // the own heaps are zero
  // Leaves the reason of a failure for the others, the first of the generation, and ends what runs everywhere.
  void give_up(const mkrt_error& error, const Turn::Place& place) noexcept;
  void publish(const mkrt_error& error, const Turn::Place& place) noexcept;  // the first half of it

  // Ends what runs in this generation, in all processes. Any thread.
  void abort() noexcept;
  bool aborted() const noexcept;

  // How the others are. A process that has destroyed its session has left.
  bool has_left(uint32_t process) const noexcept;
  bool has_begun(uint32_t process) const noexcept;      // this phase, or a later one
  bool has_ended(uint32_t process) const noexcept;      // this phase
  bool is_running(uint32_t process) const noexcept;     // something of this generation
  bool is_behind(uint32_t process) const noexcept;      // by a reset
  bool is_ahead(uint32_t process) const noexcept;       // by a reset
  bool does_the_same(uint32_t process) const noexcept;  // once it has begun: entry and steps are ours

  // Why a process gave up in this generation.
  struct Report {
    mkrt_error error;
    Turn::Place place;
  };
  std::optional<Report> report_of(uint32_t process) const noexcept;

 private:
  struct State;
  State& state(uint32_t process) const noexcept;
  uint64_t generation_of(uint32_t process) const noexcept;

  device::ProcessGroup& group_;
  uint64_t heap_bytes_;
  std::vector<base::Descriptor> memory_;  // by process; closed once it is mapped
  std::vector<uint64_t> offsets_;         // of each process's part
  std::optional<SharedRange> range_;
  uint64_t generation_ = 0;
  uint64_t phase_ = 0;  // generation and number of the execute in it
};

}  // namespace mkrt::host
