// SPDX-License-Identifier: Apache-2.0
// Ranks in threads of one process, connected all to all.
#pragma once

#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/descriptor.h"

namespace addend {

/// A socket for each pair of `world` ranks.
class Wires {
 public:
  explicit Wires(uint32_t world) : ends_(world, std::vector<int>(world, -1)) {
    for (uint32_t a = 0; a < world; ++a) {
      for (uint32_t b = a + 1; b < world; ++b) {
        int pair[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        ends_[a][b] = pair[0];
        ends_[b][a] = pair[1];
      }
    }
  }
  ~Wires() {
    for (uint32_t rank = 0; rank < ends_.size(); ++rank)
      cut(rank);
  }
  Wires(const Wires&) = delete;
  Wires& operator=(const Wires&) = delete;

  uint32_t world() const { return static_cast<uint32_t>(ends_.size()); }
  /// A rank's ends, by peer; -1: its own.
  const std::vector<int>& ends(uint32_t rank) const { return ends_[rank]; }
  /// The same for an owner of its own.
  std::vector<net::Descriptor> take(uint32_t rank) {
    std::vector<net::Descriptor> taken;
    for (int& end : ends_[rank])
      taken.emplace_back(std::exchange(end, -1));
    return taken;
  }
  /// What the system does when a process ends.
  void cut(uint32_t rank) {
    for (int& end : ends_[rank]) {
      if (end >= 0) close(end);
      end = -1;
    }
  }
  /// Runs `body(rank)` for every rank in a thread of its own.
  template <typename Body>
  void on_all(Body body) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < world(); ++rank)
      threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads)
      thread.join();
  }

 private:
  std::vector<std::vector<int>> ends_;
};

}  // namespace addend
