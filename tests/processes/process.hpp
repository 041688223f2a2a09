// Functions that run in processes of their own, so that tests can kill and stop them.
#pragma once

#include <doctest/doctest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace mkrt::test {

using Clock = std::chrono::steady_clock;

// What a process tells the test, piece by piece.
class Speaker {
 public:
  explicit Speaker(int descriptor) : descriptor_(descriptor) {}
  template <class Value>
  void say(const Value& value) const {
    static_assert(std::is_trivially_copyable_v<Value>);
    write(&value, sizeof(value));
  }
  template <class Value>
  void say(const std::vector<Value>& values) const {
    say(values.size());
    write(values.data(), values.size() * sizeof(Value));
  }

 private:
  void write(const void* data, size_t size) const {
    const auto* bytes = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t written = ::write(descriptor_, bytes, size);
      if (written <= 0) std::_Exit(3);  // nobody listens any more
      bytes += written;
      size -= static_cast<size_t>(written);
    }
  }
  int descriptor_;
};

// A process, killed where it is not over when this object goes. The test itself must have no other thread when it
// starts one.
class Process {
 public:
  explicit Process(const std::function<void(const Speaker&)>& body) {
    start([&](int to) { run(body, to); });
  }
  // The same with a program of its own, for tests that have other threads or what no copy of a process has. It speaks
  // to the descriptor whose number is in the environment variable `variable`, and `arguments` begin with its path.
  Process(const std::vector<std::string>& arguments, const std::string& variable) {
    std::vector<char*> passed;
    for (const std::string& argument : arguments) passed.push_back(const_cast<char*>(argument.c_str()));
    passed.push_back(nullptr);
    // Nothing is allocated after the fork, whose copy has this thread alone.
    std::string said = variable + "=            ";
    std::vector<char*> environment;
    for (char** one = environ; *one != nullptr; ++one) environment.push_back(*one);
    environment.push_back(said.data());
    environment.push_back(nullptr);
    start([&](int to) {
      std::snprintf(said.data() + variable.size() + 1, said.size() - variable.size(), "%d", to);
      ::execve(passed[0], passed.data(), environment.data());
      std::_Exit(4);
    });
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (id_ > 0) {
      kill();
      ::waitpid(id_, nullptr, 0);
    }
    ::close(from_);
  }

  void signal(int number) const { ::kill(id_, number); }
  void kill() const { signal(SIGKILL); }
  pid_t id() const { return id_; }

  // What it says next. Nothing within the limit is a failure of the test.
  template <class Value>
  Value hear(std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    Value value{};
    read(&value, sizeof(value), limit);
    return value;
  }
  template <class Value>
  std::vector<Value> hear_all(std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    std::vector<Value> values(hear<size_t>(limit));
    read(values.data(), values.size() * sizeof(Value), limit);
    return values;
  }
  // Whether it ended by itself, and well.
  bool ends_well() {
    int status = 0;
    ::waitpid(id_, &status, 0);
    id_ = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  void start(const std::function<void(int to)>& continue_as) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    id_ = ::fork();
    REQUIRE(id_ >= 0);
    if (id_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves nobody behind
      ::close(ends[0]);
      continue_as(ends[1]);
    }
    ::close(ends[1]);
    from_ = ends[0];
  }
  [[noreturn]] static void run(const std::function<void(const Speaker&)>& body, int to) {
    try {
      body(Speaker(to));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "process %d: %s\n", static_cast<int>(::getpid()), error.what());
      std::_Exit(1);
    } catch (...) {
      std::_Exit(2);
    }
    std::_Exit(0);
  }
  void read(void* data, size_t size, std::chrono::milliseconds limit) const {
    auto* bytes = static_cast<char*>(data);
    const auto end = Clock::now() + limit;
    while (size > 0) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
      pollfd look{from_, POLLIN, 0};
      const bool ready = ::poll(&look, 1, static_cast<int>(std::max<int64_t>(0, left.count()))) == 1;
      REQUIRE_MESSAGE(ready, "the process says nothing");
      const ssize_t length = ::read(from_, bytes, size);
      REQUIRE_MESSAGE(length > 0, "the process is gone");
      bytes += length;
      size -= static_cast<size_t>(length);
    }
  }

  pid_t id_ = -1;
  int from_ = -1;
};

// An address that no other test and no earlier run uses.
inline std::string new_address() {
  static unsigned number = 0;
  return "@mkrt-test-" + std::to_string(::getpid()) + "-" + std::to_string(number++);
}

}  // namespace mkrt::test
