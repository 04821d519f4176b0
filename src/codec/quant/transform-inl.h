// SPDX-License-Identifier: Apache-2.0
// The vectors and the transform that encode_kernels.cc and decode_kernels.cc share. Re-included per
// target, hence the toggled guard.
#if defined(ADDEND_QUANT_TRANSFORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ADDEND_QUANT_TRANSFORM_INL_H_
#undef ADDEND_QUANT_TRANSFORM_INL_H_
#else
#define ADDEND_QUANT_TRANSFORM_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "codec/quant/block.h"

HWY_BEFORE_NAMESPACE();
namespace addend::quant::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kLanes>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using D8 = hn::Rebind<uint8_t, DF>;

constexpr uint32_t kWidth = HWY_MAX_BYTES / 4 < kLanes ? HWY_MAX_BYTES / 4 : kLanes;
constexpr uint32_t kGroups = kLanes / kWidth;

// A write of what is not read soon; `past` the caches, where the address allows.
HWY_INLINE void write(VF v, float* to, bool past) {
  past ? hn::Stream(v, DF(), to) : hn::StoreU(v, DF(), to);
}
HWY_INLINE bool can_stream(const float* to) {
  return reinterpret_cast<uintptr_t>(to) % (kWidth * sizeof(float)) == 0;
}

// v with the signs of the lanes flipped whose bit is set, from bit i of the bitmap on.
HWY_INLINE VF flipped(VF v, const uint64_t* signs, uint64_t i) {
  const DF d;
#if HWY_TARGET == HWY_AVX2
  // Each lane moves its bit of the byte to the sign: half the operations of making a mask.
  const hn::RebindToUnsigned<DF> du;
  const auto byte =
      hn::Set(hn::Repartition<uint8_t, DF>(), reinterpret_cast<const uint8_t*>(signs)[i / 8]);
  const auto bits = hn::Shl(hn::BitCast(du, byte), hn::Sub(hn::Set(du, 31), hn::Iota(du, 0)));
  return hn::Xor(v, hn::And(hn::BitCast(d, bits), hn::Set(d, -0.0f)));
#else
  if constexpr (kWidth >= 8) {
    const auto mask = hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(signs) + i / 8);
    return hn::Xor(v, hn::IfThenElseZero(mask, hn::Set(d, -0.0f)));
  }
  const uint8_t bits = static_cast<uint8_t>(signs[i / 64] >> (i % 64));
  return hn::Xor(v, hn::IfThenElseZero(hn::LoadMaskBits(d, &bits), hn::Set(d, -0.0f)));
#endif
}

// One butterfly inside a vector: lanes without bit h get a + b, those with it a - b. `partner`
// holds each lane's other operand; the product with +-1 is exact, so this rounds once, as the
// reference does.
template <uint32_t kH>
HWY_INLINE VF signs_of() {
  const DF d;
  HWY_ALIGN float signs[kLanes];
  for (uint32_t l = 0; l < kWidth; ++l)
    signs[l] = (l & kH) != 0 ? -1.0f : 1.0f;
  return hn::Load(d, signs);
}

// The stages h = 1 .. kWidth/2.
HWY_INLINE VF inner_stages(VF v, VF s1, VF s2, VF s4, VF s8) {
  const DF d;
  v = hn::MulAdd(v, s1, hn::Reverse2(d, v));
  v = hn::MulAdd(v, s2, hn::Shuffle1032(v));
  if constexpr (kWidth >= 8) v = hn::MulAdd(v, s4, hn::SwapAdjacentBlocks(v));
  if constexpr (kWidth >= 16) v = hn::MulAdd(v, s8, hn::ConcatLowerUpper(d, v, v));
  (void)s4;
  (void)s8;
  return v;
}

HWY_INLINE void butterfly(VF& a, VF& b) {
  const VF sum = hn::Add(a, b);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  // Units that multiply and add stand idle beside those that add; times 1 is exact.
  b = hn::NegMulAdd(b, hn::Set(DF(), 1.0f), a);
#else
  b = hn::Sub(a, b);
#endif
  a = sum;
}

// Butterflies between 2^kStages vectors, `step` = 1, 2, ... apart.
template <uint32_t kCount>
HWY_INLINE void butterflies(VF (&v)[kCount]) {
  for (uint32_t step = 1; step < kCount; step *= 2) {
    for (uint32_t j = 0; j < kCount; ++j) {
      if ((j & step) == 0) butterfly(v[j], v[j | step]);
    }
  }
}

// kStages stages from h on, in one pass over memory: 2^kStages vectors in registers.
template <uint32_t kStages, typename Store>
HWY_INLINE void outer_stages(const float* x, uint64_t n, uint64_t h, Store store) {
  const DF d;
  constexpr uint32_t kCount = 1u << kStages;
  for (uint64_t base = 0; base < n; base += kCount * h) {
    for (uint64_t i = base; i < base + h; i += kWidth) {
      VF v[kCount];
      for (uint32_t j = 0; j < kCount; ++j)
        v[j] = hn::LoadU(d, x + i + j * h);
      butterflies(v);
      for (uint32_t j = 0; j < kCount; ++j)
        store(v[j], i + j * h);
    }
  }
}

// The stages from h on; few passes, because a pass costs a load and a store a vector. The last one
// leaves x as it is, and gives each vector and its place to `last`. REQUIRES: h < n.
template <typename Last>
HWY_INLINE void stages_from(float* x, uint64_t n, uint64_t h, Last last) {
  const auto back = [x](VF v, uint64_t i) HWY_ATTR { hn::StoreU(v, DF(), x + i); };
  while (n / h > 8) {
    if (n / h == 16) {
      outer_stages<2>(x, n, h, back);
      h *= 4;
    } else {
      outer_stages<3>(x, n, h, back);
      h *= 8;
    }
  }
  if (n / h == 8) return outer_stages<3>(x, n, h, last);
  if (n / h == 4) return outer_stages<2>(x, n, h, last);
  outer_stages<1>(x, n, h, last);
}

// The first pass: all stages inside vectors and kFirst between neighbours, so that the other stages
// of a block of 2048 take two passes. The first that is left to them is kAfterFirst.
constexpr uint32_t kFirst = kWidth >= 16 ? 1 : 2;
constexpr uint64_t kAfterFirst = uint64_t{kWidth} << kFirst;

template <typename Load>
HWY_INLINE void first_stages(uint64_t n, float* y, Load load) {
  const DF d;
  const VF s1 = signs_of<1>(), s2 = signs_of<2>(), s4 = signs_of<4>(), s8 = signs_of<8>();
  for (uint64_t i = 0; i < n; i += kAfterFirst) {
    VF v[1u << kFirst];
    for (uint32_t j = 0; j < 1u << kFirst; ++j)
      v[j] = inner_stages(load(i + j * kWidth), s1, s2, s4, s8);
    butterflies(v);
    for (uint32_t j = 0; j < 1u << kFirst; ++j)
      hn::StoreU(v[j], d, y + i + j * kWidth);
  }
}

}  // namespace addend::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // ADDEND_QUANT_TRANSFORM_INL_H_
