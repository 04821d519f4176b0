// SPDX-License-Identifier: Apache-2.0
// Vectors of elements as f32 and back, for kernels that are compiled per target; wire/half.h
// specifies the conversions. Included once a target.
#include "addend/plane.h"

#if defined(ADDEND_CODEC_ELEMENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ADDEND_CODEC_ELEMENT_INL_H_
#undef ADDEND_CODEC_ELEMENT_INL_H_
#else
#define ADDEND_CODEC_ELEMENT_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Whether this target has vectors of this type. Where binary16 is not in the instruction set, f16
/// goes one element at a time.
template <DType kType>
constexpr bool in_vectors() {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  return true;
#else
  return kType != DType::kF16;
#endif
}

template <DType kType, class DF>
HWY_INLINE hn::Vec<DF> load_lanes(DF d, const void* from, uint64_t i) {
  if constexpr (kType == DType::kF32) {
    return hn::LoadU(d, static_cast<const float*>(from) + i);
  } else if constexpr (kType == DType::kBf16) {
    const hn::RebindToUnsigned<DF> du;
    const hn::Rebind<uint16_t, DF> dh;
    const auto halves = hn::LoadU(dh, static_cast<const uint16_t*>(from) + i);
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, halves)));
  } else {
    const hn::Rebind<hwy::float16_t, DF> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, static_cast<const hwy::float16_t*>(from) + i));
  }
}

/// x rounded to kType.
template <DType kType, class DF>
HWY_INLINE void store_lanes(DF d, hn::Vec<DF> x, void* to, uint64_t i) {
  if constexpr (kType == DType::kF32) {
    hn::StoreU(x, d, static_cast<float*>(to) + i);
  } else if constexpr (kType == DType::kBf16) {
    const hn::RebindToUnsigned<DF> du;
    const hn::RebindToSigned<DF> di;
    const hn::Rebind<uint16_t, DF> dh;
    const auto bits = hn::BitCast(du, x);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
    const auto nan = hn::RebindMask(du, hn::IsNaN(x));
    hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, hn::IfThenElse(nan, quiet, rounded))), dh,
               static_cast<uint16_t*>(to) + i);
  } else {
    const hn::Rebind<hwy::float16_t, DF> dh;
    hn::StoreU(hn::DemoteTo(dh, x), dh, static_cast<hwy::float16_t*>(to) + i);
  }
}

/// Calls visit with the type as a constant.
template <typename Visit>
HWY_INLINE uint64_t with_type(DType dtype, Visit visit) {
  if (dtype == DType::kF32) return visit(std::integral_constant<DType, DType::kF32>());
  if (dtype == DType::kBf16) return visit(std::integral_constant<DType, DType::kBf16>());
  return visit(std::integral_constant<DType, DType::kF16>());
}

}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
