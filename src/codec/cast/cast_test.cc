// SPDX-License-Identifier: Apache-2.0
#include "codec/cast/cast.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "addend/simd.h"
#include "codec/cast/kernels.h"
#include "gtest/gtest.h"
#include "tests/support/tampered_steps.h"
#include "wire/hash.h"

namespace addend::cast {
namespace {

using testing_support::Gradient;
using testing_support::TamperedSteps;

constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16};
constexpr DType kHalves[] = {DType::kBf16, DType::kF16};

Layout layout_of(uint64_t count, uint32_t world = 1, DType dtype = DType::kF32) {
  Layout layout;
  layout.dtype = dtype;
  layout.count = count;
  layout.world = world;
  return layout;
}

Gradient elements(DType dtype, const std::vector<float>& values) {
  Gradient bytes(values.size() * dtype_bytes(dtype) + 1);
  for (uint64_t i = 0; i < values.size(); ++i)
    store_float(dtype, bytes.data(), i, values[i]);
  return bytes;
}

float uniform(uint64_t seed, uint64_t i) {
  return static_cast<float>(static_cast<double>(addend_random(seed, i) >> 11) * 0x1p-52 - 1);
}

// One step of `world` workers that all hold these values.
std::vector<float> step(TamperedSteps& workers, const Layout& layout,
                        const std::vector<float>& values) {
  std::vector<Gradient> gradients(layout.world, elements(layout.dtype, values));
  EXPECT_TRUE(workers.step(gradients));
  std::vector<float> sums(values.size());
  for (uint64_t i = 0; i < values.size(); ++i)
    sums[i] = load_float(layout.dtype, gradients[0].data(), i);
  return sums;
}

std::vector<float> sum(const std::string& spec, const Layout& layout,
                       const std::vector<float>& values) {
  auto workers = TamperedSteps::create(spec, layout);
  EXPECT_TRUE(workers);
  return step(*workers, layout, values);
}

class CastOnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_simd_target(GetParam())); }
  void TearDown() override { ASSERT_TRUE(force_simd_target("")); }
};

// Every pattern of 16 bits as gradient, or random ones of 32, with residuals of every magnitude.
TEST_P(CastOnTarget, SendsAndKeepsWhatTheReferenceDoes) {
  constexpr uint64_t kCount = 65536 + 3;
  std::vector<float> residual(kCount);
  for (uint64_t i = 0; i < kCount; ++i)
    residual[i] = std::ldexp(uniform(3, i), static_cast<int>(i % 60) - 40);
  for (const DType from : kTypes) {
    Gradient gradient(kCount * dtype_bytes(from));
    for (uint64_t i = 0; i < kCount; ++i) {
      const uint64_t pattern = from == DType::kF32 ? addend_random(4, i) : i;
      std::memcpy(gradient.data() + i * dtype_bytes(from), &pattern, dtype_bytes(from));
    }
    for (const DType to : kHalves) {
      for (const float scale : {1.0f, 0.25f, 1.0f / 3, 1e6f}) {
        std::vector<float> kept = residual;
        const Addends addends{from, gradient.data(), kept.data(), scale, to};
        std::vector<uint16_t> sent(kCount), expected(kCount);
        send(addends, kCount, sent.data());
        std::vector<float> expected_kept = residual;
        for (uint64_t i = 0; i < kCount; ++i) {
          const Sent one = sent_at(addends, i);
          store_float(to, expected.data(), i, one.addend * scale);
          const float lost = one.addend - one.arrived;
          if (std::isfinite(lost)) expected_kept[i] = lost;
          const bool nan = std::isnan(one.addend);
          ASSERT_TRUE(nan ? std::isnan(load_float(to, sent.data(), i)) : sent[i] == expected[i])
              << dtype_name(from) << " to " << dtype_name(to) << " element " << i;
        }
        keep(addends, kCount, kept.data());
        ASSERT_EQ(kept, expected_kept) << dtype_name(from) << " to " << dtype_name(to);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CastOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& suite) { return suite.param; });

TEST(Cast, SendsTwoBytesAnElementInOneRound) {
  for (const char* spec : {"cast", "cast:bf16", "cast:f16", "cast:to=f16,feedback=float"}) {
    const Layout layout = layout_of(1001, 2);
    auto workers = TamperedSteps::create(spec, layout);
    ASSERT_TRUE(workers);
    step(*workers, layout, std::vector<float>(1001, 1.5f));
    EXPECT_EQ(workers->report().rounds, 1u) << spec;
    EXPECT_EQ(workers->report().wire_bytes, 2002u) << spec;
    EXPECT_EQ(workers->report().mode, "cast") << spec;
  }
}

TEST(Cast, RoundsOnceToNearestEven) {
  // Between 1 and its neighbour, 1 + 2^-7: to the nearest, and from the middle to the even one.
  EXPECT_EQ(sum("cast:bf16", layout_of(4), {1 + 0x1p-9f, 1 + 0x1p-8f, 1 + 0x1.8p-8f, -1 - 0x1p-9f}),
            (std::vector<float>{1, 1, 1 + 0x1p-7f, -1}));
  EXPECT_EQ(sum("cast:f16", layout_of(3), {1 + 0x1p-12f, 1 + 0x1p-11f, 1 + 0x1.8p-11f}),
            (std::vector<float>{1, 1, 1 + 0x1p-10f}));
}

// What a backend's all-reduce of 16-bit gradients gives: no clamping anywhere.
TEST(Cast, ElementsAndSumsBeyondTheTypesRangeAreInfinite) {
  const float infinity = HUGE_VALF;
  EXPECT_EQ(sum("cast:f16", layout_of(4), {65519, 65520, -70000, 1e30f}),
            (std::vector<float>{65504, infinity, -infinity, infinity}));
  EXPECT_EQ(sum("cast:f16", layout_of(2, 2), {40000, -30000}),
            (std::vector<float>{infinity, -60000}))
      << "finite addends";
  EXPECT_EQ(sum("cast:bf16", layout_of(2), {0x1.fep127f, 0x1.ffp127f}),
            (std::vector<float>{0x1.fep127f, infinity}));
  EXPECT_EQ(sum("cast:f16", layout_of(3), {0x1p-24f, 0x1.8p-25f, 0x1p-25f}),
            (std::vector<float>{0x1p-24f, 0x1p-24f, 0}))
      << "subnormals are kept, less becomes zero";
}

// A mean is taken before the values travel, where an f32 still holds the product.
TEST(Cast, AMeanDoesNotOverflowOnTheWay) {
  Layout layout = layout_of(2, 4);
  layout.scale = 0.25;
  EXPECT_EQ(sum("cast:f16", layout, {60000, 120000}), (std::vector<float>{60000, HUGE_VALF}));
}

TEST(Cast, ToTheGradientsOwnTypeIsDense) {
  for (const DType dtype : kHalves) {
    const Layout layout = layout_of(100, 2, dtype);
    const auto spec = CodecSpec::parse(std::string("cast:") + dtype_name(dtype));
    ASSERT_TRUE(spec);
    const auto codec = create_codec(*spec, layout), dense = create_codec({"dense", {}}, layout);
    ASSERT_TRUE(codec && dense);
    EXPECT_EQ((*codec)->fingerprint(), (*dense)->fingerprint());
    EXPECT_EQ((*codec)->next_mode(), "dense");
  }
}

// What the rounding took comes back: the error of the average falls as 1 / steps, and without
// feedback it stays.
TEST(Cast, FeedbackBringsBackWhatRoundingTook) {
  constexpr uint64_t kCount = 3000;
  constexpr int kSteps = 64;
  std::vector<float> values(kCount);
  for (uint64_t i = 0; i < kCount; ++i)
    values[i] = uniform(1, i);
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (const float scale : {1.0f, 1.0f / 3}) {
      Layout layout = layout_of(kCount, 2, dtype);
      layout.scale = static_cast<double>(scale);
      const Gradient rounded = elements(dtype, values);
      double errors[2] = {};
      const char* specs[] = {"cast:bf16", "cast:bf16,feedback=float"};
      for (int with = 0; with < 2; ++with) {
        auto workers = TamperedSteps::create(specs[with], layout);
        ASSERT_TRUE(workers);
        std::vector<double> average(kCount, 0.0);
        for (int s = 0; s < kSteps; ++s) {
          const std::vector<float> sums = step(*workers, layout, values);
          for (uint64_t i = 0; i < kCount; ++i)
            average[i] += static_cast<double>(sums[i]) / kSteps;
        }
        for (uint64_t i = 0; i < kCount; ++i) {
          const double truth =
              2 * layout.scale * static_cast<double>(load_float(dtype, rounded.data(), i));
          errors[with] += std::pow(average[i] - truth, 2);
        }
      }
      EXPECT_LT(std::sqrt(errors[1]), std::sqrt(errors[0]) * 2 / kSteps)
          << dtype_name(dtype) << " scale " << scale;
    }
  }
}

// Training skips such a step; what is owed to the element must not be lost, nor become NaN.
TEST(Cast, AStepThatIsNotFiniteLeavesTheResidualOfItsElement) {
  const Layout layout = layout_of(4);
  auto workers = TamperedSteps::create("cast:f16,feedback=float", layout);
  ASSERT_TRUE(workers);
  const float third = 1.0f / 3;
  step(*workers, layout, {third, third, third, third});
  const auto before = *workers->worker(0).save_state();
  step(*workers, layout, {HUGE_VALF, std::nanf(""), 1e9f, third});
  const auto after = *workers->worker(0).save_state();
  const std::size_t residual = before.size() - 16;
  EXPECT_EQ(std::memcmp(after.data() + residual, before.data() + residual, 12), 0);
  EXPECT_NE(std::memcmp(after.data() + residual + 12, before.data() + residual + 12, 4), 0);
}

TEST(Cast, AStateGoesOnBitForBitAndACancelledStepChangesNothing) {
  const Layout layout = layout_of(500);
  auto going = TamperedSteps::create("cast:f16,feedback=float", layout);
  auto restarted = TamperedSteps::create("cast:f16,feedback=float", layout);
  ASSERT_TRUE(going && restarted);
  std::vector<float> values(500);
  for (uint64_t i = 0; i < 500; ++i)
    values[i] = uniform(8, i);
  step(*going, layout, values);
  const auto state = *going->worker(0).save_state();
  const Gradient gradient = elements(layout.dtype, values);
  Round round;
  ASSERT_TRUE(going->worker(0).begin(gradient.data()));
  ASSERT_TRUE(*going->worker(0).next_round(round));
  going->worker(0).cancel();
  EXPECT_EQ(*going->worker(0).save_state(), state);
  ASSERT_TRUE(restarted->worker(0).load_state(state));
  EXPECT_EQ(restarted->worker(0).fingerprint(), going->worker(0).fingerprint());
  EXPECT_EQ(step(*going, layout, values), step(*restarted, layout, values));
  auto other = TamperedSteps::create("cast:bf16,feedback=float", layout);
  EXPECT_EQ(other->worker(0).load_state(state).error().code, Errc::kMismatch);
}

TEST(Cast, SegmentsMoveBetweenBucketsWithTheirResiduals) {
  Layout both = layout_of(30);
  both.segments = {{7, 10}, {3, 20}};
  Layout alone = layout_of(20);
  alone.bucket = 5;
  alone.segments = {{3, 20}};
  alone.first_step = 1;
  std::vector<float> values(30);
  for (uint64_t i = 0; i < 30; ++i)
    values[i] = uniform(2, i);
  auto from = TamperedSteps::create("cast:bf16,feedback=float", both);
  auto to = TamperedSteps::create("cast:bf16,feedback=float", alone);
  ASSERT_TRUE(from && to);
  step(*from, both, values);
  ASSERT_TRUE(to->worker(0).load_segment(0, *from->worker(0).save_segment(1)));
  EXPECT_FALSE(to->worker(0).load_segment(0, *from->worker(0).save_segment(0)));
  const std::vector<float> whole = step(*from, both, values);
  const std::vector<float> part =
      step(*to, alone, std::vector<float>(values.begin() + 10, values.end()));
  EXPECT_EQ(part, std::vector<float>(whole.begin() + 10, whole.end()));
}

TEST(Cast, ReportsASampleOfWhatRoundingTook) {
  const Layout layout = layout_of(100000);
  auto workers = TamperedSteps::create("cast:bf16", layout);
  std::vector<float> values(layout.count);
  for (uint64_t i = 0; i < layout.count; ++i)
    values[i] = uniform(6, i);
  const std::vector<float> rounded = step(*workers, layout, values);
  double error = 0, energy = 0;
  for (uint64_t i = 0; i < layout.count; ++i) {
    error += std::pow(static_cast<double>(rounded[i]) - static_cast<double>(values[i]), 2);
    energy += std::pow(static_cast<double>(values[i]), 2);
  }
  const Report& report = workers->report();
  ASSERT_GT(report.sampled_energy, 0);
  EXPECT_LT(report.sampled_energy, energy / 10);
  EXPECT_NEAR(report.sampled_error / report.sampled_energy, error / energy, 0.1 * error / energy);
}

TEST(Cast, RefusesOtherTypesAndFeedbacks) {
  for (const char* spec :
       {"cast:f32", "cast:to=f8", "cast:f16,feedback=byte", "cast:f16,scale=2"}) {
    const auto codec = create_codec(*CodecSpec::parse(spec), layout_of(8));
    ASSERT_FALSE(codec) << spec;
    EXPECT_EQ(codec.error().code, Errc::kInvalidArgument) << spec;
  }
}

}  // namespace
}  // namespace addend::cast
