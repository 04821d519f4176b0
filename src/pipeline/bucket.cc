// SPDX-License-Identifier: Apache-2.0
#include "pipeline/bucket.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/assert.h"
#include "wire/hash.h"

namespace addend {

using Clock = std::chrono::steady_clock;

Bucket::Bucket(Job& job, std::span<const Part> parts, bool first, bool last)
    : job_(&job), parts_(parts), first_(first), last_(last), ways_(parts.size()) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ways_[i].codec = parts[i].codec;
    ways_[i].gradient = parts[i].gradient;
  }
}

void Bucket::add_span(Stage stage, Clock::time_point begin) {
  spans_.push_back({stage, begin, Clock::now()});
}

void Bucket::begin(Way& way) {
  status = job_->what.in_place ? way.codec->begin_in_place(way.gradient)
                               : way.codec->begin(way.gradient);
  way.begun = way.has_round = status.has_value();
}

// The codec has cancelled itself if that fails.
void Bucket::next_round(Way& way) {
  const Result<bool> more = way.codec->next_round(way.round);
  way.has_round = more && *more;
  if (more) return;
  status = more.error();
  way.begun = false;
}

void Bucket::encode() {
  const auto from = Clock::now();
  if (first_ && !prepared_ && job_->what.prepare) status = job_->what.prepare();
  prepared_ = true;
  for (Way& way : ways_) {
    if (status && !way.begun) begin(way);
    if (status && way.has_round) next_round(way);
  }
  add_span(Stage::kEncode, from);
}

bool Bucket::has_round() const {
  return std::any_of(ways_.begin(), ways_.end(), [](const Way& way) { return way.has_round; });
}

bool Bucket::is_last_round() const {
  return !status || std::all_of(ways_.begin(), ways_.end(),
                                [](const Way& way) { return !way.has_round || way.round.last; });
}

uint64_t Bucket::fingerprint() const {
  if (ways_.size() == 1) return ways_[0].codec->fingerprint();
  uint64_t hash = ways_.size();
  for (const Way& way : ways_)
    hash = addend_random(hash, way.codec->fingerprint());
  return hash;
}

// The caller's come first: they say in its words why plans may differ.
std::vector<Reducer::Claim> Bucket::claims() const {
  std::vector<Reducer::Claim> claims;
  claims.reserve(Reducer::kMaxClaims);
  claims.push_back({"whether all can go on", status ? uint64_t{1} : uint64_t{0}});
  claims.insert(claims.end(), job_->what.claims.begin(), job_->what.claims.end());
  claims.push_back({"the plan or layout", fingerprint()});
  claims.push_back({"the order of submission", job_->ticket});
  return claims;
}

Status Bucket::start(Reducer& reducer) {
  started_ = Clock::now();
  // A worker that cannot go on says so with a round of nothing.
  Way* first = nullptr;
  if (!announced_) {
    first = &ways_[0];
    for (Way& way : ways_) {
      if (!status) way.has_round = false;
      if (!way.has_round) way.round.clear();
    }
    const auto number = reducer.start_step(claims(), first->round);
    if (!number) return number.error();
    first->number = *number;
    announced_ = true;
  }
  ++rounds_;
  for (Way& way : ways_) {
    if (&way == first || !way.has_round) continue;
    const auto number = reducer.start(way.round);
    if (!number) return number.error();
    way.number = *number;
  }
  return {};
}

Result<bool> Bucket::wait(Reducer& reducer, Deadline until) {
  for (Way& way : ways_) {
    if (!way.number) continue;
    const Result<bool> done = reducer.wait(*way.number, until);
    if (done && !*done) return false;
    way.number.reset();
    // Workers that changed did so for all: the other parts' rounds are waited for, too.
    if (!done && done.error().code == Errc::kChanged) changed_ = done.error();
    if (!done && !changed_) return done.error();
  }
  if (changed_) return *std::exchange(changed_, std::nullopt);
  add_span(rounds_ == 1 ? Stage::kAgree : Stage::kReduce, started_);
  return true;
}

bool Bucket::is_under_way() const {
  return std::any_of(ways_.begin(), ways_.end(),
                     [](const Way& way) { return way.number.has_value(); });
}

uint64_t Bucket::next_number() const {
  const auto found = std::find_if(ways_.begin(), ways_.end(),
                                  [](const Way& way) { return way.number.has_value(); });
  return *found->number;
}

bool Bucket::has_ended(const Reducer& reducer) const {
  return std::all_of(ways_.begin(), ways_.end(),
                     [&](const Way& way) { return !way.number || reducer.has_ended(*way.number); });
}

Status Bucket::set_missing(uint64_t workers) {
  for (Way& way : ways_)
    ADDEND_TRY(way.codec->set_missing(workers));
  return {};
}

void Bucket::cancel() {
  for (Way& way : ways_) {
    if (way.begun) way.codec->cancel();
    way.begun = way.has_round = false;
    way.number.reset();
  }
  announced_ = false;
  rounds_ = 0;
}

void Job::forget_saved(std::vector<Buffer>& spare) {
  for (Saved& one : saved)
    spare.push_back(std::move(one.copy));
  saved.clear();
}

void Job::restore(std::vector<Buffer>& spare) {
  for (const Saved& one : saved) {
    if (one.bytes > 0) std::memcpy(one.gradient, one.copy.as<uint8_t>(), one.bytes);
  }
  forget_saved(spare);
}

Status Bucket::save(const Way& way, std::vector<Buffer>& spare) {
  Job::Saved saved;
  saved.gradient = way.gradient;
  saved.bytes = way.codec->layout().count * dtype_bytes(way.codec->layout().dtype);
  if (!spare.empty()) {
    saved.copy = std::move(spare.back());
    spare.pop_back();
  }
  ADDEND_TRY(saved.copy.reserve(saved.bytes));
  if (saved.bytes > 0) std::memcpy(saved.copy.as<uint8_t>(), way.gradient, saved.bytes);
  job_->saved.push_back(std::move(saved));
  return {};
}

void Bucket::decode(std::vector<Buffer>& spare) {
  const auto from = Clock::now();
  for (Way& way : ways_) {
    if (status && way.has_round) next_round(way);  // takes in the last round's sums
    ADDEND_ASSERT(!status || !way.has_round);
  }
  for (Way& way : ways_) {
    if (status && !last_ && !job_->what.in_place) status = save(way, spare);
    if (!status) break;
    status = way.codec->finish(way.gradient);
    way.begun = false;
  }
  if (!status) cancel();
  add_span(Stage::kDecode, from);
}

}  // namespace addend
