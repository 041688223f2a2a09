#include "host/session.hpp"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/report.hpp"
#include "host/spin.hpp"
#include "memory/encode.hpp"
#include "package/program.hpp"

namespace mkrt::host {

Session::Session(Executable& executable, std::unique_ptr<SharedSession> shared)
    : executable_(executable), budget_(executable), shared_(std::move(shared)), wait_limit_ns_(0), stream_(tables_) {
  tables_.program = &executable_.program();
  tables_.isa = &executable_.isa();
  tables_.scratch_stride = executable_.scratch_stride();
  tables_.shared = shared_.get();
  for (uint32_t number = 0; number < executable_.group().local_rank_count(); ++number) {
    tables_.scratch.push_back(executable_.scratch(number));
  }
  make_heaps();
  encode();
}

Session::~Session() { executable_.scheduler().retire(stream_); }

void Session::make_heaps() {
  const uint32_t ranks = executable_.program().rank_count;
  if (shared_) shared_->map();
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (shared_) {
      heaps_.push_back(shared_->heap(rank));
    } else {
      const base::Block& block = blocks_.emplace_back(executable_.hooks(), executable_.layout().session_bytes,
                                                      memory::heap_alignment, "a session's tensors and counters");
      heaps_.push_back(block.data());
    }
  }
  for (uint32_t from = 0; from < ranks; ++from) {
    for (uint32_t to = 0; to < ranks; ++to) {
      const auto difference = reinterpret_cast<uintptr_t>(heaps_[to]) - reinterpret_cast<uintptr_t>(heaps_[from]);
      tables_.rank_deltas.push_back(static_cast<int64_t>(difference));
    }
  }
}

void Session::encode() {
  const package::Program& program = executable_.program();
  size_t count = 0;
  const device::ProcessGroup& group = executable_.group();
  for (const package::Entry& entry : program.entries) count += entry.records.size() * group.local_rank_count();
  constexpr size_t cache_line = 64;
  records_ = base::Block(executable_.hooks(), count * sizeof(mkrt_record), cache_line, "a session's tables");
  auto* records = reinterpret_cast<mkrt_record*>(records_.data());
  for (size_t e = 0; e < program.entries.size(); ++e) {
    const package::Entry& entry = program.entries[e];
    EntryTable table{&entry, {}, 0};
    for (uint32_t rank = 0; rank < program.rank_count; ++rank) {
      std::byte* heap = heaps_[rank];
      std::byte* counters = heap + executable_.layout().counter_offsets[e];
      if (!group.is_local(rank)) {
        table.ranks.push_back({nullptr, counters});
        continue;
      }
      const memory::RankAddresses addresses{rank, reinterpret_cast<uintptr_t>(heap), executable_.weights(rank)};
      memory::encode_entry(program, entry, executable_.layout(), addresses, {records, entry.records.size()});
      table.ranks.push_back({records, counters});
      records += entry.records.size();
    }
    tables_.entries.push_back(std::move(table));
  }
}

mkrt_status Session::execute(const device::ExecuteRequest& request, uint64_t* out_value,
                             mkrt_error* out_error) noexcept {
  const mkrt_status status = executable_.scheduler().submit(stream_, request, out_value, out_error);
  if (status == MKRT_OK) wait_limit_ns_ = request.wait_limit_ns;
  return status;
}

mkrt_status Session::query(uint64_t* out_value, mkrt_error* out_error) noexcept {
  return executable_.scheduler().query(stream_, out_value, out_error);
}

mkrt_status Session::wait(uint64_t value, uint64_t timeout_ns, mkrt_error* out_error) noexcept {
  return executable_.scheduler().wait(stream_, value, timeout_ns, out_error);
}

void Session::cancel() noexcept { executable_.scheduler().cancel(stream_); }

mkrt_status Session::report_busy(mkrt_error* out_error) const noexcept {
  return base::report(out_error, MKRT_ERROR_BUSY, "the session has work in flight");
}

mkrt_status Session::reset(mkrt_error* out_error) noexcept {
  if (stream_.in_flight()) return report_busy(out_error);
  if (shared_) {
    if (const mkrt_status status = wait_for_others(out_error); status != MKRT_OK) return status;
  }
  for (uint32_t rank = 0; rank < heaps_.size(); ++rank) {
    if (executable_.group().is_local(rank)) std::memset(heaps_[rank], 0, executable_.layout().session_bytes);
  }
  for (EntryTable& entry : tables_.entries) entry.epoch = 0;
  if (shared_) shared_->start_generation();
  executable_.scheduler().clear_failure(stream_);
  return MKRT_OK;
}

// Until tiles of other processes do not write to the ranks of this one any more. What they begin afterwards waits for
// this process.
mkrt_status Session::wait_for_others(mkrt_error* out_error) const noexcept {
  device::ProcessGroup& group = shared_->group();
  const uint64_t begin = now_ns();
  for (uint32_t process = 0; process < group.size(); ++process) {
    if (process == group.own()) continue;
    for (;;) {
      if (const uint32_t lost = group.lost(); lost != group.size()) return device::report_lost(group, lost, out_error);
      if (shared_->has_left(process)) {
        return base::report(out_error, MKRT_ERROR_PEER, "process %u of the mesh has destroyed its session", process);
      }
      if (!shared_->is_running(process)) break;
      if (now_ns() - begin >= wait_limit_ns_) {
        return base::report(out_error, MKRT_ERROR_BUSY, "tiles of process %u (system process %u) still run", process,
                            group.process(process).system_id);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // they stop within a tile's time
    }
  }
  return MKRT_OK;
}

mkrt_status Session::write(uint32_t rank, uint32_t tensor, uint64_t offset, const void* data, uint64_t size,
                           mkrt_error* out_error) noexcept {
  if (stream_.in_flight()) return report_busy(out_error);
  if (size > 0) std::memcpy(static_cast<std::byte*>(tensor_address(rank, tensor)) + offset, data, size);
  return MKRT_OK;
}

mkrt_status Session::read(uint32_t rank, uint32_t tensor, uint64_t offset, uint64_t size, void* out_data,
                          mkrt_error* out_error) noexcept {
  if (stream_.in_flight()) return report_busy(out_error);
  if (size > 0) std::memcpy(out_data, static_cast<const std::byte*>(tensor_address(rank, tensor)) + offset, size);
  return MKRT_OK;
}

void* Session::tensor_address(uint32_t rank, uint32_t tensor) noexcept {
  return heaps_[rank] + executable_.layout().tensor_offsets[tensor];
}

void Session::start_at_epoch(uint32_t epoch) noexcept {
  for (EntryTable& entry : tables_.entries) {
    entry.epoch *= epoch;
    for (const auto& rank : entry.ranks) {
      for (size_t counter = 0; counter < entry.definition->counter_count; ++counter) {
        std::byte* place = rank.counters + counter * MKRT_COUNTER_STRIDE;
        uint32_t value = 0;
        std::memcpy(&value, place, sizeof(value));
        value *= epoch;
        std::memcpy(place, &value, sizeof(value));
      }
    }
  }
}

}  // namespace mkrt::host
