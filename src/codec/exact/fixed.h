// SPDX-License-Identifier: Apache-2.0
// Fixed-point numbers that hold floats exactly: value = sum of digits[j] * 2^(quantum +
// j*digit_bits). Digits of different workers add lane by lane without carries (a digit leaves room
// for the sum of all workers), so any adder of i64 lanes can sum them. Everything here works on
// f32, which holds every bf16 and f16 exactly. Exponents are those of bits: bit e has weight 2^e.
#pragma once

#include <cmath>
#include <cstdint>

#include "addend/plane.h"
#include "wire/element.h"
#include "wire/half.h"

namespace addend::exact {

inline constexpr int kLowestBit = -149;  ///< of any f32
inline constexpr int kHighestBit = 127;

/// A finite float as sign, odd or even mantissa of at most 24 bits, and the exponent of the
/// mantissa's lowest bit.
struct Parts {
  bool negative;
  uint32_t mantissa;
  int exponent;
};
inline Parts split(float value) {
  const uint32_t bits = addend_f32_bits(value);
  const uint32_t field = (bits >> 23) & 0xFF;
  const uint32_t fraction = bits & 0x7FFFFF;
  return {(bits >> 31) != 0, field == 0 ? fraction : fraction | 0x800000u,
          field == 0 ? kLowestBit : static_cast<int>(field) - 150};
}

inline bool is_finite(float value) { return (addend_f32_bits(value) & 0x7F800000u) != 0x7F800000u; }

/// Bits that a set of values spans; empty while top < low.
struct BitRange {
  int top = kLowestBit - 1;
  int low = kHighestBit + 1;
  bool non_finite = false;
  /// Widens to hold `value`.
  void include(float value);
};

/// A fixed-point format.
struct Fixed {
  int quantum = 0;           ///< exponent of the lowest bit
  uint32_t digits = 1;       ///< i64 lanes that carry magnitude
  uint32_t digit_bits = 62;  ///< of each digit; 63 less the room for the sum of all workers
  bool special = false;      ///< one more lane counts NaN, +Inf and -Inf

  uint32_t words() const { return digits + (special ? 1u : 0u); }

  /// The narrowest format that holds every bit of `range` (and non-finite values, if it has them)
  /// for sums over `world` workers.
  static Fixed holding(const BitRange& range, uint32_t world);
  /// Whether every bit of `value` has a place here.
  bool holds(float value) const;
};

/// Most workers whose sums we promise to hold: digits keep this much room at the most, specials
/// count in 21-bit fields.
inline constexpr uint32_t kMaxWorld = 1u << 20;
inline constexpr uint32_t kMaxFixedWords = 8;

/// Digits of the widest format that `holding` makes for `world` workers; what adds digits up has
/// room for no more.
uint32_t most_digits(uint32_t world);

/// Writes format.words() words. Bits below the quantum round to nearest even (none exist where
/// format.holds(value)).
void to_fixed(const Fixed& format, float value, int64_t* words);

/// The sum that the words of one element add up to, rounded once to dtype's nearest (ties to even);
/// NaN and infinities as a float sum would give them. REQUIRES: no more digits than most_digits.
float from_fixed(const Fixed& format, DType dtype, const int64_t* words);

/// magnitude * 2^exponent (plus something below it if `sticky`), rounded once to dtype.
float round_to(DType dtype, bool negative, uint64_t magnitude, int exponent, bool sticky);

/// The type that an exact sum is rounded to before it is multiplied by `scale` and stored as dtype:
/// dtype itself for a scale of 1, else f32, so that a mean of f16 survives a sum beyond f16's
/// range.
constexpr DType scaled_sum_type(DType dtype, float scale) {
  return scale == 1 ? dtype : DType::kF32;
}

/// The one-digit case, without loops: an integer number of quanta, exact if it fits, and back.
inline int64_t to_quanta(float value, double inverse_quantum) {
  return std::llrint(static_cast<double>(value) * inverse_quantum);
}
inline float from_quanta(DType dtype, int64_t quanta, int quantum, float scale) {
  // One rounding: the conversion rounds to 24 bits, and scaling by a power of two is exact, also
  // among subnormals, where the sum is a multiple of 2^-149 of fewer than 24 bits. scale is
  // 2^quantum.
  if (dtype == DType::kF32) return static_cast<float>(quanta) * scale;
  const bool negative = quanta < 0;
  const auto magnitude = static_cast<uint64_t>(quanta);
  return round_to(dtype, negative, negative ? 0 - magnitude : magnitude, quantum, false);
}

}  // namespace addend::exact
