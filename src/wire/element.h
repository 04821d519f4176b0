// SPDX-License-Identifier: Apache-2.0
// Elements of a gradient, or lanes of a float plane, as f32, which holds every bf16 and f16
// exactly.
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "wire/half.h"

namespace addend {

/// Loads element i of a gradient as the f32 that equals it.
inline float load_float(DType dtype, const void* gradient, uint64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(gradient)[i];
  const uint16_t half = static_cast<const uint16_t*>(gradient)[i];
  return dtype == DType::kBf16 ? addend_f32_from_bf16(half) : addend_f32_from_f16(half);
}

/// Stores a float, rounded to dtype.
inline void store_float(DType dtype, void* gradient, uint64_t i, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(gradient)[i] = value;
  } else {
    static_cast<uint16_t*>(gradient)[i] =
        dtype == DType::kBf16 ? addend_bf16_from_f32(value) : addend_f16_from_f32(value);
  }
}

}  // namespace addend
