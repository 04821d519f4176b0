// SPDX-License-Identifier: Apache-2.0
// One load, one store and few operations a vector, for memory speed; the tail, and f16 on targets
// that cannot convert it, one element at a time. wire/half.h specifies the conversions.
#include "codec/multiply.h"

#include <cstring>

#include "base/simd.h"
#include "wire/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/multiply.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;

// Each returns how many elements it covered.
uint64_t multiply_f32(const float* from, uint64_t count, float factor, float* to) {
  const DF d;
  const uint64_t n = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  uint64_t i = 0;
  for (; i + n <= count; i += n)
    hn::StoreU(hn::Mul(hn::LoadU(d, from + i), f), d, to + i);
  return i;
}

uint64_t multiply_bf16(const uint16_t* from, uint64_t count, float factor, uint16_t* to) {
  const DF d;
  const hn::RebindToUnsigned<DF> du;
  const hn::RebindToSigned<DF> di;
  const hn::Rebind<uint16_t, DF> dh;
  const uint64_t n = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  uint64_t i = 0;
  for (; i + n <= count; i += n) {
    const auto wide = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, from + i)));
    const auto product = hn::Mul(hn::BitCast(d, wide), f);
    const auto bits = hn::BitCast(du, product);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
    const auto nan = hn::RebindMask(du, hn::Ne(product, product));
    hn::StoreU(hn::DemoteTo(dh, hn::BitCast(di, hn::IfThenElse(nan, quiet, rounded))), dh, to + i);
  }
  return i;
}

uint64_t multiply_f16(const uint16_t* from, uint64_t count, float factor, uint16_t* to) {
  uint64_t i = 0;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  const DF d;
  const hn::Rebind<hwy::float16_t, DF> dh;
  const uint64_t n = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  for (; i + n <= count; i += n) {
    const auto half = hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(from + i));
    const auto product = hn::Mul(hn::PromoteTo(d, half), f);
    hn::StoreU(hn::DemoteTo(dh, product), dh, reinterpret_cast<hwy::float16_t*>(to + i));
  }
#else
  (void)from, (void)count, (void)factor, (void)to;
#endif
  return i;
}

uint64_t multiply_kernel(DType dtype, const void* from, uint64_t count, float factor, void* to) {
  if (dtype == DType::kF32) {
    return multiply_f32(static_cast<const float*>(from), count, factor, static_cast<float*>(to));
  }
  const auto* halves = static_cast<const uint16_t*>(from);
  auto* products = static_cast<uint16_t*>(to);
  return dtype == DType::kBf16 ? multiply_bf16(halves, count, factor, products)
                               : multiply_f16(halves, count, factor, products);
}

}  // namespace
}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend {

HWY_EXPORT(multiply_kernel);

void multiply(DType dtype, const void* from, uint64_t count, float factor, void* to) {
  if (factor == 1) {
    if (to != from && count > 0) std::memcpy(to, from, count * dtype_bytes(dtype));
    return;
  }
  uint64_t i = 0;
  if (!scalar_forced()) {
    i = HWY_DYNAMIC_DISPATCH(multiply_kernel)(dtype, from, count, factor, to);
  }
  for (; i < count; ++i)
    store_float(dtype, to, i, load_float(dtype, from, i) * factor);
}

}  // namespace addend
#endif
