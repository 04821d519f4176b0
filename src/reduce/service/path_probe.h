// SPDX-License-Identifier: Apache-2.0
// Before an epoch a worker finds out how long a frame travels to every data thread and back: probes
// of several lengths leave together, and again at growing intervals. No sockets, no clock.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "addend/result.h"
#include "auth/frame_key.h"
#include "wire/control.h"
#include "wire/frame.h"

namespace addend::service_client {

/// The payloads to try, largest first: `most`, and those that fit common MTUs over IPv6 (the longer
/// header of the two) and are less.
std::vector<uint32_t> probe_payloads(uint32_t most);

/// One thread at a time.
class PathProbe {
 public:
  /// `most`: no payload beyond that is of use.
  static Result<PathProbe> create(const addend_control_probe& probe, uint32_t worker,
                                  uint32_t world, uint32_t most);

  struct One {
    uint32_t thread;  ///< it goes to
    uint32_t payload_bytes;
  };
  /// What to send now, longest first; nothing before next_ns().
  std::span<const One> collect(uint64_t now_ns);
  /// Its bytes, until the next call.
  std::span<const uint8_t> frame(const One& one);
  uint64_t next_ns() const { return next_ns_; }
  /// The machine itself says that such a payload does not fit.
  void too_long(uint32_t payload_bytes);
  /// A datagram from anywhere.
  void receive(std::span<const uint8_t> datagram, uint64_t now_ns);

  /// Every thread has echoed the longest frame that may fit, or there was time enough to.
  bool done(uint64_t now_ns) const;
  /// The largest payload that all threads echoed; 0 if one echoed nothing.
  uint32_t payload_bytes() const;
  /// The least that an echo took; 0 if there was none.
  uint64_t round_trip_ns() const { return round_trip_ns_; }

 private:
  PathProbe() = default;

  std::size_t worst() const;

  auth::FrameKey key_;
  addend_frame_header
      header_{};  // of every probe, but for slot (the thread), turn (the try), length
  std::vector<uint8_t> frame_;
  std::vector<uint32_t> payloads_;  // largest first
  std::size_t first_ = 0;           // the largest that may fit
  std::vector<std::size_t> best_;   // by thread, the largest that was echoed; none: past the end
  std::vector<One> out_;
  std::vector<uint64_t> sent_ns_;  // of each try
  uint64_t next_ns_ = 0, round_trip_ns_ = 0;
};

}  // namespace addend::service_client
