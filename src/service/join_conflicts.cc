// SPDX-License-Identifier: Apache-2.0
#include "service/join_conflicts.h"

#include <algorithm>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "net/descriptor.h"

namespace addend::service {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Unanswered probes of one a second end the connection, unless there is data in flight; then we do.
constexpr int kProbes = 4;
constexpr std::chrono::seconds kPatience{8};
// The kernel's clock may tick in steps of this.
constexpr milliseconds kTick{10};

// The keep-alive that every connection has, now: the first probe leaves within a second.
void probe(int socket) {
  const int idle_s = 1, interval_s = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof(kProbes));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
}

bool has_answered_since(int socket, Clock::time_point since) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  return Clock::now() - milliseconds(info.tcpi_last_ack_recv) > since + kTick;
}

}  // namespace

void JoinConflicts::add(Newcomer newcomer, ConnectionId there, int socket) {
  std::erase_if(pairs_, [&](const Pair& pair) { return pair.newcomer.id == newcomer.id; });
  probe(socket);
  pairs_.push_back({std::move(newcomer), there, socket, Clock::now()});
}

std::vector<JoinConflicts::Newcomer> JoinConflicts::settle(
    const std::function<bool(ConnectionId)>& is_open) {
  std::vector<Newcomer> settled;
  std::erase_if(pairs_, [&](Pair& pair) {
    if (!is_open(pair.newcomer.id)) return true;
    const bool there = is_open(pair.there);
    if (there && !has_answered_since(pair.socket, pair.since)) {
      if (Clock::now() > pair.since + kPatience) shutdown(pair.socket, SHUT_RDWR);
      return false;
    }
    if (there) net::watch_connection(pair.socket);
    settled.push_back(std::move(pair.newcomer));
    return true;
  });
  return settled;
}

}  // namespace addend::service
