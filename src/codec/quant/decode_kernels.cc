// SPDX-License-Identifier: Apache-2.0
// What is done to sums of blocks (block.h), and to levels that this worker sent, on the best
// instruction set: a conversion, and the transform of encoding.
#include "base/simd.h"
#include "codec/quant/block.h"
#include "codec/quant/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/quant/decode_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/quant/transform-inl.h"

HWY_BEFORE_NAMESPACE();
namespace addend::quant::HWY_NAMESPACE {
namespace {

void unrotate_kernel(float* x, const uint64_t* signs, uint64_t n, float* y, bool past) {
  first_stages(n, x, [&](uint64_t i) HWY_ATTR { return hn::LoadU(DF(), x + i); });
  past = past && can_stream(y);
  stages_from(x, n, kAfterFirst,
              [&](VF v, uint64_t i) HWY_ATTR { write(flipped(v, signs, i), y + i, past); });
}

void look_up_kernel(const uint8_t* levels, const uint8_t* HWY_RESTRICT packed, uint64_t n,
                    uint8_t* HWY_RESTRICT out) {
  const hn::FixedTag<uint8_t, 16> d;
  const hn::FixedTag<uint16_t, 8> d16;
  const auto table = hn::LoadU(d, levels);
  const auto nibble = hn::Set(d, 15);
  for (uint64_t i = 0; i < n; i += 32) {
    const auto both = hn::LoadU(d, packed + i / 2);
    const auto even = hn::And(both, nibble);
    const auto odd = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, both))), nibble);
    hn::StoreU(hn::TableLookupBytes(table, hn::InterleaveLower(even, odd)), d, out + i);
    hn::StoreU(hn::TableLookupBytes(table, hn::InterleaveUpper(d, even, odd)), d, out + i + 16);
  }
}

template <typename T>
HWY_INLINE void dequantise_any(const T* HWY_RESTRICT sums, uint64_t n, float factor, float offset,
                               float* HWY_RESTRICT x) {
  const DF d;
  const DI di;
  const hn::Rebind<T, DF> dt;
  const VF f = hn::Set(d, factor), o = hn::Set(d, offset);
  for (uint64_t i = 0; i < n; i += kWidth) {
    VI whole;
    if constexpr (sizeof(T) == 4) {
      whole = hn::BitCast(di, hn::LoadU(dt, sums + i));
    } else {
      whole = hn::PromoteTo(di, hn::LoadU(dt, sums + i));
    }
    hn::StoreU(hn::Add(hn::Mul(hn::ConvertTo(d, whole), f), o), d, x + i);
  }
}
void dequantise8(const uint8_t* sums, uint64_t n, float factor, float offset, float* x) {
  dequantise_any(sums, n, factor, offset, x);
}
void dequantise16(const uint16_t* sums, uint64_t n, float factor, float offset, float* x) {
  dequantise_any(sums, n, factor, offset, x);
}
void dequantise32(const uint32_t* sums, uint64_t n, float factor, float offset, float* x) {
  dequantise_any(sums, n, factor, offset, x);
}

// In floats: a step times a value has 24 bits, so all but the last sum of widened_twice is exact,
// and that one rounds as a conversion would.
void dequantise_narrow(const narrow::Group& group, uint32_t first,
                       const uint8_t* HWY_RESTRICT values, uint64_t n, float factor, float offset,
                       float* HWY_RESTRICT x) {
  const DF d;
  const DI di;
  const hn::Rebind<uint16_t, DF> d16;
  const auto set = [&](uint32_t u) HWY_ATTR { return hn::Set(d16, static_cast<uint16_t>(u)); };
  const auto whole = [&](uint32_t u) HWY_ATTR {
    return hn::Set(d, static_cast<float>(static_cast<int32_t>(u)));
  };
  const auto step16 = set(group.step), next = set(kWidth * narrow::kSpread);
  const VF step = whole(group.step), middle = whole(2 * group.base + group.step - 1);
  const VF f = hn::Set(d, factor), o = hn::Set(d, offset);
  auto drawn = hn::Add(hn::Mul(hn::Iota(d16, static_cast<uint16_t>(first)), set(narrow::kSpread)),
                       set(group.seed << 8));
  for (uint64_t i = 0; i < n; i += kWidth) {
    const VF dither = hn::ConvertTo(d, hn::PromoteTo(di, hn::MulHigh(drawn, step16)));
    const VF value = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(D8(), values + i)));
    const VF above = hn::Sub(hn::Mul(step, value), dither);
    const VF twice = hn::Add(middle, hn::Add(above, above));
    hn::StoreU(hn::Add(hn::Mul(twice, f), o), d, x + i);
    drawn = hn::Add(drawn, next);
  }
}

void subtract_kernel(const uint8_t* HWY_RESTRICT levels, uint64_t n, float factor, float offset,
                     float* HWY_RESTRICT x) {
  const DF d;
  const VF f = hn::Set(d, factor), o = hn::Set(d, offset);
  for (uint64_t i = 0; i < n; i += kWidth) {
    const VF level = hn::ConvertTo(d, hn::PromoteTo(DI(), hn::LoadU(D8(), levels + i)));
    const VF left = hn::Sub(hn::LoadU(d, x + i), hn::Add(hn::Mul(level, f), o));
    hn::StoreU(hn::IfThenElseZero(hn::IsFinite(left), left), d, x + i);
  }
}

}  // namespace
}  // namespace addend::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend::quant {

HWY_EXPORT(unrotate_kernel);
HWY_EXPORT(look_up_kernel);
HWY_EXPORT(dequantise8);
HWY_EXPORT(dequantise16);
HWY_EXPORT(dequantise32);
HWY_EXPORT(dequantise_narrow);
HWY_EXPORT(subtract_kernel);

void flush() { hwy::FlushStream(); }

void unrotate(float* x, const uint64_t* signs, uint64_t n, float* y, bool past_caches) {
  if (scalar_forced()) return reference::unrotate(x, signs, n, y);
  HWY_DYNAMIC_DISPATCH(unrotate_kernel)(x, signs, n, y, past_caches);
}

void look_up(const uint8_t levels[16], const uint8_t* packed, uint64_t n, uint8_t* out) {
  if (scalar_forced()) return reference::look_up(levels, packed, n, out);
  HWY_DYNAMIC_DISPATCH(look_up_kernel)(levels, packed, n, out);
}

void dequantise(const uint8_t* sums, uint64_t n, float factor, float offset, float* x) {
  if (scalar_forced()) return reference::dequantise(sums, n, factor, offset, x);
  HWY_DYNAMIC_DISPATCH(dequantise8)(sums, n, factor, offset, x);
}
void dequantise(const uint16_t* sums, uint64_t n, float factor, float offset, float* x) {
  if (scalar_forced()) return reference::dequantise(sums, n, factor, offset, x);
  HWY_DYNAMIC_DISPATCH(dequantise16)(sums, n, factor, offset, x);
}
void dequantise(const uint32_t* sums, uint64_t n, float factor, float offset, float* x) {
  if (scalar_forced()) return reference::dequantise(sums, n, factor, offset, x);
  HWY_DYNAMIC_DISPATCH(dequantise32)(sums, n, factor, offset, x);
}
void dequantise(const narrow::Group& group, uint32_t first, const uint8_t* values, uint64_t n,
                float factor, float offset, float* x) {
  if (scalar_forced()) return reference::dequantise(group, first, values, n, factor, offset, x);
  HWY_DYNAMIC_DISPATCH(dequantise_narrow)(group, first, values, n, factor, offset, x);
}

void subtract(const uint8_t* levels, uint64_t n, float factor, float offset, float* x) {
  if (scalar_forced()) return reference::subtract(levels, n, factor, offset, x);
  HWY_DYNAMIC_DISPATCH(subtract_kernel)(levels, n, factor, offset, x);
}

}  // namespace addend::quant
#endif
