// SPDX-License-Identifier: Apache-2.0
#include "control/costs.h"

#include <algorithm>
#include <cmath>

#include "addend/plan.h"

namespace addend::control {
namespace {

constexpr double kLinkMoved = 0.2;
constexpr double kLeastBytes = 1 << 14;  // on the wire, to say anything about its speed
constexpr double kLeastWeight = 0.25, kMostWeight = 4;
constexpr double kSmoothing = 0.3;
constexpr double kGuessBytesPerS = 1e9;

void take(double from, double& to) {
  if (!std::isnan(from)) to = from;
}

// Steps share their cores with what probes have to themselves.
void compare(double used, double& probed, double& excess) {
  if (std::isnan(used)) return;
  if (std::isnan(probed)) probed = used;
  if (probed > 0) excess = used / probed;
}

double or_zero(double value) { return std::isnan(value) ? 0 : value; }

}  // namespace

Costs::Costs(const Setup& setup)
    : setup_(&setup),
      latency_s_(setup.latency_s),
      bytes_per_s_(setup.bytes_per_s),
      costs_(setup.buckets.size() * setup.candidates.size(),
             Cost{std::nan(""), std::nan(""), std::nan(""), std::nan(""), std::nan(""), 1, 1}),
      seen_(setup.buckets.size()),
      weights_(setup.candidates.size(), std::nan("")) {
  weights_[0] = 1;
  for (BucketSignals& bucket : seen_)
    bucket.union_density = 1;
  for (uint64_t b = 0; b < setup.buckets.size(); ++b)
    cost(b, 0) = {0, 0, std::nan(""), 0, 1, 1, 1};
}

bool Costs::learn(const Observation& observation, std::span<const uint32_t> plan) {
  learn_costs(observation, plan);
  const bool moved = learn_link(observation, plan);
  learn_weights(observation, plan);
  const double end = end_of_lanes(seen_.size(), [&](uint64_t b) {
    const BucketSignals& seen = observation.buckets[b];
    if (std::isnan(seen.network_s)) return stages(b, plan[b]);
    return Stages{seen_[b].ready_s, or_zero(seen.encode_s), seen.network_s, 0,
                  or_zero(seen.decode_s)};
  });
  rest_s_ = std::max(0.0, or_zero(observation.step.step_s) - end);
  return moved;
}

void Costs::learn_costs(const Observation& observation, std::span<const uint32_t> plan) {
  const uint64_t candidates = setup_->candidates.size();
  for (uint64_t b = 0; b < seen_.size(); ++b) {
    const BucketSignals& now = observation.buckets[b];
    for (uint32_t c = 0; c < candidates; ++c) {
      const CandidateSignals& probed = observation.candidates[b * candidates + c];
      Cost& known = cost(b, c);
      // What a union took is past once the codec is another.
      if (setup_->candidates[c].union_bits > 0) known.bytes = std::nan("");
      take(probed.encode_s, known.encode_s);
      take(probed.decode_s, known.decode_s);
      take(probed.bytes, known.bytes);
      take(probed.error, known.error);
      take(probed.kept, known.kept);
    }
    Cost& used = cost(b, plan[b]);
    compare(now.encode_s, used.encode_s, used.encode_excess);
    compare(now.decode_s, used.decode_s, used.decode_excess);
    if (plan[b] != 0) take(now.bytes, used.bytes);
    const Loss loss = setup_->candidates[plan[b]].loss;
    if (loss != Loss::kNone) take(now.error, used.error);
    // Of gradient and residual, and newer than any probe.
    if (loss == Loss::kBiased) take(1 - now.error, used.kept);
    take(now.ready_s, seen_[b].ready_s);
    take(now.energy, seen_[b].energy);
    take(now.mean_energy, seen_[b].mean_energy);
    take(now.union_density, seen_[b].union_density);
  }
}

bool Costs::move_rate(double bytes, double seconds) {
  if (!(bytes >= kLeastBytes) || !(seconds > 0)) return false;
  const double now = bytes / seconds;
  if (std::fabs(now - bytes_per_s_) > kLinkMoved * bytes_per_s_) {
    bytes_per_s_ = now;
    return true;
  }
  bytes_per_s_ += kSmoothing * (now - bytes_per_s_);
  return false;
}

// By plain sums where there were some: what other codecs' bytes weigh is only known against theirs.
bool Costs::learn_link(const Observation& observation, std::span<const uint32_t> plan) {
  const double references = observation.step.dense_network_s;
  if (!std::isnan(references)) {
    double bytes = 0;
    for (const Bucket& bucket : setup_->buckets)
      bytes += static_cast<double>(bucket.bytes);
    return move_rate(bytes, references - latency_s_ * static_cast<double>(setup_->buckets.size()));
  }
  double bytes = 0, seconds = 0;
  for (uint64_t b = 0; b < seen_.size(); ++b) {
    const BucketSignals& now = observation.buckets[b];
    const double weight = weights_[plan[b]];
    const double wire = now.network_s - latency_s_ * setup_->candidates[plan[b]].rounds;
    if (std::isnan(weight) || !(wire > 0) || !(now.bytes > 0)) continue;
    bytes += now.bytes * weight;
    seconds += wire;
  }
  return move_rate(bytes, seconds);
}

// A codec's first window shows what its bytes weigh (sums that come back wider than they went,
// other kernels); what changes later is the link's doing.
void Costs::learn_weights(const Observation& observation, std::span<const uint32_t> plan) {
  std::vector<double> bytes(weights_.size()), seconds(weights_.size());
  for (uint64_t b = 0; b < seen_.size(); ++b) {
    const BucketSignals& now = observation.buckets[b];
    const double wire = now.network_s - latency_s_ * setup_->candidates[plan[b]].rounds;
    if (!(wire > 0) || !(now.bytes > 0)) continue;
    bytes[plan[b]] += now.bytes;
    seconds[plan[b]] += wire;
  }
  for (uint64_t c = 0; c < weights_.size(); ++c) {
    if (!std::isnan(weights_[c]) || !(bytes[c] >= kLeastBytes)) continue;
    weights_[c] = std::clamp(seconds[c] * bytes_per_s_ / bytes[c], kLeastWeight, kMostWeight);
  }
}

double Costs::wire_bytes(uint64_t bucket, uint32_t candidate) const {
  const double measured = cost(bucket, candidate).bytes;
  if (!std::isnan(measured)) return measured;
  if (candidate == 0) return static_cast<double>(setup_->buckets[bucket].bytes);
  const Candidate& one = setup_->candidates[candidate];
  double density = seen_[bucket].union_density;
  if (one.factor > 1) density = std::min(density, union_of(1 / one.factor, setup_->world));
  return static_cast<double>(setup_->buckets[bucket].elements) / 8 *
         (one.bits + one.union_bits * density);
}

Stages Costs::stages(uint64_t bucket, uint32_t candidate) const {
  const Cost& one = cost(bucket, candidate);
  const double weight = std::isnan(weights_[candidate]) ? 1 : weights_[candidate];
  const double network_s = latency_s_ * setup_->candidates[candidate].rounds +
                           wire_bytes(bucket, candidate) * weight / bytes_per_s_;
  return {seen_[bucket].ready_s, or_zero(one.encode_s * one.encode_excess), network_s, 0,
          or_zero(one.decode_s * one.decode_excess)};
}

double Costs::predict(std::span<const uint32_t> plan) const {
  return end_of_lanes(seen_.size(), [&](uint64_t b) { return stages(b, plan[b]); }) + rest_s_;
}

bool Costs::knows(uint64_t bucket, uint32_t candidate) const {
  const Cost& one = cost(bucket, candidate);
  return !std::isnan(one.encode_s) && !std::isnan(one.decode_s) &&
         !std::isnan(phi(bucket, candidate));
}

double Costs::phi(uint64_t bucket, uint32_t candidate) const {
  const Cost& one = cost(bucket, candidate);
  const Loss loss = setup_->candidates[candidate].loss;
  if (loss == Loss::kNone) return 1;
  if (loss == Loss::kBiased) return std::isnan(one.kept) ? 1 - one.error : one.kept;
  // Noise that is in the gradients already hides part of what a codec adds to it.
  const double n = setup_->world, m = seen_[bucket].energy, q = seen_[bucket].mean_energy;
  if (std::isnan(one.error) || !(m > 0)) return 1 - one.error;
  const double noise = n > 1 ? std::max(0.0, (m - q) * n / (n - 1)) : 0;
  const double signal = n > 1 ? std::max(0.0, (n * q - m) / (n - 1)) : m;
  const double before = signal + noise / n;
  return std::min(before / (before + one.error * m / n), 1 - one.error);
}

double Costs::phi(std::span<const uint32_t> plan) const {
  double all = 0, left = 0;
  for (uint64_t b = 0; b < seen_.size(); ++b) {
    all += seen_[b].energy;
    left += seen_[b].energy * phi(b, plan[b]);
  }
  return all > 0 ? left / all : 1;
}

double Costs::effort(uint64_t bucket, uint32_t candidate) const {
  const Cost& one = cost(bucket, candidate);
  const double known = one.encode_s + one.decode_s;
  return std::isnan(known) ? static_cast<double>(setup_->buckets[bucket].bytes) / kGuessBytesPerS
                           : known;
}

}  // namespace addend::control
