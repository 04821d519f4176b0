// SPDX-License-Identifier: Apache-2.0
// What steps would take and lose under another plan: costs of each candidate for each bucket, the
// link, and a timeline of lanes (backward, encode, network, decode).
#pragma once

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

  /// Seconds of a step.
  double predict(std::span<const uint32_t> plan) const;
  /// Whether enough is known of a candidate to predict it.
  bool knows(uint64_t bucket, uint32_t candidate) const;
  /// The part of a step's progress that is left: 1 is all of it. NaN: not known.
  double phi(uint64_t bucket, uint32_t candidate) const;
  /// That of all buckets, each as much as it has energy.
  double phi(std::span<const uint32_t> plan) const;
  /// Seconds that encoding and decoding take, for a candidate that is known; else a guess.
  double effort(uint64_t bucket, uint32_t candidate) const;

  double latency_s() const { return latency_s_; }
  double bytes_per_s() const { return bytes_per_s_; }

 private:
  struct Cost {
    double encode_s, decode_s;  // as probed
    double bytes, error, kept;
    double encode_excess = 1, decode_excess = 1;  // of steps over probes
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
  bool move_rate(double bytes, double seconds);

  const Setup* setup_;
  double latency_s_, bytes_per_s_;
  std::vector<Cost> costs_;          // bucket by bucket
  std::vector<BucketSignals> seen_;  // the latest that is known of each bucket
  std::vector<double> weights_;      // of each candidate's bytes against dense ones; NaN: not known
  double rest_s_ = 0;                // of a step, when all lanes are empty
};

}  // namespace addend::control
