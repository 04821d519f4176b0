// SPDX-License-Identifier: Apache-2.0
// The rounds of DeviceExactCodec in sketch mode: as exact_sketch.cc.
#include "codec/exact/device_exact_codec.h"
#include "codec/index/union_index.h"

namespace addend::exact {

Quanta DeviceExactCodec::quanta() const {
  return {layout().dtype, plan_.window(), reproducible() ? reproducible_.lanes() : nullptr,
          reproducible_.rules()};
}

Status DeviceExactCodec::open_sketch(Round& round) {
  round.add({Op::kOrU64, words_for(layout().count), bitmap_.as<void>(), nullptr, nullptr});
  draft().cells = plan_.shape().cells();
  waiting_ = Waiting::kSketch;
  return sketch_.insert(plan_.shape(), quanta(), gradient_, local_.as<uint64_t>(), kept_.as<void>(),
                        round);
}

Result<bool> DeviceExactCodec::close_sketch(Round& round) {
  ADDEND_TRY(count_union(layout().count / index::kKeptShare));
  ADDEND_TRY(sketch_.split(bitmap_.as<uint64_t>()));
  const Result<const uint64_t*> found = take_count();
  ADDEND_TRY(found);
  draft().local_nonzeros = (*found)[1];
  negative_zeros_ = (*found)[2] != 0;
  const Result<uint32_t> top = sketch_.top();
  ADDEND_TRY(top);
  top_ = *top;
  if (union_ == 0) {
    waiting_ = Waiting::kLast;
    ADDEND_TRY(sketch_.settle());
    return false;
  }
  const Result<uint64_t> fix_up = sketch_.fix_up_count();
  ADDEND_TRY(fix_up);
  fix_up_count_ = *fix_up;
  const uint64_t keys = reproducible() ? union_ - fix_up_count_ : union_;
  if (!plan_.shape().can_hold(keys)) {
    draft().fallback = "packed";
    return open_values(round);
  }
  ADDEND_TRY(sketch_.peel(counted_union(), keys));
  peeled_ = true;
  draft().stuck_keys = sketch_.stuck();
  draft().escaped_values = fix_up_count_;
  waiting_ = Waiting::kLast;
  if (sketch_.stuck() == 0 && fix_up_count_ == 0) return false;
  draft().fallback = "fix-up";
  round.last = true;
  ADDEND_TRY(sketch_.open_fix_up(factor(), fix_up_count_, reproducible() ? &reproducible_ : nullptr,
                                 round));
  return true;
}

// The three sources of a sketch step (peeled, stuck, escaped) together.
Status DeviceExactCodec::assemble_sketch() {
  ADDEND_TRY(sketch_.settle());
  if (union_ * width() > values_.capacity())
    ADDEND_TRY(values_.reserve((union_ + union_ / 4) * width()));
  return sketch_.assemble(counted_union(), scale(), fix_up_count_,
                          reproducible() ? &reproducible_ : nullptr, values_.as<void>());
}

}  // namespace addend::exact
