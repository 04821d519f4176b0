// SPDX-License-Identifier: Apache-2.0
#include "mesh/sockets.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace addend {

Status prepare_sockets(std::span<const int> sockets, uint32_t rank) {
  if (rank >= sockets.size()) {
    return make_error(Errc::kInvalidArgument, "ranks go from 0 to world - 1");
  }
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    if (i == rank) continue;
    const int flags = fcntl(sockets[i], F_GETFL);
    if (flags < 0 || fcntl(sockets[i], F_SETFL, flags | O_NONBLOCK) < 0) {
      return make_error(Errc::kInvalidArgument,
                        "the socket to rank " + std::to_string(i) + ": " + std::strerror(errno));
    }
    const int on = 1;  // not every stream socket has it, and those need it not
    setsockopt(sockets[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  return {};
}

timespec to_timespec(std::chrono::nanoseconds time) {
  const auto count = std::max<int64_t>(time.count(), 0);
  return {static_cast<time_t>(count / 1'000'000'000), static_cast<long>(count % 1'000'000'000)};
}

}  // namespace addend
