#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "exchange/frame.hpp"

namespace mkrt::exchange {

namespace {

// A hundred years: beyond it the clock's arithmetic could overflow.
constexpr uint64_t longest_ns = uint64_t{100} * 365 * 86400 * 1'000'000'000;

constexpr size_t control_size = CMSG_SPACE(sizeof(int) * MKRT_MAX_RANKS);

// Waits for `events` of some sockets; interrupted waits go on.
void wait(std::span<pollfd> looks, const Deadline& deadline) {
  int ready = 0;
  do {
    const uint64_t left = deadline.left_ns();
    const timespec limit{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
    ready = ::ppoll(looks.data(), looks.size(), &limit, nullptr);
  } while (ready < 0 && errno == EINTR);
  if (ready > 0) return;
  for (pollfd& look : looks) look.revents = 0;
}

// All descriptors that came with a message, so that none stays open unseen.
std::vector<base::Descriptor> take_descriptors(msghdr& message) {
  std::vector<base::Descriptor> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(number);
    }
  }
  return descriptors;
}

}  // namespace

Deadline::Deadline(uint64_t timeout_ns) noexcept
    : end_(std::chrono::steady_clock::now() + std::chrono::nanoseconds(std::min(timeout_ns, longest_ns))) {}

uint64_t Deadline::left_ns() const noexcept {
  const auto left = end_ - std::chrono::steady_clock::now();
  return left.count() <= 0 ? 0 : static_cast<uint64_t>(std::chrono::nanoseconds(left).count());
}

Received receive(const base::Descriptor& socket, size_t most, size_t most_descriptors, Frame& out_frame) {
  assert(most_descriptors <= MKRT_MAX_RANKS);
  out_frame.bytes.resize(most);
  iovec pieces[] = {{&out_frame.header, sizeof(Header)}, {out_frame.bytes.data(), most}};
  alignas(cmsghdr) std::array<std::byte, control_size> control{};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t length = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (length < 0 && errno == ECONNRESET) {
    // The other side went without reading everything. The system says so once, before what it had sent.
    length = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  }
  if (length < 0) return errno == EAGAIN || errno == EINTR ? Received::nothing_yet : Received::closed;
  out_frame.descriptors = take_descriptors(message);
  if (length == 0) return Received::closed;
  const bool whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 &&
                     static_cast<size_t>(length) >= sizeof(Header) && out_frame.header.magic == Header::own_magic &&
                     static_cast<size_t>(length) == sizeof(Header) + out_frame.header.size;
  if (!whole || out_frame.descriptors.size() > most_descriptors) {
    out_frame.descriptors.clear();
    return Received::garbage;
  }
  out_frame.bytes.resize(out_frame.header.size);
  return Received::frame;
}

bool send(const base::Descriptor& socket, Header header, std::span<const std::byte> bytes,
          std::span<const int> descriptors, const Deadline& deadline) {
  assert(bytes.size() <= most_bytes && descriptors.size() <= MKRT_MAX_RANKS);
  header.size = static_cast<uint32_t>(bytes.size());
  iovec pieces[] = {{&header, sizeof(header)}, {const_cast<std::byte*>(bytes.data()), bytes.size()}};
  alignas(cmsghdr) std::array<std::byte, control_size> control{};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    if (::sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
    if (errno == EINTR) continue;
    if (errno != EAGAIN || deadline.passed()) return false;
    pollfd look{socket.get(), POLLOUT, 0};
    wait({&look, 1}, deadline);
  }
}

std::vector<bool> wait_readable(std::span<const int> sockets, const Deadline& deadline) {
  std::vector<pollfd> looks;
  looks.reserve(sockets.size());
  for (const int socket : sockets) looks.push_back({socket, POLLIN, 0});
  wait(looks, deadline);
  std::vector<bool> readable;
  readable.reserve(looks.size());
  for (const pollfd& look : looks) readable.push_back(look.revents != 0);
  return readable;
}

}  // namespace mkrt::exchange
