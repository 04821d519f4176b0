// SPDX-License-Identifier: Apache-2.0
// One load and at most one store of each lane a pass, at memory speed. Blocks are whole vectors;
// the last one's rest, and f16 on targets that cannot convert it, go one lane at a time.
#include <algorithm>
#include <limits>

#include "base/simd.h"
#include "reduce/service/shared_exponent.h"
#include "reduce/service/shared_exponent_reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/service/shared_exponent_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::service_client::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;

// How lanes of each type are read as f32, and written.
struct F32 {
  using Lane = float;
  static HWY_INLINE VF load(const float* from) { return hn::LoadU(DF(), from); }
  static HWY_INLINE void store(VF v, float* to) { hn::StoreU(v, DF(), to); }
};

// No NaN is ever stored here.
struct Bf16 {
  using Lane = uint16_t;
  using DH = hn::Rebind<uint16_t, DF>;
  static HWY_INLINE VF load(const uint16_t* from) {
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::LoadU(DH(), from))));
  }
  static HWY_INLINE void store(VF v, uint16_t* to) {
    const auto bits = hn::BitCast(DU(), v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(DU(), 1));
    const auto half = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(DU(), 0x7FFF)), odd));
    hn::StoreU(hn::DemoteTo(DH(), hn::BitCast(DI(), half)), DH(), to);
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
struct F16 {
  using Lane = uint16_t;
  using DH = hn::Rebind<hwy::float16_t, DF>;
  static HWY_INLINE VF load(const uint16_t* from) {
    return hn::PromoteTo(DF(), hn::LoadU(DH(), reinterpret_cast<const hwy::float16_t*>(from)));
  }
  static HWY_INLINE void store(VF v, uint16_t* to) {
    hn::StoreU(hn::DemoteTo(DH(), v), DH(), reinterpret_cast<hwy::float16_t*>(to));
  }
};
#endif

// Each covers whole vectors and says how many lanes that were.
template <typename Type>
HWY_INLINE uint64_t measure(const void* lanes, uint64_t count, uint32_t* largest) {
  const DU du;
  const uint64_t n = hn::Lanes(du);
  const auto* from = static_cast<const typename Type::Lane*>(lanes);
  auto most = hn::Zero(du);
  uint64_t i = 0;
  for (; i + n <= count; i += n) {
    const auto bits = hn::BitCast(du, Type::load(from + i));
    most = hn::Max(most, hn::And(bits, hn::Set(du, 0x7FFFFFFF)));
  }
  *largest = hn::GetLane(hn::MaxOfLanes(du, most)) >> 23;
  return i;
}

template <typename Type>
HWY_INLINE uint64_t to(const void* lanes, uint64_t count, const reference::Scale& scale,
                       int32_t* quanta) {
  const DF d;
  const uint64_t n = hn::Lanes(d);
  const auto* from = static_cast<const typename Type::Lane*>(lanes);
  const auto first = hn::Set(d, scale.up[0]), second = hn::Set(d, scale.up[1]);
  uint64_t i = 0;
  for (; i + n <= count; i += n) {
    const auto scaled = hn::Mul(hn::Mul(Type::load(from + i), first), second);
    hn::StoreU(hn::NearestInt(scaled), DI(), quanta + i);
  }
  return i;
}

template <typename Type>
HWY_INLINE uint64_t from(const int32_t* quanta, uint64_t count, const reference::Scale& scale,
                         void* lanes) {
  const DF d;
  const uint64_t n = hn::Lanes(d);
  auto* out = static_cast<typename Type::Lane*>(lanes);
  const auto first = hn::Set(d, scale.down[0]), second = hn::Set(d, scale.down[1]);
  uint64_t i = 0;
  for (; i + n <= count; i += n) {
    const auto value = hn::ConvertTo(d, hn::LoadU(DI(), quanta + i));
    Type::store(hn::Mul(hn::Mul(value, first), second), out + i);
  }
  return i;
}

uint64_t measure_kernel(DType dtype, const void* lanes, uint64_t count, uint32_t* largest) {
  if (dtype == DType::kF32) return measure<F32>(lanes, count, largest);
  if (dtype == DType::kBf16) return measure<Bf16>(lanes, count, largest);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  return measure<F16>(lanes, count, largest);
#else
  return 0;
#endif
}

uint64_t to_kernel(DType dtype, const void* lanes, uint64_t count, const reference::Scale& scale,
                   int32_t* quanta) {
  if (dtype == DType::kF32) return to<F32>(lanes, count, scale, quanta);
  if (dtype == DType::kBf16) return to<Bf16>(lanes, count, scale, quanta);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  return to<F16>(lanes, count, scale, quanta);
#else
  return 0;
#endif
}

uint64_t from_kernel(DType dtype, const int32_t* quanta, uint64_t count,
                     const reference::Scale& scale, void* lanes) {
  if (dtype == DType::kF32) return from<F32>(quanta, count, scale, lanes);
  if (dtype == DType::kBf16) return from<Bf16>(quanta, count, scale, lanes);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  return from<F16>(quanta, count, scale, lanes);
#else
  return 0;
#endif
}

}  // namespace
}  // namespace addend::service_client::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend::service_client {
namespace {

HWY_EXPORT(measure_kernel);
HWY_EXPORT(to_kernel);
HWY_EXPORT(from_kernel);

// Calls visit(block, its first lane, its lanes).
template <typename Visit>
void for_each_block(uint64_t count, Visit&& visit) {
  for (uint64_t begin = 0; begin < count; begin += kExponentBlock)
    visit(begin / kExponentBlock, begin, std::min(kExponentBlock, count - begin));
}

const uint8_t* at(DType dtype, const void* lanes, uint64_t i) {
  return static_cast<const uint8_t*>(lanes) + i * dtype_bytes(dtype);
}

}  // namespace

void measure_exponents(DType dtype, const void* lanes, uint64_t count, uint32_t* exponents) {
  const bool vectors = !scalar_forced();
  for_each_block(count, [&](uint64_t block, uint64_t begin, uint64_t size) {
    const uint8_t* first = at(dtype, lanes, begin);
    uint32_t largest = 0;
    uint64_t i = vectors ? HWY_DYNAMIC_DISPATCH(measure_kernel)(dtype, first, size, &largest) : 0;
    for (; i < size; ++i)
      largest = std::max(largest, reference::exponent_of(load_float(dtype, first, i)));
    exponents[block] = largest;
  });
}

void to_quanta(DType dtype, const void* lanes, uint64_t count, const uint32_t* exponents,
               uint32_t world, int32_t* quanta) {
  const bool vectors = !scalar_forced();
  for_each_block(count, [&](uint64_t block, uint64_t begin, uint64_t size) {
    int32_t* out = quanta + begin;
    if (exponents[block] >= kNonFiniteExponent) {
      std::fill_n(out, size, 0);
      return;
    }
    const uint8_t* first = at(dtype, lanes, begin);
    const reference::Scale scale = reference::scale_of(exponents[block], world);
    uint64_t i = vectors ? HWY_DYNAMIC_DISPATCH(to_kernel)(dtype, first, size, scale, out) : 0;
    for (; i < size; ++i)
      out[i] = reference::to_quanta(load_float(dtype, first, i), scale);
  });
}

void from_quanta(DType dtype, const int32_t* quanta, uint64_t count, const uint32_t* exponents,
                 uint32_t world, void* lanes) {
  const bool vectors = !scalar_forced();
  for_each_block(count, [&](uint64_t block, uint64_t begin, uint64_t size) {
    auto* first = static_cast<uint8_t*>(lanes) + begin * dtype_bytes(dtype);
    if (exponents[block] >= kNonFiniteExponent) {
      for (uint64_t i = 0; i < size; ++i)
        store_float(dtype, first, i, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    const int32_t* in = quanta + begin;
    const reference::Scale scale = reference::scale_of(exponents[block], world);
    uint64_t i = vectors ? HWY_DYNAMIC_DISPATCH(from_kernel)(dtype, in, size, scale, first) : 0;
    for (; i < size; ++i)
      store_float(dtype, first, i, reference::from_quanta(in[i], scale));
  });
}

}  // namespace addend::service_client
#endif
