/* SPDX-License-Identifier: Apache-2.0
 * bfloat16 and binary16 in plain integer arithmetic: the specification that SIMD and CUDA
 * conversions must equal. Narrowing rounds to nearest even once; NaN stays NaN (quiet), its payload
 * is not part of the format. */
#pragma once

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define ADDEND_HOST_DEVICE __host__ __device__
#else
#define ADDEND_HOST_DEVICE
#endif

ADDEND_HOST_DEVICE static inline uint32_t addend_f32_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

ADDEND_HOST_DEVICE static inline float addend_f32_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

ADDEND_HOST_DEVICE static inline float addend_f32_from_bf16(uint16_t half) {
  return addend_f32_from_bits((uint32_t)half << 16);
}

ADDEND_HOST_DEVICE static inline uint16_t addend_bf16_from_f32(float value) {
  const uint32_t bits = addend_f32_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

ADDEND_HOST_DEVICE static inline float addend_f32_from_f16(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) {
    const uint32_t payload = (magnitude & 0x3FFu) << 13;
    return addend_f32_from_bits(sign | 0x7F800000u | payload | (payload ? 0x400000u : 0u));
  }
  if (magnitude >= 0x400u) return addend_f32_from_bits(sign | ((magnitude << 13) + 0x38000000u));
  /* Subnormal: magnitude * 2^-24 is exact in f32. */
  const float value = (float)magnitude * 5.9604644775390625e-08f;
  return addend_f32_from_bits(sign | addend_f32_bits(value));
}

ADDEND_HOST_DEVICE static inline uint16_t addend_f16_from_f32(float value) {
  const uint32_t bits = addend_f32_bits(value);
  const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* rounds to 65536 or more */
  if (magnitude >= 0x38800000u) {
    const uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | (rounded >> 13));
  }
  if (magnitude < 0x33000000u) return sign; /* below half of the smallest subnormal */
  const uint32_t exponent = magnitude >> 23;
  const uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
  const uint32_t shift =
      126u - exponent; /* 14..24: mantissa * 2^(exponent-150) in units of 2^-24 */
  const uint32_t kept = mantissa >> shift;
  const uint32_t rest = mantissa & ((1u << shift) - 1u);
  const uint32_t tie = 1u << (shift - 1u);
  return (uint16_t)(sign | (kept + ((rest > tie || (rest == tie && (kept & 1u))) ? 1u : 0u)));
}
