// SPDX-License-Identifier: Apache-2.0
// The specification of every plane operation, one lane at a time. SIMD and CUDA must equal it (NaN
// payloads aside).
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "wire/half.h"
#include "wire/narrow.h"

namespace addend::reference {

inline float combine_f32(float a, float b) { return a + b; }
inline uint16_t combine_bf16(uint16_t a, uint16_t b) {
  return addend_bf16_from_f32(addend_f32_from_bf16(a) + addend_f32_from_bf16(b));
}
// Summing in f32 and narrowing is one rounding, not two: 24 bits are at least 2*11+2, where double
// rounding is harmless.
inline uint16_t combine_f16(uint16_t a, uint16_t b) {
  return addend_f16_from_f32(addend_f32_from_f16(a) + addend_f32_from_f16(b));
}
inline uint32_t combine_i32(uint32_t a, uint32_t b) { return a + b; }
inline uint64_t combine_i64(uint64_t a, uint64_t b) { return a + b; }
inline uint8_t combine_u8(uint8_t a, uint8_t b) { return static_cast<uint8_t>(a + b); }
inline uint16_t combine_u16(uint16_t a, uint16_t b) { return static_cast<uint16_t>(a + b); }
inline uint64_t combine_or(uint64_t a, uint64_t b) { return a | b; }
inline uint32_t combine_max(uint32_t a, uint32_t b) { return a > b ? a : b; }

inline uint8_t nibble(const uint8_t* indices, uint64_t lane) {
  return static_cast<uint8_t>((indices[lane / 2] >> (lane % 2 * 4)) & 15);
}

/// The group whose sums lie in least ... most: the smallest step with which they fit.
inline narrow::Group narrow_group_of(uint32_t least, uint32_t most, uint32_t seed, uint32_t bits) {
  const uint32_t top = (1u << bits) - 1;
  const uint32_t step = most == least ? 1 : (most - least + top - 1) / top;
  return {least, step, seed & 0xFF};
}

void fold(Op op, void* acc, const void* in, uint64_t lanes) noexcept;
void fold_table(Op op, void* acc, const uint8_t* indices, const void* table,
                uint64_t lanes) noexcept;

void add_levels(uint16_t* acc, const uint8_t* levels, uint64_t lanes) noexcept;
/// A group of narrow sums, in 4 or 8 bits a lane. REQUIRES: 0 < lanes <= narrow::kGroupLanes.
void narrow_group(const uint16_t* sums, uint64_t lanes, uint32_t bits, uint8_t* out) noexcept;

}  // namespace addend::reference
