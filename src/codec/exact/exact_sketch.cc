// SPDX-License-Identifier: Apache-2.0
// The rounds of ExactCodec in sketch mode: cells out, peeling, the fix-up of stuck and escaped
// keys, and their decoding.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bits.h"
#include "codec/convert.h"
#include "codec/exact/exact.h"
#include "codec/index/kernels.h"

namespace addend::exact {

// Integers of the local keys, one per non-zero, and which words or blocks escape.
Status ExactCodec::local_quanta() {
  ADDEND_TRY(quanta_.reserve(index_.nonzeros() * 8));
  auto* quanta = quanta_.as<int64_t>();
  if (!reproducible()) {
    const uint64_t bytes = words_for(words()) * 8;
    ADDEND_TRY(escape_.reserve(bytes));
    ADDEND_TRY(local_escape_.reserve(bytes));
    const int top =
        window_quanta(layout().dtype, plan_.window(), nonzeros(), quanta, escape_.as<uint64_t>());
    top_lane_ = top == Observation::kNoTop ? 0 : static_cast<uint32_t>(top + kTopBias);
    std::memcpy(local_escape_.as<void>(), escape_.as<void>(), bytes);
    return {};
  }
  // Blocks of several integers stay out of the sketch on every worker: their keys are cleared from
  // the local set.
  const NonZeros all = nonzeros();
  auto* keys = keys_.as<uint64_t>();
  uint64_t next = 0, kept = 0;
  for (uint64_t w = 0; w < words(); ++w) {
    const BlockFormat& format = reproducible_.format(w * 64 / kRangeBlock);
    const auto here = static_cast<uint64_t>(std::popcount(all.bitmap[w]));
    keys[w] = format.single() ? all.bitmap[w] : 0;
    for (uint64_t i = next; i < next + here && format.single(); ++i) {
      quanta[kept++] = to_quanta(load_float(layout().dtype, all.values, i), format.to_quanta);
    }
    next += here;
  }
  return {};
}

Status ExactCodec::open_sketch(Round& round) {
  ADDEND_TRY(keys_.reserve(words() * 8));
  ADDEND_TRY(cells_.reserve(plan_.shape().lanes_total() * 8));
  std::memset(cells_.as<void>(), 0, plan_.shape().lanes_total() * 8);
  KeySet keys{index_.local(), words(), index_.nonzeros()};
  if (reproducible()) {
    ADDEND_TRY(reproducible_.set_ranges(ranges_.as<uint32_t>(), layout().count,
                                        RangeRules::of(layout().world, plan_.options().tolerance)));
  }
  ADDEND_TRY(local_quanta());
  if (reproducible()) {
    keys.bitmap = keys_.as<uint64_t>();
    keys.count = popcount({keys.bitmap, keys.words});
  }
  ADDEND_TRY(sketch_.insert(plan_.shape(), keys, quanta_.as<int64_t>(), cells_.as<uint64_t>()));
  ADDEND_TRY(index_.open_bitmap(round));
  round.add({Op::kSumI64, plan_.shape().lanes_total(), cells_.as<void>(), nullptr, nullptr});
  if (!reproducible()) {
    round.add({Op::kOrU64, words_for(words()), escape_.as<void>(), nullptr, nullptr});
    round.add({Op::kMaxU32, 1, &top_lane_, nullptr, nullptr});
  }
  draft().cells = plan_.shape().cells();
  waiting_ = Waiting::kSketch;
  return {};
}

Result<bool> ExactCodec::close_sketch(Round& round) {
  index_.close_bitmap();
  ADDEND_TRY(accept_union());
  if (union_ == 0) {
    waiting_ = Waiting::kLast;
    ADDEND_TRY(Sketch::check_zero(plan_.shape(), cells_.as<uint64_t>()));
    return false;
  }
  KeySet set{bitmap(), words(), union_};
  ADDEND_TRY(select_fix_up());
  if (reproducible() && fix_up_count_ > 0) {
    auto* keys = keys_.as<uint64_t>();
    for (uint64_t w = 0; w < words(); ++w)
      keys[w] = bitmap()[w] & ~fix_up_.as<uint64_t>()[w];
    set = {keys, words(), union_ - fix_up_count_};
  }
  if (!plan_.shape().can_hold(set.count)) {
    draft().fallback = "packed";
    return open_values(round);
  }
  ADDEND_TRY(sketch_.peel(plan_.shape(), set, cells_.as<uint64_t>()));
  peeled_ = true;
  draft().stuck_keys = sketch_.stuck().count;
  draft().escaped_values = fix_up_count_;
  waiting_ = Waiting::kLast;
  if (sketch_.stuck().count == 0 && fix_up_count_ == 0) return false;
  draft().fallback = "fix-up";
  return open_fix_up(round);
}

// Marks the union's keys whose values do not travel in the sketch.
Status ExactCodec::select_fix_up() {
  bool any = false;
  if (reproducible()) {
    for (uint64_t b = 0; b < reproducible_.blocks() && !any; ++b)
      any = !reproducible_.format(b).single();
  } else {
    any = popcount({escape_.as<uint64_t>(), words_for(words())}) > 0;
  }
  fix_up_count_ = 0;
  if (!any) return {};
  ADDEND_TRY(fix_up_.reserve(words() * 8));
  auto* fix_up = fix_up_.as<uint64_t>();
  for (uint64_t w = 0; w < words(); ++w) {
    const bool escaped = reproducible() ? !reproducible_.format(w * 64 / kRangeBlock).single()
                                        : test_bit(escape_.as<uint64_t>(), w);
    fix_up[w] = escaped ? bitmap()[w] : 0;
  }
  fix_up_count_ = popcount({fix_up, words()});
  return {};
}

// The integers that this worker put into the sketch for the stuck keys.
void ExactCodec::stuck_quanta(uint64_t* lanes) const {
  const KeySet stuck = sketch_.stuck();
  for (uint64_t w = 0; w < stuck.words; ++w) {
    const bool escaped =
        !reproducible() && stuck.bitmap[w] != 0 && test_bit(local_escape_.as<uint64_t>(), w);
    for_each_bit(stuck.bitmap[w], w * 64, [&](uint64_t position) {
      const float value = load_float(layout().dtype, gradient_, position);
      int64_t quanta = 0;
      if (reproducible()) {
        quanta = to_quanta(value, reproducible_.format(position / kRangeBlock).to_quanta);
      } else if (!escaped && !plan_.window().quanta(value, &quanta)) {
        quanta = 0;
      }
      *lanes++ = static_cast<uint64_t>(quanta);
    });
  }
}

Result<bool> ExactCodec::open_fix_up(Round& round) {
  const uint64_t stuck = sketch_.stuck().count;
  round.last = true;
  ADDEND_TRY(spell_out());
  if (stuck > 0) {
    ADDEND_TRY(quanta_.reserve(stuck * 8));
    stuck_quanta(quanta_.as<uint64_t>());
    round.add({Op::kSumI64, stuck, quanta_.as<void>(), nullptr, nullptr});
  }
  if (fix_up_count_ == 0) return true;
  ADDEND_TRY(fix_values_.reserve(fix_up_count_ * width() + Buffer::kSlack));
  if (reproducible()) {
    ADDEND_TRY(reproducible_.pack(layout().dtype, gradient_, fix_up_.as<uint64_t>()));
    round.add(reproducible_.wide_plane());
  } else {
    auto* values = fix_values_.as<void>();
    index::pack(width(), gradient_, layout().count, fix_up_.as<uint64_t>(), values);
    multiply(layout().dtype, values, fix_up_count_, scale(), values);
    round.add({sum_op(layout().dtype), fix_up_count_, fix_values_.as<void>(), nullptr, nullptr});
  }
  return true;
}

// Decodes peeled integers. Per block in reproducible mode, one quantum for all in float mode.
struct ExactCodec::Quantum {
  int quantum;
  float weight;  // 2^quantum, or 0 for a window below the subnormals, which no f32 holds

  float value(DType dtype, int64_t quanta) const {
    if (weight != 0) return from_quanta(dtype, quanta, quantum, weight);
    const bool negative = quanta < 0;
    const auto magnitude = static_cast<uint64_t>(quanta);
    return round_to(dtype, negative, negative ? 0 - magnitude : magnitude, quantum, false);
  }
};

ExactCodec::Quantum ExactCodec::quantum_at(uint64_t position) const {
  if (!reproducible())
    return {plan_.window().quantum(), std::ldexp(1.0f, plan_.window().quantum())};
  const BlockFormat& format = reproducible_.format(position / kRangeBlock);
  return {format.fixed.quantum, format.from_quanta};
}

// Brings the three sources of a sketch step (peeled, stuck, escaped) together in index order.
Status ExactCodec::assemble_sketch() {
  const DType dtype = layout().dtype;
  ADDEND_TRY(values_.reserve(union_ * width() + Buffer::kSlack));
  const bool plain = !reproducible() && fix_up_count_ == 0 && sketch_.stuck().count == 0;
  if (plain) {
    const Quantum quantum = quantum_at(0);
    const DType decoded = scaled_sum_type(dtype, scale());
    const int64_t* peeled = sketch_.values();
    void* values = values_.as<void>();
    for (uint64_t i = 0; i < union_; ++i)
      store_float(dtype, values, i, quantum.value(decoded, peeled[i]) * scale());
  } else {
    assemble_mixed();
  }
  return sketch_.settle(plan_.shape(), quanta_.as<int64_t>(), cells_.as<uint64_t>());
}

void ExactCodec::assemble_mixed() {
  const DType dtype = layout().dtype, decoded = scaled_sum_type(dtype, scale());
  if (reproducible() && fix_up_count_ > 0) {
    reproducible_.unpack(dtype, fix_up_.as<uint64_t>(), scale(), fix_values_.as<void>());
  }
  const auto* peeled = sketch_.values();
  const auto* stuck_values = quanta_.as<int64_t>();
  const KeySet stuck = sketch_.stuck();
  uint64_t rank = 0, next_fix = 0;
  for (uint64_t w = 0; w < words(); ++w) {
    const Quantum quantum = quantum_at(w * 64);
    const uint64_t stuck_word = stuck.count > 0 ? stuck.bitmap[w] : 0;
    const uint64_t escaped_word = fix_up_count_ > 0 ? fix_up_.as<uint64_t>()[w] : 0;
    // Float mode sketches every key; reproducible mode leaves the escaped ones out.
    const uint64_t key_word = reproducible() ? bitmap()[w] & ~escaped_word : bitmap()[w];
    for_each_bit(bitmap()[w], 0, [&](uint64_t bit) {
      const uint64_t mask = uint64_t{1} << bit;
      int64_t quanta = (key_word & mask) != 0 ? *peeled++ : 0;
      if ((stuck_word & mask) != 0) quanta = *stuck_values++;
      const bool escaped = (escaped_word & mask) != 0;
      store_float(dtype, values_.as<void>(), rank++,
                  escaped ? load_float(dtype, fix_values_.as<void>(), next_fix++)
                          : quantum.value(decoded, quanta) * scale());
    });
  }
}

}  // namespace addend::exact
