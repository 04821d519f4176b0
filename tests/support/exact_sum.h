// SPDX-License-Identifier: Apache-2.0
// For tests: the exact sum of floats, one counter per bit, and its rounding. Slow, and shares
// nothing with the codecs that it checks.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "addend/plane.h"
#include "wire/half.h"

namespace addend::testing_support {

/// Element i of a gradient as f32.
inline float element(DType dtype, const void* gradient, uint64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(gradient)[i];
  const uint16_t half = static_cast<const uint16_t*>(gradient)[i];
  return dtype == DType::kBf16 ? addend_f32_from_bf16(half) : addend_f32_from_f16(half);
}

class ExactSum {
 public:
  void add(float value) {
    const uint32_t bits = addend_f32_bits(value);
    const bool negative = bits >> 31 != 0;
    const uint32_t field = bits >> 23 & 255, fraction = bits & 0x7FFFFF;
    if (field == 255) {
      nan_ = nan_ || fraction != 0;
      plus_ = plus_ || (fraction == 0 && !negative);
      minus_ = minus_ || (fraction == 0 && negative);
      return;
    }
    add(negative, field == 0 ? fraction : fraction | 0x800000,
        field == 0 ? -149 : static_cast<int>(field) - 150);
  }

  /// Adds magnitude * 2^exponent, or takes it away.
  void add(bool negative, uint64_t magnitude, int exponent) {
    for (int bit = 0; bit < 64; ++bit) {
      if ((magnitude >> bit & 1) == 0) continue;
      counts_[static_cast<std::size_t>(exponent + bit - kLowest)] += negative ? -1 : 1;
    }
  }

  /// The float of `dtype` nearest to the sum, ties to even, as f32.
  float round(DType dtype) const {
    if (nan_ || (plus_ && minus_)) return std::numeric_limits<float>::quiet_NaN();
    if (plus_ || minus_) return (plus_ ? 1.0f : -1.0f) * std::numeric_limits<float>::infinity();
    const Binary sum = binary();
    if (sum.top < 0) return 0;
    const int mantissa = dtype == DType::kF32 ? 24 : dtype == DType::kBf16 ? 8 : 11;
    const int floor = dtype == DType::kF32 ? -149 : dtype == DType::kBf16 ? -133 : -24;
    const int low = std::max(sum.top - mantissa + 1, floor - kLowest);
    double kept = 0;
    for (int i = sum.top; i >= low; --i)
      kept = kept * 2 + sum.bits[static_cast<std::size_t>(i)];
    const bool half = low > 0 && sum.bits[static_cast<std::size_t>(low - 1)] != 0;
    bool rest = false;
    for (int i = 0; i < low - 1; ++i)
      rest = rest || sum.bits[static_cast<std::size_t>(i)] != 0;
    if (half && (rest || std::fmod(kept, 2) != 0)) kept += 1;
    const double magnitude = std::ldexp(kept, low + kLowest);
    const double limit = dtype == DType::kF16 ? 65536.0 : 0x1p128;
    const float rounded =
        magnitude >= limit ? std::numeric_limits<float>::infinity() : static_cast<float>(magnitude);
    return sum.negative ? -rounded : rounded;
  }

  /// The sum to the accuracy of a double; finite addends only.
  double value() const {
    const Binary sum = binary();
    double total = 0;
    for (int i = sum.top; i >= 0 && i > sum.top - 53; --i)
      total += sum.bits[static_cast<std::size_t>(i)] * std::ldexp(1.0, i + kLowest);
    return sum.negative ? -total : total;
  }

 private:
  static constexpr int kLowest = -320;
  static constexpr std::size_t kBits = 640;

  struct Binary {
    std::array<uint8_t, kBits> bits{};
    int top = -1;
    bool negative = false;
  };

  // Carries from bit to bit; a carry out of the top means that the sum is negative.
  Binary binary() const {
    Binary sum;
    for (const int sign : {1, -1}) {
      int64_t carry = 0;
      for (std::size_t i = 0; i < kBits; ++i) {
        carry += sign * counts_[i];
        sum.bits[i] = static_cast<uint8_t>(carry & 1);
        carry >>= 1;
      }
      sum.negative = sign < 0;
      if (carry == 0) break;
    }
    for (std::size_t i = 0; i < kBits; ++i) {
      if (sum.bits[i] != 0) sum.top = static_cast<int>(i);
    }
    return sum;
  }

  std::array<int64_t, kBits> counts_{};
  bool nan_ = false, plus_ = false, minus_ = false;
};

}  // namespace addend::testing_support
