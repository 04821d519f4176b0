// SPDX-License-Identifier: Apache-2.0
// Elements as bits: floats of them and back, what scaling makes of them, and kernels by their type.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_fp16.h>

#include "addend/plane.h"
#include "wire/half.h"

namespace addend::index {
namespace {

template <DType kType>
using Element = std::conditional_t<kType == DType::kF32, uint32_t, uint16_t>;

template <DType kType>
__device__ inline float as_float(Element<kType> bits) {
  if constexpr (kType == DType::kF32) {
    return addend_f32_from_bits(bits);
  } else {
    return kType == DType::kBf16 ? addend_f32_from_bf16(bits) : addend_f32_from_f16(bits);
  }
}

template <DType kType>
__device__ inline Element<kType> as_element(float value) {
  if constexpr (kType == DType::kF32) {
    return addend_f32_bits(value);
  } else {
    return kType == DType::kBf16 ? addend_bf16_from_f32(value) : addend_f16_from_f32(value);
  }
}

template <DType kType>
__device__ inline float load(const void* elements, uint64_t i) {
  return as_float<kType>(static_cast<const Element<kType>*>(elements)[i]);
}

template <DType kType>
__device__ inline void store(void* elements, uint64_t i, float value) {
  static_cast<Element<kType>*>(elements)[i] = as_element<kType>(value);
}

/// visit<type>
template <typename Visit>
int with_type(DType dtype, const Visit& visit) {
  if (dtype == DType::kF32) return visit.template operator()<DType::kF32>();
  if (dtype == DType::kBf16) return visit.template operator()<DType::kBf16>();
  return visit.template operator()<DType::kF16>();
}

/// The element times the factor, rounded once; a NaN keeps its payload, as on the CPU.
template <DType kType, typename T>
__device__ inline T scaled(T bits, float factor) {
  if (factor == 1.0f) return bits;
  if constexpr (kType == DType::kF32) {
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits | 0x400000u;
    return __float_as_uint(__fmul_rn(__uint_as_float(bits), factor));
  } else if constexpr (kType == DType::kBf16) {
    if ((bits & 0x7FFFu) > 0x7F80u) return static_cast<T>(bits | 0x40u);
    return addend_bf16_from_f32(__fmul_rn(addend_f32_from_bf16(bits), factor));
  } else {
    if ((bits & 0x7FFFu) > 0x7C00u) return static_cast<T>(bits | 0x200u);
    return __half_as_ushort(
        __float2half_rn(__fmul_rn(__half2float(__ushort_as_half(bits)), factor)));
  }
}

/// 16 bytes as elements.
template <typename T>
union Vector {
  uint4 whole;
  T elements[16 / sizeof(T)];
};

}  // namespace
}  // namespace addend::index
