#include "host/executable.hpp"

#include <cstring>
#include <utility>

#include "base/failure.hpp"
#include "host/session.hpp"

namespace mkrt::host {

Executable::Executable(std::shared_ptr<const base::Hooks> hooks, Scheduler& scheduler,
                       std::shared_ptr<const package::Program> program, const mkrt_host_isa& isa,
                       uint64_t memory_budget)
    : hooks_(std::move(hooks)),
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

// Weights stay where the files are mapped. Making their pages present is 1.2 to 1.8 times as fast as reading the
// same cached files (tests/bench/host_load), and no tile meets a page fault later.
void Executable::place_weights() {
  for (const auto& file : program_->weight_files) file->prefetch();
  weights_.resize(program_->rank_count);
  for (uint32_t rank = 0; rank < program_->rank_count; ++rank) {
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
  for (uint32_t rank = 0; rank < program_->rank_count; ++rank) {
    scratch_.emplace_back(hooks_, scratch_stride_ * scheduler_.worker_count(rank), separation, "workers' scratch",
                          base::Contents::arbitrary);
  }
}

std::unique_ptr<device::Session> Executable::create_session() { return std::make_unique<Session>(*this); }

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
