// SPDX-License-Identifier: Apache-2.0
// A training job in numbers, for tests: what a window of steps under a plan would show. Its steps
// are timed here, by lanes of their own, and not by the controller's model.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "addend/control.h"

namespace addend::control {

/// Candidates of a simulated job, in this order.
enum : uint32_t { kDense, kExact, kCast, kQuant, kTop10, kTop20, kTop40 };

class SimulatedTraining {
 public:
  explicit SimulatedTraining(const char* options, uint64_t buckets = 4,
                             uint64_t elements = 1 << 22) {
    setup.options = *Options::parse(options);
    setup.world = 4;
    setup.candidates = {{"dense", Loss::kNone, 1, 32, 0, 1},
                        {"exact", Loss::kNone, 1, 1, 40, 2},
                        {"cast:bf16", Loss::kUnbiased, 1, 16, 0, 1},
                        {"quant", Loss::kUnbiased, 1, 6, 0, 2},
                        {"topk:density=0.1", Loss::kBiased, 10, 1, 40, 2},
                        {"topk:density=0.05", Loss::kBiased, 20, 1, 40, 2},
                        {"topk:density=0.025", Loss::kBiased, 40, 1, 40, 2}};
    setup.buckets.assign(buckets, {elements, elements * 4});
    setup.bytes_per_s = gbit * 1.25e8;
    kept = {1, 1, 1, 1, 0.8, 0.6, 0.4};
    error = {0, 0, 1e-5, 0.01, 0.2, 0.4, 0.6};
    seconds_per_element = {0, 4e-10, 2e-10, 6e-10, 1e-9, 1e-9, 1e-9};
    excess.assign(setup.candidates.size(), 1);
    drag_s.assign(setup.candidates.size(), 0);
  }

  /// Of all codecs.
  void drag(double by_s) { std::fill(drag_s.begin() + kExact, drag_s.end(), by_s); }

  Setup setup;
  double gbit = 10;
  double backward_s = 0.1;
  double density = 1;  ///< of the union
  double learning_rate = 0.1;
  double energy = 1;
  double residual = 0;
  double nonfinite = 0;
  double probes = 1;  ///< times that a probe encodes and decodes a bucket
  std::vector<double> kept, error, seconds_per_element;  ///< of each candidate
  std::vector<double> drag_s;  ///< by which a step takes longer with it, and no lane shows why
  std::vector<double> excess;  ///< by which encoding takes longer than a probe shows
  double seconds = 0, dense_seconds = 0;  ///< so far; and if everything had gone dense

  /// Of a step.
  double step(const std::vector<uint32_t>& plan) const {
    double encoder = 0, network = 0, decoder = 0;
    for (uint64_t b = 0; b < plan.size(); ++b) {
      encoder = std::max(encoder, ready(b)) + codec_s(b, plan[b]) * excess[plan[b]];
      network = std::max(network, encoder) + network_s(b, plan[b]);
      decoder = std::max(decoder, network) + codec_s(b, plan[b]);
    }
    double drag = 0;
    for (const uint32_t c : plan)
      drag = std::max(drag, drag_s[c]);
    return decoder + 0.01 + drag;
  }

  /// A window of `steps`, of which `references` went dense.
  Observation window(const std::vector<uint32_t>& plan, uint32_t steps, uint32_t references) {
    const std::vector<uint32_t> dense(plan.size(), kDense);
    seconds += step(plan) * (steps - references) + step(dense) * references;
    dense_seconds += step(dense) * steps;
    Observation seen;
    const double none = std::nan("");
    seen.step = {static_cast<double>(setup.world),
                 static_cast<double>(steps),
                 step(plan),
                 references > 0 ? step(dense) : none,
                 none,
                 learning_rate};
    if (references > 0) {
      seen.step.dense_network_s = 0;
      for (uint64_t b = 0; b < plan.size(); ++b)
        seen.step.dense_network_s += network_s(b, kDense);
    }
    for (uint64_t b = 0; b < plan.size(); ++b) {
      const uint32_t c = plan[b];
      seen.buckets.push_back({ready(b), codec_s(b, c) * excess[c], network_s(b, c), codec_s(b, c),
                              bytes(b, c), energy, energy / 2, density, error[c], residual,
                              nonfinite, energy});
      for (uint32_t each = 0; each < setup.candidates.size(); ++each)
        seen.candidates.push_back({codec_s(b, each), codec_s(b, each), none, probe_error(each),
                                   kept[each], 2 * probes * codec_s(b, each)});
    }
    return seen;
  }

 private:
  // Of what a selector owes, steps alone know.
  double probe_error(uint32_t c) const {
    return setup.candidates[c].factor > 1 ? 1 - kept[c] : error[c];
  }
  double ready(uint64_t b) const {
    return backward_s * static_cast<double>(b + 1) / static_cast<double>(setup.buckets.size());
  }
  double codec_s(uint64_t b, uint32_t c) const {
    return seconds_per_element[c] * static_cast<double>(setup.buckets[b].elements);
  }
  double bytes(uint64_t b, uint32_t c) const {
    const Candidate& one = setup.candidates[c];
    const double own = 1 - std::pow(1 - 1 / one.factor, setup.world);
    const double some = one.factor > 1 ? std::min(density, own) : density;
    return static_cast<double>(setup.buckets[b].elements) / 8 * (one.bits + one.union_bits * some);
  }
  double network_s(uint64_t b, uint32_t c) const {
    return setup.latency_s * setup.candidates[c].rounds + bytes(b, c) / (gbit * 1.25e8);
  }
};

/// A controller at work on a job.
class ControlledRun {
 public:
  explicit ControlledRun(SimulatedTraining& job)
      : job_(job), controller_(std::move(*create_controller(job.setup))) {
    next.plan.assign(job.setup.buckets.size(), 0);
    next.steps = controller_->first_steps();
  }

  /// Lets the job run for so many windows.
  const Decision& go(uint64_t windows) {
    for (uint64_t i = 0; i < windows; ++i) {
      Observation seen = job_.window(next.plan, next.steps, next.reference_steps);
      next = *controller_->decide(seen);
      trace.windows.push_back({std::move(seen), next});
    }
    trace.setup = job_.setup;
    return next;
  }

  Decision next;
  Trace trace;

 private:
  SimulatedTraining& job_;
  std::unique_ptr<Controller> controller_;
};

/// A plan that gives all buckets the same.
inline std::vector<uint32_t> all(const SimulatedTraining& job, uint32_t candidate) {
  return std::vector<uint32_t>(job.setup.buckets.size(), candidate);
}

}  // namespace addend::control
