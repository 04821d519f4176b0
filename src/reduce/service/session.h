// SPDX-License-Identifier: Apache-2.0
// A worker's standing with an aggregation server: joined to a job, under an epoch, with keys and
// ports.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "addend/reduce.h"
#include "addend/result.h"
#include "auth/control_client.h"
#include "auth/frame_key.h"
#include "net/address.h"
#include "net/udp_socket.h"
#include "wire/control.h"

namespace addend::service_client {

using Table = std::array<uint16_t, 16>;

/// One thread at a time.
class Session {
 public:
  /// Joins the job, finds out what the path from `socket` to the server carries, and waits for all
  /// workers, also if the server restarts meanwhile. `positions` is empty when the worker starts
  /// anew; one that goes on cannot take longer payloads than those of `options`. `stop`, if any,
  /// ends it soon (kUnavailable) when it becomes true.
  static Result<std::unique_ptr<Session>> join(const ServiceReducerOptions& options,
                                               const net::UdpSocket& socket,
                                               std::span<const uint32_t> positions,
                                               Deadline deadline,
                                               const std::atomic<bool>* stop = nullptr);

  const addend_control_welcome& welcome() const { return welcome_; }
  /// Where each slot begins under this epoch; empty if all workers start anew.
  std::span<const uint32_t> positions() const { return positions_; }
  /// Of the path, as probes found.
  uint64_t round_trip_ns() const { return round_trip_ns_; }
  const auth::FrameKey& worker_key() const { return worker_key_; }
  const auth::FrameKey& result_key() const { return result_key_; }
  struct Keys {
    auth::FrameKey worker, result;
  };
  /// Once; then the two above are of no use.
  Keys take_keys() { return {std::move(worker_key_), std::move(result_key_)}; }
  /// The data thread that has this slot.
  const net::Address& aggregator(uint32_t slot) const {
    return aggregators_[uint64_t{slot} * welcome_.threads / welcome_.slots];
  }
  const std::vector<net::Address>& aggregators() const { return aggregators_; }
  /// The error that a notice stands for.
  Error error_of(const addend_control_ended& ended) const;

  /// The number of a table in this epoch; asks the server the first time.
  Result<uint32_t> table(const Table& table, Deadline deadline);

  enum class News : uint8_t { kNone, kEnded, kGone };
  /// What the server has said meanwhile, without waiting: nothing, that the epoch is over (see
  /// ended()), or that it is not there any more.
  News news();
  const addend_control_ended& ended() const { return ended_; }
  int fd() const { return control_->fd(); }
  /// Says goodbye.
  void leave();

 private:
  Session() = default;
  Status enter(const ServiceReducerOptions& options, const net::UdpSocket& socket,
               std::span<const uint32_t> positions, Deadline deadline,
               const std::atomic<bool>* stop);
  Status probe_path(const ServiceReducerOptions& options, const net::UdpSocket& socket,
                    const addend_control_probe& message, uint32_t most, Deadline deadline);
  Status take_welcome(const net::ControlMessage& message, const net::Address& server);
  Result<net::ControlMessage> expect(addend_control_type type, Deadline deadline);

  std::unique_ptr<auth::ControlClient> control_;
  bool was_in_ = false;  // the server took our JOIN
  addend_control_welcome welcome_{};
  std::vector<uint32_t> positions_;
  uint64_t round_trip_ns_ = 0;
  auth::FrameKey worker_key_, result_key_;
  std::vector<net::Address> aggregators_;
  std::vector<Table> tables_;
  std::vector<uint32_t> table_numbers_;
  std::optional<addend_control_ended> pending_end_;
  addend_control_ended ended_{};
};

/// Whether rounds that were begun where `before` was allowed (bits by operation) can go on where
/// `now` is. Floats travel in other operations where they are not.
Status check_operations(uint32_t before, uint32_t now);

}  // namespace addend::service_client
