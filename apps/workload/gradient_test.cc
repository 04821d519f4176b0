// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/gradient.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "apps/workload/half.h"

namespace addend::workload {
namespace {

constexpr uint64_t kCount = 100'000;

std::vector<float> draw(const GradientSpec& spec, uint32_t worker, uint64_t step = 0) {
  std::vector<float> out(spec.count);
  generate(spec, {worker, step}, {0, spec.count}, out.data());
  return out;
}

uint64_t union_count(const GradientSpec& spec) {
  std::vector<bool> live(spec.count);
  for (uint32_t worker = 0; worker < spec.world; ++worker) {
    const std::vector<float> gradient = draw(spec, worker);
    for (uint64_t i = 0; i < spec.count; ++i)
      live[i] = live[i] || gradient[i] != 0;
  }
  return static_cast<uint64_t>(std::count(live.begin(), live.end(), true));
}

TEST(Gradient, UnionDensityFollowsTheOverlap) {
  GradientSpec spec{.count = kCount, .world = 4, .density = 0.1};
  const double n = static_cast<double>(kCount);
  const double slack = 6 * std::sqrt(0.25 / n);
  spec.overlap = Overlap::kNone;
  EXPECT_NEAR(static_cast<double>(union_count(spec)) / n, 0.4, slack);
  spec.overlap = Overlap::kRandom;
  EXPECT_NEAR(static_cast<double>(union_count(spec)) / n, 1 - std::pow(0.9, 4), slack);
  spec.overlap = Overlap::kFull;
  EXPECT_NEAR(static_cast<double>(union_count(spec)) / n, 0.1, slack);
}

TEST(Gradient, RowsLiveAndDieTogether) {
  const GradientSpec spec{.count = kCount, .density = 0.2, .row = 64};
  const std::vector<float> gradient = draw(spec, 0);
  for (uint64_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(gradient[i] != 0, gradient[i - i % 64] != 0) << i;
  }
}

TEST(Gradient, AnyRangeIsAPieceOfTheWhole) {
  for (uint64_t row : {1, 7, 64}) {
    const GradientSpec spec{.count = 1000, .world = 2, .density = 0.3, .row = row};
    const std::vector<float> whole = draw(spec, 1, 5);
    for (uint64_t first : {0, 1, 63, 500}) {
      std::vector<float> part(300);
      generate(spec, {1, 5}, {first, part.size()}, part.data());
      for (uint64_t i = 0; i < part.size(); ++i)
        EXPECT_EQ(part[i], whole[first + i]);
    }
  }
}

TEST(Gradient, IsDeterministicAndDiffersBySeedWorkerAndStep) {
  GradientSpec spec{.count = 1000, .world = 2, .density = 1};
  const std::vector<float> base = draw(spec, 0);
  EXPECT_EQ(base, draw(spec, 0));
  EXPECT_NE(base, draw(spec, 1));
  EXPECT_NE(base, draw(spec, 0, 1));
  spec.seed = 2;
  EXPECT_NE(base, draw(spec, 0));
}

TEST(Gradient, FirstValuesNeverChange) {
  const GradientSpec spec{.count = 4, .density = 1};
  const std::vector<float> gradient = draw(spec, 0);
  const GradientSpec wide{.count = 4, .density = 1, .values = Values::kLognormal};
  const std::vector<float> heavy = draw(wide, 0);
  EXPECT_EQ(gradient, (std::vector<float>{-0x1.fc9c68p+0f, -0x1.bf0704p-2f, -0x1.53fb4ep-1f,
                                          -0x1.aaffd6p-2f}));
  EXPECT_EQ(heavy,
            (std::vector<float>{0x1.34228p-6f, -0x1.abadaap-2f, -0x1.0f5a38p-2f, 0x1.bcbd5p-2f}));
}

TEST(Gradient, EveryDtypeHoldsTheRoundedValues) {
  GradientSpec spec{.count = 1000, .density = 0.5};
  const std::vector<float> wide = draw(spec, 0);
  for (DType dtype : {DType::kBf16, DType::kF16}) {
    spec.dtype = dtype;
    std::vector<uint16_t> narrow(spec.count);
    generate(spec, {0, 0}, {0, spec.count}, narrow.data());
    for (uint64_t i = 0; i < spec.count; ++i) {
      const float value = load_element(dtype, narrow.data(), i);
      EXPECT_NEAR(value, wide[i], std::fabs(wide[i]) * 0x1p-8 + 0x1p-25);
    }
  }
}

TEST(Gradient, IntegersAreSmallAndNeverZero) {
  const GradientSpec spec{.count = 1000, .density = 1, .values = Values::kIntegers};
  for (float value : draw(spec, 0)) {
    EXPECT_EQ(value, std::trunc(value));
    EXPECT_NE(value, 0);
    EXPECT_LE(std::fabs(value), 127);
  }
}

TEST(Gradient, RefusesWhatCannotBe) {
  GradientSpec spec{.count = 10, .world = 4, .density = 0.3, .overlap = Overlap::kNone};
  EXPECT_EQ(validate(spec).error().code, Errc::kInvalidArgument);
  spec.density = 0.25;
  EXPECT_TRUE(validate(spec));
  spec.density = NAN;
  EXPECT_FALSE(validate(spec));
  spec = {.count = 10, .row = 0};
  EXPECT_FALSE(validate(spec));
}

}  // namespace
}  // namespace addend::workload
