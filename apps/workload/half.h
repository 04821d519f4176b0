// SPDX-License-Identifier: Apache-2.0
// bfloat16 and IEEE half precision as 16-bit words. Conversions round to nearest, ties to even; NaN
// stays a (quiet) NaN, denormals are kept.
#pragma once

#include <bit>
#include <cstdint>

#include "addend/plane.h"

namespace addend::workload {

inline float bf16_to_f32(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

inline uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  // Adding just under half (or half, where the kept part is odd) carries into the kept part when it
  // must round up.
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) {
    return std::bit_cast<float>(sign | 0x7f800000 | ((magnitude & 0x3ff) << 13));
  }
  if (magnitude < 0x400) {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000));
}

inline uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
  }
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above
  if (magnitude < 0x38800000) {
    // Below 2^-14 the half's last bit weighs 2^-24, as the float's does at 0.5: the float adder
    // rounds for us.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000));
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

/// Element `index` of an array of `dtype`, widened; and stored, rounded.
inline float load_element(DType dtype, const void* data, uint64_t index) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(data)[index];
    case DType::kBf16:
      return bf16_to_f32(static_cast<const uint16_t*>(data)[index]);
    case DType::kF16:
      return f16_to_f32(static_cast<const uint16_t*>(data)[index]);
  }
  return 0;
}

inline void store_element(DType dtype, void* data, uint64_t index, float value) {
  switch (dtype) {
    case DType::kF32:
      static_cast<float*>(data)[index] = value;
      return;
    case DType::kBf16:
      static_cast<uint16_t*>(data)[index] = f32_to_bf16(value);
      return;
    case DType::kF16:
      static_cast<uint16_t*>(data)[index] = f32_to_f16(value);
      return;
  }
}

}  // namespace addend::workload
