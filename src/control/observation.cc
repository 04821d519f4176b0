// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>

#include "addend/control.h"
#include "base/assert.h"

namespace addend::control {
namespace {

constexpr uint64_t kStep = sizeof(StepSignals) / sizeof(double);
constexpr uint64_t kBucket = sizeof(BucketSignals) / sizeof(double);
constexpr uint64_t kCandidate = sizeof(CandidateSignals) / sizeof(double);

template <typename Signals>
void take(const double*& from, Signals& to) {
  std::memcpy(static_cast<void*>(&to), from, sizeof to);
  from += sizeof to / sizeof(double);
}

template <typename Signals>
void give(const Signals& from, double*& to) {
  std::memcpy(to, &from, sizeof from);
  to += sizeof from / sizeof(double);
}

// Ranks that do not know something have no say in it.
template <typename Signals>
double over(std::span<const Signals* const> ranks, double Signals::*field,
            double (*join)(double, double)) {
  double result = std::nan("");
  for (const Signals* rank : ranks) {
    const double value = rank->*field;
    if (!std::isnan(value)) result = std::isnan(result) ? value : join(result, value);
  }
  return result;
}

double larger(double a, double b) { return a > b ? a : b; }
double smaller(double a, double b) { return a < b ? a : b; }

template <typename Signals>
double mean(std::span<const Signals* const> ranks, double Signals::*field) {
  double sum = 0, count = 0;
  for (const Signals* rank : ranks) {
    if (std::isnan(rank->*field)) continue;
    sum += rank->*field;
    count += 1;
  }
  return count > 0 ? sum / count : std::nan("");
}

template <typename Signals>
using Ranks = std::vector<const Signals*>;

StepSignals reduce_step(const Ranks<StepSignals>& ranks) {
  StepSignals all;
  using S = StepSignals;
  for (double S::*field : {&S::world, &S::steps, &S::step_s, &S::dense_step_s, &S::learning_rate})
    all.*field = over<S>(ranks, field, larger);
  all.dense_network_s = over<S>(ranks, &S::dense_network_s, smaller);
  return all;
}

BucketSignals reduce_bucket(const Ranks<BucketSignals>& ranks) {
  using B = BucketSignals;
  B all;
  for (double B::*field : {&B::ready_s, &B::encode_s, &B::decode_s, &B::residual, &B::nonfinite})
    all.*field = over<B>(ranks, field, larger);
  all.network_s = over<B>(ranks, &B::network_s, smaller);
  for (double B::*field :
       {&B::bytes, &B::energy, &B::mean_energy, &B::union_density, &B::error, &B::whole_energy})
    all.*field = mean<B>(ranks, field);
  return all;
}

// What all ranks keep together of all that they have, not the mean of their shares.
double reduce_kept(const Ranks<CandidateSignals>& ranks, const Ranks<BucketSignals>& buckets) {
  double kept = 0, all = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double energy = buckets[r]->whole_energy;
    if (std::isnan(ranks[r]->kept) || std::isnan(energy)) continue;
    kept += ranks[r]->kept * energy;
    all += energy;
  }
  return all > 0 ? kept / all : std::nan("");
}

CandidateSignals reduce_candidate(const Ranks<CandidateSignals>& ranks,
                                  const Ranks<BucketSignals>& buckets) {
  using C = CandidateSignals;
  C all;
  for (double C::*field : {&C::encode_s, &C::decode_s, &C::probe_s})
    all.*field = over<C>(ranks, field, larger);
  for (double C::*field : {&C::bytes, &C::error})
    all.*field = mean<C>(ranks, field);
  all.kept = reduce_kept(ranks, buckets);
  return all;
}

}  // namespace

uint64_t Observation::size(uint64_t buckets, uint64_t candidates) {
  return kStep + buckets * (kBucket + candidates * kCandidate);
}

Observation Observation::from(std::span<const double> values, uint64_t buckets,
                              uint64_t candidates) {
  ADDEND_ASSERT(values.size() == size(buckets, candidates));
  Observation out;
  out.buckets.resize(buckets);
  out.candidates.resize(buckets * candidates);
  const double* from = values.data();
  take(from, out.step);
  for (uint64_t b = 0; b < buckets; ++b) {
    take(from, out.buckets[b]);
    for (uint64_t c = 0; c < candidates; ++c)
      take(from, out.candidates[b * candidates + c]);
  }
  return out;
}

std::vector<double> Observation::values() const {
  const uint64_t per_bucket = buckets.empty() ? 0 : candidates.size() / buckets.size();
  std::vector<double> out(size(buckets.size(), per_bucket));
  double* to = out.data();
  give(step, to);
  for (uint64_t b = 0; b < buckets.size(); ++b) {
    give(buckets[b], to);
    for (uint64_t c = 0; c < per_bucket; ++c)
      give(candidates[b * per_bucket + c], to);
  }
  return out;
}

Observation reduce(std::span<const Observation> ranks) {
  ADDEND_ASSERT(!ranks.empty());
  Observation all = ranks.front();
  Ranks<StepSignals> steps;
  for (const Observation& rank : ranks)
    steps.push_back(&rank.step);
  all.step = reduce_step(steps);
  for (uint64_t b = 0; b < all.buckets.size(); ++b) {
    Ranks<BucketSignals> same;
    for (const Observation& rank : ranks)
      same.push_back(&rank.buckets[b]);
    all.buckets[b] = reduce_bucket(same);
    const uint64_t candidates = all.candidates.size() / all.buckets.size();
    for (uint64_t c = b * candidates; c < (b + 1) * candidates; ++c) {
      Ranks<CandidateSignals> probed;
      for (const Observation& rank : ranks)
        probed.push_back(&rank.candidates[c]);
      all.candidates[c] = reduce_candidate(probed, same);
    }
  }
  return all;
}

}  // namespace addend::control
