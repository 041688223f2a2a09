#include "cli/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace mkrt::cli {
namespace {

using namespace std::chrono_literals;
constexpr auto kQuiet = 1s;            // shorter waits need no bar
constexpr auto kDrawInterval = 100ms;  // faster than the eye asks for
constexpr int kBarWidth = 30;

void write_error_stream(const std::string& text) {
  // A bar that cannot be drawn is no reason to stop.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

std::string render_progress(const std::string& label, uint64_t done, uint64_t total, double elapsed_seconds) {
  const double share = total == 0 ? 1 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  const int filled = static_cast<int>(share * kBarWidth);
  char numbers[64];
  std::snprintf(numbers, sizeof numbers, "] %3d %%", static_cast<int>(share * 100));
  std::string line = label + " [" + std::string(static_cast<size_t>(filled), '#') +
                     std::string(static_cast<size_t>(kBarWidth - filled), '.') + numbers;
  if (share > 0 && share < 1) {
    std::snprintf(numbers, sizeof numbers, ", %.0f s left", std::ceil(elapsed_seconds * (1 - share) / share));
    line += numbers;
  }
  return line;
}

Progress::Progress(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) == 1), next_draw_(start_ + kQuiet) {}

Progress::~Progress() {
  if (drawn_) write_error_stream("\r\x1b[K");
}

void Progress::update(uint64_t done, uint64_t total) {
  if (!terminal_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_draw_) return;
  next_draw_ = now + kDrawInterval;
  drawn_ = true;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  std::string line = "\r";
  line += render_progress(label_, done, total, elapsed);
  line += "\x1b[K";  // what a longer line left behind
  write_error_stream(line);
}

}  // namespace mkrt::cli
