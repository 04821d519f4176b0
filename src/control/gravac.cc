// SPDX-License-Identifier: Apache-2.0
#include "control/gravac.h"

#include <algorithm>
#include <cmath>

#include "control/ladder.h"

namespace addend::control {
namespace {

constexpr uint64_t kOldest = 10;  // windows after which a value no longer counts

/// samples/s x gain of a factor, as it was the last times that it travelled.
struct Progress {
  double value = 0;
  uint64_t window = 0;
  bool known = false;
};

/// A smoothed quotient: both halves first, then one by the other.
class Gain {
 public:
  void add(double kept, double all, double share) {
    kept_ = all_ > 0 ? kept_ + share * (kept - kept_) : kept;
    all_ = all_ > 0 ? all_ + share * (all - all_) : all;
  }
  double value() const { return all_ > 0 ? kept_ / all_ : 1; }

 private:
  double kept_ = 0, all_ = 0;
};

class Gravac final : public Controller {
 public:
  Gravac(const Setup& setup, std::vector<uint32_t> ladder)
      : setup_(setup),
        ladder_(std::move(ladder)),
        gains_(ladder_.size()),
        progress_(ladder_.size()),
        share_(std::clamp(setup.world / 100.0, 0.05, 0.5)),
        plan_(setup.buckets.size(), 0) {}

  uint32_t first_steps() const override { return 1; }

  // Every `every` steps, with what those before showed.
  Result<Decision> decide(const Observation& seen) override {
    ADDEND_TRY(check_shape(setup_, seen));
    note_progress(seen.step);
    for (std::size_t rung = 0; rung < ladder_.size(); ++rung)
      note_gain(rung, seen);
    const uint64_t before = steps_ / setup_.options.window;
    steps_ += static_cast<uint64_t>(std::max(1.0, seen.step.steps));
    if (steps_ / setup_.options.window != before) end_window();
    return send(seen);
  }

 private:
  static constexpr std::size_t kDense = ~std::size_t{0};

  void note_gain(std::size_t rung, const Observation& seen) {
    double kept = 0, all = 0;
    for (std::size_t b = 0; b < seen.buckets.size(); ++b) {
      const double energy = seen.buckets[b].whole_energy;
      const double share = seen.candidates[b * setup_.candidates.size() + ladder_[rung]].kept;
      if (std::isnan(energy) || std::isnan(share)) continue;
      all += energy;
      kept += energy * share;
    }
    if (all > 0) gains_[rung].add(kept, all, share_);
  }

  // What travelled in the step just over. Dense is no rung.
  void note_progress(const StepSignals& step) {
    if (sent_ == kDense || !(step.step_s > 0)) return;
    Progress& one = progress_[sent_];
    const double now = gains_[sent_].value() / step.step_s;
    one.value = one.known ? one.value + share_ * (now - one.value) : now;
    one.known = true;
    one.window = window_;
  }

  // The floor rises to what was measured before the next candidate is taken.
  void end_window() {
    ++window_;
    const double least = gains_[floor_].value(), now = gains_[candidate_].value();
    if (least > 0 && std::fabs(least - now) / least <= setup_.options.omega) floor_ = candidate_;
    if (!settled_ && candidate_ + 1 < ladder_.size()) ++candidate_;
    std::vector<std::size_t> best;
    for (std::size_t rung = 0; rung < ladder_.size(); ++rung) {
      if (progress_[rung].known && progress_[rung].window + kOldest > window_) best.push_back(rung);
    }
    if (best.size() < 2) return;
    std::stable_sort(best.begin(), best.end(), [&](std::size_t x, std::size_t y) {
      return progress_[x].value > progress_[y].value;
    });
    const double first = progress_[best[0]].value, second = progress_[best[1]].value;
    if ((first - second) / second > setup_.options.omega) return;
    candidate_ = std::min(best[0], best[1]);
    floor_ = std::min(floor_, candidate_);
    settled_ = true;
  }

  Decision send(const Observation& seen) {
    const double epsilon = setup_.options.epsilon;
    sent_ = gains_[candidate_].value() >= epsilon ? candidate_
            : gains_[floor_].value() >= epsilon   ? floor_
                                                  : kDense;
    std::fill(plan_.begin(), plan_.end(), sent_ == kDense ? 0 : ladder_[sent_]);
    Decision out;
    out.window = decisions_++;
    out.plan = plan_;
    out.why.assign(plan_.size(), sent_ == kDense ? Reason::kFloor : Reason::kGain);
    out.steps = setup_.options.every;
    out.probe.assign(plan_.size() * setup_.candidates.size(), 0);
    out.realised_s = out.predicted_s = seen.step.step_s;
    out.foreseen_s = foreseen_s_;
    foreseen_s_ = out.predicted_s;
    out.phi = sent_ == kDense ? 1 : gains_[sent_].value();
    out.latency_s = setup_.latency_s;
    out.bytes_per_s = setup_.bytes_per_s;
    return out;
  }

  const Setup setup_;
  const std::vector<uint32_t> ladder_;  // candidates by rising factor
  std::vector<Gain> gains_;
  std::vector<Progress> progress_;
  const double share_;  // of the newest in what is smoothed
  std::vector<uint32_t> plan_;
  std::size_t floor_ = 0, candidate_ = 0, sent_ = kDense;  // rungs
  bool settled_ = false;
  uint64_t steps_ = 0, window_ = 0, decisions_ = 0;
  double foreseen_s_ = 0;
};

}  // namespace

Result<std::unique_ptr<Controller>> create_gravac(const Setup& setup) {
  Result<std::vector<uint32_t>> ladder = ladder_of(setup);
  if (!ladder) return ladder.error();
  return std::unique_ptr<Controller>(std::make_unique<Gravac>(setup, std::move(*ladder)));
}

}  // namespace addend::control
