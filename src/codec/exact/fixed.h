// SPDX-License-Identifier: Apache-2.0
// Fixed-point numbers that hold floats exactly: value = sum of digits[j] * 2^(quantum +
// j*digit_bits). Digits of different workers add lane by lane without carries (a digit leaves room
// for the sum of all workers), so any adder of i64 lanes can sum them. Everything here works on
// f32, which holds every bf16 and f16 exactly. Exponents are those of bits: bit e has weight 2^e.
//
// What makes integers of elements and elements of sums is inline, for the host and for kernels, and
// so are its bits the same.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "addend/plane.h"
#include "base/bits.h"
#include "wire/element.h"
#include "wire/half.h"

namespace addend::exact {

inline constexpr int kLowestBit = -149;  ///< of any f32
inline constexpr int kHighestBit = 127;

/// REQUIRES: word is not 0.
ADDEND_HOST_DEVICE inline int highest_bit(uint64_t word) {
#ifdef __CUDA_ARCH__
  return 63 - __clzll(static_cast<long long>(word));
#else
  return static_cast<int>(std::bit_width(word)) - 1;
#endif
}
ADDEND_HOST_DEVICE inline int lowest_bit(uint32_t word) {
#ifdef __CUDA_ARCH__
  return __ffs(static_cast<int>(word)) - 1;
#else
  return std::countr_zero(word);
#endif
}

/// 2^exponent, which must be a normal number.
ADDEND_HOST_DEVICE inline double power_of_two(int exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double value;
  memcpy(&value, &bits, 8);
  return value;
}

/// A finite float as sign, odd or even mantissa of at most 24 bits, and the exponent of the
/// mantissa's lowest bit.
struct Parts {
  bool negative;
  uint32_t mantissa;
  int exponent;
};
ADDEND_HOST_DEVICE inline Parts split(float value) {
  const uint32_t bits = addend_f32_bits(value);
  const uint32_t field = (bits >> 23) & 0xFF;
  const uint32_t fraction = bits & 0x7FFFFF;
  return {(bits >> 31) != 0, field == 0 ? fraction : fraction | 0x800000u,
          field == 0 ? kLowestBit : static_cast<int>(field) - 150};
}

ADDEND_HOST_DEVICE inline bool is_finite(float value) {
  return (addend_f32_bits(value) & 0x7F800000u) != 0x7F800000u;
}

/// Bits that a set of values spans; empty while top < low.
struct BitRange {
  int top = kLowestBit - 1;
  int low = kHighestBit + 1;
  bool non_finite = false;

  /// Widens to hold `value`.
  ADDEND_HOST_DEVICE void include(float value) {
    if (!is_finite(value)) {
      non_finite = true;
      return;
    }
    const Parts parts = split(value);
    if (parts.mantissa == 0) return;
    const int highest = parts.exponent + highest_bit(parts.mantissa);
    const int lowest = parts.exponent + lowest_bit(parts.mantissa);
    top = highest > top ? highest : top;
    low = lowest < low ? lowest : low;
  }
};

/// A fixed-point format.
struct Fixed {
  int quantum = 0;           ///< exponent of the lowest bit
  uint32_t digits = 1;       ///< i64 lanes that carry magnitude
  uint32_t digit_bits = 62;  ///< of each digit; 63 less the room for the sum of all workers
  bool special = false;      ///< one more lane counts NaN, +Inf and -Inf

  ADDEND_HOST_DEVICE uint32_t words() const { return digits + (special ? 1u : 0u); }

  /// The narrowest format that holds every bit of `range` (and non-finite values, if it has them)
  /// in digits of so many bits.
  ADDEND_HOST_DEVICE static Fixed of(const BitRange& range, uint32_t bits_each) {
    Fixed format;
    format.digit_bits = bits_each;
    format.special = range.non_finite;
    if (range.top < range.low) return format;
    format.quantum = range.low;
    const auto bits = static_cast<uint32_t>(range.top - range.low + 1);
    format.digits = (bits + bits_each - 1) / bits_each;
    return format;
  }
  /// The same for sums over `world` workers.
  static Fixed holding(const BitRange& range, uint32_t world) {
    return of(range, 63 - ceil_log2(world));
  }
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

/// Counts of non-finite addends share one word: 21 bits each, more than kMaxWorld needs.
inline constexpr int64_t kMinusInf = 1;
inline constexpr int64_t kPlusInf = int64_t{1} << 21;
inline constexpr int64_t kNan = int64_t{1} << 42;

/// magnitude >> shift, rounded to nearest even; `sticky` says that bits below are not all zero.
/// REQUIRES: shift > 0.
ADDEND_HOST_DEVICE inline uint64_t shift_right_even(uint64_t magnitude, int shift, bool sticky) {
  if (shift > 64) return 0;
  const uint64_t kept = shift == 64 ? 0 : magnitude >> shift;
  const uint64_t rest = shift == 64 ? magnitude : magnitude & ((uint64_t{1} << shift) - 1);
  const uint64_t half = uint64_t{1} << (shift - 1);
  const bool up = rest > half || (rest == half && (sticky || (kept & 1) != 0));
  return kept + (up ? 1 : 0);
}

/// Writes format.words() words. Bits below the quantum round to nearest even (none exist where
/// format.holds(value)).
ADDEND_HOST_DEVICE inline void to_fixed(const Fixed& format, float value, int64_t* words) {
  for (uint32_t j = 0; j < format.words(); ++j)
    words[j] = 0;
  const uint32_t bits = addend_f32_bits(value);
  if (!is_finite(value)) {
    const bool nan = (bits & 0x7FFFFF) != 0;
    if (format.special) words[format.digits] = nan ? kNan : bits >> 31 == 0 ? kPlusInf : kMinusInf;
    return;
  }
  const Parts parts = split(value);
  uint64_t mantissa = parts.mantissa;
  int shift = parts.exponent - format.quantum;
  if (shift < 0) {
    mantissa = shift_right_even(mantissa, -shift, false);
    shift = 0;
  }
  const uint32_t digit = static_cast<uint32_t>(shift) / format.digit_bits;
  const uint32_t inside = static_cast<uint32_t>(shift) % format.digit_bits;
  // A mantissa is shorter than a digit: it reaches into the next one at most.
  const uint64_t here = (mantissa << inside) & ((uint64_t{1} << format.digit_bits) - 1);
  const uint64_t beyond = mantissa >> (format.digit_bits - inside);
  if (digit < format.digits) words[digit] = static_cast<int64_t>(parts.negative ? 0 - here : here);
  if (digit + 1 < format.digits)
    words[digit + 1] = static_cast<int64_t>(parts.negative ? 0 - beyond : beyond);
}

/// magnitude * 2^exponent (plus something below it if `sticky`), rounded once to dtype.
ADDEND_HOST_DEVICE inline float round_to(DType dtype, bool negative, uint64_t magnitude,
                                         int exponent, bool sticky) {
  if (magnitude == 0) return 0.0f;
  const int bits = dtype == DType::kF32 ? 24 : dtype == DType::kBf16 ? 8 : 11;
  const int least = dtype == DType::kF32 ? kLowestBit : dtype == DType::kBf16 ? -133 : -24;
  const int top = exponent + highest_bit(magnitude);
  const int lowest = top - bits + 1 > least ? top - bits + 1 : least;
  const int shift = lowest - exponent;
  const uint64_t kept =
      shift > 0 ? shift_right_even(magnitude, shift, sticky) : magnitude << -shift;
  // At most `bits` + 1 bits: exact in f32, or beyond its range and therefore infinite in every
  // dtype; f16 overflows when narrowed.
  constexpr int kInfinite = 512;
  const double weight = power_of_two(lowest < kInfinite ? lowest : kInfinite);
  const auto value = static_cast<float>(static_cast<double>(kept) * weight);
  const float narrowed =
      dtype == DType::kF16 ? addend_f32_from_f16(addend_f16_from_f32(value)) : value;
  return negative ? -narrowed : narrowed;
}

namespace internal {

/// A two's complement number of 384 bits: room for the widest range (277 bits), kMaxWorld addends
/// and a sign.
struct Wide {
  static constexpr uint32_t kLimbs = 6;
  uint64_t limbs[kLimbs] = {};

  /// Adds digit * 2^shift.
  ADDEND_HOST_DEVICE void add(int64_t digit, uint32_t shift) {
    const uint32_t limb = shift / 64, bit = shift % 64;
    const auto word = static_cast<uint64_t>(digit);
    const uint64_t extension = digit < 0 ? ~uint64_t{0} : 0;
    uint64_t carry = 0;
    for (uint32_t i = limb; i < kLimbs; ++i) {
      uint64_t part = extension;
      if (i == limb) part = word << bit;
      if (i == limb + 1 && bit != 0) part = word >> (64 - bit) | extension << bit;
      const uint64_t sum = limbs[i] + part;
      limbs[i] = sum + carry;
      carry = (sum < part ? 1 : 0) + (limbs[i] < carry ? 1 : 0);
    }
  }

  ADDEND_HOST_DEVICE bool negate_if_negative() {
    if (limbs[kLimbs - 1] >> 63 == 0) return false;
    uint64_t carry = 1;
    for (uint64_t& limb : limbs) {
      limb = ~limb + carry;
      carry = (carry != 0 && limb == 0) ? 1 : 0;
    }
    return true;
  }
};

ADDEND_HOST_DEVICE inline float non_finite_sum(int64_t special) {
  constexpr int64_t kMask = kPlusInf - 1;
  const bool plus = ((special >> 21) & kMask) != 0, minus = (special & kMask) != 0;
  if (special >= kNan || (plus && minus)) return addend_f32_from_bits(0x7FC00000u);
  return addend_f32_from_bits(plus ? 0x7F800000u : 0xFF800000u);
}

}  // namespace internal

/// The sum that the words of one element add up to, rounded once to dtype's nearest (ties to even);
/// NaN and infinities as a float sum would give them. REQUIRES: no more digits than most_digits.
ADDEND_HOST_DEVICE inline float from_fixed(const Fixed& format, DType dtype, const int64_t* words) {
  if (format.special && words[format.digits] != 0)
    return internal::non_finite_sum(words[format.digits]);
  internal::Wide sum;
  for (uint32_t j = 0; j < format.digits; ++j)
    sum.add(words[j], j * format.digit_bits);
  const bool negative = sum.negate_if_negative();
  int top = internal::Wide::kLimbs - 1;
  while (top > 0 && sum.limbs[top] == 0)
    --top;
  // The 64 bits from the highest set bit down, and whether anything lies below them.
  uint64_t magnitude = sum.limbs[top];
  int exponent = top * 64;
  bool sticky = false;
  if (top > 0) {
    const int lead = 63 - highest_bit(magnitude);
    const uint64_t below = sum.limbs[top - 1];
    if (lead > 0) {
      magnitude = magnitude << lead | below >> (64 - lead);
      sticky = below << lead != 0;
      exponent -= lead;
    } else {
      sticky = below != 0;
    }
    for (int i = 0; i < top - 1; ++i)
      sticky = sticky || sum.limbs[i] != 0;
  }
  return round_to(dtype, negative, magnitude, exponent + format.quantum, sticky);
}

/// The type that an exact sum is rounded to before it is multiplied by `scale` and stored as dtype:
/// dtype itself for a scale of 1, else f32, so that a mean of f16 survives a sum beyond f16's
/// range.
ADDEND_HOST_DEVICE constexpr DType scaled_sum_type(DType dtype, float scale) {
  return scale == 1 ? dtype : DType::kF32;
}

/// The one-digit case, without loops: an integer number of quanta, exact if it fits, and back.
ADDEND_HOST_DEVICE inline int64_t to_quanta(float value, double inverse_quantum) {
#ifdef __CUDA_ARCH__
  return __double2ll_rn(static_cast<double>(value) * inverse_quantum);
#else
  return std::llrint(static_cast<double>(value) * inverse_quantum);
#endif
}
ADDEND_HOST_DEVICE inline float from_quanta(DType dtype, int64_t quanta, int quantum, float scale) {
  // One rounding: the conversion rounds to 24 bits, and scaling by a power of two is exact, also
  // among subnormals, where the sum is a multiple of 2^-149 of fewer than 24 bits. scale is
  // 2^quantum.
  if (dtype == DType::kF32) return static_cast<float>(quanta) * scale;
  const bool negative = quanta < 0;
  const auto magnitude = static_cast<uint64_t>(quanta);
  return round_to(dtype, negative, negative ? 0 - magnitude : magnitude, quantum, false);
}

}  // namespace addend::exact
