// SPDX-License-Identifier: Apache-2.0
#include "reduce/mesh/transfer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "addend/fold.h"
#include "base/bits.h"
#include "reduce/claims.h"
#include "wire/hash.h"

namespace addend::mesh {
namespace {

constexpr uint64_t kByteAlign = 64;

uint64_t aligned(uint64_t bytes) { return ceil_div(bytes, kByteAlign) * kByteAlign; }

uint8_t* lanes_at(const Plane& plane, uint64_t lane) {
  return static_cast<uint8_t*>(plane.data) + op_bytes(plane.op, lane);
}
uint8_t* sums_at(const Plane& plane, uint64_t lane) {
  void* sums = is_table_sum(plane.op) ? plane.sums : plane.data;
  return static_cast<uint8_t*>(sums) + op_sum_bytes(plane.op, lane);
}

// Bounds that are none are as good as no hint. If they are wrong on one worker only, the ways
// differ, and the round is refused.
bool has_bounds(const Plane& plane, uint32_t world) {
  return plane.bounds != nullptr && plane.op == Op::kOrU64 && plane.bounds[world] <= plane.lanes &&
         std::is_sorted(plane.bounds, plane.bounds + world + 1);
}

}  // namespace

Way choose_way(const Round& round, uint64_t exchange_bytes, uint32_t world) {
  const auto bounded = [&](const Plane& plane) { return has_bounds(plane, world); };
  if (round.size > 0 && std::all_of(round.begin(), round.end(), bounded)) return Way::kGather;
  return round.bytes() <= exchange_bytes ? Way::kExchange : Way::kScatter;
}

Transfer::Segment Transfer::segment(const Plane& plane, uint32_t worker) const {
  if (way_ == Way::kExchange) return {0, plane.lanes};
  if (way_ == Way::kGather) {
    return {plane.bounds[worker], plane.bounds[worker + 1] - plane.bounds[worker]};
  }
  // On whole bytes, words and groups of the operation.
  const uint64_t align = op_lane_align(plane.op);
  const uint64_t share = ceil_div(plane.lanes, align * world_) * align;
  const uint64_t begin = std::min(share * worker, plane.lanes);
  return {begin, std::min(share, plane.lanes - begin)};
}

uint64_t Transfer::hash_of_round() const {
  uint64_t hash = addend_random(shape_of(round_), static_cast<uint64_t>(way_));
  for (const Plane& plane : round_) {
    for (uint32_t w = 0; way_ == Way::kGather && w <= world_; ++w)
      hash = addend_random(hash, plane.bounds[w]);
  }
  return hash;
}

Status Transfer::begin(uint64_t number, const Round& round, Way way, uint32_t world,
                       uint32_t worker) {
  number_ = number;
  round_ = round;
  way_ = way;
  world_ = world;
  worker_ = worker;
  shape_ = hash_of_round();
  share_bytes_ = 0;
  for (const Plane& plane : round_) {
    if (way_ == Way::kGather) break;  // everything arrives in place
    share_bytes_ += aligned(op_bytes(plane.op, segment(plane, worker).lanes));
  }
  ADDEND_TRY(received_.reserve(share_bytes_ * (world - 1)));
  got_share_.assign(world, false);
  got_sums_.assign(world, false);
  sources_.resize(world);
  came_.assign(world, 0);
  done_ = {};
  shares_ = sums_ = unsent_ = world - 1;
  claim_count_ = 0;
  folded_ = false;
  refused_.reset();
  return {};
}

void Transfer::claim(std::span<const Reducer::Claim> claims) {
  claim_count_ = claims.size();
  std::copy(claims.begin(), claims.end(), claims_.begin());
  claimed_.assign(world_, {});
  for (std::size_t i = 0; i < claims.size(); ++i)
    claimed_[worker_][i] = claims[i].value;
}

Frame Transfer::frame(Kind kind, uint64_t length) const {
  Frame frame;
  frame.kind = kind;
  frame.round = number_;
  frame.shape = shape_;
  frame.length = length;
  for (std::size_t i = 0; i < claim_count_; ++i)
    frame.claims[i] = claims_[i].value;
  return frame;
}

bool Transfer::expects(Kind kind, uint32_t from) const {
  if (kind == Kind::kShare) return !got_share_[from];
  if (got_sums_[from]) return false;
  if (kind == Kind::kSums) return way_ == Way::kScatter && !refused_;
  return two_steps() || !folded_;  // others may know before us that rounds differ
}

bool Transfer::waits_for(uint32_t from) const {
  return from != worker_ && (!got_share_[from] || (two_steps() && !got_sums_[from]));
}

// Once everybody's lanes come in, everybody's frames have been accepted: nobody refuses any more.
void Transfer::came(uint32_t from, uint64_t bytes) {
  came_[from] = bytes;
  if (way_ != Way::kScatter || refused_) return;
  uint64_t least = bytes;
  for (uint32_t w = 0; w < world_; ++w) {
    if (w != worker_) least = std::min(least, came_[w]);
  }
  fold_until(least);
}

void Transfer::arrived(Kind kind, uint32_t from) {
  (kind == Kind::kShare ? got_share_ : got_sums_)[from] = true;
  --(kind == Kind::kShare ? shares_ : sums_);
  if (kind == Kind::kRefusal && !refused_) {
    // Until we see for ourselves who brought what: then that is said instead.
    refused_ = make_error(Errc::kMismatch, "worker " + std::to_string(from) + " refused a round");
  }
}

bool Transfer::accepts(uint32_t from, const Frame& frame) {
  std::copy(std::begin(frame.claims), std::end(frame.claims), claimed_[from].begin());
  const bool alike = claimed_[from] == claimed_[worker_];
  if (alike && frame.shape == shape_) return true;
  refused_ = make_error(Errc::kMismatch, "worker " + std::to_string(from) +
                                             " brings planes of another shape than worker " +
                                             std::to_string(worker_));
  return false;
}

// By then everybody's claims are here. They say in a caller's words why planes may differ.
std::optional<Error> Transfer::refused() const {
  for (std::size_t i = 0; refused_ && i < Reducer::kMaxClaims; ++i) {
    std::map<uint64_t, uint32_t> counts;
    for (const auto& claims : claimed_)
      ++counts[claims[i]];
    if (counts.size() == 1) continue;
    uint64_t common = claimed_[0][i];
    for (const auto& claims : claimed_) {
      if (counts[claims[i]] > counts[common]) common = claims[i];
    }
    const std::string what = i < claim_count_ ? claims_[i].what : "whether a step begins";
    std::string text = "workers differ in " + what + ": most have " + std::to_string(common);
    constexpr int kMostNamed = 8;
    int named = 0;
    for (uint32_t w = 0; w < world_; ++w) {
      if (claimed_[w][i] == common || named++ >= kMostNamed) continue;
      text += ", worker " + std::to_string(w) + " has " + std::to_string(claimed_[w][i]);
    }
    return make_error(Errc::kMismatch, text);
  }
  return refused_;
}

std::optional<Kind> Transfer::fold_if_ready() {
  // In an exchange all of our lanes are sent from where the sums go.
  if (folded_ || shares_ > 0 || (way_ == Way::kExchange && unsent_ > 0)) return {};
  folded_ = true;
  if (way_ == Way::kGather) {
    if (refused_) clear_gathered();
  } else if (!refused_) {
    fold_until(UINT64_MAX);
  }
  if (!two_steps()) return {};
  unsent_ += world_ - 1;
  return refused_ ? Kind::kRefusal : Kind::kSums;
}

uint8_t* Transfer::received(uint32_t from) {
  return received_.as<uint8_t>() + share_bytes_ * (from - (from > worker_ ? 1 : 0));
}

void Transfer::lay_out(Kind kind, uint32_t from, uint32_t to, Parts& parts) {
  if (kind == Kind::kRefusal) return;
  uint8_t* at = from == worker_ ? nullptr : received(from);
  for (const Plane& plane : round_) {
    const bool senders = kind == Kind::kSums || way_ == Way::kGather;
    const Segment lanes = segment(plane, senders ? from : to);
    if (kind == Kind::kSums) {
      parts.add(sums_at(plane, lanes.begin), op_sum_bytes(plane.op, lanes.lanes));
      continue;
    }
    const uint64_t bytes = op_bytes(plane.op, lanes.lanes);
    if (from == worker_ || way_ == Way::kGather) {
      parts.add(lanes_at(plane, lanes.begin), bytes);
    } else {
      parts.add(at, bytes);
      at += aligned(bytes);
    }
  }
}

// A round that is refused leaves planes as they were: others' lanes were zero.
void Transfer::clear_gathered() {
  for (const Plane& plane : round_) {
    for (uint32_t w = 0; w < world_; ++w) {
      const Segment lanes = segment(plane, w);
      const uint64_t bytes = op_bytes(plane.op, lanes.lanes);
      if (w != worker_ && bytes > 0) std::memset(lanes_at(plane, lanes.begin), 0, bytes);
    }
  }
}

// Folds what so many bytes of everybody's share hold, in whole blocks: a few lanes of everybody at
// a time stay in the cache.
void Transfer::fold_until(uint64_t bytes) {
  constexpr uint64_t kBlockLanes = 8192;
  for (; done_.planes < round_.size; ++done_.planes, done_.lanes = 0) {
    const Plane& plane = round_.begin()[done_.planes];
    const uint64_t all = segment(plane, worker_).lanes;
    while (done_.lanes < all) {
      const uint64_t lanes = std::min(kBlockLanes, all - done_.lanes);
      if (done_.bytes + op_bytes(plane.op, done_.lanes + lanes) > bytes) return;
      fold_block(plane, done_.lanes, lanes);
      done_.lanes += lanes;
    }
    done_.bytes += op_bytes(plane.op, all);
    done_.place += aligned(op_bytes(plane.op, all));
  }
}

// Of the plane that is folded now, from `lane` of our share on.
void Transfer::fold_block(const Plane& plane, uint64_t lane, uint64_t lanes) {
  const uint64_t first = segment(plane, worker_).begin + lane, at = op_bytes(plane.op, lane);
  for (uint32_t w = 0; w < world_; ++w)
    sources_[w] = w == worker_ ? lanes_at(plane, first) : received(w) + done_.place + at;
  uint8_t* sum = sums_at(plane, first);
  if (is_table_sum(plane.op)) {
    if (!is_narrow_sum(plane.op)) std::memset(sum, 0, op_sum_bytes(plane.op, lanes));
    return fold_tables(plane.op, sum, sources_.data(), world_, plane.table, lanes);
  }
  for (uint32_t w = 1; w < world_; ++w)
    fold(plane.op, sources_[0], sources_[w], lanes);
  if (sources_[0] != sum) std::memcpy(sum, sources_[0], op_bytes(plane.op, lanes));
}

}  // namespace addend::mesh
