// SPDX-License-Identifier: Apache-2.0
// One authenticated peer of the control plane: messages in and out, both bounded.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "auth/tls.h"
#include "net/address.h"
#include "net/control_message.h"
#include "net/descriptor.h"
#include "service/registry.h"
#include "service/share.h"

namespace addend::service {

/// Someone who has shown who they are.
struct Peer {
  net::Descriptor socket;
  net::Address address;
  std::shared_ptr<const auth::TlsContext> tls;  // which its stream needs, whatever is loaded later
  auth::TlsStream stream;
  std::string identity;
};

/// One thread at a time.
class Connection {
 public:
  /// `longest` bounds the messages that it may send.
  Connection(ConnectionId id, Peer peer, std::size_t longest);

  ConnectionId id() const { return id_; }
  int fd() const { return peer_.socket.get(); }
  bool open() const { return static_cast<bool>(peer_.socket); }
  /// Whether it broke because the peer's host no longer answers.
  bool fell_silent() const { return peer_.stream.fell_silent(); }
  const net::Address& address() const { return peer_.address; }
  const std::string& identity() const { return peer_.identity; }
  std::string tenant() const { return identity().substr(0, identity().find('/')); }

  enum class Taken : uint8_t { kNothing, kMessage, kBroken };
  /// The next message, which stays until the next call; reads at most one record.
  Taken take(net::ControlMessage& message);
  /// Whether another message may have been received already.
  bool has_more() const { return has_more_; }

  /// Bytes of a message that is not whole yet.
  std::size_t unfinished() const { return in_.size() - taken_; }

  /// Where answers are put.
  std::vector<uint8_t>& out() { return out_; }
  /// Puts a message there that answers none. Who does not read is cut off.
  void put(addend_control_type type, std::span<const uint8_t> body,
           std::span<const uint32_t> numbers);
  /// Whether all of it was sent; before, nothing more is read.
  bool drained() const { return out_.empty(); }
  /// Sends what it can. False if the connection is broken.
  bool write();

  /// Says why, and hangs up when the peer has read it.
  void fail(const Error& error);
  bool closing() const { return closing_; }
  /// False when there is nothing more to wait for.
  bool linger();

  /// When something last went forth: a whole message in, bytes out.
  Clock::time_point moved() const { return moved_; }
  void close();

 private:
  bool read();

  ConnectionId id_;
  Peer peer_;
  std::size_t longest_;
  std::vector<uint8_t> in_, out_;
  std::size_t taken_ = 0;  // bytes of in_ that the last message took
  bool has_more_ = false, broken_ = false, closing_ = false;
  Clock::time_point moved_ = Clock::now();
};

}  // namespace addend::service
