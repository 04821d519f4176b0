// SPDX-License-Identifier: Apache-2.0
// What steps would take and lose under another plan: costs of each candidate for each bucket, the
// link, and a timeline of lanes (backward, encode, network, decode).
#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "addend/control.h"
#include "control/lanes.h"

namespace addend::control {

class Costs {
 public:
  /// `setup` must outlive it.
  explicit Costs(const Setup& setup);

  /// Takes over what a window under `plan` showed. Whether the link is now another one, by more
  /// than 20 %.
  bool learn(const Observation& observation, std::span<const uint32_t> plan);

  /// Seconds of a step until its last bucket is decoded.
  double lanes_s(std::span<const uint32_t> plan) const;
  /// What the window's steps took beyond that.
  double rest_s() const { return rest_s_; }
  /// Whether enough is known of a candidate to predict it.
  bool knows(uint64_t bucket, uint32_t candidate) const;
  /// The part of a step's progress that is left: 1 is all of it. NaN: not known.
  double phi(uint64_t bucket, uint32_t candidate) const;
  /// That of all buckets, each as much as it has energy.
  double phi(std::span<const uint32_t> plan) const;
  /// Seconds that probing takes: as it did, or as long as encoding and decoding; else a guess.
  double effort(uint64_t bucket, uint32_t candidate) const;

  double latency_s() const { return latency_s_; }
  double bytes_per_s() const { return bytes_per_s_; }

 private:
  struct Cost {
    double encode_s, decode_s;  // as probed
    double bytes, error, kept;
    // Of steps over probes; NaN: no step had it yet.
    double encode_excess = std::nan(""), decode_excess = std::nan(""), kept_share = std::nan("");
    double probe_s = 0;  // 0: not known
  };

  const Cost& cost(uint64_t bucket, uint32_t candidate) const {
    return costs_[bucket * setup_->candidates.size() + candidate];
  }
  Cost& cost(uint64_t bucket, uint32_t candidate) {
    return costs_[bucket * setup_->candidates.size() + candidate];
  }
  double wire_bytes(uint64_t bucket, uint32_t candidate) const;
  Stages stages(uint64_t bucket, uint32_t candidate) const;

  void learn_costs(const Observation& observation, std::span<const uint32_t> plan);
  bool learn_link(const Observation& observation, std::span<const uint32_t> plan);
  void learn_weights(const Observation& observation, std::span<const uint32_t> plan);
  /// `plain`: by dense sums, of which one window says enough.
  bool move_rate(double bytes, double seconds, bool plain);

  void learn_excess(const Observation& observation, std::span<const uint32_t> plan);
  double kept(uint64_t bucket, uint32_t candidate) const;

  const Setup* setup_;
  double latency_s_, bytes_per_s_;
  int suspect_ = 0;          // the window before saw a link that is slower (-1) or faster (1)
  double excess_ = 1;        // of codecs that no step had yet, by those that some had
  std::vector<Cost> costs_;  // bucket by bucket
  std::vector<BucketSignals> seen_;  // the latest that is known of each bucket
  std::vector<double> kept_shares_;  // of each bucket's selectors, by the last it had; NaN: none
  std::vector<double> weights_;      // of each candidate's bytes against dense ones; NaN: not known
  std::vector<double> weight_steps_;  // that showed it
  double rest_s_ = 0;
};

}  // namespace addend::control
