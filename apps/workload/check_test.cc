// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/check.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "apps/workload/half.h"

namespace addend::workload {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SumCheck check(const std::vector<std::vector<float>>& inputs, const std::vector<float>& sum) {
  std::vector<const void*> pointers;
  for (const auto& input : inputs)
    pointers.push_back(input.data());
  return check_sum(DType::kF32, pointers, sum.data(), sum.size());
}

TEST(Check, AcceptsTheFloatSumAndCountsTheUnion) {
  const SumCheck result = check({{1, 0, 0.1f}, {2, 0, 0.2f}}, {3, 0, 0.1f + 0.2f});
  EXPECT_EQ(result.wrong, 0u);
  EXPECT_EQ(result.union_nonzeros, 2u);
  EXPECT_TRUE(result.rounded_once());
  EXPECT_LT(result.relative_l2(), 1e-7);
}

TEST(Check, FindsTheWrongElement) {
  const SumCheck result = check({{1, 0, 1}, {2, 0, 1}}, {3, 0, 2.001f});
  EXPECT_EQ(result.wrong, 1u);
  EXPECT_EQ(result.first_wrong, 2u);
  EXPECT_NEAR(result.max_abs_error, 0.001, 1e-6);
}

TEST(Check, SomethingFromNothingIsWrong) {
  EXPECT_EQ(check({{0}, {-0.0f}}, {1e-45f}).wrong, 1u);
  EXPECT_EQ(check({{0}, {-0.0f}}, {-0.0f}).wrong, 0u);
}

TEST(Check, OneWorkerMustComeBackUnchanged) {
  EXPECT_EQ(check({{1}}, {1}).wrong, 0u);
  EXPECT_EQ(check({{1}}, {std::nextafter(1.0f, 2.0f)}).wrong, 1u);
}

TEST(Check, NonFiniteValuesMustMatch) {
  EXPECT_EQ(check({{kNan}, {1}}, {kNan}).wrong, 0u);
  EXPECT_EQ(check({{kInf}, {-kInf}}, {kNan}).wrong, 0u);
  EXPECT_EQ(check({{kInf}, {1}}, {kInf}).wrong, 0u);
  EXPECT_EQ(check({{kInf}, {1}}, {-kInf}).wrong, 1u);
  EXPECT_EQ(check({{kInf}, {1}}, {kNan}).wrong, 1u);
  EXPECT_EQ(check({{1}, {1}}, {kNan}).wrong, 1u);
  EXPECT_EQ(check({{1}, {1}}, {kInf}).wrong, 1u);
  EXPECT_EQ(check({{3e38f}, {3e38f}}, {kInf}).wrong, 0u);
}

TEST(Check, TellsOneRoundingFromSeveral) {
  // 1 + 2^-24 + 2^-24 is 1 when added from the left, 1 + 2^-23 when rounded once.
  const std::vector<std::vector<float>> inputs{{1}, {0x1p-24f}, {0x1p-24f}};
  EXPECT_TRUE(check(inputs, {1 + 0x1p-23f}).rounded_once());
  const SumCheck folded = check(inputs, {1});
  EXPECT_EQ(folded.wrong, 0u);
  EXPECT_FALSE(folded.rounded_once());
}

TEST(Check, JudgesHalvesByTheirOwnPrecision) {
  const uint16_t one = f32_to_bf16(1.0f);
  const uint16_t tiny = f32_to_bf16(0x1p-9f);
  const std::vector<const void*> inputs{&one, &tiny};
  EXPECT_EQ(check_sum(DType::kBf16, inputs, &one, 1).wrong, 0u);
  const uint16_t off = f32_to_bf16(1.0f + 0x1p-6f);
  EXPECT_EQ(check_sum(DType::kBf16, inputs, &off, 1).wrong, 1u);
}

TEST(Check, MergeKeepsTheFirstWrongIndex) {
  SumCheck total = check({{1}}, {1});
  SumCheck bad = check({{1, 1}}, {1, 2});
  total.merge(bad);
  EXPECT_EQ(total.wrong, 1u);
  EXPECT_EQ(total.first_wrong, 1u);
  EXPECT_EQ(total.elements, 3u);
}

TEST(Check, NmseIsOfTheMeanAgainstTheMeanSquaredNorm) {
  // Mean (2, 2) is off by (0.5, 0); the inputs' squared norms are 10 and 10.
  const SumCheck result = check({{1, 3}, {3, 1}}, {5, 4});
  EXPECT_DOUBLE_EQ(result.nmse(), 0.25 / 10);
  EXPECT_EQ(check({{0}, {0}}, {0}).nmse(), 0);
  EXPECT_EQ(check({{1}, {2}}, {3}).nmse(), 0);
}

TEST(Check, LossyCodecsMayBeOffByTheirTolerance) {
  const SumCheck result = check({{1, 3}, {3, 1}}, {5, 4});
  EXPECT_EQ(result.wrong_within({}), 1u);
  EXPECT_EQ(result.wrong_within({.lossy = true, .nmse = 0.03}), 0u);
  EXPECT_EQ(result.wrong_within({.lossy = true, .nmse = 0.02}), 1u);
  EXPECT_EQ(result.wrong_within({.lossy = true, .range = 0.16}), 0u);
  EXPECT_EQ(result.wrong_within({.lossy = true, .range = 0.15}), 1u);
}

TEST(Check, SomethingFromNothingIsWrongForLossyCodecsToo) {
  EXPECT_EQ(check({{0, 0}, {0, 0}}, {1, 1}).wrong_within({.lossy = true, .nmse = 1}), 2u);
}

TEST(Check, ANanMayTakeItsBlockWithItButNoMore) {
  const Tolerance pairs{.lossy = true, .nmse = 0.1, .block = 2};
  EXPECT_EQ(check({{kNan, 1, 1, 1}}, {kNan, kNan, 1, 1}).wrong_within(pairs), 0u);
  EXPECT_EQ(check({{kInf, 1, 1, 1}}, {kNan, kNan, 1, 1}).wrong_within(pairs), 0u);
  EXPECT_EQ(check({{kNan, 1, 1, 1}}, {kNan, kNan, kNan, kNan}).wrong_within(pairs), 3u);
  EXPECT_EQ(check({{kNan, 1, 1, 1}}, {1, 1, 1, 1}).wrong_within(pairs), 1u);
  EXPECT_EQ(check({{1, 1, 1, 1}}, {1, kNan, 1, 1}).wrong_within(pairs), 1u);
}

TEST(Check, PiecesOfAllWorkersTakeAMegabyteHoweverManyThereAre) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const uint32_t world : {1, 2, 3, 64, 1000, 4096}) {
      const uint64_t bytes = check_piece(dtype, world, 1u << 30) * dtype_bytes(dtype) * world;
      EXPECT_LE(bytes, 1u << 20) << world;
      EXPECT_GT(bytes, 1u << 18) << world;
      EXPECT_EQ(check_piece(dtype, world, 5), 5u);
    }
  }
  EXPECT_EQ(check_piece(DType::kF32, 2, 0), 1u);
}

TEST(Check, DigestSeesEveryBitButNotTheSignOfZero) {
  const std::vector<float> base{1, 0, 3};
  const auto of = [](const std::vector<float>& x) {
    return digest(DType::kF32, x.data(), x.size());
  };
  EXPECT_EQ(of(base), of({1, -0.0f, 3}));
  EXPECT_NE(of(base), of({1, 0, std::nextafter(3.0f, 4.0f)}));
  EXPECT_NE(of(base), of({3, 0, 1}));
  EXPECT_NE(of(base), of({1, 0, 3, 0}));
}

}  // namespace
}  // namespace addend::workload
