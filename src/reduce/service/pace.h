// SPDX-License-Identifier: Apache-2.0
// How much to have in flight, and when to believe that something was lost. No clock of its own.
#pragma once

#include <algorithm>
#include <cstdint>

namespace addend::service_client {

/// Window: chunks in flight, from 8 up to the job's slots; one more for each result at first and
/// one more per window later, half of it after a loss (additive increase, multiplicative decrease).
/// Timeout: twice the smoothed round trip and four deviations, doubled each time it passes in vain.
class Pace {
 public:
  explicit Pace(uint32_t most) : most_(most), window_(std::min(most, kFirstWindow)) {}

  uint32_t window() const { return static_cast<uint32_t>(window_); }
  uint64_t round_trip_ns() const { return smoothed_ns_; }
  uint64_t timeout_ns() const {
    const uint64_t base = smoothed_ns_ == 0 ? kFirstTimeoutNs
                                            : std::clamp(2 * smoothed_ns_ + 4 * deviation_ns_,
                                                         kLeastTimeoutNs, kMostTimeoutNs);
    return std::min(base << std::min(backoff_, 16u), std::max(base, kMostTimeoutNs));
  }

  /// A chunk that was sent once came back after this time.
  void measured(uint64_t round_trip_ns) {
    if (smoothed_ns_ == 0) {
      smoothed_ns_ = round_trip_ns;
      deviation_ns_ = round_trip_ns / 2;
      return;
    }
    const uint64_t off =
        round_trip_ns > smoothed_ns_ ? round_trip_ns - smoothed_ns_ : smoothed_ns_ - round_trip_ns;
    deviation_ns_ += (off - std::min(off, deviation_ns_)) / 4;
    deviation_ns_ -= (deviation_ns_ - std::min(off, deviation_ns_)) / 4;
    smoothed_ns_ = (smoothed_ns_ * 7 + round_trip_ns) / 8;
  }
  void progressed() {
    backoff_ = 0;
    window_ += window_ < threshold_ ? 1.0 : 1.0 / window_;
    window_ = std::min(window_, static_cast<double>(most_));
  }
  /// Counts once a round trip: what was lost together was one event.
  void lost(uint64_t now_ns) {
    if (now_ns < quiet_until_ns_) return;
    quiet_until_ns_ = now_ns + smoothed_ns_;
    threshold_ = window_ =
        std::max(window_ / 2, static_cast<double>(std::min(most_, kLeastWindow)));
  }
  void timed_out() { ++backoff_; }

 private:
  static constexpr uint32_t kFirstWindow = 64, kLeastWindow = 8;
  static constexpr uint64_t kFirstTimeoutNs = 20'000'000, kLeastTimeoutNs = 1'000'000,
                            kMostTimeoutNs = 250'000'000;

  uint32_t most_;
  double window_;
  double threshold_ = 1e9;
  uint64_t smoothed_ns_ = 0, deviation_ns_ = 0, quiet_until_ns_ = 0;
  uint32_t backoff_ = 0;
};

}  // namespace addend::service_client
