#include "cuda/executable.hpp"

#include <chrono>
#include <functional>

#include "base/failure.hpp"
#include "cuda/session.hpp"

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

Executable::Executable(Mesh& mesh, std::shared_ptr<const package::Program> program, const device::LoadOptions& options)
    : mesh_(mesh),
      number_(mesh.group().next_call()),
      program_(std::move(program)),
      layout_(memory::plan_layout(*program_)) {
  check_limits(*program_);
  load_images();
  const auto begin = std::chrono::steady_clock::now();
  for (const RankDevice& rank : mesh_.ranks()) {
    heaps_.push_back(std::make_shared<DeviceHeap>(rank.context, options.memory_budget, rank.allocator));
    try {
      place_weights(rank, options.loader_threads);
    } catch (base::Failure& failure) {
      failure.at_rank(static_cast<int32_t>(rank.number));
      throw;
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const uint64_t bytes = layout_.weight_bytes * mesh_.ranks().size();
  mesh_.hooks()->log(MKRT_LOG_INFO,
                     base::text("uploaded ", bytes, " bytes of weights in ", seconds.count() * 1e3, " ms").c_str());
}

void Executable::load_images() {
  for (const MeshDevice& device : mesh_.devices()) {
    const ContextScope scope(*device.context);
    device.context->driver().check(scope.result(), "make the device's context current");
    images_.push_back(std::make_unique<LoadedImage>(device.context, *program_));
  }
}

// A rank's own weights, in memory of its device.
void Executable::place_weights(const RankDevice& rank, uint32_t loader_threads) {
  std::vector<uint64_t>& addresses = weights_.emplace_back(program_->tensors.size(), 0);
  if (layout_.weight_bytes == 0) return;
  const ContextScope scope(*rank.context);
  rank.context->driver().check(scope.result(), "make the device's context current");
  std::vector<Transfer> transfers;
  uint64_t offset = 0;
  for (size_t i = 0; i < program_->tensors.size(); ++i) {
    const package::Tensor& tensor = program_->tensors[i];
    if (tensor.kind != MKRT_TENSOR_WEIGHT) continue;
    addresses[i] = offset;
    const std::span<const std::byte> bytes = tensor.sources[rank.number].bytes;
    transfers.push_back({offset, bytes, file_of(*program_, bytes)});
    offset += (tensor.size_bytes + memory::heap_alignment - 1) / memory::heap_alignment * memory::heap_alignment;
  }
  Uploaded weights = upload(heaps_.back(), layout_.weight_bytes, transfers, loader_threads);
  log(rank.number, weights.times);
  const DeviceMemory& memory = weight_memory_.emplace_back(std::move(weights.memory));
  for (size_t i = 0; i < program_->tensors.size(); ++i) {
    if (program_->tensors[i].kind == MKRT_TENSOR_WEIGHT) addresses[i] += memory.address();
  }
}

// Where the time went.
void Executable::log(uint32_t rank, const UploadTimes& times) const {
  const auto milliseconds = [](double seconds) { return seconds * 1e3; };
  mesh_.hooks()->log(MKRT_LOG_DEBUG,
                     base::text("upload of rank ", rank, ": memory allocated after ", milliseconds(times.allocated),
                                " ms, first copy after ", milliseconds(times.first_copy), " ms, staging made after ",
                                milliseconds(times.all_places), " ms, last copy after ", milliseconds(times.last_copy),
                                " ms, all done after ", milliseconds(times.end), " ms; threads read for ",
                                milliseconds(times.reading), " ms in all")
                         .c_str());
}

// Each part succeeds in all processes or in none.
std::unique_ptr<device::Session> Executable::create_session() {
  constexpr const char* call = "mkrt_session_create";
  device::ProcessGroup& group = mesh_.group();
  const auto turn = group.turn();
  const uint32_t number = group.next_call();
  std::unique_ptr<Session> session;
  const auto executables = group.together<uint32_t>(call, [&] {
    session = std::make_unique<Session>(*this, number);
    return device::ProcessGroup::Part<uint32_t>{number_};
  });
  device::check_same_executable(executables.values);
  session->take_memory();
  // Before anybody executes: launches of the others write to the control words of this process's ranks.
  group.agree(call, [&] { session->fill(); });
  return session;
}

}  // namespace mkrt::cuda
