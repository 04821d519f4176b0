// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/half.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace addend::workload {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Half, ConvertsKnownValues) {
  const struct {
    float value;
    uint16_t f16;
    uint16_t bf16;
  } kCases[] = {
      {0.0f, 0x0000, 0x0000},      {-0.0f, 0x8000, 0x8000},    {1.0f, 0x3c00, 0x3f80},
      {-2.0f, 0xc000, 0xc000},     {65504.0f, 0x7bff, 0x4780}, {0x1p-14f, 0x0400, 0x3880},
      {0x1p-24f, 0x0001, 0x3380},  {kInf, 0x7c00, 0x7f80},     {-kInf, 0xfc00, 0xff80},
      {3.140625f, 0x4248, 0x4049},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(f32_to_f16(c.value), c.f16) << c.value;
    EXPECT_EQ(f32_to_bf16(c.value), c.bf16) << c.value;
  }
}

TEST(Half, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f), 0x3c00);             // tie, down to even
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f + 0x1p-20f), 0x3c01);  // just above
  EXPECT_EQ(f32_to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);         // tie, up to even
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0x0000);
  EXPECT_EQ(f32_to_f16(0x1.8p-24f), 0x0002);
  EXPECT_EQ(f32_to_f16(0x1.ffcp-15f), 0x0400);  // the largest denormal's upper neighbour is normal
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Half, KeepsNanAndEveryHalfSurvivesTheRoundTrip) {
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(NAN))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  for (uint32_t word = 0; word < 0x10000; ++word) {
    const auto half = static_cast<uint16_t>(word);
    if (!std::isnan(f16_to_f32(half))) {
      EXPECT_EQ(f32_to_f16(f16_to_f32(half)), half);
    }
    if (!std::isnan(bf16_to_f32(half))) {
      EXPECT_EQ(f32_to_bf16(bf16_to_f32(half)), half);
    }
  }
}

}  // namespace
}  // namespace addend::workload
