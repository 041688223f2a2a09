// A progress bar on standard error, for people only: nothing is shown where it is no terminal, or in the first second.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace mkrt::cli {

class Progress {
 public:
  // `label` says what is going on, such as "reading the prompt".
  explicit Progress(std::string label);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  // Leaves an empty line.
  ~Progress();

  // Cheap enough for every token: it draws at most ten times a second.
  void update(uint64_t done, uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_draw_;
};

// The line that is drawn: label, bar, percentage and, once it can be told, the time that is left.
std::string render_progress(const std::string& label, uint64_t done, uint64_t total, double elapsed_seconds);

}  // namespace mkrt::cli
