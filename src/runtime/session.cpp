#include "runtime/session.hpp"

#include <cinttypes>
#include <utility>

#include "base/report.hpp"
#include "runtime/hook_allocator.hpp"

namespace mkrt::runtime {
namespace {

// mkrt.h: a tile waits for at most 10 seconds where the execute names no limit.
constexpr uint64_t default_wait_limit_ns = 10'000'000'000;

const char* kind_name(uint32_t kind) noexcept {
  switch (kind) {
    case MKRT_TENSOR_WEIGHT: return "weight";
    case MKRT_TENSOR_STATE: return "state";
    case MKRT_TENSOR_INPUT: return "input";
    case MKRT_TENSOR_OUTPUT: return "output";
    default: return "scratch";
  }
}

}  // namespace

Session::Session(std::shared_ptr<Executable> executable, std::unique_ptr<device::Session> work) noexcept
    : executable_(std::move(executable)),
      package_(*executable_->program()->package()),
      group_(executable_->mesh()->group()),
      work_(std::move(work)) {}

mkrt_status Session::execute(const mkrt_execute_desc& desc, uint64_t* out_value, mkrt_error* out_error) noexcept {
  if (desc.entry >= package_.entries.size()) {
    return base::report(out_error, MKRT_ERROR_ARGUMENT, "entry %" PRIu32 " does not exist; the program has %zu",
                        desc.entry, package_.entries.size());
  }
  if (desc.queue_mode != MKRT_QUEUE_DYNAMIC && desc.queue_mode != MKRT_QUEUE_STATIC) {
    return base::report(out_error, MKRT_ERROR_ARGUMENT, "queue mode %" PRIu32 " does not exist", desc.queue_mode);
  }
  device::ExecuteRequest request;
  request.entry = desc.entry;
  request.step_count = desc.step_count == 0 ? 1 : desc.step_count;
  request.queue_mode = desc.queue_mode;
  request.worker_limit = desc.worker_limit;
  request.wait_limit_ns = desc.wait_limit_ns == 0 ? default_wait_limit_ns : desc.wait_limit_ns;
  uint64_t value = 0;
  const mkrt_status status = work_->execute(request, &value, out_error);
  if (status == MKRT_OK && out_value != nullptr) *out_value = value;
  return status;
}

mkrt_status Session::check_tensor(uint32_t rank, uint32_t tensor, Use use, mkrt_error* out_error) const noexcept {
  if (rank >= package_.rank_count) {
    return base::report(out_error, MKRT_ERROR_ARGUMENT, "rank %" PRIu32 " does not exist; the program has %" PRIu32,
                        rank, package_.rank_count);
  }
  if (!group_.is_local(rank)) {
    return base::report(out_error, MKRT_ERROR_ARGUMENT,
                        "rank %" PRIu32 " is of process %" PRIu32 "; this is process %" PRIu32, rank,
                        group_.process_of(rank), group_.own());
  }
  if (tensor >= package_.tensors.size()) {
    return base::report(out_error, MKRT_ERROR_ARGUMENT, "tensor %" PRIu32 " does not exist; the program has %zu",
                        tensor, package_.tensors.size());
  }
  const package::Tensor& found = package_.tensors[tensor];
  const bool hidden = found.kind == MKRT_TENSOR_WEIGHT || found.kind == MKRT_TENSOR_SCRATCH;
  if (hidden || (use == Use::write && found.kind == MKRT_TENSOR_OUTPUT)) {
    return base::report(out_error, MKRT_ERROR_ARGUMENT, "tensor %s is of kind %s: it cannot be %s", found.name.c_str(),
                        kind_name(found.kind),
                        use == Use::write  ? "written"
                        : use == Use::read ? "read"
                                           : "shared");
  }
  return MKRT_OK;
}

mkrt_status Session::check_range(uint32_t tensor, uint64_t offset, uint64_t size,
                                 mkrt_error* out_error) const noexcept {
  const package::Tensor& found = package_.tensors[tensor];
  if (offset <= found.size_bytes && size <= found.size_bytes - offset) return MKRT_OK;
  return base::report(out_error, MKRT_ERROR_ARGUMENT,
                      "%" PRIu64 " bytes from byte %" PRIu64 " leave tensor %s, which has %" PRIu64 " bytes", size,
                      offset, found.name.c_str(), found.size_bytes);
}

mkrt_status Session::write(uint32_t rank, uint32_t tensor, uint64_t offset, const void* data, uint64_t size,
                           mkrt_error* out_error) noexcept {
  if (const mkrt_status status = check_tensor(rank, tensor, Use::write, out_error); status != MKRT_OK) return status;
  if (const mkrt_status status = check_range(tensor, offset, size, out_error); status != MKRT_OK) return status;
  return work_->write(rank, tensor, offset, data, size, out_error);
}

mkrt_status Session::read(uint32_t rank, uint32_t tensor, uint64_t offset, uint64_t size, void* out_data,
                          mkrt_error* out_error) noexcept {
  if (const mkrt_status status = check_tensor(rank, tensor, Use::read, out_error); status != MKRT_OK) return status;
  if (const mkrt_status status = check_range(tensor, offset, size, out_error); status != MKRT_OK) return status;
  return work_->read(rank, tensor, offset, size, out_data, out_error);
}

mkrt_status Session::tensor_address(uint32_t rank, uint32_t tensor, void** out_address,
                                    mkrt_error* out_error) noexcept {
  if (const mkrt_status status = check_tensor(rank, tensor, Use::address, out_error); status != MKRT_OK) return status;
  *out_address = work_->tensor_address(rank, tensor);
  return MKRT_OK;
}

std::shared_ptr<Session> create_session(std::shared_ptr<Executable> executable) {
  std::unique_ptr<device::Session> work = executable->loaded().create_session();
  const base::Hooks& hooks = *executable->program()->runtime()->hooks();
  return make_object<Session>(hooks, std::move(executable), std::move(work));
}

}  // namespace mkrt::runtime
