// SPDX-License-Identifier: Apache-2.0
// Small messages from every rank to every rank, over connections of our own. A collective library
// hands a message to threads of its own at both ends; here the waiting thread itself writes and
// reads, so an exchange costs one wake-up, and ranks may send messages of different lengths.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "addend/plane.h"
#include "addend/result.h"
#include "base/buffer.h"

namespace addend {

/// One rank's end. All ranks start the same exchanges in the same order; several may be under way.
/// Whoever starts an exchange owns its messages and releases it; its memory then serves later ones.
/// One thread at a time.
class Mesh {
 public:
  /// Longest message.
  static constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 30;
  /// Pieces of a message begin at multiples of this.
  static constexpr uint64_t kAlign = 64;
  /// Exchanges that may be under way or not released: more than that, and somebody forgets to.
  static constexpr std::size_t kMaxExchanges = 4096;

  /// `sockets`: a connected stream socket to every other rank, by rank; that of `rank` is not
  /// looked at. `bell`: a wait ends early when this non-blocking descriptor becomes readable, and
  /// reads from it;
  /// -1: none. The descriptors stay the caller's, which keeps them open as long as the mesh lives.
  static Result<std::unique_ptr<Mesh>> create(std::span<const int> sockets, uint32_t rank,
                                              int bell);

  uint32_t world() const { return static_cast<uint32_t>(peers_.size()); }
  uint32_t rank() const { return rank_; }

  /// Starts to send everyone a message made of `pieces`, which are copied. Returns the exchange's
  /// number. kCapacity beyond kMaxMessageBytes or kMaxExchanges.
  Result<uint64_t> start(std::span<const std::span<const uint8_t>> pieces);

  /// Moves bytes until the exchange is done (every rank's message is here, and ours is on its way
  /// to all of them), `patience` has passed, the bell rings or a signal comes. Whether it is
  /// done.
  Result<bool> wait(uint64_t exchange, std::chrono::nanoseconds patience);

  /// What a rank sent, until release. kInvalidArgument if the exchange is unknown or not done.
  Result<std::span<const uint8_t>> message(uint64_t exchange, uint32_t rank) const;

  /// Sums planes that lie one after the other in all messages, from `offset` on, each at the next
  /// multiple of kAlign: in the order of ranks, so alike everywhere. kUnavailable, and nothing
  /// written, if a message has not exactly this length.
  Status sum(uint64_t exchange, uint64_t offset, std::span<Plane> planes) const;

  /// Nobody asks for the exchange any more, done or not: what of it is still under way travels on,
  /// and its memory is used again as soon as all of it has. kInvalidArgument if it is unknown.
  Status release(uint64_t exchange);

 private:
  struct Frame {
    uint64_t length = 0;    // of the message behind it
    uint64_t exchange = 0;  // that it belongs to
  };
  struct Message {
    Buffer bytes;
    uint64_t length = 0;
  };
  struct Exchange {
    uint64_t number = 0;
    uint32_t reading = 0, writing = 0;  // peers that it still waits for, and owes
    bool released = false;
    std::vector<Message> messages;  // by rank

    bool done() const { return reading == 0 && writing == 0; }
  };
  struct Peer {
    int socket = -1;
    uint64_t reading = 0, writing = 0;  // the exchange whose message comes, goes, next
    uint64_t read = 0, written = 0;     // bytes of it, its frame included
    Frame incoming;
  };

  Mesh(std::span<const int> sockets, uint32_t rank, int bell);

  /// Null if there is none, or if it is released.
  Exchange* find(uint64_t exchange);
  const Exchange* find(uint64_t exchange) const;
  /// Where the exchange is or would be in exchanges_.
  std::size_t place(uint64_t exchange) const;
  /// Keeps the memory of an exchange that is released and done, for the next one.
  void reclaim(const Exchange& exchange);
  /// Reads and writes what can be without waiting.
  Status progress();
  Status write(uint32_t rank);
  Status read(uint32_t rank);
  Result<bool> read_frame(uint32_t rank);
  Error lost(uint32_t rank, const std::string& why);

  uint32_t rank_;
  int bell_;
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;  // under way or not released, by number
  std::vector<std::unique_ptr<Exchange>> spare_;      // for their memory
  uint64_t started_ = 0;
  std::string broken_;  // why nothing works any more
};

}  // namespace addend
