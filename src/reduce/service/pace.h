// SPDX-License-Identifier: Apache-2.0
// How much to have in flight, and when to believe that something was lost. No clock of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace addend::service_client {

/// Window: chunks in flight, from 64 up to the job's slots by one for each result: a chunk leaves
/// only when another has come back, so the stream clocks itself. Lost chunks are sent again and do
/// not narrow the window (a lossy wire is not a full one); only silence does, to a half.
///
/// Times follow the round trips of chunks that came back at their first try and in their order.
/// What waited for a loss, our own or another worker's, tells nothing about the path: a timeout
/// that learned from it would make the next wait longer.
class Pace {
 public:
  explicit Pace(uint32_t most) : most_(most), window_(std::min(most, kFirstWindow)) {}

  uint32_t window() const { return window_; }
  uint64_t round_trip_ns() const { return smoothed_ns_; }

  /// Of a chunk that nothing else tells of; doubled for each time that nothing came back after it.
  /// What waited for another worker may be measured as well: the path's least time bounds what that
  /// can do, or a worker would be silent for longer than others are patient.
  uint64_t timeout_ns(uint32_t silences = 0) const {
    uint64_t base_ns = kFirstTimeoutNs;
    if (smoothed_ns_ > 0) {
      const uint64_t most_ns = std::max(kMostTimeoutNs, 2 * std::min(least_ns(), smoothed_ns_));
      base_ns = std::clamp(smoothed_ns_ + std::max(smoothed_ns_ / 2, 4 * deviation_ns_),
                           kLeastTimeoutNs, most_ns);
    }
    return std::max(base_ns, std::min(base_ns << std::min(silences, 16u), kMostTimeoutNs));
  }
  /// How much later than a chunk that was sent after it a chunk may still come back.
  uint64_t reorder_ns() const { return std::max(quarter_ns(), kLeastReorderNs); }
  /// Whether what came back so long after it was sent again must be the answer to an earlier try.
  bool is_too_soon(uint64_t elapsed_ns) const { return elapsed_ns < quarter_ns(); }
  /// How long a chunk that was overtaken is waited for before it counts as lost. Where a thousand
  /// came back in the order in which they were sent, no longer: all of a short round come back
  /// together, so whatever is waited then is added to the round.
  uint64_t overtaken_ns() const { return in_order_ < kInOrder ? reorder_ns() : 0; }
  /// One that was overtaken came back by itself.
  void swapped() { in_order_ = 0; }
  /// The shortest round trip of late, because a path may become longer. By time and not by chunks:
  /// a full window stands in the same queue for thousands of them.
  uint64_t least_ns() const { return std::min(least_ns_, earlier_least_ns_); }

  /// Whether what is waited for with nothing else to send should be sent twice: the path loses
  /// something of late, is long, and is not full, so that a second copy costs nobody time and a
  /// loss without one a round trip.
  bool copies() const {
    return since_loss_ < kRemembered && least_ns() >= kLongPathNs &&
           smoothed_ns_ <= least_ns() + least_ns() / 2;
  }
  /// How long after a chunk its copy is sent: a loss then costs that much of a round trip.
  uint64_t copy_ns() const { return quarter_ns() / 2; }
  /// Whether what came back so long after it was sent may be the answer to its copy.
  bool is_of_copy(uint64_t elapsed_ns) const { return elapsed_ns >= least_ns() + copy_ns(); }
  /// Whether there is room for two of everything as well: no window has of late taken longer than
  /// what a round trip leaves idle. The first results of one come early, on a slow path too.
  bool has_room() const {
    return std::max(most_ns_, earlier_most_ns_) <= least_ns() + least_ns() / 2;
  }
  void lost() { since_loss_ = 0; }

  /// What the path takes, as probes found before there was a chunk.
  void expect(uint64_t round_trip_ns) {
    if (smoothed_ns_ == 0) measured(round_trip_ns, 0);
  }
  void measured(uint64_t round_trip_ns, uint64_t now_ns) {
    if (now_ns >= since_ns_ + kLateNs) {
      earlier_least_ns_ = least_ns_;
      least_ns_ = round_trip_ns;
      since_ns_ = now_ns;
    }
    least_ns_ = std::min(least_ns_, round_trip_ns);
    if (smoothed_ns_ == 0) {
      smoothed_ns_ = round_trip_ns;
      deviation_ns_ = round_trip_ns / 2;
      return;
    }
    const uint64_t off =
        std::max(round_trip_ns, smoothed_ns_) - std::min(round_trip_ns, smoothed_ns_);
    deviation_ns_ = (deviation_ns_ * 3 + off) / 4;
    smoothed_ns_ = (smoothed_ns_ * 7 + round_trip_ns) / 8;
    if (++measured_ % kWindows == 0) earlier_most_ns_ = std::exchange(most_ns_, 0);
    most_ns_ = std::max(most_ns_, smoothed_ns_);
  }
  /// A chunk came back.
  void progressed() {
    window_ = std::min(window_ + 1, most_);
    ++since_loss_;
    ++in_order_;
  }
  /// Nothing came back for long.
  void silent() { window_ = std::max(window_ / 2, std::min(most_, kLeastWindow)); }

 private:
  static constexpr uint32_t kFirstWindow = 64, kLeastWindow = 16;
  static constexpr uint64_t kFirstTimeoutNs = 20'000'000, kLeastTimeoutNs = 200'000,
                            kMostTimeoutNs = 250'000'000, kLeastReorderNs = 50'000;

  uint64_t quarter_ns() const { return std::min(least_ns(), smoothed_ns_) / 4; }

  static constexpr uint64_t kLongPathNs = 1'000'000;
  static constexpr uint64_t kLateNs = 5'000'000'000;
  // Chunks for which a loss counts, a swap, and a long round trip.
  static constexpr uint64_t kRemembered = 4096, kInOrder = 1024, kWindows = 1024;

  uint32_t most_, window_;
  uint64_t smoothed_ns_ = 0, deviation_ns_ = 0;
  uint64_t least_ns_ = ~uint64_t{0}, since_ns_ = 0;  // the least, and since when
  uint64_t earlier_least_ns_ = ~uint64_t{0};         // that of the time before
  uint64_t measured_ = 0, most_ns_ = 0, earlier_most_ns_ = 0;
  uint64_t since_loss_ = kRemembered, in_order_ = 0;
};

}  // namespace addend::service_client
