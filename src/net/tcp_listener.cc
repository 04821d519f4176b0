// SPDX-License-Identifier: Apache-2.0
#include "net/tcp_listener.h"

#include "net/socket.h"

namespace addend::net {
namespace {

constexpr int kBacklog = 1024;

}  // namespace

Result<Descriptor> listen_tcp(const Address& address, uint16_t& port) {
  Descriptor socket = make_socket(SOCK_STREAM);
  if (!socket) return io_error("cannot make a TCP socket");
  const int on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(socket.get(), address) != 0 || listen(socket.get(), kBacklog) != 0) {
    return io_error("cannot listen at TCP " + address.to_string());
  }
  port = port_of(socket.get());
  return socket;
}

}  // namespace addend::net
