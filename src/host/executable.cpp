#include "host/executable.hpp"

#include <cstring>
#include <functional>
#include <utility>

#include "base/failure.hpp"
#include "host/session.hpp"

namespace mkrt::host {

Executable::Executable(std::shared_ptr<const base::Hooks> hooks, device::ProcessGroup& group, Scheduler& scheduler,
                       std::shared_ptr<const package::Program> program, const mkrt_host_isa& isa,
                       uint64_t memory_budget)
    : hooks_(std::move(hooks)),
      group_(group),
      number_(group.next_call()),
      scheduler_(scheduler),
      program_(std::move(program)),
      isa_(isa),
      layout_(memory::plan_layout(*program_)),
      memory_budget_(memory_budget) {
  if (memory_budget_ != 0 && layout_.weight_bytes > memory_budget_) {
    throw base::Failure(MKRT_ERROR_OUT_OF_MEMORY, base::text("the weights of a rank have ", layout_.weight_bytes,
                                                             " bytes, the memory budget is ", memory_budget_));
  }
  make_scratch();
  place_weights();
}

// Makes the files' pages present, which is 1.2 to 1.8 times as fast as reading the same cached files
// (tests/bench/host_load), so that no tile meets a page fault later. Among several processes only what its ranks have.
void Executable::prefetch_weights() const {
  for (const auto& weights : program_->weight_files) {
    if (group_.alone()) {
      weights->prefetch();
      continue;
    }
    const std::span<const std::byte> all = weights->file().bytes();
    for (const package::Tensor& tensor : program_->tensors) {
      for (uint32_t rank = 0; rank < tensor.sources.size(); ++rank) {
        const std::span<const std::byte> bytes = tensor.sources[rank].bytes;
        const bool inside =
            !std::less<>()(bytes.data(), all.data()) && std::less<>()(bytes.data(), all.data() + all.size());
        if (inside && group_.is_local(rank)) weights->file().prefetch(bytes);
      }
    }
  }
}

// Weights stay where the files are mapped.
void Executable::place_weights() {
  prefetch_weights();
  weights_.resize(program_->rank_count);
  for (uint32_t rank = 0; rank < program_->rank_count; ++rank) {
    if (!group_.is_local(rank)) continue;
    for (const package::Tensor& tensor : program_->tensors) {
      const bool weight = tensor.kind == MKRT_TENSOR_WEIGHT;
      const std::byte* bytes =
          weight ? aligned(tensor.sources[rank].bytes, package::dtype_size(tensor.dtype)) : nullptr;
      weights_[rank].push_back(reinterpret_cast<uintptr_t>(bytes));
    }
  }
}

// The bytes themselves where their address is a multiple of the element's size, as it is in files that any common
// writer made; otherwise an aligned copy, as instructions read elements.
const std::byte* Executable::aligned(std::span<const std::byte> bytes, uint64_t element_size) {
  if (reinterpret_cast<uintptr_t>(bytes.data()) % element_size == 0) return bytes.data();
  copies_.emplace_back(hooks_, bytes.size(), memory::heap_alignment, "a copy of an unaligned weight");
  std::memcpy(copies_.back().data(), bytes.data(), bytes.size());
  return copies_.back().data();
}

// Not cleared: mkrt.llm has 1.1 MB a worker, 4.6 GB for the most workers that a rank may have, of which small models
// use a part and workers without tiles nothing.
void Executable::make_scratch() {
  constexpr uint64_t most = uint64_t{1} << 40;  // so that the products below fit
  if (isa_.scratch_size > most) {
    throw base::Failure(MKRT_ERROR_OUT_OF_MEMORY, base::text("instruction set ", base::quoted(isa_.name), " wants ",
                                                             isa_.scratch_size, " bytes of scratch for each worker"));
  }
  scratch_stride_ = static_cast<size_t>((isa_.scratch_size + separation - 1) / separation * separation);
  for (uint32_t number = 0; number < group_.local_rank_count(); ++number) {
    scratch_.emplace_back(hooks_, scratch_stride_ * scheduler_.worker_count(group_.first_rank() + number), separation,
                          "workers' scratch", base::Contents::arbitrary);
  }
}

std::unique_ptr<device::Session> Executable::create_session() {
  const auto turn = group_.turn();
  std::unique_ptr<SharedSession> shared;
  if (!group_.alone()) shared = std::make_unique<SharedSession>(group_, number_, layout_.session_bytes);
  std::unique_ptr<Session> session;
  group_.agree("mkrt_session_create", [&] { session = std::make_unique<Session>(*this, std::move(shared)); });
  return session;
}

SessionBudget::SessionBudget(Executable& executable) : executable_(executable) {
  // Relaxed: only the count matters.
  const uint64_t sessions = executable_.session_count_.fetch_add(1, std::memory_order_relaxed) + 1;
  const memory::Layout& layout = executable_.layout();
  const uint64_t budget = executable_.memory_budget_;
  // The budget holds the weights (the executable checked that); how many sessions does the rest hold?
  if (budget == 0 || sessions <= (budget - layout.weight_bytes) / layout.session_bytes) return;
  executable_.session_count_.fetch_sub(1, std::memory_order_relaxed);
  throw base::Failure(
      MKRT_ERROR_OUT_OF_MEMORY,
      base::text("a rank's weights have ", layout.weight_bytes, " bytes and a session ", layout.session_bytes,
                 "; session number ", sessions, " would pass the memory budget of ", budget));
}

SessionBudget::~SessionBudget() { executable_.session_count_.fetch_sub(1, std::memory_order_relaxed); }

}  // namespace mkrt::host
