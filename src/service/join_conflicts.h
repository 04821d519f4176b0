// SPDX-License-Identifier: Apache-2.0
// Two connections that claim to be one worker: either the one that is there is dead and we have not
// noticed (its host went without a word), or two runs use one name. The kernel at the other end is
// asked, because a process that computes answers nothing for minutes.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "net/address.h"
#include "service/registry.h"

namespace addend::service {

/// One thread at a time.
class JoinConflicts {
 public:
  struct Newcomer {
    ConnectionId id = 0;
    std::string identity;
    net::Address address;
    addend_control_join join{};
    std::vector<uint32_t> positions;
  };

  /// Begins to ask. `socket` is the connection of `there`, and stays the caller's.
  void add(Newcomer newcomer, ConnectionId there, int socket);
  bool empty() const { return pairs_.empty(); }

  /// Newcomers whose turn it is to join: whoever was there has gone, or has answered (then joining
  /// is refused). A connection that does not answer at all is shut down. Forgets newcomers that are
  /// gone. To be called every few milliseconds while there are any.
  std::vector<Newcomer> settle(const std::function<bool(ConnectionId)>& is_open);

 private:
  struct Pair {
    Newcomer newcomer;
    ConnectionId there;
    int socket;
    std::chrono::steady_clock::time_point since;
  };
  std::vector<Pair> pairs_;
};

}  // namespace addend::service
