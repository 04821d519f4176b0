// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "reduce/claims.h"
#include "wire/hash.h"

namespace addend {
namespace {

bool is_usable_after(Errc code) {
  return code == Errc::kInvalidArgument || code == Errc::kMismatch || code == Errc::kChanged;
}

}  // namespace

ClaimLanes::ClaimLanes(std::span<const Reducer::Claim> claims) : claims_(claims) {
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const auto low = static_cast<uint32_t>(claims[i].value);
    const auto high = static_cast<uint32_t>(claims[i].value >> 32);
    lanes_[i * kLanesPerClaim] = low;
    lanes_[i * kLanesPerClaim + 1] = ~low;
    lanes_[i * kLanesPerClaim + 2] = high;
    lanes_[i * kLanesPerClaim + 3] = ~high;
  }
}

Status ClaimLanes::check(const Reducer& reducer) const {
  for (std::size_t i = 0; i < claims_.size(); ++i) {
    const uint32_t* lane = lanes_.data() + i * kLanesPerClaim;
    // The largest value equals the smallest (the complement of the largest complement) iff all are
    // equal; whether ours is, too, does not follow if we are missing.
    const bool all_equal = lane[0] == ~lane[1] && lane[2] == ~lane[3];
    if (all_equal && (uint64_t{lane[2]} << 32 | lane[0]) == claims_[i].value) continue;
    return make_error(Errc::kMismatch, std::string("workers differ in ") + claims_[i].what +
                                           "; worker " + std::to_string(reducer.worker()) + " of " +
                                           std::to_string(reducer.world()) + " has " +
                                           std::to_string(claims_[i].value));
  }
  return {};
}

uint64_t shape_of(const Round& round) {
  uint64_t hash = round.size;
  for (const Plane& plane : round) {
    hash = addend_random(hash, static_cast<uint64_t>(plane.op));
    hash = addend_random(hash, plane.lanes);
    const auto* table = static_cast<const uint8_t*>(plane.table);
    for (uint32_t i = 0; i < op_table_bytes(plane.op); ++i)
      hash = addend_random(hash, table[i]);
  }
  return hash;
}

Status Reducer::agree(std::span<const Claim> claims, Deadline deadline) {
  if (claims.size() > kMaxClaims) {
    return make_error(Errc::kInvalidArgument, "agree takes at most 8 claims");
  }
  ClaimLanes lanes(claims);
  Round round;
  round.add(lanes.plane());
  begin_step();
  ADDEND_TRY(reduce(round, deadline));
  return lanes.check(*this);
}

Status Reducer::reduce_step(std::span<const Claim> claims, Round& round, Deadline deadline) {
  ADDEND_TRY(agree(claims, deadline));
  return round.size > 0 ? reduce(round, deadline) : Status();
}

Result<Link> measure_link(Reducer& reducer, Deadline deadline) {
  if (reducer.world() == 1) return Link();
  constexpr uint64_t kSmall = 1, kLarge = 1 << 20;
  std::vector<float> lanes(kLarge, 0.0f);
  Status status;
  const auto microseconds = [&](uint64_t count) {
    Round round;
    round.add({Op::kSumF32, count, lanes.data(), nullptr, nullptr});
    const auto begin = std::chrono::steady_clock::now();
    reducer.begin_step();
    if (status) status = reducer.reduce(round, deadline);
    return std::chrono::duration<float, std::micro>(std::chrono::steady_clock::now() - begin)
        .count();
  };
  std::array<float, 7> small{};
  for (float& one : small)
    one = microseconds(kSmall);
  std::sort(small.begin(), small.end());
  const float large = std::min(microseconds(kLarge), microseconds(kLarge));
  ADDEND_TRY(status);
  // Floats above zero have the order of their bits, so the slowest worker's figures are a maximum.
  std::array<uint32_t, 2> slowest = {std::bit_cast<uint32_t>(small[2]),
                                     std::bit_cast<uint32_t>(large)};
  Round round;
  round.add({Op::kMaxU32, slowest.size(), slowest.data(), nullptr, nullptr});
  reducer.begin_step();
  ADDEND_TRY(reducer.reduce(round, deadline));
  const double latency = std::bit_cast<float>(slowest[0]), bulk = std::bit_cast<float>(slowest[1]);
  // An all-reduce moves every byte twice, and takes a step or two however small it is.
  const double bits = 2.0 * 8 * sizeof(float) * kLarge;
  return Link{latency, bits / std::max(bulk - latency, bulk / 4) * 1e-3};
}

Status Reducer::check_usable() const {
  return broken_.empty() ? Status() : make_error(Errc::kUnavailable, broken_);
}

Error Reducer::broken_by(const Error& error) {
  if (broken_.empty()) broken_ = "an earlier round failed: " + error.message;
  return error;
}

Status Reducer::noted(Status status) {
  if (!status && !is_usable_after(status.error().code)) return broken_by(status.error());
  return status;
}

void Reducer::abandon() {
  started_.clear();
  if (broken_.empty()) broken_ = "the rounds under way were abandoned";
}

Result<uint64_t> Reducer::start(Round& round) {
  ADDEND_TRY(check_usable());
  Started started;
  started.number = next_number_++;
  started.round = &round;
  started_.push_back(std::move(started));
  return started_.back().number;
}

Result<uint64_t> Reducer::start_step(std::span<const Claim> claims, Round& round) {
  if (claims.size() > kMaxClaims) {
    return make_error(Errc::kInvalidArgument, "agree takes at most 8 claims");
  }
  const auto number = Reducer::start(round);
  ADDEND_TRY(number);
  started_.back().first = true;
  started_.back().claim_count = claims.size();
  std::copy(claims.begin(), claims.end(), started_.back().claims.begin());
  return number;
}

Result<bool> Reducer::wait_any(std::span<const uint64_t>, Deadline) { return true; }

void Reducer::fold(Started& started, Deadline deadline) {
  started.over = true;
  // Others may still be in a round that failed: what is done now could be added to it.
  started.status = check_usable();
  if (!started.status) return;
  const auto claims = std::span(started.claims).first(started.claim_count);
  if (started.first) {
    started.status = noted(reduce_step(claims, *started.round, deadline));
  } else if (started.round->size > 0) {
    started.status = noted(reduce(*started.round, deadline));
  }
}

Result<bool> Reducer::wait(uint64_t number, Deadline deadline) {
  for (Started& started : started_) {
    if (started.number > number) break;
    if (!started.over) fold(started, deadline);
    if (started.number != number) continue;
    const Status status = started.status;
    std::erase_if(started_, [&](const Started& one) { return one.number == number; });
    if (!status) return status.error();
    return true;
  }
  return make_error(Errc::kInvalidArgument, "round " + std::to_string(number) + " is unknown");
}

}  // namespace addend
