// SPDX-License-Identifier: Apache-2.0
#include "net/tcp_listener.h"

namespace addend::net {
namespace {

constexpr int kBacklog = 1024;

}  // namespace

Result<Descriptor> listen_tcp(const Address& address, uint16_t& port) {
  Descriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return io_error("cannot make a TCP socket");
  const int off = 0, on = 1;
  setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address.raw), sizeof(address.raw)) !=
          0 ||
      listen(socket.get(), kBacklog) != 0) {
    return io_error("cannot listen at TCP " + address.to_string());
  }
  Address bound;
  socklen_t length = sizeof(bound.raw);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound.raw), &length);
  port = bound.port();
  return socket;
}

}  // namespace addend::net
