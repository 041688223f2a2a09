// Processes of a mesh that are threads of a test: the exchange between them, and how one of them ends.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/descriptor.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::cuda::test {

class Meeting {
 public:
  explicit Meeting(uint32_t processes, bool passes_descriptors = true);

  mkrt_process_extension extension(uint32_t process);
  // Runs `body` in a thread for each process. One that has returned takes part in no all-gather any more, and those of
  // the others fail. What it throws fails the test.
  void run(const std::function<void(uint32_t process)>& body);
  // From now on the others see that it has ended, as the system tells them.
  void end(uint32_t process);

 private:
  struct Round {
    uint32_t come = 0;
    bool done = false;
    std::vector<std::vector<std::byte>> data;                // by process
    std::vector<std::vector<base::Descriptor>> descriptors;  // by receiver, then sender
  };
  struct Place {
    Meeting* meeting;
    uint32_t process;
  };

  static mkrt_status all_gather(void* user_data, const void* data, uint32_t size_bytes, int32_t descriptor,
                                uint64_t timeout_ns, void* out_data, int32_t* out_descriptors, mkrt_error* out_error);
  std::shared_ptr<Round> new_round() const;
  void leave();

  const uint32_t count_;
  const bool passes_descriptors_;
  std::vector<Place> places_;
  // By process: what the others look at, in place of a pidfd, and what makes it readable.
  std::vector<base::Descriptor> watches_, ends_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Round> round_;
  bool first_ = true;  // the round in which processes pass what they are watched by
  bool left_ = false;  // somebody did
};

}  // namespace mkrt::cuda::test
