// SPDX-License-Identifier: Apache-2.0
// Connections in the TLS handshake, of peers that have not shown who they are: a pool of its own,
// so that they are only in each other's way, and a share of the thread's time for each address that
// they come from.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include <poll.h>

#include "addend/service.h"
#include "service/connection.h"

namespace addend::service {

/// One thread at a time.
class Handshakes {
 public:
  Handshakes(std::shared_ptr<const auth::TlsContext> tls, LogSink log);
  /// For those that come from now on.
  void set_tls(std::shared_ptr<const auth::TlsContext> tls) { tls_ = std::move(tls); }

  /// Counts work for whoever comes from there.
  void charge(const net::Address& from, Clock::time_point now, std::chrono::nanoseconds used) {
    charge(source_of(from), now, used);
  }

  /// Takes a new one in; where there are too many, the oldest goes of the address with most.
  void add(net::Descriptor socket, const net::Address& address, Clock::time_point now);
  /// Drops the oldest of the address with most. False if there is nobody.
  bool drop_one();

  /// Appends what to wait for; `until` becomes earlier if there is something to do by then.
  void watch(std::vector<pollfd>& ready, Clock::time_point now, Clock::time_point& until) const;
  /// Goes on with handshakes; `ready` has the entries that watch appended. Returns who is done.
  /// Addresses are charged `toll` for each that is ready, and what it takes.
  std::vector<Peer> drive(std::span<const pollfd> ready, Clock::time_point now,
                          std::chrono::nanoseconds toll, Meter& meter);

  uint32_t size() const { return static_cast<uint32_t>(pool_.size()); }
  /// Those that were dropped for want of room or patience.
  uint64_t dropped() const { return dropped_; }

 private:
  // An IPv4 address, or the network of an IPv6 one: its hosts are one owner's.
  using Source = std::array<uint8_t, 16>;
  struct Handshake {
    net::Descriptor socket;
    net::Address address;
    Source source;
    Clock::time_point since;
    std::shared_ptr<const auth::TlsContext> tls;
    std::optional<auth::TlsStream> stream{};  // once there was a byte: silence is cheap
    bool wants_write = false;
  };
  enum class Step : uint8_t { kWaits, kDone, kOver };

  static Source source_of(const net::Address& address);
  Step go_on(Handshake& peer);
  Source account_of(const Source& source) const;
  Clock::time_point free_at(const Source& source) const;
  void charge(const Source& source, Clock::time_point now, std::chrono::nanoseconds used);
  Source largest() const;
  void drop_oldest(const Source& source);

  std::shared_ptr<const auth::TlsContext> tls_;
  LogSink log_;
  std::list<Handshake> pool_;  // oldest first
  std::map<Source, Share> shares_;
  uint64_t dropped_ = 0;
};

}  // namespace addend::service
