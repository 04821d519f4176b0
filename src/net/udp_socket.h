// SPDX-License-Identifier: Apache-2.0
// UDP in batches: many datagrams a system call, and many equal datagrams a trip through the
// kernel's stack (segmentation and receive offload) where the kernel has them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <sys/socket.h>

#include "addend/result.h"
#include "net/address.h"
#include "net/descriptor.h"

namespace addend::net {

/// Most datagrams that a super-packet may hold (the kernel's limit), and most bytes: those of a
/// UDP datagram over IPv4, which it is until it is split.
inline constexpr uint32_t kMaxSegments = 64;
inline constexpr uint32_t kMaxSuperBytes = 65507;

class UdpSocket {
 public:
  /// Binds to `address`, port 0 for any. `buffer_bytes` are asked of the kernel in each direction;
  /// it may give less. Datagrams travel whole or not at all: no fragments.
  static Result<UdpSocket> bind(const Address& address, uint32_t buffer_bytes);

  int fd() const { return fd_.get(); }
  uint16_t port() const { return port_; }
  int family() const { return family_; }
  /// What the kernel gave for arrivals.
  uint32_t receive_buffer_bytes() const { return receive_buffer_bytes_; }
  /// Whether the kernel takes super-packets.
  bool segments() const { return segments_; }

 private:
  Descriptor fd_;
  uint16_t port_ = 0;
  int family_ = AF_INET6;  // AF_INET: the kernel has no IPv6
  uint32_t receive_buffer_bytes_ = 0;
  bool segments_ = false;
};

/// Received datagrams of one call. Reused, so that receiving allocates nothing.
class Inbox {
 public:
  Inbox();

  struct Datagrams {
    Address from;
    std::span<const uint8_t> bytes;
    uint32_t segment;  ///< all but the last are this long
  };

  /// What is there now, without waiting; empty if nothing is. Valid until the next call.
  std::span<const Datagrams> receive(const UdpSocket& socket);

 private:
  static constexpr uint32_t kMessages = 32;
  static constexpr uint32_t kBytes = 65536;
  struct Slot;
  std::unique_ptr<uint8_t[]> memory_;
  std::vector<Slot> slots_;
  std::vector<mmsghdr> messages_;
  std::vector<Datagrams> datagrams_;

 public:
  ~Inbox();
};

/// Datagrams to send, collected up to a batch. The bytes stay the caller's until flush.
class Outbox {
 public:
  explicit Outbox(const UdpSocket& socket);
  ~Outbox();

  /// Queues `bytes` as datagrams of `segment` bytes (the last may be shorter); flushes by itself
  /// when the batch is full.
  void add(const Address& to, std::span<const uint8_t> bytes, uint32_t segment);
  /// The same for datagrams that lie apart: at most kMaxSegments, all of `segment` bytes but the
  /// last, which may be shorter, and at most kMaxSuperBytes together.
  void add(const Address& to, std::span<const std::span<const uint8_t>> datagrams,
           uint32_t segment);
  /// Sends what is queued. What the kernel has no room for after a short wait is dropped, as a
  /// network would.
  void flush();
  uint64_t dropped() const { return dropped_; }
  /// Of those that were dropped, the ones that are longer than the path to their receiver carries.
  uint64_t too_long() const { return too_long_; }
  /// A receiver of such datagrams since the last call, if there were any.
  std::optional<Address> take_too_long() { return std::exchange(too_long_to_, std::nullopt); }

 private:
  struct Slot;
  Slot& push(const Address& to, std::size_t bytes, uint32_t segment);
  const UdpSocket* socket_;
  std::vector<Slot> slots_;
  std::vector<mmsghdr> messages_;
  uint32_t size_ = 0;
  uint64_t dropped_ = 0, too_long_ = 0;
  std::optional<Address> too_long_to_;
};

}  // namespace addend::net
