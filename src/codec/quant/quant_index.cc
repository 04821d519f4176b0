// SPDX-License-Identifier: Apache-2.0
// A QuantCodec's step with an index: where the union is, its values side by side, and the residual,
// which belongs to positions and is added only where the union is.
#include <algorithm>
#include <cmath>

#include "codec/convert.h"
#include "codec/quant/quant.h"

namespace addend::quant {

Status QuantCodec::open_index(Round& round) {
  const DType dtype = layout().dtype;
  index_.start(dtype_bytes(dtype), gradient_, layout().count);
  ADDEND_TRY(index_.reserve_bitmap());
  if (form_.in_blocks()) {
    ADDEND_TRY(index_.open_blocks(form_.block(), round));
  } else {
    ADDEND_TRY(index_.scan());
    ADDEND_TRY(index_.open_bitmap(round));
  }
  draft().local_nonzeros = index_.nonzeros();
  waiting_ = Waiting::kIndex;
  return {};
}

Result<bool> QuantCodec::close_index(Round& round) {
  if (waiting_ == Waiting::kElements) {
    ADDEND_TRY(index_.close_elements());
  } else if (form_.in_blocks()) {
    const Result<bool> elements = index_.close_blocks(round);
    ADDEND_TRY(elements);
    waiting_ = Waiting::kElements;
    if (*elements) return true;
  } else {
    index_.close_bitmap();
  }
  if (excluded_) {
    index_.leave_out();
  } else if (!index_.holds_local()) {
    return index::lost_index_bits();
  }
  waiting_ = Waiting::kLast;
  ADDEND_TRY(take_union());
  if (index_.size() == 0) return false;
  open_norms(round);
  return true;
}

// The union's elements become the gradient that blocks are cut from, segment by segment.
Status QuantCodec::take_union() {
  const uint64_t size = draft().union_nonzeros = index_.size();
  if (index_.by_blocks()) index_.write_bitmap();
  Layout live = layout();
  live.count = size;
  uint64_t begin = 0;
  for (Segment& segment : live.segments) {
    const uint64_t end = begin + segment.count;
    segment.count = popcount_range(index_.bitmap(), begin, end);
    begin = end;
  }
  ADDEND_TRY(cut_blocks(live));
  ADDEND_TRY(values_.reserve(size * 4 + Buffer::kSlack));
  source_ = values_.as<void>();
  if (layout().dtype == DType::kF32) {
    index_.gather(values_.as<void>());
  } else {
    ADDEND_TRY(elements_.reserve(size * 2 + Buffer::kSlack));
    index_.gather(elements_.as<void>());
    convert(layout().dtype, elements_.as<void>(), size, 1, DType::kF32, values_.as<void>());
  }
  if (!residual_.any()) return {};
  ADDEND_TRY(owed_.reserve(size * 4 + Buffer::kSlack));
  index_.gather_floats(residual_.values(), owed_.as<float>());
  for_each_part(size, kChunkElements, [&](uint64_t from, uint64_t to) {
    for (uint64_t i = from; i < to; ++i)
      values_.as<float>()[i] += owed_.as<float>()[i];
  });
  return {};
}

// What this worker's levels of a block did not say, rotated back: it becomes the residual of the
// block's positions. REQUIRES: values_ has not been decoded to there.
void QuantCodec::keep_by_position(Scratch& mine, uint64_t b) {
  const Block& at = blocks_[b];
  const Part& part = parts_[b];
  auto* rotated = mine.rotated.as<float>();
  auto* back = mine.lost.as<float>();
  float* owed = owed_.as<float>() + at.begin;
  // Gradient and residual cancelled on every worker: nothing is owed any more.
  if (part.norm == 0) {
    std::fill_n(owed, at.elements, 0.0f);
    return;
  }
  const float prescale = prescale_of(part.norm);
  load_rotated(mine, b, prescale);
  requantise(mine, part, quantiser(b, part, part.norm * prescale), rotated, at.size);
  const float unit = rotates() ? static_cast<float>(at.size) : 1.0f;
  for (uint64_t i = 0; i < at.size; ++i)
    rotated[i] = (rotated[i] - back[i]) / unit;
  if (rotates()) unrotate(rotated, signs(mine, at, step_ / sign_period()), at.size, back);
  const float* lost = rotates() ? back : rotated;
  for (uint64_t i = 0; i < at.elements; ++i) {
    const float kept = lost[i] / prescale;
    owed[i] = std::isfinite(kept) ? kept : 0.0f;
  }
}

void QuantCodec::finish_index(void* gradient) {
  if (layout().count == 0) return;
  if (residual_.any() && !excluded_) index_.put_floats(owed_.as<float>(), residual_.values());
  const void* sums = values_.as<void>();
  if (layout().dtype != DType::kF32) {
    convert(DType::kF32, sums, index_.size(), 1, layout().dtype, elements_.as<void>());
    sums = elements_.as<void>();
  }
  index_.scatter(sums, gradient);
  if (form_.count(index_.size())) form_.survey(layout(), index_.bitmap());
  form_.choose(layout());
}

}  // namespace addend::quant
