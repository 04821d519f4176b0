// SPDX-License-Identifier: Apache-2.0
// A reducer that finishes on another one when the first is gone, in the middle of a step if need
// be. docs/decisions/0022-one-set-a-step.md has the argument why the sums are still right.
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "addend/reduce.h"
#include "base/bits.h"
#include "reduce/claims.h"
#include "reduce/host_memory.h"
#include "reduce/round_copy.h"

namespace addend {
namespace {

bool is_gone(Errc code) {
  return code == Errc::kUnavailable || code == Errc::kTimeout || code == Errc::kIo;
}
// Others may not have heard of a mismatch and find the primary gone: they would ask the fallback
// in vain. So all do, and compare once more. With a quorum it may be one of a worker that is
// missing: the others go on, and do not ask.
bool ends_primary(Errc code, uint32_t quorum) {
  return is_gone(code) || (code == Errc::kMismatch && quorum == 0);
}

// A worker completes round k only if all have contributed to it, so all have completed k - 1: the
// rounds that workers have completed differ by one at the most, unless they ended as kChanged.
//
//   rounds are done in wait, one after the other: by the primary, until it is gone ...
//     --> ... then one by the fallback, which all workers begin there and compare
//     --> overlaps_: what is started is the fallback's at once, so that several can be under way
//
// All that was started here and not done moves to the fallback when that begins, and before
// anything else: so the fallback has the same rounds in one order on all workers, whoever had
// started how many when it heard that the primary is gone.
class FallbackReducer final : public Reducer {
 public:
  FallbackReducer(std::unique_ptr<Reducer> primary, std::unique_ptr<Reducer> fallback,
                  std::function<void(const Error&)> on_switch)
      : primary_(std::move(primary)),
        fallback_(std::move(fallback)),
        on_switch_(std::move(on_switch)) {}

  uint32_t world() const override { return fallback_->world(); }
  uint32_t worker() const override { return fallback_->worker(); }
  uint32_t local_workers() const override { return fallback_->local_workers(); }
  void begin_step() override { active().begin_step(); }
  uint32_t quorum() const override { return active().quorum(); }
  uint64_t missing() const override { return active().missing(); }
  double float_error() const override { return active().float_error(); }
  void set_link(const Link& link) override { fallback_->set_link(link); }
  void interrupt() override {
    const std::lock_guard lock(switching_);
    interrupted_ = true;
    if (primary_) primary_->interrupt();
    fallback_->interrupt();
  }

  Status reduce(Round& round, Deadline deadline) override {
    // Nothing is waited for in an empty round, so it tells nothing about where the others are.
    if (round.bytes() == 0) return {};
    return reduce_by(round, deadline, [&](Reducer& reducer) -> Status {
      if (begins(reducer)) ADDEND_TRY(compare(shape_of(round), deadline));
      return reducer.reduce(round, deadline);
    });
  }
  Status reduce_step(std::span<const Claim> claims, Round& round, Deadline deadline) override {
    return reduce_by(round, deadline, [&](Reducer& reducer) -> Status {
      if (!begins(reducer)) return reducer.reduce_step(claims, round, deadline);
      // First what has a name: a worker that cannot go on has other planes, too.
      ADDEND_TRY(reducer.agree(claims, deadline));
      ADDEND_TRY(compare(shape_of(round), deadline));
      return round.size > 0 ? reducer.reduce(round, deadline) : Status();
    });
  }

  Result<uint64_t> start(Round& round) override {
    woken_ = false;
    ADDEND_TRY(check_usable());
    return overlaps_ ? start_there(next_number_++, round, std::nullopt) : Reducer::start(round);
  }
  Result<uint64_t> start_step(std::span<const Claim> claims, Round& round) override {
    woken_ = false;
    ADDEND_TRY(check_usable());
    return overlaps_ ? start_there(next_number_++, round, claims)
                     : Reducer::start_step(claims, round);
  }
  // One at a time: whichever this worker waits for, the same rounds move as on the others.
  Result<bool> wait(uint64_t number, Deadline deadline) override {
    for (Started& started : started_) {
      if (started.number > number) break;
      if (started.over) continue;
      fold(started, deadline);
      if (primary_ || !compared_ || !broken_.empty()) continue;
      move_rounds();
      break;
    }
    const auto found = moved_.find(number);
    if (found == moved_.end()) return Reducer::wait(number, deadline);
    ADDEND_TRY(check_usable());
    const Result<bool> done = fallback_->wait(found->second, deadline);
    if (!done || *done) moved_.erase(found);
    if (!done) return failed(done.error());
    return done;
  }
  Result<bool> wait_any(std::span<const uint64_t> numbers, Deadline deadline) override {
    std::vector<uint64_t> there;
    for (const uint64_t number : numbers) {
      const auto found = moved_.find(number);
      if (found == moved_.end()) return true;
      there.push_back(found->second);
    }
    ADDEND_TRY(check_usable());
    const Result<bool> some = fallback_->wait_any(there, deadline);
    if (!some) return failed(some.error());
    return some;
  }
  bool has_ended(uint64_t number) const override {
    const auto found = moved_.find(number);
    return found != moved_.end() && broken_.empty() && fallback_->has_ended(found->second);
  }
  // In this order: one that comes while rounds move is found by them, or finds them moved.
  void wake() override {
    woken_ = true;
    if (overlaps_) fallback_->wake();
  }
  bool can_wake() const override { return overlaps_ && fallback_->can_wake(); }
  void abandon() override {
    Reducer::abandon();
    // Others may be at either of the two by now.
    if (primary_) primary_->abandon();
    fallback_->abandon();
  }

 private:
  using Way = std::function<Status(Reducer&)>;

  Reducer& active() const { return primary_ ? *primary_ : *fallback_; }

  // Whoever fails does not know where the others are: a later round of theirs may look like ours,
  // also after a mismatch.
  Error failed(const Error& error) {
    return error.code == Errc::kMismatch ? broken_by(error) : noted(error).error();
  }

  // `claims`: of the first round of a step.
  Result<uint64_t> start_there(uint64_t number, Round& round,
                               const std::optional<std::span<const Claim>>& claims) {
    const Result<uint64_t> there =
        claims ? fallback_->start_step(*claims, round) : fallback_->start(round);
    if (!there) return failed(there.error());
    moved_.emplace(number, *there);
    return number;
  }

  void move_rounds() {
    for (Started& started : started_) {
      if (started.over) continue;
      started.over = true;
      started.status = move_round(started);
    }
    std::erase_if(started_, [&](const Started& one) { return moved_.contains(one.number); });
    overlaps_ = true;
    // Starting a round ends a wake. One that came since the caller's last start ends the next wait.
    if (woken_) fallback_->wake();
  }
  Status move_round(Started& started) {
    ADDEND_TRY(check_usable());
    std::optional<std::span<const Claim>> claims;
    if (started.first) claims = std::span(started.claims).first(started.claim_count);
    ADDEND_TRY(start_there(started.number, *started.round, claims));
    return {};
  }

  // `way`: what either of the two is asked, to sum this round.
  Status reduce_by(Round& round, Deadline deadline, const Way& way) {
    ADDEND_TRY(check_host_memory(round));
    ADDEND_TRY(check_usable());
    const Status status = primary_ ? reduce_first(round, deadline, way) : way(*fallback_);
    if (!status) return failed(status.error());
    return status;
  }

  Status reduce_first(Round& round, Deadline deadline, const Way& way) {
    ADDEND_TRY(contribution_.take(round, RoundCopy::Of::kContribution));
    const Status status = way(*primary_);
    if (!status && ends_primary(status.error().code, primary_->quorum()))
      return switch_over(status.error(), round, deadline, way);
    const bool changed = !status && status.error().code == Errc::kChanged;
    if (status || changed) {
      ++completed_;
      ADDEND_TRY(sums_.take(round, RoundCopy::Of::kSums));
      shape_ = shape_of(round);
      partial_ = primary_->missing() != 0;
      changed_ = changed;
    }
    return status;
  }

  Status switch_over(const Error& why, Round& round, Deadline deadline, const Way& way) {
    {
      const std::lock_guard lock(switching_);
      if (interrupted_) return why;
      primary_.reset();
    }
    const bool gone = is_gone(why.code);
    if (gone) tell(why);
    const Status status = finish(why, round, deadline, way);
    if (gone) return status;
    if (!status) return why;
    tell(why);
    return {};
  }

  void tell(const Error& why) const {
    if (on_switch_) on_switch_(why);
  }

  Status finish(const Error& why, Round& round, Deadline deadline, const Way& way) {
    constexpr uint32_t kPlaces = 31, kChanged = kPlaces, kPartial = 2 * kPlaces;
    const auto place = [](uint64_t rounds) { return uint64_t{1} << rounds % kPlaces; };
    const uint64_t own = place(completed_);
    uint64_t said = own | (changed_ ? own << kChanged : 0) | uint64_t{partial_} << kPartial;
    Round question;
    question.add({Op::kOrU64, 1, &said, nullptr, nullptr});
    ADDEND_TRY(fallback_->reduce(question, deadline));
    if ((said >> kPartial) != 0) {
      return make_error(Errc::kUnavailable,
                        "the aggregator went while workers were missing: " + why.message);
    }
    const uint64_t places = said & low_mask(kPlaces), next = place(completed_ + 1);
    const bool ahead = places == (own | next);
    const bool behind = places == (own | place(completed_ + kPlaces - 1));
    const uint64_t leading = ahead ? next : own;
    // There are no sums of a round that has to be repeated.
    if (places != own && ((said & leading << kChanged) != 0 || !(ahead || behind)))
      return make_error(Errc::kUnavailable, "workers are too far apart to go on: " + why.message);
    if (ahead) return take_sums(round, deadline);
    if (behind) ADDEND_TRY(share_sums(deadline));
    contribution_.give(round, RoundCopy::Of::kContribution);
    return way(*fallback_);
  }

  // The first round that all begin on the fallback is perhaps why the primary is gone: there it was
  // compared, here a group may take what it is given.
  bool begins(const Reducer& reducer) {
    return &reducer == fallback_.get() && !std::exchange(compared_, true);
  }
  Status compare(uint64_t shape, Deadline deadline) {
    const Claim planes[] = {{"the planes of a round", shape}};
    return fallback_->agree(planes, deadline);
  }

  // Some workers have this round's sums, all of them the same bits; OR with nothing keeps them.
  Status take_sums(Round& round, Deadline deadline) {
    ADDEND_TRY(compare(shape_of(round), deadline));
    ADDEND_TRY(sums_.blank(RoundCopy::words_of(round, RoundCopy::Of::kSums)));
    Round bits = sums_.as_bits();
    ADDEND_TRY(fallback_->reduce(bits, deadline));
    sums_.give(round, RoundCopy::Of::kSums);
    return {};
  }
  Status share_sums(Deadline deadline) {
    ADDEND_TRY(compare(shape_, deadline));
    Round bits = sums_.as_bits();
    return fallback_->reduce(bits, deadline);
  }

  std::mutex switching_;  // interrupt comes from other threads
  bool interrupted_ = false;
  std::unique_ptr<Reducer> primary_;  // null once it is gone
  std::unique_ptr<Reducer> fallback_;
  std::function<void(const Error&)> on_switch_;
  bool compared_ = false;   // the planes of a round on it
  uint64_t completed_ = 0;  // rounds on the primary
  uint64_t shape_ = 0;      // of the last of them
  bool partial_ = false;    // the last of them was without some worker
  bool changed_ = false;    // its step begins again
  RoundCopy contribution_, sums_;

  std::atomic<bool> overlaps_ = false;  // asked by other threads
  std::atomic<bool> woken_ = false;     // since the last start; they set it
  std::map<uint64_t, uint64_t> moved_;  // rounds under way at the fallback: their numbers there
};

}  // namespace

Result<std::unique_ptr<Reducer>> create_fallback_reducer(
    std::unique_ptr<Reducer> primary, std::unique_ptr<Reducer> fallback,
    std::function<void(const Error&)> on_switch) {
  if (!primary || !fallback) return make_error(Errc::kInvalidArgument, "two reducers are needed");
  if (primary->world() != fallback->world() || primary->worker() != fallback->worker()) {
    return make_error(Errc::kInvalidArgument,
                      "this is worker " + std::to_string(primary->worker()) + " of " +
                          std::to_string(primary->world()) + " in one group and worker " +
                          std::to_string(fallback->worker()) + " of " +
                          std::to_string(fallback->world()) + " in the other");
  }
  return std::unique_ptr<Reducer>(std::make_unique<FallbackReducer>(
      std::move(primary), std::move(fallback), std::move(on_switch)));
}

}  // namespace addend
