#include "cuda/context.hpp"

#include "base/failure.hpp"

namespace mkrt::cuda {

DeviceContext::DeviceContext(std::shared_ptr<const Driver> driver, DeviceNumber device)
    : driver_(std::move(driver)), device_(device) {
  driver_->check(driver_->primary_context_retain(&context_, device), "get the device's primary context");
  retained_ = true;
}

DeviceContext::DeviceContext(std::shared_ptr<const Driver> driver, Context context)
    : driver_(std::move(driver)), context_(context) {
  const ContextScope scope(*this);
  driver_->check(scope.result(), "make the host application's context current");
  driver_->check(driver_->context_device(&device_), "ask for the device of the host application's context");
}

DeviceContext::~DeviceContext() {
  if (retained_) driver_->primary_context_release(device_);
}

}  // namespace mkrt::cuda
