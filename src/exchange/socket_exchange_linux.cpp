#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>

#include "base/failure.hpp"
#include "base/report.hpp"
#include "exchange/frame.hpp"
#include "exchange/socket_exchange.hpp"

namespace mkrt::exchange {

namespace {

// mkrt.h: where the description names no limit.
constexpr uint64_t default_timeout_ns = 60'000'000'000;

// Connections that have not said who they are. An honest process says it at once.
constexpr size_t most_strangers = 64;

// Whoever waits for process 0 waits a little longer than that one does itself, so that it hears the reason.
constexpr uint64_t grace_ns = 100'000'000;

// How often a process looks whether process 0 has begun to listen.
constexpr auto knock_interval = std::chrono::milliseconds(2);

[[noreturn]] void refuse(mkrt_status status, const std::string& why) { throw base::Failure(status, why); }

[[noreturn]] void refuse_address(const std::string& address, const char* what, int error) {
  throw base::Failure(MKRT_ERROR_FILE, base::text("cannot ", what, " ", base::shown_path(address), ": ",
                                                  std::generic_category().message(error)))
      .with_driver_code(error);
}

struct Address {
  sockaddr_un name{};
  socklen_t size = 0;
};
Address address_of(const std::string& text) {
  Address address;
  address.name.sun_family = AF_UNIX;
  assert(!text.empty() && text.size() < sizeof(address.name.sun_path));
  std::memcpy(address.name.sun_path, text.data(), text.size());
  if (text.front() == '@') address.name.sun_path[0] = '\0';  // an abstract name ends where its size says
  const size_t end = text.front() == '@' ? text.size() : text.size() + 1;
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + end);
  return address;
}

base::Descriptor open_socket() {
  base::Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) {
    throw base::Failure(MKRT_ERROR_FILE, base::text("cannot open a socket: ", std::generic_category().message(errno)))
        .with_driver_code(errno);
  }
  return socket;
}

bool is_same_user(const base::Descriptor& socket) {
  ucred other{};
  socklen_t size = sizeof(other);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == ::geteuid();
}

// A listening socket, whose path goes when it does.
class Listener {
 public:
  explicit Listener(const std::string& address) : socket_(open_socket()) {
    const Address name = address_of(address);
    if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&name.name), name.size) != 0) {
      refuse_address(address, "listen at", errno);
    }
    if (address.front() != '@') path_ = address;
    if (::listen(socket_.get(), most_strangers) != 0) {
      const int error = errno;
      remove();
      refuse_address(address, "listen at", error);
    }
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { remove(); }

  int get() const noexcept { return socket_.get(); }
  base::Descriptor accept() const noexcept {
    return base::Descriptor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }

 private:
  void remove() const noexcept {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  base::Descriptor socket_;
  std::string path_;
};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text)).first(std::min<size_t>(text.size(), MKRT_MAX_EXCHANGE_BYTES));
}
std::string text_of(const Frame& frame) {
  return {reinterpret_cast<const char*>(frame.bytes.data()), frame.bytes.size()};
}

}  // namespace

// ---- Connecting ----------------------------------------------------------------------------------------------------

SocketExchange::SocketExchange(const mkrt_exchange_desc& desc)
    : process_(desc.process), process_count_(desc.process_count) {
  const Deadline deadline(desc.timeout_ns == 0 ? default_timeout_ns : desc.timeout_ns);
  sockets_.resize(process_ == 0 ? process_count_ : 1);
  if (process_ == 0) {
    accept_all(desc.address, deadline);
  } else {
    connect(desc.address, deadline);
  }
}

// Listens until every other process has said its number. Strangers are heard side by side, so that none keeps others
// waiting.
void SocketExchange::accept_all(const std::string& address, const Deadline& deadline) {
  if (process_count_ == 1) return;
  const Listener listener(address);
  std::vector<base::Descriptor> strangers;
  std::string note;  // why the last one was turned away
  const auto missing = [&] {
    return std::find_if(sockets_.begin() + 1, sockets_.end(), [](const base::Descriptor& socket) { return !socket; });
  };
  while (missing() != sockets_.end()) {
    std::vector<int> looks{listener.get()};
    for (const base::Descriptor& socket : strangers) looks.push_back(socket.get());
    for (const base::Descriptor& socket : sockets_) looks.push_back(socket.get());  // -1 is not looked at
    const std::vector<bool> readable = wait_readable(looks, deadline);
    if (deadline.passed()) {
      refuse(MKRT_ERROR_TIMEOUT,
             base::text("process ", missing() - sockets_.begin(), " did not come to ", base::shown_path(address),
                        note.empty() ? "" : "; one that came was turned away: ", note));
    }
    // Before a number is given to somebody else: whoever had it and is gone.
    for (size_t i = 1; i < sockets_.size(); ++i) {
      Frame frame;
      if (readable[1 + strangers.size() + i] && receive(sockets_[i], 0, 0, frame) != Received::nothing_yet) {
        sockets_[i] = base::Descriptor();
      }
    }
    for (size_t i = 0; i < strangers.size(); ++i) {
      if (!readable[1 + i]) continue;
      const std::string why = hear(strangers[i]);
      if (!why.empty()) note = why;
    }
    std::erase_if(strangers, [](const base::Descriptor& socket) { return !socket; });
    if (!readable[0]) continue;
    base::Descriptor stranger = listener.accept();
    if (!stranger || !is_same_user(stranger)) continue;
    if (strangers.size() == most_strangers) strangers.erase(strangers.begin());
    strangers.push_back(std::move(stranger));
  }
  for (size_t i = 1; i < sockets_.size(); ++i) {
    if (send(sockets_[i], {.kind = Kind::welcome}, {}, {}, deadline)) continue;
    refuse(MKRT_ERROR_PEER, base::text("process ", i, " closed its connection before all had come"));
  }
}

// Takes what a stranger says: it becomes a process's socket, stays as it is, or is closed. Returns why it was turned
// away, if it was one that speaks the protocol.
std::string SocketExchange::hear(base::Descriptor& stranger) {
  Frame frame;
  const Received what = receive(stranger, 0, 0, frame);
  if (what == Received::nothing_yet) return {};
  base::Descriptor socket = std::exchange(stranger, base::Descriptor());
  const Header& hello = frame.header;
  if (what != Received::frame || hello.kind != Kind::hello) return {};
  std::string why;
  if (hello.process_count != process_count_ || hello.process == 0 || hello.process >= process_count_) {
    why = base::text("it is process ", hello.process, " of ", hello.process_count, ", process 0 is one of ",
                     process_count_);
  } else if (sockets_[hello.process]) {
    why = base::text("process ", hello.process, " has come already");
  } else {
    sockets_[hello.process] = std::move(socket);
    return {};
  }
  send(socket, {.kind = Kind::refusal, .status = MKRT_ERROR_ARGUMENT}, bytes_of(why), {}, Deadline(0));
  return why;
}

void SocketExchange::connect(const std::string& address, const Deadline& deadline) {
  const Address name = address_of(address);
  base::Descriptor& socket = sockets_.front();
  for (socket = open_socket();; std::this_thread::sleep_for(knock_interval)) {
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name.name), name.size) == 0) break;
    // Not there yet, or many are before this one.
    if (errno != ENOENT && errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR) {
      refuse_address(address, "connect to", errno);
    }
    if (deadline.passed()) {
      refuse(MKRT_ERROR_TIMEOUT, base::text("process 0 does not listen at ", base::shown_path(address)));
    }
  }
  if (!is_same_user(socket)) {
    refuse(MKRT_ERROR_PEER, base::text("another user listens at ", base::shown_path(address)));
  }
  const Header hello{.kind = Kind::hello, .process = process_, .process_count = process_count_};
  Frame answer;
  Received what = Received::closed;
  if (send(socket, hello, {}, {}, deadline)) {
    const int look = socket.get();
    do {
      wait_readable({&look, 1}, deadline);
      what = receive(socket, MKRT_MAX_EXCHANGE_BYTES, 0, answer);
    } while (what == Received::nothing_yet && !deadline.passed());
  }
  if (what == Received::nothing_yet) {
    refuse(MKRT_ERROR_TIMEOUT,
           base::text("not all of ", process_count_, " processes came to ", base::shown_path(address)));
  }
  if (what == Received::frame && answer.header.kind == Kind::refusal) {
    refuse(MKRT_ERROR_ARGUMENT, base::text("process 0 turned this process away: ", text_of(answer)));
  }
  if (what != Received::frame || answer.header.kind != Kind::welcome) {
    refuse(MKRT_ERROR_PEER, base::text("whoever listens at ", base::shown_path(address), " ended the connection"));
  }
}

// ---- All-gather ----------------------------------------------------------------------------------------------------

mkrt_process_extension SocketExchange::extension() noexcept {
  mkrt_process_extension extension{};
  extension.base.struct_size = sizeof(extension);
  extension.base.type = MKRT_EXTENSION_PROCESSES;
  extension.process = process_;
  extension.process_count = process_count_;
  extension.user_data = this;
  extension.all_gather = all_gather;
  return extension;
}

std::shared_ptr<SocketExchange> SocketExchange::of(const mkrt_process_extension& extension) noexcept {
  if (extension.all_gather != all_gather) return nullptr;
  return static_cast<SocketExchange*>(extension.user_data)->shared_from_this();
}

mkrt_status SocketExchange::all_gather(void* user_data, const void* data, uint32_t size_bytes, int32_t descriptor,
                                       uint64_t timeout_ns, void* out_data, int32_t* out_descriptors,
                                       mkrt_error* out_error) {
  SocketExchange& self = *static_cast<SocketExchange*>(user_data);
  const std::lock_guard lock(self.mutex_);
  try {
    if (!self.broken_.empty()) refuse(MKRT_ERROR_PEER, base::text("it failed before: ", self.broken_));
    const Deadline deadline(timeout_ns);
    const auto* begin = static_cast<const std::byte*>(data);
    Frame own;
    own.bytes.assign(begin, begin + size_bytes);
    if (descriptor >= 0) own.descriptors.emplace_back(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    const Header header{.kind = Kind::gather,
                        .process = self.process_,
                        .process_count = self.process_count_,
                        .sequence = self.next_sequence_++};
    std::vector<Frame> all;
    if (self.process_ == 0) {
      self.gather(header, own, deadline, all);
    } else {
      self.ask(header, own, deadline, all);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      std::memcpy(static_cast<std::byte*>(out_data) + i * size_bytes, all[i].bytes.data(), size_bytes);
      const bool passed = i != self.process_ && !all[i].descriptors.empty();
      out_descriptors[i] = passed ? all[i].descriptors.front().release() : -1;
    }
    return MKRT_OK;
  } catch (const base::Failure& failure) {
    self.sockets_.clear();  // the others need not wait for their deadlines
    if (self.broken_.empty()) self.broken_ = failure.message();
    return base::report(out_error, failure);
  } catch (const std::bad_alloc&) {
    self.sockets_.clear();
    self.broken_ = "no memory";  // so short that it needs none
    return base::report(out_error, MKRT_ERROR_OUT_OF_MEMORY, "the C++ heap has no memory left");
  }
}

void SocketExchange::gather(const Header& header, Frame& own, const Deadline& deadline, std::vector<Frame>& out_all) {
  out_all.resize(process_count_);
  out_all[0] = std::move(own);
  try {
    collect(header, deadline, out_all);
  } catch (const base::Failure& failure) {
    Header answer = header;
    answer.kind = Kind::answer;
    answer.status = failure.status();
    for (size_t i = 1; i < sockets_.size(); ++i)
      send(sockets_[i], answer, bytes_of(failure.message()), {}, Deadline(0));
    throw;
  }
  distribute(header, out_all, deadline);
}

// Waits for the parts of all others.
void SocketExchange::collect(const Header& header, const Deadline& deadline, std::vector<Frame>& all) {
  for (;;) {
    std::vector<int> looks;  // of those that are missing
    for (size_t i = 0; i < sockets_.size(); ++i) {
      looks.push_back(i != 0 && all[i].header.kind != Kind::gather ? sockets_[i].get() : -1);
    }
    const auto missing = std::find_if(looks.begin(), looks.end(), [](int socket) { return socket >= 0; });
    if (missing == looks.end()) return;
    const std::vector<bool> readable = wait_readable(looks, deadline);
    if (std::find(readable.begin(), readable.end(), true) == readable.end()) {
      refuse(MKRT_ERROR_TIMEOUT,
             base::text("process ", missing - looks.begin(), " did not come to all-gather ", header.sequence));
    }
    for (uint32_t i = 1; i < process_count_; ++i) {
      if (readable[i]) take(header, i, all[i]);
    }
    for (size_t i = 1; i < all.size(); ++i) {
      if (all[i].header.kind != Kind::gather || all[i].bytes.size() == all[0].bytes.size()) continue;
      refuse(MKRT_ERROR_PEER, base::text("process ", i, " passed ", all[i].bytes.size(), " bytes to all-gather ",
                                         header.sequence, ", process 0 ", all[0].bytes.size()));
    }
  }
}

// One process's part, which is there to be read.
void SocketExchange::take(const Header& header, uint32_t process, Frame& out_frame) {
  const Received what = receive(sockets_[process], MKRT_MAX_EXCHANGE_BYTES, 1, out_frame);
  if (what == Received::nothing_yet) {
    out_frame = Frame();
  } else if (what == Received::closed) {
    refuse(MKRT_ERROR_PEER, base::text("process ", process, " has ended its connection"));
  } else if (what == Received::garbage || out_frame.header.kind != Kind::gather ||
             out_frame.header.sequence != header.sequence) {
    refuse(MKRT_ERROR_PEER, base::text("process ", process, " is out of step with all-gather ", header.sequence));
  }
}

// Sends every process the parts of all.
void SocketExchange::distribute(const Header& header, const std::vector<Frame>& all, const Deadline& deadline) {
  std::vector<std::byte> bytes;
  for (const Frame& frame : all) bytes.insert(bytes.end(), frame.bytes.begin(), frame.bytes.end());
  uint32_t lost = 0;
  for (uint32_t to = 1; to < process_count_; ++to) {
    Header answer = header;
    answer.kind = Kind::answer;
    std::vector<int> descriptors;
    for (uint32_t i = 0; i < process_count_; ++i) {
      if (i == to || all[i].descriptors.empty()) continue;
      answer.has_descriptor |= uint64_t{1} << i;
      descriptors.push_back(all[i].descriptors.front().get());
    }
    if (!send(sockets_[to], answer, bytes, descriptors, deadline)) lost = to;
  }
  // The others have theirs all the same.
  if (lost != 0) refuse(MKRT_ERROR_PEER, base::text("process ", lost, " did not take all-gather ", header.sequence));
}

// Sends the own part to process 0 and takes all of them back.
void SocketExchange::ask(const Header& header, const Frame& own, const Deadline& deadline,
                         std::vector<Frame>& out_all) {
  const base::Descriptor& socket = sockets_.front();
  std::vector<int> descriptors;
  if (!own.descriptors.empty()) descriptors.push_back(own.descriptors.front().get());
  Frame answer;
  Received what = Received::closed;
  if (send(socket, header, own.bytes, descriptors, deadline)) {
    const Deadline patient(deadline.left_ns() + grace_ns);
    const int look = socket.get();
    do {
      wait_readable({&look, 1}, patient);
      what = receive(socket, most_bytes, MKRT_MAX_RANKS, answer);
    } while (what == Received::nothing_yet && !patient.passed());
  }
  if (what == Received::nothing_yet) {
    refuse(MKRT_ERROR_TIMEOUT, base::text("process 0 did not answer all-gather ", header.sequence));
  }
  if (what == Received::closed) refuse(MKRT_ERROR_PEER, "process 0 has ended its connection");
  if (what == Received::frame && answer.header.kind == Kind::answer && answer.header.status != MKRT_OK) {
    refuse(answer.header.status, text_of(answer));
  }
  if (what == Received::garbage || answer.header.kind != Kind::answer || answer.header.sequence != header.sequence ||
      answer.bytes.size() != own.bytes.size() * process_count_ ||
      answer.descriptors.size() != static_cast<size_t>(std::popcount(answer.header.has_descriptor))) {
    refuse(MKRT_ERROR_PEER, base::text("process 0 is out of step with all-gather ", header.sequence));
  }
  out_all.resize(process_count_);
  size_t next = 0;
  for (uint32_t i = 0; i < process_count_; ++i) {
    const auto begin = answer.bytes.begin() + static_cast<ptrdiff_t>(i * own.bytes.size());
    out_all[i].bytes.assign(begin, begin + static_cast<ptrdiff_t>(own.bytes.size()));
    if ((answer.header.has_descriptor >> i & 1) != 0)
      out_all[i].descriptors.push_back(std::move(answer.descriptors[next++]));
  }
}

}  // namespace mkrt::exchange
