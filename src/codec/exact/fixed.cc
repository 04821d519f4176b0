// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/fixed.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/bits.h"

namespace addend::exact {
namespace {

__extension__ typedef unsigned __int128 uint128;

// Counts of non-finite addends share one word: 21 bits each, more than kMaxWorld needs.
constexpr int64_t kMinusInf = 1;
constexpr int64_t kPlusInf = int64_t{1} << 21;
constexpr int64_t kNan = int64_t{1} << 42;
constexpr int64_t kSpecialMask = kPlusInf - 1;

struct Rounding {
  int mantissa_bits;
  int lowest_bit;
};
Rounding rounding_of(DType dtype) {
  if (dtype == DType::kF32) return {24, kLowestBit};
  return dtype == DType::kBf16 ? Rounding{8, -133} : Rounding{11, -24};
}

// magnitude >> shift, rounded to nearest even; `sticky` says that bits below are not all zero.
uint64_t shift_right_even(uint64_t magnitude, int shift, bool sticky) {
  if (shift > 64) return 0;
  const uint64_t kept = shift == 64 ? 0 : magnitude >> shift;
  const uint64_t rest =
      shift == 64 ? magnitude : magnitude & low_mask(static_cast<uint64_t>(shift));
  const uint64_t half = uint64_t{1} << (shift - 1);
  const bool up = rest > half || (rest == half && (sticky || (kept & 1) != 0));
  return kept + (up ? 1 : 0);
}

float non_finite_sum(int64_t special) {
  const bool nan = special >= kNan;
  const bool plus = ((special >> 21) & kSpecialMask) != 0;
  const bool minus = (special & kSpecialMask) != 0;
  if (nan || (plus && minus)) return std::numeric_limits<float>::quiet_NaN();
  return plus ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
}

// A two's complement number of 384 bits: room for the widest range (277 bits), kMaxWorld addends
// and a sign.
struct Wide {
  std::array<uint64_t, 6> limbs{};

  // Adds digit * 2^shift.
  void add(int64_t digit, uint32_t shift) {
    const uint32_t limb = shift / 64, bit = shift % 64;
    const uint128 low = static_cast<uint128>(static_cast<uint64_t>(digit)) << bit;
    const uint64_t extension = digit < 0 ? ~uint64_t{0} : 0;
    uint64_t carry = 0;
    for (uint32_t i = limb; i < limbs.size(); ++i) {
      uint64_t part = extension;
      if (i == limb) part = static_cast<uint64_t>(low);
      if (i == limb + 1)
        part = static_cast<uint64_t>(low >> 64) | (bit == 0 ? extension : extension << bit);
      const uint128 sum = static_cast<uint128>(limbs[i]) + part + carry;
      limbs[i] = static_cast<uint64_t>(sum);
      carry = static_cast<uint64_t>(sum >> 64);
    }
  }

  bool negate_if_negative() {
    if (limbs.back() >> 63 == 0) return false;
    uint64_t carry = 1;
    for (uint64_t& limb : limbs) {
      limb = ~limb + carry;
      carry = (carry != 0 && limb == 0) ? 1 : 0;
    }
    return true;
  }
};

}  // namespace

void BitRange::include(float value) {
  if (!is_finite(value)) {
    non_finite = true;
    return;
  }
  const Parts parts = split(value);
  if (parts.mantissa == 0) return;
  top = std::max(top, parts.exponent + static_cast<int>(std::bit_width(parts.mantissa)) - 1);
  low = std::min(low, parts.exponent + std::countr_zero(parts.mantissa));
}

Fixed Fixed::holding(const BitRange& range, uint32_t world) {
  Fixed format;
  format.digit_bits = 63 - ceil_log2(world);
  format.special = range.non_finite;
  if (range.top < range.low) return format;
  format.quantum = range.low;
  const auto bits = static_cast<uint64_t>(range.top - range.low + 1);
  format.digits = static_cast<uint32_t>(ceil_div(bits, format.digit_bits));
  return format;
}

uint32_t most_digits(uint32_t world) {
  return Fixed::holding({kHighestBit, kLowestBit, false}, world).digits;
}

bool Fixed::holds(float value) const {
  if (!is_finite(value)) return special;
  BitRange range;
  range.include(value);
  return range.top < range.low ||
         (range.low >= quantum && range.top < quantum + static_cast<int>(digits * digit_bits));
}

void to_fixed(const Fixed& format, float value, int64_t* words) {
  std::fill_n(words, format.words(), 0);
  if (!is_finite(value)) {
    if (format.special) {
      words[format.digits] = std::isnan(value) ? kNan : value > 0 ? kPlusInf : kMinusInf;
    }
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
  const uint128 placed = static_cast<uint128>(mantissa)
                         << (static_cast<uint32_t>(shift) % format.digit_bits);
  const auto store = [&](uint32_t at, uint64_t magnitude) {
    if (magnitude == 0 || at >= format.digits) return;
    words[at] = static_cast<int64_t>(parts.negative ? 0 - magnitude : magnitude);
  };
  store(digit, static_cast<uint64_t>(placed) & low_mask(format.digit_bits));
  store(digit + 1, static_cast<uint64_t>(placed >> format.digit_bits));
}

float round_to(DType dtype, bool negative, uint64_t magnitude, int exponent, bool sticky) {
  if (magnitude == 0) return 0.0f;
  const Rounding to = rounding_of(dtype);
  const int top = exponent + static_cast<int>(std::bit_width(magnitude)) - 1;
  const int lowest = std::max(top - to.mantissa_bits + 1, to.lowest_bit);
  const int shift = lowest - exponent;
  const uint64_t kept =
      shift > 0 ? shift_right_even(magnitude, shift, sticky) : magnitude << -shift;
  // At most mantissa_bits + 1 bits: exact in f32, or beyond its range and therefore infinite in
  // every dtype; f16 overflows when narrowed.
  const float value = std::ldexp(static_cast<float>(kept), lowest);
  const float narrowed =
      dtype == DType::kF16 ? addend_f32_from_f16(addend_f16_from_f32(value)) : value;
  return negative ? -narrowed : narrowed;
}

float from_fixed(const Fixed& format, DType dtype, const int64_t* words) {
  if (format.special && words[format.digits] != 0) return non_finite_sum(words[format.digits]);
  Wide sum;
  for (uint32_t j = 0; j < format.digits; ++j)
    sum.add(words[j], j * format.digit_bits);
  const bool negative = sum.negate_if_negative();
  int top = static_cast<int>(sum.limbs.size()) - 1;
  while (top > 0 && sum.limbs[static_cast<uint32_t>(top)] == 0)
    --top;
  // The 64 bits from the highest set bit down, and whether anything lies below them.
  uint64_t magnitude = sum.limbs[static_cast<uint32_t>(top)];
  int exponent = top * 64;
  bool sticky = false;
  if (top > 0) {
    const int lead = std::countl_zero(magnitude);
    const uint64_t below = sum.limbs[static_cast<uint32_t>(top - 1)];
    if (lead > 0) {
      magnitude = magnitude << lead | below >> (64 - lead);
      sticky = below << lead != 0;
      exponent -= lead;
    } else {
      sticky = below != 0;
    }
    for (int i = 0; i < top - 1; ++i)
      sticky = sticky || sum.limbs[static_cast<uint32_t>(i)] != 0;
  }
  return round_to(dtype, negative, magnitude, exponent + format.quantum, sticky);
}

}  // namespace addend::exact
