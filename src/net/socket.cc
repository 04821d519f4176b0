// SPDX-License-Identifier: Apache-2.0
#include "net/socket.h"

namespace addend::net {

SocketName::SocketName(int family, const Address& address)
    : v6(address.raw), length(sizeof(sockaddr_in6)) {
  const in6_addr& from = address.raw.sin6_addr;
  const bool any = IN6_IS_ADDR_UNSPECIFIED(&from);
  if (family != AF_INET || (!any && !IN6_IS_ADDR_V4MAPPED(&from))) return;
  v4 = {};
  v4.sin_family = AF_INET;
  v4.sin_port = address.raw.sin6_port;
  if (!any) std::memcpy(&v4.sin_addr, from.s6_addr + 12, sizeof(v4.sin_addr));
  length = sizeof(sockaddr_in);
}

Address read_name(const sockaddr_in6& written) {
  Address address;
  address.raw = written;
  if (written.sin6_family != AF_INET) return address;
  sockaddr_in v4;
  std::memcpy(&v4, &written, sizeof(v4));
  address.raw = {};
  address.raw.sin6_family = AF_INET6;
  address.raw.sin6_port = v4.sin_port;
  in6_addr& mapped = address.raw.sin6_addr;
  mapped.s6_addr[10] = mapped.s6_addr[11] = 0xff;
  std::memcpy(mapped.s6_addr + 12, &v4.sin_addr, sizeof(v4.sin_addr));
  return address;
}

Descriptor make_socket(int type) {
  const int flags = type | SOCK_CLOEXEC | SOCK_NONBLOCK;
  Descriptor both(::socket(AF_INET6, flags, 0));
  if (!both && errno == EAFNOSUPPORT) return Descriptor(::socket(AF_INET, flags, 0));
  const int off = 0;  // whatever the system's default is
  if (both) setsockopt(both.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  return both;
}

int family_of(int socket) {
  int family = AF_INET6;
  socklen_t length = sizeof(family);
  getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &length);
  return family;
}

int bind(int socket, const Address& address) {
  const SocketName name(family_of(socket), address);
  return ::bind(socket, name.get(), name.length);
}

int connect(int socket, const Address& address) {
  const SocketName name(family_of(socket), address);
  return ::connect(socket, name.get(), name.length);
}

Descriptor accept(int listener, Address& from) {
  sockaddr_in6 name{};
  socklen_t length = sizeof(name);
  Descriptor made(
      accept4(listener, reinterpret_cast<sockaddr*>(&name), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (made) from = read_name(name);
  return made;
}

uint16_t port_of(int socket) {
  sockaddr_in6 name{};
  socklen_t length = sizeof(name);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&name), &length) != 0) return 0;
  return read_name(name).port();
}

}  // namespace addend::net
