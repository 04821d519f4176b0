// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/quant.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "base/bits.h"
#include "codec/fingerprint.h"
#include "wire/element.h"

namespace addend::quant {
namespace {

constexpr uint64_t kNarrowGroup = ADDEND_NARROW_GROUP_LANES;

}  // namespace

Result<std::unique_ptr<Codec>> create_quant(const CodecSpec& spec, const Layout& layout) {
  const Result<Options> options = read_options(spec, layout);
  ADDEND_TRY(options);
  auto codec = QuantCodec::make(layout, *options);
  ADDEND_TRY(codec);
  return std::unique_ptr<Codec>(std::move(*codec));
}

Result<std::unique_ptr<QuantCodec>> QuantCodec::make(const Layout& layout, const Options& options) {
  auto codec = std::unique_ptr<QuantCodec>(new QuantCodec(layout, options));
  ADDEND_TRY(codec->set_up());
  return codec;
}

Status QuantCodec::set_up() {
  ADDEND_TRY(make_codings());
  if (indexed()) {
    // Blocks follow the union, and are cut anew in every step.
    return residual_.reserve(options_.feedback, layout().count, 0);
  }
  ADDEND_TRY(cut_blocks(layout()));
  ADDEND_TRY(residual_.reserve(options_.feedback, blocks_.padded(), blocks_.size()));
  if (options_.feedback == Feedback::kFloat) ADDEND_TRY(residual_.reserve_draft());
  return options_.norms == Norms::kAhead ? residual_.reserve_norms() : Status{};
}

Status QuantCodec::cut_blocks(const Layout& elements) {
  blocks_.cut(elements, options_.block);
  if (blocks_.size() == 0) return {};
  ADDEND_TRY(norms_.reserve(blocks_.size() * 4));
  parts_.resize(blocks_.size());
  return reserve_scratch();
}

Status QuantCodec::reserve(Scratch& one) const {
  const uint64_t largest = blocks_.largest();
  ADDEND_TRY(one.signs.reserve(largest / 8));
  ADDEND_TRY(one.rotated.reserve(largest * 4));
  ADDEND_TRY(one.lost.reserve(largest * 4));
  ADDEND_TRY(one.levels.reserve(largest));
  if (options_.down != 0) ADDEND_TRY(one.nibbles.reserve(largest / 2));
  return {};
}

// Grows with the threads and the blocks, and then stays.
Status QuantCodec::reserve_scratch() {
  if (scratch_.size() < loop_threads()) scratch_.resize(loop_threads());
  for (Scratch& one : scratch_)
    ADDEND_TRY(reserve(one));
  return {};
}

void QuantCodec::add_plan(Fingerprint& print) const {
  if (knows_norms()) {
    for (const uint32_t norm : residual_.norms())
      print.add(uint64_t{norm});
  }
  if (indexed()) form_.add_to(print);
}

uint64_t QuantCodec::memory_bytes() const {
  uint64_t total = residual_.memory_bytes() + thresholds_.memory_bytes() + blocks_.memory_bytes() +
                   index_.memory_bytes() + parts_.capacity() * sizeof(Part);
  for (const LanePlane& plane : planes_)
    total += plane.data.capacity() + plane.sums.capacity();
  for (const Buffer* buffer : {&norms_, &elements_, &values_, &owed_})
    total += buffer->capacity();
  for (const Scratch& one : scratch_) {
    for (const Buffer* buffer : {&one.signs, &one.rotated, &one.lost, &one.levels, &one.nibbles})
      total += buffer->capacity();
  }
  return total;
}

Status QuantCodec::do_begin(const void* gradient) {
  gradient_ = source_ = gradient;
  waiting_ = Waiting::kNothing;
  excluded_ = ahead_ = false;
  live_ = 0;
  draft().mode = "quant";
  return {};
}

Result<bool> QuantCodec::do_round(Round& round) {
  ADDEND_TRY(reserve_scratch());
  switch (waiting_) {
    case Waiting::kNothing:
      if (layout().count == 0) return false;
      if (indexed()) {
        ADDEND_TRY(open_index(round));
        return true;
      }
      if (knows_norms()) {
        ADDEND_TRY(open_ahead(round));
        return true;
      }
      open_norms(round);
      return true;
    case Waiting::kIndex:
    case Waiting::kElements:
      return close_index(round);
    case Waiting::kNorms:
      waiting_ = Waiting::kLast;
      ADDEND_TRY(read_norms());
      if (live_ == 0) return false;
      ADDEND_TRY(thresholds_.set(threshold_draw()));
      ADDEND_TRY(encode(round));
      return true;
    case Waiting::kLast:
      return false;
  }
  return false;
}

// Norm in double, for blocks whose energy leaves float's range, or infinity where an element is not
// finite; without rotation the largest magnitude stands for it.
double QuantCodec::slow_norm(const float* x, uint64_t n) const {
  double energy = 0, largest = 0;
  for (uint64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return std::numeric_limits<double>::infinity();
    energy += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    largest = std::max(largest, std::fabs(static_cast<double>(x[i])));
  }
  return rotates() ? std::sqrt(energy) : largest;
}

// What this worker says about a block in round 0. Rotation keeps the norm, so without a residual
// the elements themselves will do.
uint32_t QuantCodec::norm_lane(Scratch& mine, uint64_t b) {
  const Block& block = blocks_[b];
  const float* x = mine.rotated.as<float>();
  uint64_t n = block.size;
  float energy = -1;
  if (residual_.has_draft()) {
    rotate_block(mine, b, 1);
    x = residual_.draft() + block.place;
    energy = add_owed(mine.rotated.as<float>(), residual_.values() + block.place, n,
                      residual_.draft() + block.place, streams());
  } else if (keeps_rotated()) {
    load_rotated(mine, b, 1);
  } else if (source_type() == DType::kF32) {
    x = static_cast<const float*>(source_) + block.begin;
    n = block.elements;
  } else {
    auto* widened = mine.rotated.as<float>();
    n = block.elements;
    for (uint64_t i = 0; i < n; ++i)
      widened[i] = load_float(source_type(), source_, block.begin + i);
  }
  if (!rotates() || n % kLanes != 0 || n > kMostFloatSum) {
    energy = 0;
  } else if (energy < 0) {
    energy = quant::energy(x, n);
  }
  double norm = static_cast<double>(std::sqrt(energy));
  if (!(energy > kLeastEnergy && energy < kMostEnergy)) norm = slow_norm(x, n);
  if (keeps_rotated() && !std::isfinite(norm)) {
    // The rotation itself may have overflowed: once more, out of harm's way.
    load_rotated(mine, b, kFarDown);
    norm = slow_norm(mine.rotated.as<float>(), n) / static_cast<double>(kFarDown);
  }
  if (keeps_rotated() && rotates()) norm *= 1 / std::sqrt(static_cast<double>(block.size));
  // A norm that no float holds must not be cut to one that does: the block would come back smaller.
  if (!(norm <= static_cast<double>(std::numeric_limits<float>::max()))) return kBroken;
  return addend_f32_bits(static_cast<float>(norm));
}

void QuantCodec::open_norms(Round& round) {
  auto* lanes = norms_.as<uint32_t>();
  for_each_block([&](uint64_t b, Scratch& mine) { lanes[b] = norm_lane(mine, b); });
  round.add({Op::kMaxU32, blocks_.size(), lanes, nullptr, nullptr});
  waiting_ = Waiting::kNorms;
}

// Turns the folded norms into each block's part: which coding, which lanes.
Status QuantCodec::read_norms() {
  const auto* lanes = norms_.as<uint32_t>();
  for (uint64_t b = 0; b < blocks_.size(); ++b) {
    parts_[b] = Part{};
    parts_[b].norm = addend_f32_from_bits(lanes[b]);
  }
  ADDEND_TRY(note_broken());
  if (options_.bits == 0) choose_widths();
  place_all_lanes();
  return {};
}

// Finds the blocks that some worker cannot send.
Status QuantCodec::note_broken() {
  const auto* lanes = norms_.as<uint32_t>();
  uint64_t broken = 0;
  for (uint64_t b = 0; b < blocks_.size(); ++b) {
    if (lanes[b] < kFirstBroken) continue;  // a worker's alarm, or damage
    parts_[b].broken = true;
    parts_[b].norm = 0;
    broken += blocks_[b].elements;
  }
  draft().escaped_values = draft().nonfinite = broken;
  if (broken > 0 && options_.non_finite == NonFinite::kError) return broken_blocks(broken);
  return {};
}

void QuantCodec::place_all_lanes() {
  for (LanePlane& plane : planes_)
    plane.lanes = 0;
  for (uint64_t s = 0; s < blocks_.segments(); ++s)
    place_lanes(blocks_.segment(s));
}

// Sums are narrowed group by group: a group has lanes of one segment only, and as many wherever
// the segment stands, so that its results do not depend on its neighbours.
void QuantCodec::place_lanes(const BlockRange& range) {
  for (uint64_t b = range.first; b < range.first + range.count; ++b) {
    Part& part = parts_[b];
    if (part.norm == 0) continue;
    ++live_;
    uint64_t& lanes_used = planes_[static_cast<std::size_t>(codings_[part.coding].lane)].lanes;
    part.lane = lanes_used;
    lanes_used += blocks_[b].size;
  }
  if (options_.down == 0 || layout().segments.empty()) return;
  for (LanePlane& plane : planes_)
    plane.lanes = ceil_div(plane.lanes, kNarrowGroup) * kNarrowGroup;
}

// Each segment has the whole budget for itself, whatever travels with it.
void QuantCodec::choose_widths() {
  for (uint64_t s = 0; s < blocks_.segments(); ++s) {
    const BlockRange range = blocks_.segment(s);
    std::vector<float> norms(range.count);
    std::vector<uint32_t> elements(range.count);
    for (uint64_t b = 0; b < range.count; ++b) {
      norms[b] = parts_[range.first + b].norm;
      elements[b] = blocks_[range.first + b].size;
    }
    const std::vector<uint8_t> widths = allocate_widths(norms, elements, codings_, options_.budget);
    for (uint64_t b = 0; b < range.count; ++b)
      parts_[range.first + b].coding = widths[b];
  }
}

}  // namespace addend::quant
