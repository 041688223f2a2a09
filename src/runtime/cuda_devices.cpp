#include "runtime/cuda_devices.hpp"

#include "cuda/cuda.hpp"

namespace mkrt::runtime {

const CudaDevices::Found& CudaDevices::found() {
  const std::lock_guard lock(mutex_);
  if (!found_) found_ = look();
  return *found_;
}

const std::shared_ptr<const cuda::Driver>& CudaDevices::driver() {
  const Found& result = found();
  if (result.refusal) throw *result.refusal;
  return result.driver;
}

CudaDevices::Found CudaDevices::look() const {
  Found result;
  uint32_t count = 0;
  try {
    result.driver = open_();
    count = cuda::device_count(*result.driver);
  } catch (const base::Failure& failure) {
    // Whatever kept the driver from answering: there is no CUDA device that could be used.
    result.driver = nullptr;
    result.refusal = base::Failure(MKRT_ERROR_DEVICE, failure.message()).with_driver_code(failure.driver_code());
    return result;
  }
  for (uint32_t ordinal = 0; ordinal < count; ++ordinal) {
    mkrt_device_info info{};
    info.struct_size = sizeof(info);
    try {
      cuda::describe_device(result.driver, ordinal, &info);
      result.devices.push_back(info);
    } catch (const base::Failure& failure) {
      hooks_->log(MKRT_LOG_WARNING, base::text("CUDA device ", ordinal, " is left out: ", failure.message()).c_str());
    }
  }
  return result;
}

}  // namespace mkrt::runtime
