// SPDX-License-Identifier: Apache-2.0
// Where a socket is: an IPv6 address, or an IPv4 one as IPv6 sees it, and a port.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include <netinet/in.h>

#include "addend/result.h"

namespace addend::net {

struct Address {
  sockaddr_in6 raw{};

  uint16_t port() const { return ntohs(raw.sin6_port); }
  void set_port(uint16_t port) { raw.sin6_port = htons(port); }
  bool known() const { return raw.sin6_family == AF_INET6; }
  /// "10.0.0.1:7000" or "[fe80::1]:7000".
  std::string to_string() const;

  friend bool operator==(const Address& a, const Address& b) {
    return a.raw.sin6_port == b.raw.sin6_port &&
           std::memcmp(&a.raw.sin6_addr, &b.raw.sin6_addr, sizeof(a.raw.sin6_addr)) == 0;
  }
};

/// The first address of a host name or number; "" is every address of this machine.
Result<Address> resolve(const std::string& host, uint16_t port);

/// The host of "host:port", without the brackets of an IPv6 address.
std::string host_of(const std::string& host_and_port);

/// "host:port", "[v6]:port" or ":port". kInvalidArgument if it is none of them.
Result<Address> resolve(const std::string& host_and_port);

/// Whether both ends of a connected socket have one address, and so one host.
bool stays_on_host(int socket);

}  // namespace addend::net
