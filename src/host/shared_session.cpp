#include "host/shared_session.hpp"

#include <array>
#include <atomic>
#include <cassert>
#include <cstring>

#include "base/failure.hpp"
#include "memory/layout.hpp"

namespace mkrt::host {

namespace {

// The number of an execute in its generation has 40 bits: a hundred days of executes of 10 us each. The generation
// above it wraps around, which differences of phases survive; processes are hardly ever two resets apart.
constexpr int generation_shift = 40;

bool is_reached(uint64_t seen, uint64_t phase) noexcept { return static_cast<int64_t>(seen - phase) >= 0; }

// Lock-free atomics are address-free: two processes may have the same one at different addresses.
static_assert(std::atomic_ref<uint64_t>::is_always_lock_free && std::atomic_ref<uint32_t>::is_always_lock_free);

uint64_t load(const uint64_t& word, std::memory_order order) noexcept {
  return std::atomic_ref(const_cast<uint64_t&>(word)).load(order);
}

constexpr size_t report_words = (sizeof(SharedSession::Report) + sizeof(uint64_t) - 1) / sizeof(uint64_t);
static_assert(std::is_trivially_copyable_v<SharedSession::Report>);

uint64_t round_up(uint64_t bytes, uint64_t unit) noexcept { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// At the start of a process's part. Zeros are a session that has begun nothing. Generations are stored plus one, so
// that zero is none.
struct SharedSession::State {
  alignas(separation) uint64_t begun;  // phase
  uint64_t work;                       // of that phase: entry in the upper half, steps in the lower
  uint64_t left;
  alignas(separation) uint64_t ended;                             // phase
  uint64_t reported;                                              // generation of the report
  alignas(separation) uint64_t aborted;                           // generation; that of process 0 is everybody's
  alignas(separation) std::array<uint64_t, report_words> report;  // a Report, word by word
};

SharedSession::SharedSession(device::ProcessGroup& group, uint32_t executable, uint64_t heap_bytes)
    : group_(group), heap_bytes_(heap_bytes) {
  static_assert(sizeof(State) % memory::heap_alignment == 0);
  assert(heap_bytes % memory::heap_alignment == 0);
  offsets_.push_back(0);
  for (uint32_t process = 0; process < group_.size(); ++process) {
    const uint64_t bytes = sizeof(State) + group_.process(process).rank_count * heap_bytes_;
    offsets_.push_back(offsets_.back() + round_up(bytes, part_alignment));
  }
  base::Descriptor own;
  auto gathered = group_.together<uint32_t>("mkrt_session_create", [&] {
    own = create_shared_memory(offsets_[group_.own() + 1] - offsets_[group_.own()], "a session");
    return device::ProcessGroup::Part<uint32_t>{executable, own.get()};
  });
  device::check_same_executable(gathered.values);
  memory_ = std::move(gathered.descriptors);
  memory_[group_.own()] = std::move(own);
}

SharedSession::~SharedSession() {
  // Release: nothing of this process's follows. Pairs with has_left.
  if (range_) std::atomic_ref(state(group_.own()).left).store(1, std::memory_order_release);
}

void SharedSession::map() {
  auto& range = range_.emplace(offsets_.back());
  try {
    for (uint32_t process = 0; process < group_.size(); ++process) {
      range.map(memory_[process], offsets_[process], offsets_[process + 1] - offsets_[process]);
    }
  } catch (...) {
    range_.reset();
    throw;
  }
  memory_.clear();
}

SharedSession::State& SharedSession::state(uint32_t process) const noexcept {
  return *reinterpret_cast<State*>(range_->data() + offsets_[process]);
}

std::byte* SharedSession::heap(uint32_t rank) const noexcept {
  const uint32_t process = group_.process_of(rank);
  const uint64_t number = rank - group_.process(process).first_rank;
  return range_->data() + offsets_[process] + sizeof(State) + number * heap_bytes_;
}

// ---- Own steps -----------------------------------------------------------------------------------------------------

void SharedSession::begin(uint32_t entry, uint32_t step_count) noexcept {
  State& own = state(group_.own());
  // Relaxed: `begun` publishes it.
  std::atomic_ref(own.work).store(uint64_t{entry} << 32 | step_count, std::memory_order_relaxed);
  // Release: what the host application and a reset wrote to this process's tensors is there for the tiles of others.
  // Pairs with has_begun.
  std::atomic_ref(own.begun).store(++phase_, std::memory_order_release);
}

void SharedSession::end() noexcept {
  // Release: what this process's tiles wrote at others is there for the applications of those. Pairs with has_ended.
  std::atomic_ref(state(group_.own()).ended).store(phase_, std::memory_order_release);
}

void SharedSession::start_generation() noexcept {
  State& own = state(group_.own());
  phase_ = ++generation_ << generation_shift;
  // Release: the zeros come before. Pairs with has_begun and has_ended.
  std::atomic_ref(own.ended).store(phase_, std::memory_order_release);
  std::atomic_ref(own.begun).store(phase_, std::memory_order_release);
}

void SharedSession::publish(const mkrt_error& error, const Turn::Place& place) noexcept {
  State& own = state(group_.own());
  if (load(own.reported, std::memory_order_relaxed) == generation_ + 1) return;
  const Report report{error, place};
  std::array<uint64_t, report_words> words{};
  std::memcpy(words.data(), &report, sizeof(report));
  // The number goes first, and each word with release: who still reads the report of an earlier generation and finds a
  // new word finds the number changed. Pairs with the acquire of words in report_of.
  std::atomic_ref(own.reported).store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < words.size(); ++i) {
    std::atomic_ref(own.report[i]).store(words[i], std::memory_order_release);
  }
  // Release: who sees the number sees all words. Pairs with the acquire of it in report_of.
  std::atomic_ref(own.reported).store(generation_ + 1, std::memory_order_release);
}

void SharedSession::give_up(const mkrt_error& error, const Turn::Place& place) noexcept {
  publish(error, place);
  abort();
}

// Relaxed, both: nothing is read on its account but reports, which have an order of their own. The word only grows, so
// nobody has to take it back: a process that has been reset takes no notice of what ended an earlier generation.
void SharedSession::abort() noexcept {
  const std::atomic_ref<uint64_t> word(state(0).aborted);
  uint64_t seen = word.load(std::memory_order_relaxed);
  while (seen < generation_ + 1 &&
         !word.compare_exchange_weak(seen, generation_ + 1, std::memory_order_relaxed, std::memory_order_relaxed)) {
  }
}

bool SharedSession::aborted() const noexcept {
  return load(state(0).aborted, std::memory_order_relaxed) == generation_ + 1;
}

// ---- The others ----------------------------------------------------------------------------------------------------

uint64_t SharedSession::generation_of(uint32_t process) const noexcept {
  return load(state(process).begun, std::memory_order_acquire) >> generation_shift;
}

bool SharedSession::has_left(uint32_t process) const noexcept {
  return load(state(process).left, std::memory_order_acquire) != 0;  // pairs with the destructor
}

bool SharedSession::has_begun(uint32_t process) const noexcept {
  return is_reached(load(state(process).begun, std::memory_order_acquire), phase_);  // pairs with `begin`
}

bool SharedSession::has_ended(uint32_t process) const noexcept {
  return is_reached(load(state(process).ended, std::memory_order_acquire), phase_);  // pairs with `end`
}

bool SharedSession::is_running(uint32_t process) const noexcept {
  // In this order: what it begins after that waits for this process.
  const uint64_t begun = load(state(process).begun, std::memory_order_acquire);
  const uint64_t ended = load(state(process).ended, std::memory_order_acquire);
  return begun >> generation_shift == phase_ >> generation_shift && !is_reached(ended, begun);
}

bool SharedSession::is_behind(uint32_t process) const noexcept {
  return !is_reached(generation_of(process) << generation_shift, generation_ << generation_shift);
}

bool SharedSession::is_ahead(uint32_t process) const noexcept {
  return !is_reached(generation_ << generation_shift, generation_of(process) << generation_shift);
}

bool SharedSession::does_the_same(uint32_t process) const noexcept {
  return load(state(process).work, std::memory_order_relaxed) ==
         load(state(group_.own()).work, std::memory_order_relaxed);
}

std::optional<SharedSession::Report> SharedSession::report_of(uint32_t process) const noexcept {
  const State& theirs = state(process);
  if (load(theirs.reported, std::memory_order_acquire) != generation_ + 1) return {};  // pairs with `publish`
  std::array<uint64_t, report_words> words{};
  for (size_t i = 0; i < words.size(); ++i) words[i] = load(theirs.report[i], std::memory_order_acquire);
  // A process that was reset meanwhile may have written another one over it.
  if (load(theirs.reported, std::memory_order_relaxed) != generation_ + 1) return {};
  Report report;
  std::memcpy(static_cast<void*>(&report), words.data(), sizeof(report));
  report.error.message[sizeof(report.error.message) - 1] = '\0';
  return report;
}

}  // namespace mkrt::host
