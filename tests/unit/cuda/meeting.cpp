#include "meeting.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include "base/report.hpp"

namespace mkrt::cuda::test {

Meeting::Meeting(uint32_t processes, bool passes_descriptors)
    : count_(processes), passes_descriptors_(passes_descriptors) {
  for (uint32_t process = 0; process < count_; ++process) {
    places_.push_back({this, process});
    int ends[2] = {-1, -1};
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    watches_.emplace_back(ends[0]);
    ends_.emplace_back(ends[1]);
  }
  round_ = new_round();
}

std::shared_ptr<Meeting::Round> Meeting::new_round() const {
  auto round = std::make_shared<Round>();
  round->data.resize(count_);
  round->descriptors.resize(count_);
  for (auto& received : round->descriptors) received.resize(count_);
  return round;
}

mkrt_process_extension Meeting::extension(uint32_t process) {
  mkrt_process_extension extension{};
  extension.base.struct_size = sizeof(extension);
  extension.base.type = MKRT_EXTENSION_PROCESSES;
  extension.process = process;
  extension.process_count = count_;
  extension.timeout_ns = 20'000'000'000;  // a test that waits so long has failed
  extension.user_data = &places_[process];
  extension.all_gather = all_gather;
  return extension;
}

mkrt_status Meeting::all_gather(void* user_data, const void* data, uint32_t size_bytes, int32_t descriptor,
                                uint64_t timeout_ns, void* out_data, int32_t* out_descriptors, mkrt_error* out_error) {
  const Place& own = *static_cast<const Place*>(user_data);
  Meeting& meeting = *own.meeting;
  std::unique_lock lock(meeting.mutex_);
  const std::shared_ptr<Round> round = meeting.round_;
  const auto* begin = static_cast<const std::byte*>(data);
  round->data[own.process].assign(begin, begin + size_bytes);
  const int passed = meeting.first_ ? meeting.watches_[own.process].get() : descriptor;
  for (uint32_t to = 0; to < meeting.count_; ++to) {
    if (to == own.process || passed < 0 || !meeting.passes_descriptors_) continue;
    round->descriptors[to][own.process] = base::Descriptor(::fcntl(passed, F_DUPFD_CLOEXEC, 0));
  }
  if (++round->come == meeting.count_) {
    round->done = true;
    meeting.round_ = meeting.new_round();
    meeting.first_ = false;
    meeting.changed_.notify_all();
  }
  const bool ended = meeting.changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                                               [&] { return round->done || meeting.left_; });
  if (!ended) return base::report(out_error, MKRT_ERROR_TIMEOUT, "not all processes came");
  if (!round->done) return base::report(out_error, MKRT_ERROR_PEER, "a process has left");
  for (uint32_t from = 0; from < meeting.count_; ++from) {
    REQUIRE(round->data[from].size() == size_bytes);
    std::memcpy(static_cast<std::byte*>(out_data) + size_t{from} * size_bytes, round->data[from].data(), size_bytes);
    out_descriptors[from] = round->descriptors[own.process][from].release();
  }
  return MKRT_OK;
}

void Meeting::leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
  changed_.notify_all();
}

void Meeting::end(uint32_t process) { REQUIRE(::write(ends_[process].get(), "", 1) == 1); }

void Meeting::run(const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t process = 0; process < count_; ++process) {
    threads.emplace_back([&, process] {
      try {
        body(process);
      } catch (const std::exception& error) {
        FAIL_CHECK("process " << process << ": " << std::string(error.what()));
      }
      leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace mkrt::cuda::test
