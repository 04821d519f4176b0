// SPDX-License-Identifier: Apache-2.0
#include "codec/cast/kernels.h"

#include <cmath>
#include <type_traits>

#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/cast/kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/element-inl.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace {

using cast::Addends;

// Each returns how many elements it covered.
template <DType kFrom, DType kTo>
HWY_INLINE uint64_t send_types(const Addends& a, uint64_t count, void* sent) {
  uint64_t i = 0;
  if constexpr (in_vectors<kFrom>() && in_vectors<kTo>()) {
    const hn::ScalableTag<float> d;
    const auto scale = hn::Set(d, a.scale);
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
      const auto addend =
          hn::Add(load_lanes<kFrom>(d, a.gradient, i), hn::LoadU(d, a.residual + i));
      store_lanes<kTo>(d, hn::Mul(addend, scale), sent, i);
    }
  }
  return i;
}

template <DType kFrom, DType kTo>
HWY_INLINE uint64_t keep_types(const Addends& a, uint64_t count, float* residual) {
  uint64_t i = 0;
  if constexpr (in_vectors<kFrom>() && in_vectors<kTo>()) {
    const hn::ScalableTag<float> d;
    const auto scale = hn::Set(d, a.scale);
    HWY_ALIGN uint16_t halves[hn::MaxLanes(d)];
    for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
      const auto before = hn::LoadU(d, a.residual + i);
      const auto addend = hn::Add(load_lanes<kFrom>(d, a.gradient, i), before);
      store_lanes<kTo>(d, hn::Mul(addend, scale), halves, 0);
      const auto arrived = hn::Div(load_lanes<kTo>(d, halves, 0), scale);
      const auto lost = hn::Sub(addend, arrived);
      hn::StoreU(hn::IfThenElse(hn::IsFinite(lost), lost, before), d, residual + i);
    }
  }
  return i;
}

// Plain functions, because run-time dispatch cannot export templates.
template <typename Visit>
HWY_INLINE uint64_t with_types(const Addends& a, Visit visit) {
  return with_type(a.from, [&](auto from) HWY_ATTR {
    return a.to == DType::kBf16 ? visit(from, std::integral_constant<DType, DType::kBf16>())
                                : visit(from, std::integral_constant<DType, DType::kF16>());
  });
}

uint64_t send_kernel(const Addends& a, uint64_t count, void* sent) {
  return with_types(a, [&](auto from, auto to) HWY_ATTR {
    return send_types<decltype(from)::value, decltype(to)::value>(a, count, sent);
  });
}

uint64_t keep_kernel(const Addends& a, uint64_t count, float* residual) {
  return with_types(a, [&](auto from, auto to) HWY_ATTR {
    return keep_types<decltype(from)::value, decltype(to)::value>(a, count, residual);
  });
}

}  // namespace
}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend {
HWY_EXPORT(send_kernel);
HWY_EXPORT(keep_kernel);
}  // namespace addend

namespace addend::cast {

void send(const Addends& addends, uint64_t count, void* sent) {
  uint64_t i = scalar_forced() ? 0 : HWY_DYNAMIC_DISPATCH(send_kernel)(addends, count, sent);
  for (; i < count; ++i) {
    const float addend = load_float(addends.from, addends.gradient, i) + addends.residual[i];
    store_float(addends.to, sent, i, addend * addends.scale);
  }
}

void keep(const Addends& addends, uint64_t count, float* residual) {
  uint64_t i = scalar_forced() ? 0 : HWY_DYNAMIC_DISPATCH(keep_kernel)(addends, count, residual);
  for (; i < count; ++i) {
    const Sent sent = sent_at(addends, i);
    const float lost = sent.addend - sent.arrived;
    if (std::isfinite(lost)) residual[i] = lost;
  }
}

}  // namespace addend::cast
#endif
