// SPDX-License-Identifier: Apache-2.0
// The end of a QuantCodec's step: decoding the sums, and what error feedback keeps.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "codec/quant/narrow.h"
#include "codec/quant/quant.h"
#include "wire/element.h"

namespace addend::quant {

void QuantCodec::dequantise_block(Scratch& mine, uint64_t b, float factor, float offset) const {
  auto* x = mine.rotated.as<float>();
  const Part& part = parts_[b];
  const uint64_t size = blocks_[b].size;
  const Lane lane = codings_[part.coding].lane;
  const LanePlane& plane = planes_[static_cast<std::size_t>(lane)];
  const Buffer& sums = options_.carrier == Carrier::kIndices ? plane.sums : plane.data;
  if (options_.down != 0) {
    dequantise_narrow({sums.as<uint8_t>(), options_.down, part.lane}, size, factor, offset, x);
  } else if (lane == Lane::kU8) {
    dequantise(sums.as<uint8_t>() + part.lane, size, factor, offset, x);
  } else if (lane == Lane::kU16) {
    dequantise(sums.as<uint16_t>() + part.lane, size, factor, offset, x);
  } else {
    dequantise(sums.as<uint32_t>() + part.lane, size, factor, offset, x);
  }
}

void QuantCodec::decode_block(Scratch& mine, uint64_t b, double contributors, void* target) const {
  const Block& at = blocks_[b];
  const Part& part = parts_[b];
  auto* x = mine.rotated.as<float>();
  auto* out = mine.lost.as<float>();
  if (part.norm == 0) {
    const float fill = part.broken ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    for (uint64_t i = 0; i < at.elements; ++i)
      store_float(source_type(), target, at.begin + i, fill);
    return;
  }
  const Coding& coding = codings_[part.coding];
  const SumValues values =
      sum_values(grid(coding), part.norm, at.size, {layout().world, contributors, layout().scale});
  const auto [factor, offset] = values.levels;
  dequantise_block(mine, b, factor, offset);
  const bool direct = source_type() == DType::kF32 && at.elements == at.size && values.back == 1;
  float* to = direct ? static_cast<float*>(target) + at.begin : out;
  if (rotates()) {
    unrotate(x, signs(mine, at, step_ / sign_period()), at.size, to, direct && streams());
  } else {
    std::memcpy(to, x, uint64_t{at.size} * 4);
  }
  if (direct) return;
  for (uint64_t i = 0; i < at.elements; ++i) {
    store_float(source_type(), target, at.begin + i,
                static_cast<float>(static_cast<double>(to[i]) * values.back));
  }
}

// What this worker's levels did not say stays behind for the next step. Floats were drafted while
// they were encoded; bytes, and residuals by position, are found once more (rounding is a function
// of the seeds). So a step that is cancelled has changed nothing.
//
// If they are not in the sum, the contributors' mean stands for this worker's gradient, which is
// thereby counted: keeping it would count it again. What the worker owed before, it still owes.
void QuantCodec::keep_residual(Scratch& mine, uint64_t b) {
  const Block& at = blocks_[b];
  const Part& part = parts_[b];
  if (part.broken || excluded_) return;
  if (indexed()) return keep_by_position(mine, b);
  if (residual_.has_draft()) return;
  auto* rotated = mine.rotated.as<float>();
  auto* lost = mine.lost.as<float>();
  if (part.norm == 0) {
    // Gradient and residual cancelled on every worker: nothing is owed any more. Ahead of its norm
    // a block was silent in the last step, and all that it has now is owed.
    std::fill_n(rotated, at.size, 0.0f);
    if (ahead_) load_rotated(mine, b, 1);
    return residual_.store(b, at.place, at.size, rotated);
  }
  const float prescale = prescale_of(part.norm);
  load_rotated(mine, b, prescale);
  requantise(mine, part, quantiser(b, part, part.norm * prescale), rotated, at.size);
  for (uint64_t i = 0; i < at.size; ++i)
    lost[i] = (rotated[i] - lost[i]) / prescale;
  residual_.store(b, at.place, at.size, lost);
}

// Blocks that were not encoded: broken ones owe what they did; of those that were silent, nothing
// is owed, or ahead of a norm all that there is.
void QuantCodec::take_draft() {
  for (uint64_t b = 0; b < blocks_.size(); ++b) {
    const Block& at = blocks_[b];
    if (parts_[b].broken) {
      residual_.keep_as_draft(at.place, at.size);
    } else if (parts_[b].norm == 0 && ahead_) {
      residual_.store_draft(at.place, at.size, residual_.draft() + at.place);
    } else if (parts_[b].norm == 0) {
      std::fill_n(residual_.draft() + at.place, at.size, 0.0f);
    }
  }
  residual_.take_draft();
}

// mine.lost = the residual of a block, as its elements are. REQUIRES: it is not kept by position.
void QuantCodec::unrotate_residual(Scratch& mine, uint64_t b) const {
  const Block& at = blocks_[b];
  auto* rotated = rotates() ? mine.rotated.as<float>() : mine.lost.as<float>();
  std::fill_n(rotated, at.size, 0.0f);
  residual_.add_to(b, at.place, at.size, rotated);
  if (!rotates()) return;
  for (uint64_t i = 0; i < at.size; ++i)
    rotated[i] /= static_cast<float>(at.size);
  unrotate(rotated, signs(mine, at, step_ / sign_period()), at.size, mine.lost.as<float>());
}

// At the end of a sign period the residual moves to the next period's coordinates.
void QuantCodec::turn_residual() {
  if (!turns_residual()) return;
  for_each_block([&](uint64_t b, Scratch& mine) {
    const Block& at = blocks_[b];
    auto* rotated = mine.rotated.as<float>();
    unrotate_residual(mine, b);
    rotate(mine.lost.as<float>(), signs(mine, at, step_ / sign_period() + 1), at.size, rotated);
    residual_.store(b, at.place, at.size, rotated);
  });
}

// What is owed to the padding of a block nobody is going to miss.
Status QuantCodec::add_residual(float* to) const {
  if (!residual_.any()) return {};
  if (indexed()) {
    residual_.add_to(0, 0, layout().count, to);
    return {};
  }
  Scratch mine;  // of a step that may be prepared elsewhere
  ADDEND_TRY(reserve(mine));
  for (uint64_t b = 0; b < blocks_.size(); ++b) {
    unrotate_residual(mine, b);
    const auto* owed = mine.lost.as<float>();
    for (uint64_t i = 0; i < blocks_[b].elements; ++i)
      to[blocks_[b].begin + i] += owed[i];
  }
  return {};
}

Status QuantCodec::take_residual(float* to) {
  ADDEND_TRY(reserve_scratch());
  for_each_block([&](uint64_t b, Scratch& mine) {
    const Block& at = blocks_[b];
    unrotate_residual(mine, b);
    std::copy_n(mine.lost.as<float>(), at.elements, to + at.begin);
    std::fill_n(residual_.values() + at.place, at.size, 0.0f);
  });
  return {};
}

Status QuantCodec::do_finish(void* gradient) {
  ADDEND_TRY(reserve_scratch());
  if (live_ > 0 || ahead_) ADDEND_TRY(take_contributors(contributors_));
  if (options_.down != 0 && live_ > 0) ADDEND_TRY(check_narrow());
  if (ahead_) ADDEND_TRY(note_broken());
  void* target = indexed() ? values_.as<void>() : gradient;
  for_each_block([&](uint64_t b, Scratch& mine) {
    if (residual_.any()) keep_residual(mine, b);
    decode_block(mine, b, contributors_, target);
  });
  if (residual_.has_draft() && !excluded_) take_draft();
  turn_residual();
  keep_norms();
  if (indexed()) finish_index(gradient);
  ++step_;
  return {};
}

}  // namespace addend::quant
