#include "device/process_group.hpp"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>

#include "base/failure.hpp"
#include "base/report.hpp"

namespace mkrt::device {

namespace {

// mkrt.h: where the extension names no limit.
constexpr uint64_t default_timeout_ns = 60'000'000'000;

// Begins every message: what else would come from a callback that mixes up its calls?
constexpr uint64_t message_magic = 0x6d6b72742067726f;

template <size_t size>
void copy_text(char (&to)[size], const char* from) noexcept {
  std::snprintf(to, size, "%s", from);
}

bool ends(const char* text, size_t size) noexcept { return std::memchr(text, 0, size) != nullptr; }

bool is_failure(mkrt_status status) noexcept { return status > MKRT_OK && status <= MKRT_ERROR_INTERNAL; }

}  // namespace

// What one process sends in one all-gather. All have the same size.
struct ProcessGroup::Message {
  uint64_t magic = message_magic;
  uint32_t version = MKRT_VERSION;  // what processes share in memory has no other number
  uint32_t sequence = 0;
  mkrt_status status = MKRT_OK;  // of the process's own part
  uint32_t reserved = 0;
  char call[40] = {};
  char sentence[384] = {};
  Bytes bytes{};
};

ProcessGroup::ProcessGroup(uint32_t ranks) : rank_count_(ranks) {
  processes_.push_back({0, ranks, base::process_id(), {}});
}

ProcessGroup::ProcessGroup(const mkrt_process_extension& extension, uint32_t ranks, std::shared_ptr<void> keep)
    : extension_(extension), keep_(std::move(keep)) {
  assert(extension_.process < extension_.process_count && extension_.all_gather != nullptr);
  if (extension_.timeout_ns == 0) extension_.timeout_ns = default_timeout_ns;
  processes_.resize(extension_.process_count);
  struct Hello {
    uint32_t ranks;
    uint32_t system_id;
    uint32_t passed;  // 1: with a descriptor
  };
  const base::Descriptor watch = base::watch_own_process();
  Gathered<Hello> hellos = together<Hello>("mkrt_mesh_create", [&] {
    return Part<Hello>{{ranks, base::process_id(), watch ? 1u : 0u}, watch.get()};
  });
  uint64_t count = 0;
  for (uint32_t i = 0; i < size(); ++i) {
    if (i != own() && hellos.values[i].passed != 0 && !hellos.descriptors[i]) passes_descriptors_ = false;
    processes_[i] = {static_cast<uint32_t>(count), hellos.values[i].ranks, hellos.values[i].system_id,
                     std::move(hellos.descriptors[i])};
    count += hellos.values[i].ranks;
  }
  if (count > MKRT_MAX_RANKS) {  // the same sum in every process
    throw base::Failure(MKRT_ERROR_ARGUMENT, base::text("the processes have ", count,
                                                        " ranks together; a mesh has at "
                                                        "most ",
                                                        MKRT_MAX_RANKS));
  }
  rank_count_ = static_cast<uint32_t>(count);
}

uint32_t ProcessGroup::process_of(uint32_t rank) const noexcept {
  uint32_t process = 0;
  while (rank - processes_[process].first_rank >= processes_[process].rank_count) ++process;
  return process;
}

uint32_t ProcessGroup::most_ranks() const noexcept {
  uint32_t most = 0;
  for (const Process& process : processes_) most = std::max(most, process.rank_count);
  return most;
}

uint32_t ProcessGroup::lost() noexcept {
  // Relaxed: the number is all that it says.
  if (const uint32_t known = lost_.load(std::memory_order_relaxed); known != UINT32_MAX) return known;
  for (uint32_t i = 0; i < size(); ++i) {
    if (!base::process_ended(processes_[i].watch)) continue;
    lost_.store(i, std::memory_order_relaxed);
    return i;
  }
  return size();
}

void ProcessGroup::agree(const char* call, const std::function<void()>& part) {
  together<char>(call, [&] {
    part();
    return Part<char>{};
  });
}

void ProcessGroup::gather(const char* call, const std::function<int(Bytes&)>& make, std::vector<Bytes>& out_all,
                          std::vector<base::Descriptor>& out_descriptors) {
  Message own;
  int descriptor = -1;
  std::exception_ptr failed;
  try {
    descriptor = make(own.bytes);
  } catch (const base::Failure& failure) {
    failed = std::current_exception();
    own.status = failure.status();
    copy_text(own.sentence, failure.what());
  } catch (const std::exception& error) {
    failed = std::current_exception();
    own.status =
        dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? MKRT_ERROR_OUT_OF_MEMORY : MKRT_ERROR_INTERNAL;
    copy_text(own.sentence, error.what());
  }
  std::vector<Message> all{own};
  out_descriptors.resize(1);
  if (!alone()) {
    const std::lock_guard lock(mutex_);
    copy_text(own.call, call);
    own.sequence = next_call_++;
    try {
      exchange(own, failed ? -1 : descriptor, all, out_descriptors);
    } catch (...) {
      if (!failed) throw;  // its own reason is the better one
    }
  }
  if (failed) std::rethrow_exception(failed);
  for (uint32_t i = 0; i < all.size(); ++i) {
    if (all[i].status == MKRT_OK) continue;
    throw base::Failure(is_failure(all[i].status) ? all[i].status : MKRT_ERROR_PEER,
                        base::text("process ", i, " could not do its part of ", call, ": ", all[i].sentence));
  }
  out_all.clear();
  for (const Message& message : all) out_all.push_back(message.bytes);
}

// One all-gather, with everything checked that a process or the application's function can get wrong.
void ProcessGroup::exchange(const Message& own, int descriptor, std::vector<Message>& out_all,
                            std::vector<base::Descriptor>& out_descriptors) {
  static_assert(sizeof(Message) <= MKRT_MAX_EXCHANGE_BYTES && std::is_trivially_copyable_v<Message>);
  // Others may be one all-gather further since, whose messages would be taken for those of another step.
  if (broken_) {
    throw base::Failure(MKRT_ERROR_PEER, base::text("the exchange between processes failed before ", own.call,
                                                    ", and may not have failed in all; make a new mesh"));
  }
  broken_ = true;  // until all is as it should be
  std::vector<Message> all(size());
  std::vector<int32_t> numbers(size(), -1);
  mkrt_error error = MKRT_ERROR_INIT;
  const mkrt_status status = extension_.all_gather(extension_.user_data, &own, sizeof(own), descriptor,
                                                   extension_.timeout_ns, all.data(), numbers.data(), &error);
  if (status != MKRT_OK) {
    const char* sentence = ends(error.message, sizeof(error.message)) ? error.message : "";
    throw base::Failure(is_failure(status) ? status : MKRT_ERROR_PEER,
                        base::text("the exchange between processes failed in ", own.call, ": ",
                                   *sentence != '\0' ? sentence : "it gave no reason"))
        .with_driver_code(error.driver_code);
  }
  out_descriptors.clear();
  for (const int32_t number : numbers) out_descriptors.emplace_back(number);
  for (uint32_t i = 0; i < size(); ++i) {
    const Message& message = all[i];
    if (message.magic != message_magic || message.version != own.version || !ends(message.call, sizeof(message.call)) ||
        !ends(message.sentence, sizeof(message.sentence)) ||
        (i == this->own() && std::memcmp(&message, &own, sizeof(own)) != 0)) {
      throw base::Failure(MKRT_ERROR_PEER, base::text("process ", i,
                                                      " is not of this version of the library, or the "
                                                      "exchange between processes changed its message"));
    }
  }
  broken_ = false;
  for (uint32_t i = 0; i < size(); ++i) {
    const Message& message = all[i];
    if (message.sequence != own.sequence || std::strcmp(message.call, own.call) != 0) {
      throw base::Failure(MKRT_ERROR_PEER,
                          base::text("processes differ in their collective calls: process ", i, " is in ", message.call,
                                     " (all-gather ", message.sequence, "), process ", this->own(), " in ", own.call,
                                     " (all-gather ", own.sequence, ")"));
    }
  }
  out_all = std::move(all);
}

void check_same_executable(std::span<const uint32_t> numbers) {
  for (size_t process = 1; process < numbers.size(); ++process) {
    if (numbers[process] == numbers[0]) continue;
    throw base::Failure(MKRT_ERROR_PEER,
                        base::text("processes 0 and ", process, " create sessions of different executables"));
  }
}

mkrt_status report_lost(const ProcessGroup& group, uint32_t process, mkrt_error* out_error) noexcept {
  const ProcessGroup::Process& lost = group.process(process);
  const uint32_t last = lost.first_rank + lost.rank_count - 1;
  char ranks[32];
  if (lost.rank_count == 1) {
    std::snprintf(ranks, sizeof(ranks), "rank %u", lost.first_rank);
  } else {
    std::snprintf(ranks, sizeof(ranks), "ranks %u to %u", lost.first_rank, last);
  }
  base::report(out_error, MKRT_ERROR_PEER, "process %u (system process %u, %s) of the mesh has ended", process,
               lost.system_id, ranks);
  if (out_error != nullptr) out_error->rank = static_cast<int32_t>(lost.first_rank);
  return MKRT_ERROR_PEER;
}

}  // namespace mkrt::device
