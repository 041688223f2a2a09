// The machine's CUDA devices, looked for when they are first asked for.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/failure.hpp"
#include "base/hooks.hpp"
#include "cuda/driver.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::runtime {

class CudaDevices {
 public:
  // How the driver is opened: cuda::open_driver, or a test's own.
  using OpenDriver = std::shared_ptr<const cuda::Driver> (*)();

  struct Found {
    std::shared_ptr<const cuda::Driver> driver;  // null where there is none that can be used
    std::optional<base::Failure> refusal;        // why, where `driver` is null
    std::vector<mkrt_device_info> devices;       // those that answer, by ordinal
  };

  CudaDevices(std::shared_ptr<const base::Hooks> hooks, OpenDriver open) noexcept
      : hooks_(std::move(hooks)), open_(open) {}

  // Opens the driver at the first call and only then. Any thread. Throws std::bad_alloc only.
  const Found& found();
  // The driver; throws the Failure(DEVICE) with which it could not be opened.
  const std::shared_ptr<const cuda::Driver>& driver();

 private:
  Found look() const;

  std::shared_ptr<const base::Hooks> hooks_;
  OpenDriver open_;
  std::mutex mutex_;
  std::optional<Found> found_;  // does not change any more once it is there
};

}  // namespace mkrt::runtime
