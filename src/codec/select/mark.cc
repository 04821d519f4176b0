// SPDX-License-Identifier: Apache-2.0
#include "codec/select/mark.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/bits.h"
#include "base/simd.h"
#include "wire/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/select/mark.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/element-inl.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace {

using select::Addends;

// Returns how many elements it covered.
template <DType kType>
HWY_INLINE uint64_t add_type(const Addends& a, uint64_t count, float* HWY_RESTRICT sums,
                             bool* finite) {
  uint64_t i = 0;
  if constexpr (in_vectors<kType>()) {
    const hn::ScalableTag<float> d;
    const uint64_t n = hn::Lanes(d);
    auto all = hn::Eq(hn::Zero(d), hn::Zero(d));
    for (; i + n <= count; i += n) {
      const auto sum = hn::Add(load_lanes<kType>(d, a.gradient, i), hn::LoadU(d, a.residual + i));
      all = hn::And(all, hn::IsFinite(sum));
      hn::StoreU(sum, d, sums + i);
    }
    *finite = hn::AllTrue(d, all);
  }
  return i;
}

// A plain function, because run-time dispatch cannot export templates.
uint64_t add_kernel(const Addends& a, uint64_t count, float* sums, bool* finite) {
  return with_type(a.dtype, [&](auto type) HWY_ATTR {
    return add_type<decltype(type)::value>(a, count, sums, finite);
  });
}

// As wide as the mask of a vector, so that the compiler keeps it in a register.
using MaskBits = std::conditional_t<HWY_MAX_BYTES <= 32, uint8_t,
                                    std::conditional_t<HWY_MAX_BYTES == 64, uint16_t, uint64_t>>;

// Whole words of the bitmap.
uint64_t mark_kernel(const float* HWY_RESTRICT from, uint64_t words, uint32_t least,
                     uint64_t* HWY_RESTRICT bitmap) {
  const hn::CappedTag<float, 64> d;
  const hn::RebindToSigned<decltype(d)> di;
  const uint64_t n = hn::Lanes(d);
  const auto limit = hn::Set(di, static_cast<int32_t>(least));
  uint64_t marked = 0;
  for (uint64_t w = 0; w < words; ++w, from += 64) {
    uint64_t word = 0;
    for (uint64_t j = 0; j < 64; j += n) {
      // Without signs, integers compare like magnitudes.
      const auto magnitude = hn::BitCast(di, hn::Abs(hn::LoadU(d, from + j)));
      const auto large = hn::Not(hn::Lt(magnitude, limit));
      MaskBits bits = 0;
      hn::StoreMaskBits(di, large, reinterpret_cast<uint8_t*>(&bits));
      word |= uint64_t{bits} << j;
    }
    bitmap[w] = word;
    marked += static_cast<uint64_t>(std::popcount(word));
  }
  return marked;
}

}  // namespace
}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend {
HWY_EXPORT(add_kernel);
HWY_EXPORT(mark_kernel);
}  // namespace addend

namespace addend::select {
namespace {

uint64_t mark_each(const float* elements, uint64_t begin, uint64_t end, uint32_t least,
                   uint64_t* bitmap) {
  uint64_t marked = 0;
  for (uint64_t i = begin; i < end; ++i) {
    if ((addend_f32_bits(elements[i]) & 0x7FFFFFFF) < least) continue;
    set_bit(bitmap, i);
    ++marked;
  }
  return marked;
}

}  // namespace

bool add_owed(const Addends& addends, uint64_t count, float* sums) {
  bool finite = true;
  uint64_t i =
      scalar_forced() ? 0 : HWY_DYNAMIC_DISPATCH(add_kernel)(addends, count, sums, &finite);
  for (; i < count; ++i) {
    sums[i] = load_float(addends.dtype, addends.gradient, i) + addends.residual[i];
    finite = finite && std::isfinite(sums[i]);
  }
  return finite;
}

uint64_t mark(const float* elements, uint64_t begin, uint64_t end, uint32_t least,
              uint64_t* bitmap) {
  const uint64_t first = (begin + 63) / 64 * 64, last = end / 64 * 64;
  if (scalar_forced() || first >= last) return mark_each(elements, begin, end, least, bitmap);
  uint64_t marked = mark_each(elements, begin, first, least, bitmap);
  marked += HWY_DYNAMIC_DISPATCH(mark_kernel)(elements + first, (last - first) / 64, least,
                                              bitmap + first / 64);
  return marked + mark_each(elements, last, end, least, bitmap);
}

}  // namespace addend::select
#endif
