// An all-gather between processes of one machine over a Unix socket.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "mkrt/mkrt.h"

namespace mkrt::exchange {

struct Header;
struct Frame;
class Deadline;

class SocketExchange : public std::enable_shared_from_this<SocketExchange> {
 public:
  // Returns when all processes have come. `desc` was checked for form. Throws Failure (UNSUPPORTED, FILE, TIMEOUT,
  // PEER).
  explicit SocketExchange(const mkrt_exchange_desc& desc);

  mkrt_process_extension extension() noexcept;
  // The exchange that the extension is of; null where its function is the application's own.
  static std::shared_ptr<SocketExchange> of(const mkrt_process_extension& extension) noexcept;

 private:
  static mkrt_status all_gather(void* user_data, const void* data, uint32_t size_bytes, int32_t descriptor,
                                uint64_t timeout_ns, void* out_data, int32_t* out_descriptors, mkrt_error* out_error);

  // Connecting.
  void accept_all(const std::string& address, const Deadline& deadline);
  std::string hear(base::Descriptor& stranger);
  void connect(const std::string& address, const Deadline& deadline);

  // An all-gather of process 0, and of others. Throw Failure.
  void gather(const Header& header, Frame& own, const Deadline& deadline, std::vector<Frame>& out_all);
  void collect(const Header& header, const Deadline& deadline, std::vector<Frame>& all);
  void take(const Header& header, uint32_t process, Frame& out_frame);
  void distribute(const Header& header, const std::vector<Frame>& all, const Deadline& deadline);
  void ask(const Header& header, const Frame& own, const Deadline& deadline, std::vector<Frame>& out_all);

  uint32_t process_;
  uint32_t process_count_;
  // Process 0: of each other process. Others: that of process 0 only.
  std::vector<base::Descriptor> sockets_;
  std::mutex mutex_;
  uint32_t next_sequence_ = 0;
  std::string broken_;  // why no call can succeed any more; "": nothing is wrong
};

}  // namespace mkrt::exchange
