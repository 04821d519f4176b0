// SPDX-License-Identifier: Apache-2.0
// A worker that has joined and now finds out how long a datagram the path to us and back carries.
#pragma once

#include <atomic>
#include <cstdint>

#include "auth/frame_key.h"
#include "net/address.h"

namespace addend::service {

/// The registry makes it and reads what the data threads have heard; they look it up by number and
/// echo what is authentic.
struct Probe {
  uint32_t number = 0, boot = 0;
  uint32_t payload_bytes = 0;  ///< of the longest that is echoed
  net::Address worker;         ///< where it must come from, and goes back to
  auth::FrameKey key;

  std::atomic<uint64_t> heard{0};        ///< by which data threads: bit t is thread t
  std::atomic<bool> misdirected{false};  ///< heard from another address
  /// Echoes that are left: far more than a worker needs, and too few to make a flood of.
  std::atomic<uint32_t> echoes{16384};
};

}  // namespace addend::service
