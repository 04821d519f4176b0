// SPDX-License-Identifier: Apache-2.0
#include "control/costs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "addend/plan.h"

namespace addend::control {
namespace {

constexpr double kLinkMoved = 0.2;
constexpr double kLeastBytes = 1 << 14;  // on the wire, to say anything about its speed
constexpr double kWeightSteps = 20;      // that have to show what a codec's bytes weigh
constexpr double kLeastWeight = 0.25, kMostWeight = 4;
constexpr double kSmoothing = 0.3;
constexpr double kGuessBytesPerS = 1e9;
// That one codec's steps say of another's. Below 1: what disturbed a probe made it longer.
constexpr double kLeastExcess = 0.1, kMostExcess = 3;

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
             Cost{std::nan(""), std::nan(""), std::nan(""), std::nan(""), std::nan("")}),
      seen_(setup.buckets.size()),
      kept_shares_(setup.buckets.size(), std::nan("")),
      weights_(setup.candidates.size(), std::nan("")),
      weight_steps_(setup.candidates.size(), 0) {
  weights_[0] = 1;
  weight_steps_[0] = kWeightSteps;
  for (BucketSignals& bucket : seen_)
    bucket.union_density = 1;
  for (uint64_t b = 0; b < setup.buckets.size(); ++b)
    cost(b, 0) = {0, 0, std::nan(""), 0, 1, 1, 1, 1};
}

bool Costs::learn(const Observation& observation, std::span<const uint32_t> plan) {
  learn_costs(observation, plan);
  learn_excess(observation, plan);
  const bool moved = learn_link(observation, plan);
  learn_weights(observation, plan);
  const double end = end_of_lanes(seen_.size(), [&](uint64_t b) {
    const BucketSignals& seen = observation.buckets[b];
    if (std::isnan(seen.network_s)) return stages(b, plan[b]);
    return Stages{seen_[b].ready_s, or_zero(seen.encode_s), seen.network_s, 0,
                  or_zero(seen.decode_s)};
  });
  rest_s_ = or_zero(observation.step.step_s) - end;
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
      if (probed.probe_s > 0) known.probe_s = probed.probe_s;
    }
    Cost& used = cost(b, plan[b]);
    compare(now.encode_s, used.encode_s, used.encode_excess);
    compare(now.decode_s, used.decode_s, used.decode_excess);
    if (plan[b] != 0) take(now.bytes, used.bytes);
    const Loss loss = setup_->candidates[plan[b]].loss;
    if (loss != Loss::kNone) take(now.error, used.error);
    // Of gradient and residual, where `kept` is of a gradient alone.
    if (loss == Loss::kBiased) compare(1 - now.error, used.kept, used.kept_share);
    if (setup_->candidates[plan[b]].factor > 1) take(used.kept_share, kept_shares_[b]);
    take(now.ready_s, seen_[b].ready_s);
    take(now.energy, seen_[b].energy);
    take(now.mean_energy, seen_[b].mean_energy);
    take(now.union_density, seen_[b].union_density);
  }
}

// All ranks' codecs share the cores, whichever they are.
void Costs::learn_excess(const Observation& observation, std::span<const uint32_t> plan) {
  double used = 0, probed = 0;
  for (uint64_t b = 0; b < seen_.size(); ++b) {
    const BucketSignals& now = observation.buckets[b];
    const Cost& one = cost(b, plan[b]);
    if (plan[b] == 0 || std::isnan(now.encode_s + now.decode_s)) continue;
    used += now.encode_s + now.decode_s;
    probed += one.encode_s + one.decode_s;
  }
  if (probed > 0) excess_ = std::clamp(used / probed, kLeastExcess, kMostExcess);
}

bool Costs::move_rate(double bytes, double seconds, bool plain) {
  const int before = std::exchange(suspect_, 0);
  if (!(bytes >= kLeastBytes) || !(seconds > 0)) return false;
  const double now = bytes / seconds;
  const bool moved = std::fabs(now - bytes_per_s_) > kLinkMoved * bytes_per_s_;
  suspect_ = !moved ? 0 : now < bytes_per_s_ ? -1 : 1;
  if (!moved) {
    bytes_per_s_ += kSmoothing * (now - bytes_per_s_);
  } else if (plain || suspect_ == before) {
    bytes_per_s_ = now;
    suspect_ = 0;
    return true;
  }
  return false;
}

// By plain sums where there were some: what other codecs' bytes weigh is only known against theirs.
bool Costs::learn_link(const Observation& observation, std::span<const uint32_t> plan) {
  const double references = observation.step.dense_network_s;
  if (!std::isnan(references)) {
    double bytes = 0;
    for (const Bucket& bucket : setup_->buckets)
      bytes += static_cast<double>(bucket.bytes);
    return move_rate(bytes, references - latency_s_ * static_cast<double>(setup_->buckets.size()),
                     true);
  }
  double bytes = 0, seconds = 0, covered = 0, all = 0;
  const bool plain = std::all_of(plan.begin(), plan.end(), [](uint32_t c) { return c == 0; });
  for (uint64_t b = 0; b < seen_.size(); ++b) {
    const BucketSignals& now = observation.buckets[b];
    const uint32_t c = plan[b];
    const double wire = now.network_s - latency_s_ * setup_->candidates[c].rounds;
    const double weight = weights_[c];
    const auto dense = static_cast<double>(setup_->buckets[b].bytes);
    all += dense;
    // A weight at its limit is that of a codec whose time is not its bytes'.
    const bool known =
        weight_steps_[c] >= kWeightSteps && weight > kLeastWeight && weight < kMostWeight;
    if (!known || !(wire > 0) || !(now.bytes > 0)) continue;
    covered += dense;
    bytes += now.bytes * weight;
    seconds += wire;
  }
  // What a small bucket takes is not the link's doing.
  return move_rate(2 * covered < all ? 0 : bytes, seconds, plain);
}

// A codec's first steps show what its bytes weigh (sums that come back wider than they went, other
// kernels); what changes later is the link's doing.
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
    if (weight_steps_[c] >= kWeightSteps || !(bytes[c] >= kLeastBytes)) continue;
    const double now = std::clamp(seconds[c] * bytes_per_s_ / bytes[c], kLeastWeight, kMostWeight);
    const double steps = std::max(1.0, observation.step.steps);
    weight_steps_[c] += steps;
    weights_[c] = std::isnan(weights_[c])
                      ? now
                      : weights_[c] + (now - weights_[c]) * steps / weight_steps_[c];
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
  const auto in_steps = [&](double probed_s, double excess) {
    return or_zero(probed_s * (std::isnan(excess) ? excess_ : excess));
  };
  return {seen_[bucket].ready_s, in_steps(one.encode_s, one.encode_excess), network_s, 0,
          in_steps(one.decode_s, one.decode_excess)};
}

double Costs::lanes_s(std::span<const uint32_t> plan) const {
  return end_of_lanes(seen_.size(), [&](uint64_t b) { return stages(b, plan[b]); });
}

bool Costs::knows(uint64_t bucket, uint32_t candidate) const {
  const Cost& one = cost(bucket, candidate);
  return !std::isnan(one.encode_s) && !std::isnan(one.decode_s) &&
         !std::isnan(phi(bucket, candidate));
}

// Of a selector the gain is that of a gradient alone. Residuals lower it: by how much the bucket's
// steps show, with this selector or another; before there were any, its probe, which is given one
// gradient over and over, and so keeps less than steps do.
double Costs::kept(uint64_t bucket, uint32_t candidate) const {
  const Cost& one = cost(bucket, candidate);
  const double probed = 1 - one.error;
  if (std::isnan(one.kept)) return probed;
  const bool selects = setup_->candidates[candidate].factor > 1;
  double share = one.kept_share;
  if (std::isnan(share) && selects) share = kept_shares_[bucket];
  if (!std::isnan(share)) return one.kept * share;
  return selects && probed < one.kept ? probed : one.kept;
}

double Costs::phi(uint64_t bucket, uint32_t candidate) const {
  const Cost& one = cost(bucket, candidate);
  const Loss loss = setup_->candidates[candidate].loss;
  if (loss == Loss::kNone) return 1;
  if (loss == Loss::kBiased) return kept(bucket, candidate);
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
  const double known = (one.encode_s + one.decode_s) * std::min(1.0, excess_);
  if (one.probe_s > 0) return one.probe_s;
  return std::isnan(known) ? static_cast<double>(setup_->buckets[bucket].bytes) / kGuessBytesPerS
                           : known;
}

}  // namespace addend::control
