// SPDX-License-Identifier: Apache-2.0
#include "net/address.h"

#include <charconv>
#include <cstring>

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

namespace addend::net {

std::string Address::to_string() const {
  char text[INET6_ADDRSTRLEN] = "";
  const bool v4 = IN6_IS_ADDR_V4MAPPED(&raw.sin6_addr);
  if (v4) {
    inet_ntop(AF_INET, raw.sin6_addr.s6_addr + 12, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, &raw.sin6_addr, text, sizeof(text));
  }
  const std::string host = v4 ? text : "[" + std::string(text) + "]";
  return host + ":" + std::to_string(port());
}

Result<Address> resolve(const std::string& host, uint16_t port) {
  Address address;
  address.raw.sin6_family = AF_INET6;
  address.raw.sin6_addr = in6addr_any;
  address.set_port(port);
  if (host.empty()) return address;
  addrinfo hints{};
  // Sorted by what this host can reach: without IPv6, a name's IPv4 address comes first.
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int problem = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (problem != 0) {
    return make_error(Errc::kUnavailable,
                      "cannot resolve '" + host + "': " + gai_strerror(problem));
  }
  if (found->ai_family == AF_INET) {
    in6_addr& mapped = address.raw.sin6_addr;
    mapped = in6_addr{};
    mapped.s6_addr[10] = mapped.s6_addr[11] = 0xff;
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(found->ai_addr);
    std::memcpy(mapped.s6_addr + 12, &v4->sin_addr, 4);
  } else {
    std::memcpy(&address.raw, found->ai_addr, sizeof(address.raw));
  }
  freeaddrinfo(found);
  address.set_port(port);
  return address;
}

std::string host_of(const std::string& host_and_port) {
  const std::string host = host_and_port.substr(0, host_and_port.rfind(':'));
  const bool bracketed = host.size() > 1 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

Result<Address> resolve(const std::string& host_and_port) {
  const std::size_t colon = host_and_port.rfind(':');
  uint16_t port = 0;
  bool good = colon != std::string::npos;
  if (good) {
    const char* begin = host_and_port.data() + colon + 1;
    const char* end = host_and_port.data() + host_and_port.size();
    const auto parsed = std::from_chars(begin, end, port);
    good = parsed.ec == std::errc() && parsed.ptr == end;
  }
  if (!good) {
    return make_error(Errc::kInvalidArgument, "'" + host_and_port + "' is not host:port");
  }
  return resolve(host_of(host_and_port), port);
}

bool stays_on_host(int socket) {
  sockaddr_storage ours{}, theirs{};
  socklen_t our_size = sizeof ours, their_size = sizeof theirs;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&ours), &our_size) != 0 ||
      getpeername(socket, reinterpret_cast<sockaddr*>(&theirs), &their_size) != 0)
    return false;
  if (ours.ss_family == AF_UNIX) return true;
  const auto host = [](const sockaddr_storage& at) {
    if (at.ss_family == AF_INET) {
      const auto& v4 = reinterpret_cast<const sockaddr_in&>(at).sin_addr;
      return std::string(reinterpret_cast<const char*>(&v4), sizeof v4);
    }
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(at).sin6_addr;
    return std::string(reinterpret_cast<const char*>(&v6), sizeof v6);
  };
  return ours.ss_family == theirs.ss_family && host(ours) == host(theirs);
}

}  // namespace addend::net
