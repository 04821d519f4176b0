// SPDX-License-Identifier: Apache-2.0
#include "control/auto.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "control/costs.h"
#include "control/ladder.h"

namespace addend::control {
namespace {

constexpr double kWorthIt = 1.05;                      // gain for which a plan is left
constexpr double kNoise = 1.001;                       // gain of one bucket that is none
constexpr double kMostSpread = 0.3, kSpreading = 0.5;  // of a plan's windows; weight of the newest
constexpr uint64_t kDwell = 3;  // windows that a bucket keeps its codec, and that are short
// Of such windows, at least; a first one has its own steps, one that settles, and one that looks.
constexpr uint32_t kFirstSteps = 5, kTrialSteps = 10;
constexpr double kSlower = 1.02, kMuchSlower = 1.1, kFarSlower = 2;  // than dense
constexpr double kClearlyFaster = 0.9;  // needs no dense steps beside it while it is tried
constexpr uint32_t kSlowWindows = 3;
constexpr uint64_t kHold = 10, kMostHold = 160;  // windows that a plan which was slower stays away
constexpr uint64_t kReferenceEvery = 500;        // steps, at least,
constexpr double kReferenceCost = 0.01;          // of the time at most
constexpr uint32_t kReferenceSteps = 3;
constexpr uint64_t kMemory = 20;  // windows for which a plan's own steps say what it takes
constexpr uint64_t kDropsWindows = 10;
constexpr std::size_t kMostDrops = 3;
constexpr double kResidualCap = 20;  // norms of the gradient
constexpr uint64_t kLeastElements = 1024;
constexpr double kCareful = 0.999;       // floor while errors may do harm; casts lose less
constexpr double kSettled = 0.5;         // relative change of norms, squared
constexpr uint64_t kLongestWarmUp = 10;  // windows
constexpr double kRateChanged = 0.25;
constexpr double kMoved = 0.1;  // of a density or a gain
constexpr double kMispredicted = 0.2;
constexpr double kProbing = 0.01;   // of the time
constexpr double kMostCredit = 10;  // windows' worth of it

using Plan = std::vector<uint32_t>;

/// What a bucket may have.
struct Choices {
  std::vector<uint8_t> allowed;  // of each candidate
  Reason why = Reason::kBest;
};

/// What is remembered of a bucket.
struct Past {
  uint64_t since = 0;  // window from which on it has its codec
  double ceiling = std::numeric_limits<double>::infinity();  // of the factor
  double density = 1;
  double gain = 1;                     // phi of what it has, as it was when that was last decided
  std::vector<uint64_t> drops;         // windows at whose end phi was below the floor
  std::vector<uint64_t> barred_until;  // of each candidate
};

/// A plan that ran, and what its steps took beyond its lanes and what any plan's take beyond them.
struct Tried {
  Plan plan;
  double promised_s = 0;  // a step, when it was chosen; 0: of another link
  double own_s = 0;
  double least_s = 0;    // a step of its fastest window: it is not foreseen to be faster than ever
  uint64_t windows = 0;  // that showed it
  uint64_t window = 0;   // the latest in which it ran
};

class Auto final : public Controller {
 public:
  explicit Auto(const Setup& setup) : setup_(setup), costs_(setup_) { forget(); }
  // costs_ points to setup_.
  Auto(const Auto&) = delete;
  Auto& operator=(const Auto&) = delete;

  uint32_t first_steps() const override {
    return std::min(setup_.options.window, std::max(kFirstSteps, setup_.options.window / 10));
  }

  bool rate_changed(double learning_rate) const override {
    return std::fabs(learning_rate - rate_) > kRateChanged * rate_;
  }

  Result<Decision> decide(const Observation& seen) override {
    ADDEND_TRY(check_shape(setup_, seen));
    if (seen.step.world > 0 && seen.step.world != setup_.world) {
      setup_.world = static_cast<uint32_t>(seen.step.world);
      forget();
      return begin_anew(seen);
    }
    const bool moved = costs_.learn(seen, plan_);
    look(seen);
    remember(seen, moved);
    judge(seen);
    const std::vector<Choices> choices = restrict(seen, moved);
    provisional_ = careful();
    Decision out;
    out.window = window_;
    out.realised_s = seen.step.step_s;
    out.foreseen_s = foreseen_s_;
    choose(choices, moved, out);
    schedule(seen, out);
    foreseen_s_ = out.predicted_s;
    out.latency_s = costs_.latency_s();
    out.bytes_per_s = costs_.bytes_per_s();
    ++window_;
    return out;
  }

 private:
  uint64_t buckets() const { return setup_.buckets.size(); }
  uint32_t candidates() const { return static_cast<uint32_t>(setup_.candidates.size()); }
  bool all_dense() const {
    return std::all_of(plan_.begin(), plan_.end(), [](uint32_t c) { return c == 0; });
  }
  // Whether gradients are in a state that errors may do harm in.
  bool careful() const { return !warm_ || rate_changed_; }
  double worth(const Plan& plan) const { return costs_.phi(plan) / step_s(plan); }
  double dense_step_s() const { return step_s(Plan(buckets(), 0)); }
  uint32_t short_window() const {
    return std::min(setup_.options.window, std::max(kTrialSteps, setup_.options.window / 10));
  }

  double step_s(const Plan& plan) const {
    if (plan == plan_ && now_s_ > 0) return now_s_;
    const double foreseen_s = costs_.lanes_s(plan) + rest_s_ + own_s(plan);
    const auto one = find_tried(plan);
    return one == tried_.end() ? foreseen_s : std::max(foreseen_s, one->least_s);
  }

  // Where cores are shared, codecs slow down what no lane shows: if the plan ran lately, its own
  // steps say by how much; another one is taken to do it as the present one does.
  double own_s(const Plan& plan) const {
    if (plan == Plan(buckets(), 0)) return 0;
    auto one = find_tried(plan);
    if (one == tried_.end()) one = find_tried(plan_);
    return one == tried_.end() ? 0 : one->own_s;
  }

  std::vector<Tried>::const_iterator find_tried(const Plan& plan) const {
    return std::find_if(tried_.begin(), tried_.end(),
                        [&](const Tried& one) { return one.plan == plan; });
  }

  void remember(const Observation& seen, bool moved) {
    // While all goes dense for what a plan took, nothing is forgotten: it would be tried again.
    std::erase_if(tried_, [&](const Tried& one) {
      return moved || std::max(one.window, dense_until_) + kMemory <= window_;
    });
    const double now = seen.step.step_s;
    now_s_ = moved || std::isnan(now) ? 0 : now;
    surprise_ -= surprise_ / kMemory;
    if (now > 0 && !all_dense()) {
      compare_with_promise(now, moved);
      if (!moved) keep_least(now);
    }
    if (now > 0) share_rest(seen.step.dense_step_s);
    // What windows of one plan differ by, windows of two may differ by for no reason.
    if (before_s_ > 0 && now > 0 && window_ != changed_at_ + 1)
      spread_ += kSpreading * (std::min(kMostSpread, std::fabs(now / before_s_ - 1)) - spread_);
    before_s_ = now;
  }

  // First steps touch memory and connections that none has touched before: what a plan was chosen
  // for is compared with its third window.
  void compare_with_promise(double now, bool moved) {
    const auto one = find_tried(plan_);
    if (one == tried_.end()) {
      tried_.push_back({plan_, moved ? 0 : foreseen_s_});
    } else if (one->windows + 1 == kDwell && one->promised_s > 0) {
      surprise_ = std::max(surprise_, std::min(kMostSpread, now / one->promised_s - 1));
    }
  }

  // Windows of one plan differ by noise, and what one takes away from the machine's part all others
  // seem to have gained.
  void keep_least(double now) {
    Tried& mine = tried_[static_cast<std::size_t>(find_tried(plan_) - tried_.begin())];
    mine.least_s = mine.least_s > 0 ? std::min(mine.least_s, now) : now;
  }

  // Of what lanes do not show, a plan's first windows say what is its own, against the plan before
  // or dense steps beside it; what changes later is the machine's doing.
  void share_rest(double reference) {
    if (all_dense()) {
      rest_s_ = std::max(0.0, costs_.rest_s());
      return;
    }
    const bool compared = !std::isnan(reference);
    if (compared) rest_s_ = std::max(0.0, reference - costs_.lanes_s(Plan(buckets(), 0)));
    Tried& mine = tried_[static_cast<std::size_t>(find_tried(plan_) - tried_.begin())];
    mine.window = window_;
    if (compared || mine.windows < kDwell) {
      mine.windows = std::min(mine.windows + 1, kDwell);
      // Nothing drags by less than nothing: then the windows before were the slow ones.
      rest_s_ = std::max(0.0, std::min(rest_s_, costs_.rest_s()));
      const double own = std::max(0.0, costs_.rest_s() - rest_s_);
      mine.own_s += (own - mine.own_s) / static_cast<double>(mine.windows);
    } else {
      rest_s_ = std::max(0.0, costs_.rest_s() - mine.own_s);
    }
  }

  // The window just over was another world's: nothing of it is learnt, not even of its gradients.
  Decision begin_anew(const Observation& seen) {
    Decision out;
    out.window = window_;
    out.plan = plan_;
    out.why.assign(buckets(), Reason::kWarmUp);
    out.steps = first_steps();
    for (uint64_t i = 0; i < buckets() * candidates(); ++i)
      out.probe.push_back(i % candidates() > 0 ? 1 : 0);
    out.realised_s = seen.step.step_s;
    out.latency_s = costs_.latency_s();
    out.bytes_per_s = costs_.bytes_per_s();
    ++window_;
    return out;
  }

  // As if nothing had been seen yet: of another world, nothing holds.
  void forget() {
    costs_ = Costs(setup_);
    plan_.assign(buckets(), 0);
    past_.assign(buckets(), Past{});
    for (Past& past : past_)
      past.barred_until.assign(candidates(), 0);
    energy_ = std::nan("");
    warm_ = false;
    warm_until_ = window_ + kLongestWarmUp;
    dense_until_ = slow_ = 0;
    hold_ = kHold;
    dense_s_ = foreseen_s_ = 0;
    tried_.clear();
    fresh_ = false;
    now_s_ = rest_s_ = before_s_ = spread_ = surprise_ = 0;
    rate_ = std::nan("");
    rate_changed_ = provisional_ = false;
    changed_at_ = window_;
    since_reference_ = cursor_ = 0;
    credit_s_ = 0;
  }

  void look(const Observation& seen) {
    const double rate = seen.step.learning_rate;
    if (!std::isnan(rate)) {
      if (std::isnan(rate_)) rate_ = rate;
      rate_changed_ = rate_changed(rate);
      if (rate_changed_) rate_ = rate;
    }
    double energy = 0;
    for (const BucketSignals& bucket : seen.buckets)
      energy += std::isnan(bucket.energy) ? 0 : bucket.energy;
    if (!std::isnan(energy_) && std::fabs(energy - energy_) <= kSettled * energy_) warm_ = true;
    if (window_ + 1 >= warm_until_) warm_ = true;
    energy_ = energy;
  }

  // Never slower than dense: against steps of this very window that went dense; if far slower, also
  // against those of the window before.
  void judge(const Observation& seen) {
    const double now = seen.step.step_s;
    double reference = seen.step.dense_step_s;
    if (std::isnan(now)) return;  // no step of the window was the plan's alone
    if (all_dense()) {
      dense_s_ = now;
      slow_ = 0;
      fresh_ = true;
      return;
    }
    if (fresh_ && std::isnan(reference) && now > kFarSlower * dense_s_) reference = dense_s_;
    fresh_ = !std::isnan(reference);
    if (!fresh_) return;
    dense_s_ = reference;
    if (now <= kSlower * reference) {
      slow_ = 0;
      hold_ = kHold;
      return;
    }
    slow_ += now > kFarSlower * reference ? 3 : now > kMuchSlower * reference ? 2 : 1;
    if (slow_ < kSlowWindows) return;
    slow_ = 0;
    dense_until_ = window_ + hold_;
    hold_ = std::min(2 * hold_, kMostHold);
  }

  std::vector<Choices> restrict(const Observation& seen, bool moved) {
    std::vector<Choices> all(buckets());
    for (uint64_t b = 0; b < buckets(); ++b) {
      Choices& mine = all[b];
      const bool dropped = drops(b);
      mine.allowed.assign(candidates(), 0);
      mine.allowed[0] = 1;
      if (forced_dense(seen.buckets[b], b, mine.why)) continue;
      for (uint32_t c = 1; c < candidates(); ++c)
        mine.allowed[c] = allows(b, c);
      if (careful()) mine.why = rate_changed_ ? Reason::kRate : Reason::kWarmUp;
      if (dropped) mine.why = Reason::kFloor;
      const double density = seen.buckets[b].union_density;
      const bool other = moved || shifted(density, past_[b].density) ||
                         shifted(costs_.phi(b, plan_[b]), past_[b].gain);
      if (!std::isnan(density)) past_[b].density = density;
      dwell(b, other || dropped || (provisional_ && !careful()), mine);
    }
    return all;
  }

  static bool shifted(double now, double before) {
    return std::fabs(now - before) > kMoved * before;
  }

  bool forced_dense(const BucketSignals& seen, uint64_t b, Reason& why) const {
    if (setup_.buckets[b].elements < kLeastElements) {
      why = Reason::kSmall;
    } else if (seen.nonfinite > 0) {
      why = Reason::kNonfinite;
    } else if (seen.residual > kResidualCap) {
      why = Reason::kResidual;
    } else if (window_ < dense_until_) {
      why = Reason::kSlower;
    } else {
      return false;
    }
    return true;
  }

  bool allows(uint64_t b, uint32_t c) const {
    const Candidate& one = setup_.candidates[c];
    if (!costs_.knows(b, c)) return false;
    if (one.loss == Loss::kNone) return true;
    if (setup_.options.floor >= 1) return false;
    const double floor =
        careful() ? std::max(kCareful, setup_.options.floor) : setup_.options.floor;
    if (window_ < past_[b].barred_until[c] || !(costs_.phi(b, c) >= floor)) return false;
    if (one.factor <= 1) return true;
    const double now = setup_.candidates[plan_[b]].factor;
    const double next = now > 1 ? 2 * now : least_factor();
    return one.factor <= past_[b].ceiling && one.factor <= next;
  }

  double least_factor() const {
    double least = std::numeric_limits<double>::infinity();
    for (const Candidate& one : setup_.candidates) {
      if (one.factor > 1) least = std::min(least, one.factor);
    }
    return least;
  }

  // Whether what a bucket has is below the floor; three times in ten windows is too often.
  bool drops(uint64_t b) {
    const uint32_t c = plan_[b];
    if (setup_.candidates[c].loss == Loss::kNone || costs_.phi(b, c) >= setup_.options.floor)
      return false;
    Past& past = past_[b];
    std::erase_if(past.drops, [&](uint64_t at) { return at + kDropsWindows <= window_; });
    past.drops.push_back(window_);
    if (past.drops.size() < kMostDrops) return true;
    past.drops.clear();
    past.barred_until[c] = window_ + kDropsWindows;
    const double factor = setup_.candidates[c].factor;
    if (factor > 1) past.ceiling = std::min(past.ceiling, factor) / 2;
    return true;
  }

  // Rungs of one ladder are one codec, so a bucket may go from one to the next.
  void dwell(uint64_t b, bool free, Choices& mine) const {
    const uint32_t now = plan_[b];
    if (free || now == 0 || window_ - past_[b].since >= kDwell || mine.allowed[now] == 0) return;
    const bool ladder = setup_.candidates[now].factor > 1;
    for (uint32_t c = 0; c < candidates(); ++c) {
      const bool rung = ladder && setup_.candidates[c].factor > 1;
      if (c != now && !rung) mine.allowed[c] = 0;
    }
    if (mine.why == Reason::kBest) mine.why = Reason::kDwell;
  }

  // From dense, the largest bucket first, so that the plan depends on what is seen alone and not on
  // the plan before.
  Plan solve(const std::vector<Choices>& choices) const {
    Plan plan(buckets(), 0);
    for (uint64_t b = 0; b < buckets(); ++b) {
      while (choices[b].allowed[plan[b]] == 0)
        ++plan[b];
    }
    std::vector<uint64_t> order(buckets());
    std::iota(order.begin(), order.end(), uint64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](uint64_t x, uint64_t y) {
      return setup_.buckets[x].bytes > setup_.buckets[y].bytes;
    });
    for (int pass = 0; pass < 3; ++pass) {
      const Plan before = plan;
      for (const uint64_t b : order)
        improve(b, choices[b], plan);
      if (plan == before) break;
    }
    return plan;
  }

  void improve(uint64_t b, const Choices& mine, Plan& plan) const {
    double best = worth(plan);
    uint32_t found = plan[b];
    for (uint32_t c = 0; c < candidates(); ++c) {
      if (mine.allowed[c] == 0) continue;
      plan[b] = c;
      const double now = worth(plan);
      if (now > best * kNoise) best = now, found = c;
    }
    plan[b] = found;
  }

  static bool allowed(const std::vector<Choices>& choices, const Plan& plan) {
    for (uint64_t b = 0; b < plan.size(); ++b) {
      if (choices[b].allowed[plan[b]] == 0) return false;
    }
    return true;
  }

  void choose(const std::vector<Choices>& choices, bool moved, Decision& out) {
    Plan stay = plan_, dense(buckets(), 0);
    for (uint64_t b = 0; b < buckets(); ++b) {
      if (choices[b].allowed[stay[b]] == 0) stay[b] = 0;
      if (choices[b].allowed[0] == 0) dense[b] = plan_[b];  // it dwells
    }
    Plan target = solve(choices);
    for (const Tried& one : tried_) {
      if (allowed(choices, one.plan) && worth(one.plan) > kNoise * worth(target)) target = one.plan;
    }
    if (worth(target) < kWorthIt * worth(dense)) target = dense;
    // What ran lately is known, if that was for longer than its first windows; what did not has
    // disappointed by so much.
    const auto ran = find_tried(target);
    const bool known = target == dense || (ran != tried_.end() && ran->windows >= kDwell);
    const double doubt = known ? spread_ : std::max(spread_, surprise_);
    const bool leave = moved || worth(target) >= std::max(kWorthIt, 1 + doubt) * worth(stay);
    const Plan& next = leave ? target : stay;
    for (uint64_t b = 0; b < buckets(); ++b) {
      Reason why = choices[b].why;
      if (why == Reason::kBest && !leave && target[b] != stay[b]) why = Reason::kKept;
      out.why.push_back(why);
      if (next[b] != plan_[b]) past_[b].since = window_;
      past_[b].gain = costs_.phi(b, next[b]);
    }
    changed_at_ = next == plan_ ? changed_at_ : window_;
    const double predicted_s = step_s(next);
    out.predicted_dense_s = dense_step_s();
    plan_ = out.plan = next;
    out.predicted_s = predicted_s;
    out.phi = costs_.phi(plan_);
  }

  // A new plan is tried for a few short windows with dense steps beside it.
  void schedule(const Observation& seen, Decision& out) {
    const Options& options = setup_.options;
    const double step_s = seen.step.step_s;
    const bool trial = !all_dense() && window_ - changed_at_ < kDwell;
    const bool first = trial && window_ == changed_at_;
    out.steps = options.window;
    if (trial) {
      out.steps = first ? std::min(options.window, kFirstSteps) : short_window();
    } else if (step_s > 0 && step_s * options.window < options.window_s) {
      out.steps = static_cast<uint32_t>(std::min(std::ceil(options.window_s / step_s), 1e6));
    }
    since_reference_ += static_cast<uint64_t>(std::max(0.0, seen.step.steps));
    if (!all_dense() && wants_references(trial, first ? out.predicted_s : step_s)) {
      // Beside them there are a first step, which settles, a last one, which looks, and the plan's.
      out.steps = std::min(options.window, std::max(out.steps, kFirstSteps + kReferenceSteps - 1));
      out.reference_steps = std::min(kReferenceSteps, out.steps > 4 ? out.steps - 4 : 0);
      since_reference_ = 0;
    }
    plan_probes(step_s, out);
  }

  // While a plan is tried, unless it is clearly faster; and now and then.
  bool wants_references(bool trial, double step_s) const {
    if (slow_ > 0 || (trial && !(step_s < kClearlyFaster * dense_s_))) return true;
    if (dense_s_ > 0 && step_s > kSlower * dense_s_) return true;
    const double cost_s = kReferenceSteps * std::max(0.0, dense_s_ - step_s);
    const double steps = static_cast<double>(since_reference_);
    return since_reference_ >= kReferenceEvery && cost_s <= kReferenceCost * steps * step_s;
  }

  // In turn, as far as one hundredth of the time goes; what was predicted badly comes first.
  void plan_probes(double step_s, Decision& out) {
    const double budget = kProbing * (step_s > 0 ? step_s * out.steps : 0);
    credit_s_ = std::min(credit_s_ + budget, kMostCredit * budget);
    const uint64_t all = buckets() * candidates();
    out.probe.assign(all, 0);
    const bool wrong = foreseen_s_ > 0 && !(window_ - changed_at_ < 1) &&
                       std::fabs(step_s - foreseen_s_) > kMispredicted * foreseen_s_;
    for (uint64_t b = 0; wrong && b < buckets(); ++b)
      ask(b, plan_[b], out);
    for (uint64_t tried = 0; tried < all; ++tried) {
      if (!ask(cursor_ / candidates(), static_cast<uint32_t>(cursor_ % candidates()), out)) break;
      cursor_ = (cursor_ + 1) % all;
    }
  }

  // False: it has to wait for more time.
  bool ask(uint64_t b, uint32_t c, Decision& out) {
    uint8_t& asked = out.probe[b * candidates() + c];
    if (c == 0 || asked != 0 || setup_.buckets[b].elements < kLeastElements) return true;
    const double effort = costs_.effort(b, c);
    if (effort > credit_s_) return false;
    credit_s_ -= effort;
    asked = 1;
    return true;
  }

  Setup setup_;
  Costs costs_;
  Plan plan_;
  std::vector<Past> past_;
  uint64_t window_ = 0;
  uint64_t changed_at_ = 0;
  bool rate_changed_ = false;
  bool provisional_ = false;  // next to nothing lossy was allowed, the last time
  double rate_ = std::nan("");
  double energy_ = std::nan("");  // of the window before
  bool warm_ = false;
  uint64_t warm_until_ = 0;
  uint64_t dense_until_ = 0, hold_ = kHold;
  uint32_t slow_ = 0;
  double dense_s_ = 0;  // a dense step, the last time that there was one,
  bool fresh_ = false;  // which was in the window before
  std::vector<Tried> tried_;
  double foreseen_s_ = 0;
  double now_s_ = 0;   // a step of the window just over; 0: it says nothing of the next one
  double rest_s_ = 0;  // of a step, when all lanes are empty, whatever the plan
  double before_s_ = 0, spread_ = 0;  // a step of the window before; of windows of one plan
  double surprise_ = 0;               // by which plans took longer than foreseen that had not run
  uint64_t since_reference_ = 0;
  double credit_s_ = 0;
  uint64_t cursor_ = 0;
};

}  // namespace

std::unique_ptr<Controller> create_auto(const Setup& setup) {
  return std::make_unique<Auto>(setup);
}

}  // namespace addend::control
