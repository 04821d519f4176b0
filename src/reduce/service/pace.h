// SPDX-License-Identifier: Apache-2.0
// How much to have in flight, and when to believe that something was lost. No clock of its own.
#pragma once

#include <algorithm>
#include <cstdint>

namespace addend::service_client {

/// Window: chunks in flight, from 64 up to the job's slots by one for each result: a chunk leaves
/// only when another has come back, so the stream clocks itself. Lost chunks are sent again and do
/// not narrow the window (a lossy wire is not a full one); only silence does, to a half.
///
/// Timeout: twice the smoothed round trip and twice the largest deviation of late. After a loss a
/// whole window leaves at once and queues; a mean deviation would take that queue for more loss.
class Pace {
 public:
  explicit Pace(uint32_t most) : most_(most), window_(std::min(most, kFirstWindow)) {}

  uint32_t window() const { return window_; }
  uint64_t round_trip_ns() const { return smoothed_ns_; }

  /// Of a chunk that was sent for the `tries`th time: doubled for each.
  uint64_t timeout_ns(uint32_t tries = 1) const {
    const uint64_t base = smoothed_ns_ == 0
                              ? kFirstTimeoutNs
                              : std::clamp(2 * scale_ * (smoothed_ns_ + deviation_ns_),
                                           kLeastTimeoutNs, kMostTimeoutNs);
    return std::min(base << std::min(tries - 1, 16u), kMostTimeoutNs);
  }
  /// The same for a chunk when many later ones have come back already.
  uint64_t overtaken_ns(uint32_t tries) const { return timeout_ns(tries) / 2; }

  /// A chunk that was sent once came back after this time.
  void measured(uint64_t round_trip_ns) {
    if (smoothed_ns_ == 0) {
      smoothed_ns_ = round_trip_ns;
      deviation_ns_ = round_trip_ns / 2;
      return;
    }
    const uint64_t off =
        std::max(round_trip_ns, smoothed_ns_) - std::min(round_trip_ns, smoothed_ns_);
    deviation_ns_ = std::max(off, deviation_ns_ - deviation_ns_ / 256);
    smoothed_ns_ = (smoothed_ns_ * 7 + round_trip_ns) / 8;
  }
  /// A chunk came back that had been sent `tries` times. If most are sent twice, it is the timeout
  /// that is wrong, not the wire: round trips of chunks that were sent again cannot be measured, so
  /// a timeout below the round trip would stay there and fill the wire with copies.
  void progressed(uint32_t tries) {
    window_ = std::min(window_ + 1, most_);
    again_ += tries > 1 ? 1 : 0;
    if (++back_ < kJudged) return;
    if (again_ > kJudged / 2) {
      scale_ = std::min(scale_ * 2, uint64_t{64});
    } else {
      scale_ = std::max(scale_ / 2, uint64_t{1});
    }
    again_ = back_ = 0;
  }
  /// Nothing came back for long.
  void silent() { window_ = std::max(window_ / 2, std::min(most_, kLeastWindow)); }

 private:
  static constexpr uint32_t kFirstWindow = 64, kLeastWindow = 16;
  static constexpr uint64_t kFirstTimeoutNs = 20'000'000, kLeastTimeoutNs = 200'000,
                            kMostTimeoutNs = 250'000'000;

  static constexpr uint32_t kJudged = 64;  // chunks between two looks at how many were sent again

  uint32_t most_, window_;
  uint32_t again_ = 0, back_ = 0;
  uint64_t scale_ = 1;
  uint64_t smoothed_ns_ = 0, deviation_ns_ = 0;
};

}  // namespace addend::service_client
