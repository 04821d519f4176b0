// SPDX-License-Identifier: Apache-2.0
// Vectors add, compare and write what is left; the few elements that are taken are added up once
// more, one at a time, while their lines are in the cache.
#include "codec/select/take.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

#include "base/bits.h"
#include "base/simd.h"
#include "wire/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/select/take.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/element-inl.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace {

using select::Addends;
using select::Taking;

// As wide as the mask of a vector, so that the compiler keeps it in a register.
using MaskBits = std::conditional_t<HWY_MAX_BYTES <= 32, uint8_t,
                                    std::conditional_t<HWY_MAX_BYTES == 64, uint16_t, uint64_t>>;

// The elements of a word of the bitmap. Two without asking whether there are so many: at a percent
// there are seldom more, and a branch would be guessed wrong every other word.
template <DType kType, bool kMarked>
HWY_INLINE uint64_t append_word(const Addends& a, uint64_t word, uint64_t base, const Taking& to,
                                uint64_t taken) {
  const auto append = [&](uint64_t i) HWY_ATTR {
    to.values[taken] = load_float(kType, a.gradient, i) + a.residual[i];
    if constexpr (!kMarked) to.places[taken] = static_cast<uint16_t>(i - to.begin);
  };
  for (uint64_t s = 0; s < select::kSpare; ++s) {
    append(base + static_cast<uint64_t>(std::countr_zero(word)) % 64);
    taken += word != 0 ? 1 : 0;
    word &= word - 1;
  }
  for (; word != 0; word &= word - 1, ++taken)
    append(base + static_cast<uint64_t>(std::countr_zero(word)));
  return taken;
}

// Whole words of the bitmap: begin and end are multiples of 64. kMarked: their bits are given.
template <DType kType, bool kMarked, bool kStream>
HWY_INLINE uint64_t take_type(const Addends& a, uint32_t least, const Taking& to, bool* finite) {
  const hn::CappedTag<float, 64> d;
  const hn::RebindToSigned<decltype(d)> di;
  const uint64_t n = hn::Lanes(d);
  const auto limit = hn::Set(di, static_cast<int32_t>(least));
  auto all = hn::Eq(hn::Zero(d), hn::Zero(d));
  uint64_t taken = 0;
  for (uint64_t i = to.begin; i < to.end; i += 64) {
    uint64_t word = kMarked ? to.bitmap[i / 64] : 0;
    for (uint64_t j = 0; j < 64; j += n) {
      const auto sum =
          hn::Add(load_lanes<kType>(d, a.gradient, i + j), hn::LoadU(d, a.residual + i + j));
      MaskBits bits = static_cast<MaskBits>(word >> j);
      hn::Mask<decltype(d)> mask;
      if constexpr (kMarked) {
        mask = hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(&bits));
        all = hn::And(all, hn::IsFinite(sum));
      } else {
        // Without signs, integers compare like magnitudes.
        const auto magnitude = hn::BitCast(di, hn::Abs(sum));
        mask = hn::RebindMask(d, hn::Not(hn::Lt(magnitude, limit)));
        hn::StoreMaskBits(d, mask, reinterpret_cast<uint8_t*>(&bits));
        word |= uint64_t{bits} << j;
      }
      const auto left = hn::IfThenZeroElse(mask, sum);
      if constexpr (kStream) {
        hn::Stream(left, d, to.left + i + j);
      } else {
        hn::StoreU(left, d, to.left + i + j);
      }
    }
    if constexpr (!kMarked) to.bitmap[i / 64] = word;
    taken = append_word<kType, kMarked>(a, word, i, to, taken);
  }
  if (kMarked) *finite = hn::AllTrue(d, all);
  if (kStream) hwy::FlushStream();
  return taken;
}

template <bool kMarked>
HWY_INLINE uint64_t take_words(const Addends& a, uint32_t least, const Taking& to, bool* finite) {
  return with_type(a.dtype, [&](auto type) HWY_ATTR -> uint64_t {
    constexpr DType kType = decltype(type)::value;
    if constexpr (in_vectors<kType>()) {
      return to.stream ? take_type<kType, kMarked, true>(a, least, to, finite)
                       : take_type<kType, kMarked, false>(a, least, to, finite);
    } else {
      return 0;  // not asked: can_take
    }
  });
}

// Plain functions, because run-time dispatch cannot export templates.
bool can_take(DType dtype) {
  return with_type(dtype, [](auto type) { return in_vectors<decltype(type)::value>() ? 1u : 0u; });
}
uint64_t take_large_kernel(const Addends& a, uint32_t least, const Taking& to, bool* finite) {
  return take_words<false>(a, least, to, finite);
}
uint64_t take_marked_kernel(const Addends& a, uint32_t least, const Taking& to, bool* finite) {
  return take_words<true>(a, least, to, finite);
}

}  // namespace
}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend {
HWY_EXPORT(can_take);
HWY_EXPORT(take_large_kernel);
HWY_EXPORT(take_marked_kernel);
}  // namespace addend

namespace addend::select {
namespace {

// The reference. `least` of 0: those whose bits are set.
uint64_t take_each(const Addends& a, uint32_t least, const Taking& to, bool* finite) {
  uint64_t taken = 0;
  for (uint64_t i = to.begin; i < to.end; ++i) {
    const float e = load_float(a.dtype, a.gradient, i) + a.residual[i];
    *finite = *finite && std::isfinite(e);
    if (least > 0 && (addend_f32_bits(e) & 0x7FFFFFFF) >= least) set_bit(to.bitmap, i);
    const bool takes = test_bit(to.bitmap, i);
    to.left[i] = takes ? 0.0f : e;
    if (!takes) continue;
    if (least > 0) to.places[taken] = static_cast<uint16_t>(i - to.begin);
    to.values[taken++] = e;
  }
  return taken;
}

// Ends of the range that share words of the bitmap with others go one by one.
template <typename Kernel>
uint64_t take(const Addends& a, uint32_t least, const Taking& to, bool* finite, Kernel kernel) {
  *finite = true;
  const uint64_t first = (to.begin + 63) / 64 * 64, last = to.end / 64 * 64;
  if (scalar_forced() || first >= last || !HWY_DYNAMIC_DISPATCH(can_take)(a.dtype))
    return take_each(a, least, to, finite);
  Taking part = to;
  const auto step = [&](uint64_t begin, uint64_t end, auto run) {
    part.begin = begin;
    part.end = end;
    bool mine = true;
    const uint64_t taken = run(a, least, part, &mine);
    part.values += taken;
    if (least > 0) {
      for (uint64_t j = 0; j < taken; ++j)
        part.places[j] = static_cast<uint16_t>(part.places[j] + (begin - to.begin));
      part.places += taken;
    }
    *finite = *finite && mine;
    return taken;
  };
  uint64_t taken = step(to.begin, first, take_each);
  taken += step(first, last, kernel);
  return taken + step(last, to.end, take_each);
}

}  // namespace

uint64_t take_large(const Addends& addends, uint32_t least, const Taking& to) {
  bool finite = true;
  return take(addends, least, to, &finite, HWY_DYNAMIC_DISPATCH(take_large_kernel));
}

uint64_t take_marked(const Addends& addends, const Taking& to, bool* finite) {
  return take(addends, 0, to, finite, HWY_DYNAMIC_DISPATCH(take_marked_kernel));
}

}  // namespace addend::select
#endif
