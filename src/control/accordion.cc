// SPDX-License-Identifier: Apache-2.0
#include "control/accordion.h"

#include <cmath>
#include <utility>

#include "control/ladder.h"

namespace addend::control {
namespace {

// A norm that changed by half, as energies, which need no root.
constexpr double kFallen = 0.5 * 0.5, kRisen = 1.5 * 1.5;

class Accordion final : public Controller {
 public:
  Accordion(const Setup& setup, uint32_t low, uint32_t high)
      : setup_(setup), low_(low), high_(high), energies_(setup.buckets.size(), std::nan("")) {}

  uint32_t first_steps() const override { return 1; }

  Result<Decision> decide(const Observation& seen) override {
    ADDEND_TRY(check_shape(setup_, seen));
    const double rate = seen.step.learning_rate;
    const bool decayed = rate < rate_;  // false where one is not known
    rate_ = rate;
    Decision out;
    out.window = window_;
    out.steps = setup_.options.window;
    for (std::size_t b = 0; b < seen.buckets.size(); ++b) {
      const bool moved = changed(b, seen.buckets[b]);  // which also keeps its norm
      const bool critical = decayed || moved;
      out.plan.push_back(critical ? low_ : high_);
      out.why.push_back(decayed ? Reason::kRate : critical ? Reason::kWarmUp : Reason::kGain);
    }
    ++window_;
    out.probe.assign(out.plan.size() * setup_.candidates.size(), 0);
    out.realised_s = out.predicted_s = seen.step.step_s;
    out.foreseen_s = std::exchange(foreseen_s_, out.predicted_s);
    out.latency_s = setup_.latency_s;
    out.bytes_per_s = setup_.bytes_per_s;
    return out;
  }

 private:
  // The first window is one step, whose norm says little: the second is the first to count.
  bool changed(std::size_t b, const BucketSignals& seen) {
    const double now = std::isnan(seen.mean_energy) ? seen.energy : seen.mean_energy;
    const double before = std::exchange(energies_[b], window_ == 0 ? std::nan("") : now);
    return now != before && !(now > kFallen * before && now < kRisen * before);
  }

  const Setup setup_;
  const uint32_t low_, high_;
  std::vector<double> energies_;  // of the window before; NaN: none
  double rate_ = std::nan("");
  uint64_t window_ = 0;
  double foreseen_s_ = 0;
};

}  // namespace

Result<std::unique_ptr<Controller>> create_accordion(const Setup& setup) {
  const Result<std::vector<uint32_t>> ladder = ladder_of(setup);
  if (!ladder) return ladder.error();
  return std::unique_ptr<Controller>(
      std::make_unique<Accordion>(setup, ladder->front(), ladder->back()));
}

}  // namespace addend::control
