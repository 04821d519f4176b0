// SPDX-License-Identifier: Apache-2.0
// A call of a worker, in a job with a quorum. All workers make the same calls, and what one of them
// comes to is the same for all, or they do not go on together.
//
//   under way --- all of it is folded --------------------------> ended, its sums are kept
//     ^   |
//     |   | the server is gone: rejoin
//     |   v
//     | asking: how many calls have ended for whom? <-------------.
//     |   |       '-- somebody is not in the answer: ask again    |
//     |   |                                                       |
//     |   |  one has ended for some, and not for others:          |
//     |   |---------> sharing what it came to --------------------'
//     |   |
//     |   |  nobody is one behind: the call that comes next ends as kChanged, for all
//     |   |---------------------------------------------------------> ended
//     |   |
//     |   '-- this worker is two calls behind or more: left behind
//     |
//   (whenever the server goes again, all begin to ask again)
#include "reduce/service/outcomes.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "base/assert.h"
#include "base/bits.h"
#include "wire/frame.h"

namespace addend::service_client {
namespace {

// No round has longer sums. Whoever is further behind than one call has no other measure for what
// it is told.
constexpr uint64_t kMostWords = uint64_t{1} << 32;

Error restarted() {
  return make_error(Errc::kChanged,
                    "the aggregator lost its memory during this step: all workers have to begin it "
                    "again");
}

Error contradiction() {
  return make_error(Errc::kUndecodable,
                    "workers differ in what an earlier round came to; all must join anew");
}

}  // namespace

// A step that begins again because workers went during it does so without them: if they were waited
// for once more, a slow worker could hold up the others for ever.
void Outcomes::begin_step() {
  first_ = true;
  entry_ = !changed_;
  changed_ = false;
}

uint8_t Outcomes::flags() const { return entry_ ? ADDEND_FRAME_ENTRY : 0; }

Status Outcomes::take(const Absence& absence) {
  const bool one_set = absence.somewhere == absence.everywhere;
  if (one_set && (first_ || absence.everywhere == missing_)) {
    missing_ = absence.everywhere;
    first_ = entry_ = false;
    return {};
  }
  changed_ = true;
  const uint64_t who =
      one_set ? absence.everywhere ^ missing_ : absence.somewhere & ~absence.everywhere;
  return make_error(Errc::kChanged, "worker " + std::to_string(std::countr_zero(who)) +
                                        " is in some sums of this step only: all workers have to "
                                        "begin it again");
}

Status Outcomes::run(Round& round, Epochs& epochs, Deadline deadline) {
  if (owed_ > 0) {
    --owed_;
    return restarted();
  }
  const auto absence = epochs.fold(round, flags(), deadline);
  if (!absence) return absence.error();
  if (*absence) {
    const Status status = take(**absence);
    ADDEND_TRY(end(round, status));
    return status;
  }
  Call call{round, std::nullopt};
  for (bool done = false; !done;) {
    const auto until = epochs.rejoin(deadline);
    if (!until) return until.error();
    const auto recovered = recover(call, epochs, *until);
    if (!recovered) return recovered.error();
    done = *recovered;
  }
  return *call.outcome;
}

Status Outcomes::end(const Round& round, const Status& status) {
  sums_.clear();
  if (status) ADDEND_TRY(sums_.take(round, RoundCopy::Of::kSums));
  place_ = {place_.ended + 1, status ? How::kSums : How::kChanged, sums_.words(), missing_};
  return {};
}

// This changes nothing of what begin_step looks at: calls that are owed end later than they are
// known to.
void Outcomes::end_restarted(Call& call) {
  sums_.clear();
  place_ = {place_.ended + 1, How::kRestarted, 0, missing_};
  if (call.outcome)
    ++owed_;
  else
    call.outcome = restarted();
}

// False if the server goes meanwhile. Everything is decided by answers that all workers are in, so
// that nobody who is not asked is further than those who are.
Result<bool> Outcomes::recover(Call& call, Epochs& epochs, Deadline until) {
  std::vector<Place> places;
  while (true) {
    const auto answered = ask(places, epochs, until);
    if (!answered || !*answered) return answered;
    const Place& latest =
        *std::max_element(places.begin(), places.end(),
                          [](const Place& a, const Place& b) { return a.ended < b.ended; });
    bool behind = false;
    for (const Place& place : places) {
      if (place.ended == latest.ended && place != latest) return contradiction();
      behind = behind || place.ended + 1 == latest.ended;
    }
    if (!behind) {
      if (place_.ended != latest.ended) {
        return make_error(Errc::kUnavailable,
                          "this worker was left behind: the others went on at a quorum, and the "
                          "aggregator that had the sums it lacks has lost its memory; take the "
                          "model's state from another worker and join anew");
      }
      end_restarted(call);
      return true;
    }
    const auto shared = share(latest, call, epochs, until);
    if (!shared || !*shared) return shared;
  }
}

// Each worker fills its own place in a plane of bits.
Result<bool> Outcomes::ask(std::vector<Place>& places, Epochs& epochs, Deadline until) {
  constexpr std::size_t kWords = 4;
  std::vector<uint64_t> words(world_ * kWords);
  for (uint64_t absent = 0;;) {
    std::fill(words.begin(), words.end(), 0);
    const uint64_t own[kWords] = {place_.ended, static_cast<uint64_t>(place_.how), place_.words,
                                  place_.missing};
    std::copy(std::begin(own), std::end(own), &words[worker_ * kWords]);
    Round question;
    question.add({Op::kOrU64, words.size(), words.data(), nullptr, nullptr});
    const auto absence = epochs.fold(question, ADDEND_FRAME_ENTRY, until);
    if (!absence && absent != 0 && absence.error().code == Errc::kTimeout) {
      return make_error(absence.error().code, "worker " + std::to_string(std::countr_zero(absent)) +
                                                  " did not come back after the aggregator did: " +
                                                  absence.error().message);
    }
    if (!absence) return absence.error();
    if (!*absence) return false;
    absent = (*absence)->somewhere;
    if (absent == 0) break;
    // Whoever is late has to catch up.
    if ((absent >> worker_ & 1) == 0) epochs.pause();
  }
  places.clear();
  for (std::size_t w = 0; w < words.size(); w += kWords)
    places.push_back({words[w], How{words[w + 1]}, words[w + 2], words[w + 3]});
  return true;
}

// Those for whom the call has ended have its sums, all of them the same bits, and OR with nothing
// keeps them. All workers are in this, also those who can use none of it: the set stays whole.
Result<bool> Outcomes::share(const Place& latest, Call& call, Epochs& epochs, Deadline until) {
  RoundCopy sums;
  if (latest.how == How::kSums) {
    const bool fits = place_.ended + 1 == latest.ended
                          ? RoundCopy::words_of(call.round, RoundCopy::Of::kSums) == latest.words
                          : latest.words <= kMostWords;
    if (!fits) return contradiction();
    // What comes back may be without some holder.
    ADDEND_TRY(place_.ended == latest.ended ? sums.take(sums_) : sums.blank(latest.words));
    Round bits = sums.as_bits();
    const auto absence = epochs.fold(bits, 0, until);
    if (!absence) return absence.error();
    if (!*absence) return false;
    if ((*absence)->somewhere != 0) return true;  // asked again, and shared again
  }
  if (place_.ended + 1 == latest.ended) ADDEND_TRY(follow(latest, sums, call));
  return true;
}

// REQUIRES: the call that `latest` tells of is the next one to end.
Status Outcomes::follow(const Place& latest, RoundCopy& sums, Call& call) {
  if (latest.how == How::kRestarted) {
    end_restarted(call);
    return {};
  }
  // Rounds are folded only after all have come to the same, so it is the call under way.
  if (call.outcome || latest.how > How::kChanged) return contradiction();
  if (latest.how == How::kChanged) {
    sums_.clear();
    changed_ = true;
    call.outcome = make_error(Errc::kChanged,
                              "a worker is in some sums of this step only: all workers have to "
                              "begin it again");
  } else {
    sums.give(call.round, RoundCopy::Of::kSums);
    sums_ = std::move(sums);
    missing_ = latest.missing;
    first_ = entry_ = false;
    call.outcome = Status();
  }
  place_ = latest;
  return {};
}

}  // namespace addend::service_client
