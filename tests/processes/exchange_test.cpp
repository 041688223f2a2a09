// The ready-made exchange, with honest, late, lying and hostile others.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <memory>
#include <random>
#include <thread>

#include "mkrt/mkrt.hpp"
#include "process.hpp"

namespace {

using namespace mkrt::test;
using namespace std::chrono_literals;

// A connection of somebody who knows nothing of the protocol.
class Stranger {
 public:
  explicit Stranger(const std::string& address) : socket_(::socket(AF_UNIX, SOCK_SEQPACKET, 0)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, address.data(), address.size());
    if (address[0] == '@') name.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
    for (int i = 0; i < 2000; ++i) {
      if (::connect(socket_, reinterpret_cast<sockaddr*>(&name), size) == 0) return;
      std::this_thread::sleep_for(1ms);
    }
    throw std::runtime_error("nobody listens");
  }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  ~Stranger() { ::close(socket_); }
  void say(const void* data, size_t size, const std::vector<int>& descriptors = {}) const {
    iovec piece{const_cast<void*>(data), size};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    std::vector<char> control(CMSG_SPACE(sizeof(int) * descriptors.size()));
    if (!descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* part = CMSG_FIRSTHDR(&message);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
      std::memcpy(CMSG_DATA(part), descriptors.data(), sizeof(int) * descriptors.size());
    }
    ::sendmsg(socket_, &message, MSG_NOSIGNAL);
  }
  void hear() const {
    char heard[4096];
    CHECK(::recv(socket_, heard, sizeof(heard), 0) > 0);
  }

 private:
  int socket_;
};

// Somebody who listens where process 0 should.
class FalseHub {
 public:
  explicit FalseHub(const std::string& address) : listener_(::socket(AF_UNIX, SOCK_SEQPACKET, 0)) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, address.data(), address.size());
    name.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
    REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&name), size) == 0);
    REQUIRE(::listen(listener_, 8) == 0);
  }
  FalseHub(const FalseHub&) = delete;
  FalseHub& operator=(const FalseHub&) = delete;
  ~FalseHub() {
    hang_up();
    ::close(listener_);
  }
  // Takes the next one that comes and what it says first.
  void accept() {
    socket_ = ::accept(listener_, nullptr, nullptr);
    hear();
  }
  void hear() const {
    char heard[4096];
    CHECK(::recv(socket_, heard, sizeof(heard), 0) > 0);
  }
  void say(const void* data, size_t size) const { ::send(socket_, data, size, MSG_NOSIGNAL); }
  void hang_up() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

 private:
  int listener_;
  int socket_ = -1;
};

// The header of a hello, as the protocol has it.
struct Hello {
  uint64_t magic = 0x6d6b727465786368;
  uint32_t kind = 1, process = 1, process_count = 3, sequence = 0;
  int32_t status = 0;
  uint32_t size = 0;
  uint64_t has_descriptor = 0;
};

int open_descriptors() {
  int count = 0;
  for (int number = 0; number < 1024; ++number) count += ::fcntl(number, F_GETFD) >= 0;
  return count;
}

// What a process has to say about its exchange.
struct Outcome {
  mkrt_error error;
  int leaked;  // descriptors that stayed open
  bool has(const std::string& words) const { return std::string(error.message).find(words) != std::string::npos; }
};

struct Call {
  uint32_t bytes = 24;
  int descriptor = -1;
  std::chrono::nanoseconds timeout = 10s;
};
// One all-gather; what came is left in `out_data` and `out_descriptors`.
mkrt_status all_gather(const mkrt_process_extension& extension, const Call& call, const std::vector<char>& data,
                       std::vector<char>& out_data, std::vector<int32_t>& out_descriptors, mkrt_error* out_error) {
  out_data.assign(size_t{call.bytes} * extension.process_count, '?');
  out_descriptors.assign(extension.process_count, 12345);
  return extension.all_gather(extension.user_data, data.data(), call.bytes, call.descriptor,
                              static_cast<uint64_t>(call.timeout.count()), out_data.data(), out_descriptors.data(),
                              out_error);
}

// Connects and gathers `calls` times with the right results, in each of `count` processes.
void gather_all(const std::string& address, uint32_t number, uint32_t count, uint32_t calls) {
  mkrt::Runtime runtime;
  const mkrt::Exchange exchange(runtime, address, number, count, 20s);
  const mkrt_process_extension extension = exchange.extension();
  for (uint32_t round = 0; round < calls; ++round) {
    const uint32_t bytes = round % 2 == 0 ? MKRT_MAX_EXCHANGE_BYTES : 1 + round;
    std::vector<char> data(bytes, static_cast<char>('a' + number));
    // Each third process passes a pipe into which it has written its number.
    int pipe[2] = {-1, -1};
    const bool passes = (number + round) % 3 == 0;
    if (passes && (::pipe(pipe) != 0 || ::write(pipe[1], data.data(), 1) != 1)) throw std::runtime_error("no pipe");
    std::vector<char> all;
    std::vector<int32_t> descriptors;
    mkrt_error error = MKRT_ERROR_INIT;
    if (all_gather(extension, {bytes, pipe[0]}, data, all, descriptors, &error) != MKRT_OK) {
      throw std::runtime_error(error.message);
    }
    ::close(pipe[1]);
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t k = 0; k < bytes; ++k) {
        if (all[size_t{i} * bytes + k] != static_cast<char>('a' + i)) throw std::runtime_error("other bytes");
      }
      const bool expected = i != number && (i + round) % 3 == 0;
      if ((descriptors[i] >= 0) != expected) throw std::runtime_error("other descriptors");
    }
    // One of those who got a pipe's end reads it, the last by number.
    const uint32_t reader = count - 1;
    for (uint32_t i = 0; i < count; ++i) {
      char letter = 0;
      if (descriptors[i] >= 0 && number == reader &&
          (::read(descriptors[i], &letter, 1) != 1 || letter != 'a' + static_cast<int>(i))) {
        throw std::runtime_error("another pipe");
      }
      if (descriptors[i] >= 0) ::close(descriptors[i]);
    }
    ::close(pipe[0]);
  }
}

std::vector<std::unique_ptr<Process>> start(uint32_t count, const std::function<void(uint32_t, const Speaker&)>& body) {
  std::vector<std::unique_ptr<Process>> processes;
  for (uint32_t number = 0; number < count; ++number) {
    processes.push_back(std::make_unique<Process>([&](const Speaker& speaker) { body(number, speaker); }));
  }
  return processes;
}

Outcome connect(const std::string& address, uint32_t number, uint32_t count, std::chrono::nanoseconds timeout) {
  Outcome outcome{};
  const int before = open_descriptors();
  {
    mkrt::Runtime runtime;
    try {
      const mkrt::Exchange exchange(runtime, address, number, count, timeout);
    } catch (const mkrt::Error& error) {
      outcome.error = error.error();
    }
  }
  outcome.leaked = open_descriptors() - before;
  return outcome;
}

// Connects, and gathers once, whatever comes of it.
Outcome gather_once(const std::string& address, uint32_t number, uint32_t count) {
  mkrt::Runtime runtime;
  const mkrt::Exchange exchange(runtime, address, number, count, 10s);
  std::vector<char> all;
  std::vector<int32_t> descriptors;
  Outcome outcome{};
  outcome.error = MKRT_ERROR_INIT;
  const int before = open_descriptors();
  all_gather(exchange.extension(), {}, std::vector<char>(24, 'x'), all, descriptors, &outcome.error);
  outcome.leaked = std::max(0, open_descriptors() - before);  // those of the exchange may have gone
  return outcome;
}

}  // namespace

TEST_CASE("bytes and descriptors of every process reach every other, in 1 to 8 processes, whoever comes first") {
  for (const uint32_t count : {1u, 2u, 3u, 8u}) {
    CAPTURE(count);
    const std::string address = new_address();
    const auto processes = start(count, [&](uint32_t number, const Speaker&) {
      std::this_thread::sleep_for(std::chrono::milliseconds((number * 7 + count) % 4 * 3));
      const int before = open_descriptors();
      gather_all(address, number, count, 6);
      if (open_descriptors() != before) throw std::runtime_error("descriptors stayed open");
    });
    for (const auto& process : processes) CHECK(process->ends_well());
  }
}

TEST_CASE("a path serves as address and is gone afterwards; one that exists is refused and kept") {
  const std::string path = "/tmp/mkrt-test-" + std::to_string(::getpid());
  const auto processes = start(2, [&](uint32_t number, const Speaker&) { gather_all(path, number, 2, 2); });
  for (const auto& process : processes) CHECK(process->ends_well());
  struct stat status {};
  CHECK(::stat(path.c_str(), &status) != 0);
  ::close(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  const auto refused = start(1, [&](uint32_t, const Speaker& speaker) { speaker.say(connect(path, 0, 2, 1s)); });
  CHECK(refused[0]->hear<Outcome>().error.status == MKRT_ERROR_FILE);
  CHECK(::unlink(path.c_str()) == 0);
}

TEST_CASE("who comes alone gives up at the time limit and names who is missing") {
  const std::string address = new_address();
  const auto hub = start(1, [&](uint32_t, const Speaker& speaker) { speaker.say(connect(address, 0, 3, 50ms)); });
  const auto outcome = hub[0]->hear<Outcome>();
  CHECK(outcome.error.status == MKRT_ERROR_TIMEOUT);
  CHECK(outcome.has("process 1 did not come"));
  CHECK(outcome.leaked == 0);
  const auto other = start(1, [&](uint32_t, const Speaker& speaker) { speaker.say(connect(address, 2, 3, 50ms)); });
  const auto alone = other[0]->hear<Outcome>();
  CHECK(alone.error.status == MKRT_ERROR_TIMEOUT);
  CHECK(alone.has("process 0 does not listen"));
  CHECK(alone.leaked == 0);
}

TEST_CASE("strangers that say garbage, nothing, too much or goodbye do not keep processes from meeting") {
  const std::string address = new_address();
  const auto hub = start(1, [&](uint32_t, const Speaker&) {
    const int before = open_descriptors();
    gather_all(address, 0, 3, 3);
    if (open_descriptors() != before) throw std::runtime_error("descriptors of strangers stayed open");
  });
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<Stranger>(address));
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    const Stranger stranger(address);
    std::vector<char> garbage(1 + random() % 3000);
    for (char& byte : garbage) byte = static_cast<char>(random());
    stranger.say(garbage.data(), garbage.size(), std::vector<int>(random() % 4, 1));
  }
  const Hello hello;
  for (int i = 0; i < 50; ++i) {
    // Almost a hello: each field wrong in turn, sizes that lie, descriptors nobody asked for, and hellos that end.
    Hello wrong = hello;
    if (i % 5 == 0) wrong.magic ^= 1;
    if (i % 5 == 1) wrong.kind = random() % 9 + 2;
    if (i % 5 == 2) wrong.size = random();
    if (i % 5 == 3) wrong.process = random() % 2 == 0 ? 0 : 3;
    const Stranger stranger(address);
    stranger.say(&wrong, i % 5 == 4 ? 1 + random() % (sizeof(wrong) - 1) : sizeof(wrong),
                 std::vector<int>(i % 3 == 0 ? 20 : 0, 1));
  }
  {
    const Stranger impostor(address);  // says that it is process 1, and goes
    impostor.say(&hello, sizeof(hello));
  }
  const auto honest = start(2, [&](uint32_t number, const Speaker&) { gather_all(address, 1 + number, 3, 3); });
  for (const auto& process : honest) CHECK(process->ends_well());
  CHECK(hub[0]->ends_well());
}

TEST_CASE("a number that is taken, or another number of processes, is refused with a sentence") {
  const std::string address = new_address();
  const auto hub = start(1, [&](uint32_t, const Speaker& speaker) { speaker.say(connect(address, 0, 3, 400ms)); });
  const auto first = start(1, [&](uint32_t, const Speaker& speaker) { speaker.say(connect(address, 1, 3, 2s)); });
  std::this_thread::sleep_for(100ms);
  const auto wrong = start(2, [&](uint32_t number, const Speaker& speaker) {
    speaker.say(number == 0 ? connect(address, 1, 3, 2s) : connect(address, 1, 2, 2s));
  });
  const auto taken = wrong[0]->hear<Outcome>();
  CHECK(taken.error.status == MKRT_ERROR_ARGUMENT);
  CHECK(taken.has("process 1 has come already"));
  const auto fewer = wrong[1]->hear<Outcome>();
  CHECK(fewer.error.status == MKRT_ERROR_ARGUMENT);
  CHECK(fewer.has("it is process 1 of 2, process 0 is one of 3"));
  const auto missing = hub[0]->hear<Outcome>();
  CHECK(missing.error.status == MKRT_ERROR_TIMEOUT);
  CHECK(missing.has("process 2 did not come"));
  CHECK(missing.has("one that came was turned away"));
  CHECK(first[0]->hear<Outcome>().error.status == MKRT_ERROR_PEER);
}

TEST_CASE("who comes to a listener that is silent, says garbage or goes away gets a status") {
  enum Fault : uint32_t { silent, gone, garbage, small, other };
  for (const uint32_t fault : {silent, gone, garbage, small, other}) {
    CAPTURE(fault);
    const std::string address = new_address();
    FalseHub hub(address);
    Process client([&](const Speaker& speaker) { speaker.say(connect(address, 1, 2, 200ms)); });
    hub.accept();
    Hello answer;
    answer.kind = fault == other ? 4 : 2;
    const std::vector<char> noise(3000, '\x7f');
    if (fault == garbage) hub.say(noise.data(), noise.size());
    if (fault == small) hub.say(&answer, sizeof(answer) - 1);
    if (fault == other) hub.say(&answer, sizeof(answer));
    if (fault == gone) hub.hang_up();
    const auto outcome = client.hear<Outcome>(5s);
    CHECK(outcome.error.status == (fault == silent ? MKRT_ERROR_TIMEOUT : MKRT_ERROR_PEER));
    CHECK(outcome.leaked == 0);
    CHECK(client.ends_well());
  }
}

TEST_CASE("an answer to an all-gather that is none of its kind is a failure, whatever it says") {
  std::mt19937 random(17);
  for (int round = 0; round < 60; ++round) {
    CAPTURE(round);
    const std::string address = new_address();
    FalseHub hub(address);
    Process client([&](const Speaker& speaker) { speaker.say(gather_once(address, 1, 2)); });
    hub.accept();
    Hello welcome;
    welcome.kind = 2;
    hub.say(&welcome, sizeof(welcome));
    hub.hear();
    // A right answer, header and 48 bytes, with something wrong in it.
    struct {
      Hello header;
      char bytes[48];
    } answer{};
    answer.header.kind = 4;
    answer.header.size = sizeof(answer.bytes);
    size_t size = sizeof(answer);
    switch (round % 6) {
      case 0: answer.header.magic ^= uint64_t{1} << random() % 64; break;
      case 1: answer.header.kind = random() % 2 == 0 ? 3 : random(); break;
      case 2: answer.header.sequence = 1 + random() % 100; break;
      case 3: answer.header.size = random(); break;
      case 4: answer.header.has_descriptor = 1 + random(); break;  // and none comes
      default: size = random() % sizeof(answer);
    }
    hub.say(&answer, size);
    if (size == 0) hub.hang_up();
    CHECK(client.hear<Outcome>(5s).error.status == MKRT_ERROR_PEER);
    CHECK(client.ends_well());
  }
}

TEST_CASE("a process that says garbage in an all-gather fails it for the others, in no time") {
  std::mt19937 random(23);
  for (int round = 0; round < 30; ++round) {
    CAPTURE(round);
    const std::string address = new_address();
    Process hub([&](const Speaker& speaker) { speaker.say(gather_once(address, 0, 3)); });
    Process honest([&](const Speaker& speaker) { speaker.say(gather_once(address, 2, 3)); });
    const Stranger liar(address);
    const Hello hello;
    liar.say(&hello, sizeof(hello));
    liar.hear();  // the welcome
    Hello part;
    part.kind = round % 3 == 0 ? 3 : random() % 6;
    part.sequence = round % 3 == 0 ? 1 + random() % 9 : 0;
    part.size = round % 3 == 1 ? random() : 0;
    liar.say(&part, round % 3 == 2 ? 1 + random() % 39 : sizeof(part), std::vector<int>(random() % 5, 1));
    for (Process* process : {&hub, &honest}) {
      const auto outcome = process->hear<Outcome>(5s);
      CHECK(outcome.error.status == MKRT_ERROR_PEER);
      CHECK(outcome.leaked == 0);
      CHECK(process->ends_well());
    }
  }
}

TEST_CASE("an all-gather in which one is late, gone or out of step fails everywhere, and the exchange with it") {
  enum Fault : uint32_t { late, gone, shorter };
  for (const uint32_t fault : {late, gone, shorter}) {
    for (const uint32_t odd : {0u, 1u, 2u}) {
      CAPTURE(fault);
      CAPTURE(odd);
      const std::string address = new_address();
      const auto processes = start(3, [&](uint32_t number, const Speaker& speaker) {
        mkrt::Runtime runtime;
        const mkrt::Exchange exchange(runtime, address, number, 3, 20s);
        const mkrt_process_extension extension = exchange.extension();
        if (number == odd && fault == gone) return;
        if (number == odd && fault == late) std::this_thread::sleep_for(600ms);
        const Call call{number == odd && fault == shorter ? 8u : 24u, -1, 150ms};
        std::vector<char> all;
        std::vector<int32_t> descriptors;
        for (int i = 0; i < 2; ++i) {
          Outcome outcome{};
          outcome.error = MKRT_ERROR_INIT;
          const mkrt_status status =
              all_gather(extension, call, std::vector<char>(24, 'x'), all, descriptors, &outcome.error);
          if (status != outcome.error.status) throw std::runtime_error("the error has another status");
          speaker.say(outcome);
        }
      });
      for (uint32_t number = 0; number < 3; ++number) {
        if (number == odd && fault == gone) continue;
        const auto first = processes[number]->hear<Outcome>(5s);
        CAPTURE(std::string(first.error.message));
        const bool waited_in_vain = fault == late && number != odd;
        CHECK(first.error.status == (waited_in_vain ? MKRT_ERROR_TIMEOUT : MKRT_ERROR_PEER));
        const auto second = processes[number]->hear<Outcome>(5s);
        CHECK(second.error.status == MKRT_ERROR_PEER);
        CHECK(second.has("it failed before"));
        CHECK(processes[number]->ends_well());
      }
    }
  }
}
