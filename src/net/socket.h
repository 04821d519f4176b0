// SPDX-License-Identifier: Apache-2.0
// Sockets for every Address: of IPv6, which takes IPv4 addresses too, or of IPv4 alone where the
// kernel has no IPv6. Addresses are Address everywhere else.
#pragma once

#include "net/address.h"
#include "net/descriptor.h"

namespace addend::net {

/// An address as the system calls of a socket take it.
struct SocketName {
  union {
    sockaddr_in6 v6;
    sockaddr_in v4;
  };
  socklen_t length;

  /// An address of IPv6 stays one where `family` is AF_INET: the system call then refuses it.
  SocketName(int family, const Address& address);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&v6); }
};

/// What a system call wrote over an address's place, as an Address.
Address read_name(const sockaddr_in6& written);

/// Non-blocking, of SOCK_STREAM or SOCK_DGRAM. Empty, with errno, if the kernel refuses.
Descriptor make_socket(int type);
/// AF_INET6 or AF_INET.
int family_of(int socket);
/// As the system calls of that name, for any socket that make_socket made.
int bind(int socket, const Address& address);
int connect(int socket, const Address& address);
Descriptor accept(int listener, Address& from);
/// The port that a socket is bound to; 0 if none.
uint16_t port_of(int socket);

}  // namespace addend::net
