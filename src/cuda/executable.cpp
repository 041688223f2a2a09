#include "cuda/executable.hpp"

#include <chrono>
#include <functional>

#include "base/failure.hpp"
#include "cuda/session.hpp"
#include "cuda/upload.hpp"

namespace mkrt::cuda {

namespace {

// What the kernel's tables have room for.
void check_limits(const package::Program& program) {
  for (const package::Entry& entry : program.entries) {
    if (entry.records.size() > MKRT_LAUNCH_RECORDS) {
      throw base::Failure(MKRT_ERROR_UNSUPPORTED,
                          base::text("entry ", base::quoted(entry.name), " has ", entry.records.size(),
                                     " records, and CUDA devices take ", uint32_t{MKRT_LAUNCH_RECORDS}));
    }
  }
}

// The file that holds the bytes, or nullptr: the reader takes weights from files, but a Program may come from
// elsewhere.
const base::MappedFile* file_of(const package::Program& program, std::span<const std::byte> bytes) {
  const std::less_equal<const std::byte*> before;
  for (const auto& weights : program.weight_files) {
    const std::span<const std::byte> all = weights->file().bytes();
    if (before(all.data(), bytes.data()) && before(bytes.data() + bytes.size(), all.data() + all.size())) {
      return &weights->file();
    }
  }
  return nullptr;
}

}  // namespace

Executable::Executable(std::shared_ptr<const base::Hooks> hooks, RankDevice rank,
                       std::shared_ptr<const package::Program> program, const device::LoadOptions& options)
    : hooks_(std::move(hooks)),
      rank_(std::move(rank)),
      program_(std::move(program)),
      layout_(memory::plan_layout(*program_)) {
  check_limits(*program_);
  const ContextScope scope(*rank_.context);
  rank_.context->driver().check(scope.result(), "make the device's context current");
  image_ = std::make_unique<LoadedImage>(rank_.context, *program_);
  heap_ = std::make_shared<DeviceHeap>(rank_.context, options.memory_budget, rank_.allocator);
  place_weights(options.loader_threads);
}

void Executable::place_weights(uint32_t loader_threads) {
  weights_.assign(program_->tensors.size(), 0);
  if (layout_.weight_bytes == 0) return;
  weight_memory_ = DeviceMemory(heap_, layout_.weight_bytes, "the weights");
  std::vector<Transfer> transfers;
  uint64_t offset = 0;
  for (size_t i = 0; i < program_->tensors.size(); ++i) {
    const package::Tensor& tensor = program_->tensors[i];
    if (tensor.kind != MKRT_TENSOR_WEIGHT) continue;
    weights_[i] = weight_memory_.address() + offset;
    const std::span<const std::byte> bytes = tensor.sources.front().bytes;
    transfers.push_back({bytes, weights_[i], file_of(*program_, bytes)});
    offset += (tensor.size_bytes + memory::heap_alignment - 1) / memory::heap_alignment * memory::heap_alignment;
  }
  const auto begin = std::chrono::steady_clock::now();
  upload(rank_.context, transfers, loader_threads);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  hooks_->log(
      MKRT_LOG_INFO,
      base::text("uploaded ", layout_.weight_bytes, " bytes of weights in ", seconds.count() * 1e3, " ms").c_str());
}

std::unique_ptr<device::Session> Executable::create_session() {
  const ContextScope scope(*rank_.context);
  rank_.context->driver().check(scope.result(), "make the device's context current");
  return std::make_unique<Session>(*this);
}

}  // namespace mkrt::cuda
