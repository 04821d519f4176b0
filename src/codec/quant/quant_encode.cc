// SPDX-License-Identifier: Apache-2.0
// The second round of a QuantCodec's step: rotate, round, and lay out the lanes.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/fingerprint.h"
#include "codec/quant/quant.h"
#include "wire/element.h"

namespace addend::quant {
const uint64_t* QuantCodec::signs(Scratch& mine, const Block& block, uint64_t epoch) const {
  const uint64_t seed = sign_stream(layout().seed, block.owner, epoch, block.number);
  auto* words = mine.signs.as<uint64_t>();
  for (uint64_t w = 0; w < block.size / 64; ++w)
    words[w] = addend_random(seed, w);
  return words;
}

// mine.rotated = rotation of the block's elements times prescale.
void QuantCodec::rotate_block(Scratch& mine, uint64_t b, float prescale) const {
  const Block& block = blocks_[b];
  auto* rotated = mine.rotated.as<float>();
  const float* source = rotated;
  const bool direct = source_type() == DType::kF32 && block.elements == block.size && prescale == 1;
  if (direct) {
    source = static_cast<const float*>(source_) + block.begin;
  } else {
    for (uint64_t i = 0; i < block.elements; ++i) {
      rotated[i] = load_float(source_type(), source_, block.begin + i) * prescale;
    }
    std::fill(rotated + block.elements, rotated + block.size, 0.0f);
  }
  if (rotates()) {
    rotate(source, signs(mine, block, step_ / sign_period()), block.size, rotated,
           elements_after(b));
  } else if (direct) {
    std::memcpy(rotated, source, uint64_t{block.size} * 4);
  }
}

// The same, plus the residual.
void QuantCodec::load_rotated(Scratch& mine, uint64_t b, float prescale) const {
  const Block& block = blocks_[b];
  rotate_block(mine, b, prescale);
  if (keeps_rotated())
    residual_.add_to(b, block.place, block.size, mine.rotated.as<float>(), prescale);
}

// `norm` is the shared norm in the units of the elements given to the quantiser.
Quantiser QuantCodec::quantiser(uint64_t b, const Part& part, float norm) const {
  const Coding& coding = codings_[part.coding];
  const auto granularity = static_cast<float>(coding.table.granularity);
  Quantiser q;
  q.scale = scale_to_table(grid(coding), norm);
  q.middle = granularity / 2;
  q.top = granularity;
  q.cells = coding.table.granularity + 1;
  q.lower = coding.lower.data();
  q.gap = coding.gap.data();
  q.index = coding.index.data();
  q.uniform = coding.table.levels.size() == q.cells;
  q.thresholds = thresholds_.of_block(threshold_name(blocks_[b]));
  return q;
}

// The next block's elements, if it is as long and they are read as they are.
const float* QuantCodec::elements_after(uint64_t b) const {
  if (source_type() != DType::kF32 || !has_like_after(b)) return nullptr;
  return static_cast<const float*>(source_) + blocks_[b + 1].begin;
}

bool QuantCodec::has_like_after(uint64_t b) const {
  return b + 1 < blocks_.size() && blocks_[b + 1].elements >= blocks_[b].size;
}

// Ahead of its norm a block may turn out not to be finite.
bool QuantCodec::is_broken_here(uint64_t b) const {
  return ahead_ && norms_.as<uint32_t>()[b] >= kFirstBroken;
}

// Writes the levels of a block, one a byte, or its indices, two a byte.
void QuantCodec::encode_block(Scratch& mine, uint64_t b, Carrier as, uint8_t* out) {
  const Block& at = blocks_[b];
  const Part& part = parts_[b];
  const float prescale = prescale_of(part.norm);
  if (is_broken_here(b)) {  // nobody will read the block
    std::memset(out, 0, as == Carrier::kIndices ? at.size / 2 : at.size);
    return;
  }
  const float* rotated = mine.rotated.as<float>();
  if (residual_.has_draft() && prescale == 1) {  // norm_lane left it there
    rotated = residual_.draft() + at.place;
    if (part.sampled) std::copy_n(rotated, at.size, mine.rotated.as<float>());
  } else {
    load_rotated(mine, b, prescale);
  }
  Quantiser q = quantiser(b, part, part.norm * prescale);
  if (residual_.has_draft()) {
    q.next = has_like_after(b) ? residual_.draft() + blocks_[b + 1].place : nullptr;
  } else if (const float* next = elements_after(b); next != nullptr) {
    q.next = next + at.size / 2;  // rotating this block has fetched the first half
    q.next_half = true;
  }
  if (as == Carrier::kIndices) {
    quantise_indices(q, rotated, at.size, out);
  } else {
    quantise_levels(q, rotated, at.size, out);
  }
  if (residual_.has_draft()) draft_residual(mine, b, as, out);
}

// What the block had beyond the levels, or indices, that were made of it.
void QuantCodec::draft_residual(Scratch& mine, uint64_t b, Carrier as, const uint8_t* coded) {
  const Block& at = blocks_[b];
  const Part& part = parts_[b];
  const uint8_t* levels = coded;
  if (as == Carrier::kIndices) {
    look_up(codings_[part.coding].levels8.data(), coded, at.size, mine.levels.as<uint8_t>());
    levels = mine.levels.as<uint8_t>();
  }
  const float prescale = prescale_of(part.norm);
  const Affine values = level_values(grid(codings_[part.coding]), part.norm * prescale);
  if (prescale == 1) {
    return subtract(levels, at.size, values.factor, values.offset, residual_.draft() + at.place);
  }
  auto* left = mine.lost.as<float>();
  std::copy_n(mine.rotated.as<float>(), at.size, left);
  subtract(levels, at.size, values.factor, values.offset, left);
  for (uint64_t i = 0; i < at.size; ++i)
    left[i] /= prescale;
  residual_.store_draft(at.place, at.size, left);
}

Status QuantCodec::encode(Round& round) {
  const bool indices = options_.carrier == Carrier::kIndices;
  for (std::size_t l = 0; l < planes_.size(); ++l) {
    LanePlane& plane = planes_[l];
    if (plane.lanes == 0) continue;
    const Op op = lane_op(static_cast<Lane>(l), options_);
    ADDEND_TRY(plane.data.reserve(op_bytes(op, plane.lanes)));
    if (indices) ADDEND_TRY(plane.sums.reserve(op_sum_bytes(op, plane.lanes)));
    const Coding& first = codings_[0];
    const void* table = op_table_bytes(op) == 32 ? static_cast<const void*>(first.levels16.data())
                                                 : first.levels8.data();
    round.add({op, plane.lanes, plane.data.as<void>(), op_table_bytes(op) == 0 ? nullptr : table,
               indices ? plane.sums.as<void>() : nullptr});
    if (options_.down != 0) fill_gaps(plane);
  }
  // Norms that do not know of this worker are no scale for its elements, and nobody will add them.
  for (LanePlane& plane : planes_) {
    if (excluded_ && plane.lanes > 0) std::memset(plane.data.as<void>(), 0, plane.data.capacity());
  }
  if (!excluded_) {
    choose_samples();
    for_each_block([&](uint64_t b, Scratch& mine) {
      if (parts_[b].norm == 0) return;
      fill_lanes(mine, b);
      if (parts_[b].sampled && !is_broken_here(b)) sample(mine, b);
    });
    for (const Part& part : parts_) {  // in their order, whoever was first
      draft().sampled_energy += part.energy;
      draft().sampled_error += part.error;
    }
  }
  contributors_ = 1;
  round.add({Op::kSumI32, 1, &contributors_, nullptr, nullptr});
  round.last = true;
  return {};
}

void QuantCodec::choose_samples() {
  const uint64_t every = std::min(kSampleEvery, live_);
  uint64_t live = 0;
  for (Part& part : parts_) {
    if (part.norm != 0) part.sampled = live++ % every == step_ % every;
  }
}

// mine.lost = what the levels of n rotated elements stand for.
void QuantCodec::requantise(Scratch& mine, const Part& part, const Quantiser& q, const float* x,
                            uint64_t n) const {
  const Affine values =
      level_values(grid(codings_[part.coding]), part.norm * prescale_of(part.norm));
  auto* levels = mine.levels.as<uint8_t>();
  quantise_levels(q, x, n, levels);
  dequantise(levels, n, values.factor, values.offset, mine.lost.as<float>());
}

// What the report says of a block that was just encoded, or of a stretch of a long one. Rotated
// coordinates, times the prescale, have size times the energy.
void QuantCodec::sample(Scratch& mine, uint64_t b) {
  const Block& at = blocks_[b];
  Part& part = parts_[b];
  const float prescale = prescale_of(part.norm);
  const uint64_t n = std::min<uint64_t>(at.size, kSampleLength);
  const float* x = mine.rotated.as<float>() + step_ * n % at.size;
  requantise(mine, part, quantiser(b, part, part.norm * prescale), x, n);
  auto* lost = mine.lost.as<float>();
  for (uint64_t i = 0; i < n; ++i)
    lost[i] = x[i] - lost[i];
  const double unit = std::pow(static_cast<double>(prescale), 2) * (rotates() ? at.size : 1);
  part.energy = static_cast<double>(energy(x, n)) / unit;
  part.error = static_cast<double>(energy(lost, n)) / unit;
}

// Bytes and nibbles go straight to the plane; wider lanes are filled from bytes.
void QuantCodec::fill_lanes(Scratch& mine, uint64_t b) {
  const Part& part = parts_[b];
  const Lane lane = codings_[part.coding].lane;
  Buffer& data = planes_[static_cast<std::size_t>(lane)].data;
  if (options_.down != 0)
    return fill_narrow(mine, b, data.as<uint8_t>() + op_bytes(lane_op(lane, options_), part.lane));
  if (options_.carrier == Carrier::kIndices)
    return encode_block(mine, b, Carrier::kIndices, data.as<uint8_t>() + part.lane / 2);
  if (lane == Lane::kU8)
    return encode_block(mine, b, Carrier::kLevels, data.as<uint8_t>() + part.lane);
  auto* levels = mine.levels.as<uint8_t>();
  encode_block(mine, b, Carrier::kLevels, levels);
  if (lane == Lane::kU16) {
    std::copy_n(levels, blocks_[b].size, data.as<uint16_t>() + part.lane);
  } else {
    std::copy_n(levels, blocks_[b].size, data.as<uint32_t>() + part.lane);
  }
}

}  // namespace addend::quant
