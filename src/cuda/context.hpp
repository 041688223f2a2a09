// A device's context, making it current for a scope, and asking streams while the application captures.
#pragma once

#include <memory>

#include "cuda/driver.hpp"

namespace mkrt::cuda {

// A context that work of a rank happens in: the device's primary one, held while this lives, or one that the host
// application lends and keeps.
class DeviceContext {
 public:
  // Retains the primary context. Throws Failure.
  DeviceContext(std::shared_ptr<const Driver> driver, DeviceNumber device);
  // Adopts `context`, whose device it asks for. Throws Failure.
  DeviceContext(std::shared_ptr<const Driver> driver, Context context);
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;
  ~DeviceContext();

  const Driver& driver() const noexcept { return *driver_; }
  DeviceNumber device() const noexcept { return device_; }
  Context handle() const noexcept { return context_; }

 private:
  std::shared_ptr<const Driver> driver_;
  DeviceNumber device_ = 0;
  Context context_ = nullptr;
  bool retained_ = false;
};

// Current while this lives; afterwards the thread's context is what it was before.
class ContextScope {
 public:
  explicit ContextScope(const DeviceContext& context) noexcept
      : driver_(context.driver()), result_(driver_.context_push(context.handle())) {}
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    Context popped = nullptr;
    if (result_ == result_success) driver_.context_pop(&popped);
  }

  // Whether it could be made current. Where it could not, nothing may be made or copied: the application's context is
  // current. What only gives back may go on.
  Result result() const noexcept { return result_; }

 private:
  const Driver& driver_;
  Result result_;
};

// While this lives, the calling thread may ask streams that are not capturing, whatever the application captures
// meanwhile: in the driver's default mode that is an error, and spoils the capture, on whichever thread it goes on.
class BesideCaptures {
 public:
  explicit BesideCaptures(const Driver& driver) noexcept : driver_(driver), result_(driver.capture_mode(&mode_)) {}
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;
  ~BesideCaptures() {
    if (result_ == result_success) driver_.capture_mode(&mode_);
  }

  Result result() const noexcept { return result_; }

 private:
  const Driver& driver_;
  CaptureMode mode_ = capture_relaxed;  // then that of before
  Result result_;
};

}  // namespace mkrt::cuda
