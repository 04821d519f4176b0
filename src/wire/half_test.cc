// SPDX-License-Identifier: Apache-2.0
#include "wire/half.h"

#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"
#include "wire/hash.h"

namespace {

// Nearest-even by exhaustive neighbours: the closest representable value, ties to the even pattern.
template <typename Widen>
uint16_t nearest(float value, uint16_t infinity, Widen widen) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  uint16_t low = 0, high = infinity;  // binary search for the largest pattern <= magnitude
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (static_cast<double>(widen(middle)) <= magnitude ? low : high) = middle;
  }
  const double below = widen(low);
  // The step above the largest finite value is as wide as the one below it.
  const double above =
      high == infinity
          ? below + (below - static_cast<double>(widen(static_cast<uint16_t>(low - 1))))
          : static_cast<double>(widen(high));
  const double down = magnitude - below, up = above - magnitude;
  const bool take_high = up < down || (up == down && (low & 1) != 0);
  return static_cast<uint16_t>(sign | (take_high ? high : low));
}

TEST(Half, F16WidensAndNarrowsToItselfForEveryPattern) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto half = static_cast<uint16_t>(pattern);
    const float wide = addend_f32_from_f16(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(addend_f32_from_f16(addend_f16_from_f32(wide))));
    } else {
      ASSERT_EQ(addend_f16_from_f32(wide), half) << pattern;
    }
  }
}

TEST(Half, Bf16WidensAndNarrowsToItselfForEveryPattern) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    const auto half = static_cast<uint16_t>(pattern);
    const float wide = addend_f32_from_bf16(half);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(addend_f32_from_bf16(addend_bf16_from_f32(wide))));
    } else {
      ASSERT_EQ(addend_bf16_from_f32(wide), half) << pattern;
    }
  }
}

TEST(Half, NarrowingRoundsToNearestEven) {
  for (uint64_t i = 0; i < 200000; ++i) {
    const float value = addend_f32_from_bits(static_cast<uint32_t>(addend_random(7, i)));
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(addend_bf16_from_f32(value), nearest(value, 0x7F80, addend_f32_from_bf16)) << value;
    const float scaled =
        std::ldexp(1.0f + static_cast<float>(i) / 200000.0f, static_cast<int>(i % 48) - 28);
    ASSERT_EQ(addend_f16_from_f32(scaled), nearest(scaled, 0x7C00, addend_f32_from_f16)) << scaled;
  }
  EXPECT_EQ(addend_f16_from_f32(65520.0f), 0x7C00);  // the tie above the largest finite value
  EXPECT_EQ(addend_f16_from_f32(65519.996f), 0x7BFF);
}

}  // namespace
