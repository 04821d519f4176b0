// SPDX-License-Identifier: Apache-2.0
// A round cut into pieces that fit a frame each, in an order that all workers share.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "addend/plane.h"

namespace addend::service_client {

/// Lanes of one plane that travel in one frame.
struct Chunk {
  Plane* plane = nullptr;
  uint64_t first_lane = 0;
  uint32_t lanes = 0;

  /// This worker's lanes, as they travel.
  std::span<const uint8_t> contribution() const;
  /// Where the sums go.
  std::span<uint8_t> sums() const;
};

/// A switch adds words of so many bytes: shorter payloads are filled up with zeros.
constexpr std::size_t kSwitchWordBytes = 4;

/// Between the machine's byte order and the network's. REQUIRES: an operation of a switch.
void swap_lanes(Op op, std::span<uint8_t> lanes);

/// What frames of a job carry.
struct FrameLimits {
  uint32_t payload_bytes = 0;
  bool leaf = false;  ///< sums that are not narrowed yet must fit a frame, too
};

/// Lanes whose contribution and whose sums both fit a frame. 0: a group of narrow sums does not.
uint32_t lanes_per_chunk(Op op, const FrameLimits& limits);

class Chunks {
 public:
  /// REQUIRES: lanes_per_chunk of every plane is not 0.
  Chunks(Round& round, const FrameLimits& limits);
  uint64_t size() const { return first_[planes_]; }
  /// REQUIRES: i < size().
  Chunk at(uint64_t i) const;

 private:
  Round* round_;
  std::size_t planes_;
  std::array<uint32_t, Round::kMaxPlanes> lanes_{};
  std::array<uint64_t, Round::kMaxPlanes + 1> first_{};  // number of each plane's first chunk
};

}  // namespace addend::service_client
