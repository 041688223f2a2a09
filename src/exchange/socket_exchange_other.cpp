// Systems without the sockets and descriptors that processes need to be one mesh.
#include "base/failure.hpp"
#include "exchange/socket_exchange.hpp"

namespace mkrt::exchange {

SocketExchange::SocketExchange(const mkrt_exchange_desc&) : process_(0), process_count_(0) {
  throw base::Failure(MKRT_ERROR_UNSUPPORTED, "the exchange between processes needs Linux");
}
mkrt_process_extension SocketExchange::extension() noexcept { return {}; }
std::shared_ptr<SocketExchange> SocketExchange::of(const mkrt_process_extension&) noexcept { return nullptr; }

}  // namespace mkrt::exchange
