// SPDX-License-Identifier: Apache-2.0
// Low rank's own laws. Layouts without matrices are `dense` (src/codec/lowrank/lowrank_test.cc), so
// the laws of codec_laws_test.cc are its laws there; what holds of matrices stands here.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "addend/simd.h"
#include "gtest/gtest.h"
#include "tests/laws/by_hand.h"
#include "tests/laws/regrouping.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

// Wider than a strip, tall, nearly square; a vector first, between and last.
const std::vector<Segment> kShapes = {
    {9, 5}, {1, 24 * 2100, 24}, {2, 33}, {3, 400 * 20, 400}, {4, 61 * 64, 61}, {5, 1}};
constexpr std::size_t kMatrices[] = {1, 3, 4}, kVectors[] = {0, 2, 5};

Layout shapes_of(uint32_t world, DType dtype = DType::kF32, double scale = 1) {
  Layout layout;
  layout.dtype = dtype;
  layout.world = world;
  layout.seed = 77;
  layout.scale = scale;
  layout.segments = kShapes;
  for (const Segment& segment : kShapes)
    layout.count += segment.count;
  return layout;
}

uint64_t begin_of(std::size_t segment) {
  uint64_t begin = 0;
  for (std::size_t s = 0; s < segment; ++s)
    begin += kShapes[s].count;
  return begin;
}

// The residual of a matrix lies at the end of its segment's state.
std::vector<double> residual_of(Codec& codec, std::size_t segment) {
  const Bytes state = *codec.save_segment(segment);
  const uint64_t count = kShapes[segment].count;
  const Bytes tail(state.end() - static_cast<std::ptrdiff_t>(4 * count), state.end());
  std::vector<double> residual(count);
  for (uint64_t i = 0; i < count; ++i)
    residual[i] = static_cast<double>(read(DType::kF32, tail, i));
  return residual;
}

double rounding_of(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
}

// What is owed before a step, and the sum of the workers' norms, by which rounding is measured.
struct Owed {
  std::vector<double> sum;
  double norms = 0;
};

Owed owed_of(Lockstep& workers, const Layout& layout, const std::vector<Bytes>& gradients,
             std::size_t segment) {
  Owed owed{std::vector<double>(kShapes[segment].count, 0.0), 0};
  for (uint32_t w = 0; w < layout.world; ++w) {
    const std::vector<double> residual = residual_of(workers.codec(w), segment);
    double energy = 0;
    for (uint64_t i = 0; i < residual.size(); ++i) {
      const double element =
          static_cast<double>(read(layout.dtype, gradients[w], begin_of(segment) + i)) +
          residual[i];
      owed.sum[i] += element;
      energy += element * element;
    }
    owed.norms += std::sqrt(energy);
  }
  return owed;
}

// The law of feedback: what was decoded and what the workers keep are all that they had. Every
// element holds to 16 roundings of f32 of the sum of the workers' Frobenius norms, or to a rounding
// of bf16 for each worker where sums are, and to the rounding of its own type.
void check_conservation(Lockstep& workers, const Layout& layout, std::vector<Bytes>& gradients,
                        double unit) {
  std::vector<Owed> before;
  for (const std::size_t s : kMatrices)
    before.push_back(owed_of(workers, layout, gradients, s));
  ASSERT_TRUE(workers.step(gradients));
  for (std::size_t m = 0; m < before.size(); ++m) {
    const std::size_t s = kMatrices[m];
    std::vector<double> kept(kShapes[s].count, 0.0);
    for (uint32_t w = 0; w < layout.world; ++w) {
      const std::vector<double> residual = residual_of(workers.codec(w), s);
      for (uint64_t i = 0; i < kept.size(); ++i)
        kept[i] += residual[i];
    }
    for (uint64_t i = 0; i < kept.size(); ++i) {
      const double decoded =
          static_cast<double>(read(layout.dtype, gradients[0], begin_of(s) + i)) / layout.scale;
      const double bound =
          unit * before[m].norms + 2 * rounding_of(layout.dtype) * std::fabs(decoded);
      ASSERT_NEAR(decoded + kept[i], before[m].sum[i], bound)
          << dtype_name(layout.dtype) << " segment " << s << " element " << i;
    }
  }
}

TEST(LowrankLaw, WhatIsDecodedAndWhatIsKeptAreAllThereWas) {
  for (const std::string spec : {"lowrank:rank=1", "lowrank:rank=3", "lowrank:rank=8",
                                 "lowrank:rank=2,factors=bf16", "lowrank:rank=3,factors=quant"}) {
    const double unit = spec.ends_with("bf16") ? 3 * 0x1p-9 : 16 * 0x1p-24;
    for (const DType dtype : kTypes) {
      for (const double scale : {1.0, 1.0 / 3}) {
        const Layout layout = shapes_of(3, dtype, scale);
        Lockstep workers(spec, layout);
        for (uint64_t step = 0; step < 3; ++step) {
          std::vector<Bytes> gradients = standard_normal(layout, step);
          check_conservation(workers, layout, gradients, unit);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(LowrankLaw, ManyWorkersLoseNothingEither) {
  const std::pair<const char*, uint32_t> cases[] = {{"lowrank:rank=3", 17},
                                                    {"lowrank:rank=2,factors=quant", 18},
                                                    {"lowrank:rank=1", 64},
                                                    {"lowrank:rank=2,factors=bf16", 64}};
  for (const auto& [spec, world] : cases) {
    const bool halves = std::string(spec).ends_with("bf16");
    // Sums of so many are rounded so often.
    const double unit = halves ? world * 0x1p-9 : 16 * 0x1p-24;
    const Layout layout = shapes_of(world, world == 64 ? DType::kBf16 : DType::kF32, 0.5);
    Lockstep workers(spec, layout);
    for (uint64_t step = 0; step < 2; ++step) {
      std::vector<Bytes> gradients = standard_normal(layout, step);
      check_conservation(workers, layout, gradients, unit);
      if (HasFatalFailure()) return;
      for (const Bytes& other : gradients)
        ASSERT_EQ(other, gradients[0]) << spec << " world " << world;
    }
  }
}

std::string spec_of(uint32_t world) {
  const char* factors[] = {"f32", "bf16", "quant"};
  return std::string("lowrank:rank=5,factors=") + factors[world % 3];
}

// Workers whose machines differ stand in one group: bases and results are made of the same sums and
// must be the same bits, and so must what each sends.
TEST(LowrankLaw, EveryInstructionSetGivesTheSameBitsOnEveryWorker) {
  for (const uint32_t world : {1u, 2u, 3u, 5u, 17u, 64u}) {
    for (const DType dtype : kTypes) {
      if (world > 5 && dtype != kTypes[world % 3]) continue;
      const Layout layout = shapes_of(world, dtype, 0.5);
      std::vector<std::vector<Bytes>> drawn;
      for (uint64_t step = 0; step < (world > 5 ? 2 : 3); ++step)
        drawn.push_back(standard_normal(layout, step));
      std::vector<Bytes> expected;
      uint64_t fingerprint = 0;
      for (const std::string& target : simd_targets()) {
        ASSERT_TRUE(force_simd_target(target));
        Lockstep workers(spec_of(world), layout);
        std::vector<Bytes> gradients;
        for (const std::vector<Bytes>& step : drawn) {
          gradients = step;
          ASSERT_TRUE(workers.step(gradients));
        }
        ASSERT_TRUE(force_simd_target(""));
        if (expected.empty()) {
          expected = gradients;
          fingerprint = workers.codec(0).fingerprint();
        }
        for (const Bytes& gradient : gradients)
          ASSERT_EQ(gradient, expected[0]) << target << " world " << world;
        ASSERT_EQ(workers.codec(world - 1).fingerprint(), fingerprint) << target;
      }
    }
  }
}

TEST(LowrankLaw, VectorsAreSummedAsDenseSumsThem) {
  for (const DType dtype : kTypes) {
    const Layout layout = shapes_of(3, dtype, 1.0 / 3);
    Lockstep workers("lowrank", layout), dense("dense", layout);
    std::vector<Bytes> gradients = standard_normal(layout, 4);
    write(dtype, gradients[1], begin_of(2) + 7, HUGE_VALF);
    std::vector<Bytes> expected = gradients;
    ASSERT_TRUE(workers.step(gradients) && dense.step(expected));
    for (const std::size_t s : kVectors) {
      for (uint64_t i = begin_of(s); i < begin_of(s) + kShapes[s].count; ++i)
        ASSERT_EQ(read(dtype, gradients[2], i), read(dtype, expected[2], i));
    }
    ASSERT_TRUE(std::isfinite(read(dtype, gradients[0], begin_of(1)))) << "the matrices are";
  }
}

// Training skips such a step. What the workers had learnt and owed they still have.
TEST(LowrankLaw, AMatrixThatIsNotFiniteAnywhereIsNaNEverywhereAndNothingIsLearnt) {
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    for (const DType dtype : kTypes) {
      const Layout layout = shapes_of(3, dtype);
      const char* factors[] = {"f32", "bf16", "quant"};
      Lockstep workers(std::string("lowrank:rank=2,factors=") + factors[static_cast<int>(dtype)],
                       layout);
      std::vector<Bytes> gradients = standard_normal(layout, 1);
      ASSERT_TRUE(workers.step(gradients));
      const Bytes before = *workers.codec(2).save_segment(1),
                  other = *workers.codec(2).save_segment(3);
      gradients = standard_normal(layout, 2);
      write(dtype, gradients[1], begin_of(1) + 2099, bad);
      ASSERT_TRUE(workers.step(gradients));
      for (const Bytes& gradient : gradients) {
        for (uint64_t i = 0; i < kShapes[1].count; ++i)
          ASSERT_TRUE(std::isnan(read(dtype, gradient, begin_of(1) + i)));
        for (uint64_t i = begin_of(2); i < layout.count; ++i)
          ASSERT_TRUE(std::isfinite(read(dtype, gradient, i)));
      }
      EXPECT_EQ(workers.codec(0).report().nonfinite, kShapes[1].count);
      const Bytes after = *workers.codec(2).save_segment(1);
      EXPECT_TRUE(std::equal(after.begin() + 24, after.end(), before.begin() + 24))
          << "all but the step";
      EXPECT_NE(*workers.codec(2).save_segment(3), other);
      gradients = standard_normal(layout, 3);
      ASSERT_TRUE(workers.step(gradients));
      ASSERT_TRUE(std::isfinite(read(dtype, gradients[0], begin_of(1))));
    }
  }
}

// Sums that leave f32 are not finite, though no gradient is.
TEST(LowrankLaw, AnOverflowOnTheWayIsNaNAndNotANumber) {
  Layout layout = shapes_of(2);
  Lockstep workers("lowrank:rank=1", layout);
  std::vector<Bytes> gradients(2, Bytes(layout.count * 4, 0));
  for (Bytes& gradient : gradients) {
    for (uint64_t i = 0; i < kShapes[4].count; ++i)
      write(DType::kF32, gradient, begin_of(4) + i, 3e38f);
  }
  ASSERT_TRUE(workers.step(gradients));
  EXPECT_EQ(workers.codec(1).report().nonfinite, kShapes[4].count);
  EXPECT_TRUE(std::isnan(read(DType::kF32, gradients[1], begin_of(4))));
  EXPECT_EQ(read(DType::kF32, gradients[1], begin_of(3)), 0);
}

void check_cancelling(const char* spec, uint32_t most_rounds) {
  const Layout layout = shapes_of(2);
  Lockstep workers(spec, layout), others(spec, layout);
  for (uint64_t step = 0; step < 3; ++step) {
    const std::vector<Bytes> gradients = standard_normal(layout, step);
    const Bytes before = *workers.codec(0).save_state();
    for (uint32_t rounds = 0; rounds <= most_rounds; ++rounds) {
      Round round;
      ASSERT_TRUE(workers.codec(0).begin(gradients[0].data()));
      for (uint32_t r = 0; r < rounds; ++r)
        ASSERT_TRUE(workers.codec(0).next_round(round));
      workers.codec(0).cancel();
      ASSERT_EQ(*workers.codec(0).save_state(), before) << rounds;
    }
    std::vector<Bytes> sums = gradients, expected = gradients;
    ASSERT_TRUE(workers.step(sums) && others.step(expected));
    ASSERT_EQ(sums, expected) << spec;
  }
}

TEST(LowrankLaw, ACancelledStepChangesNothing) {
  check_cancelling("lowrank", 2);
  check_cancelling("lowrank:factors=bf16", 2);
  check_cancelling("lowrank:factors=quant", 4);
}

TEST(LowrankLaw, ARestartGoesOnBitForBit) {
  const Layout layout = shapes_of(2, DType::kBf16);
  Lockstep workers("lowrank", layout), restarted("lowrank", layout);
  std::vector<Bytes> gradients = standard_normal(layout, 1);
  ASSERT_TRUE(workers.step(gradients));
  for (uint32_t w = 0; w < 2; ++w) {
    const Bytes state = *workers.codec(w).save_state();
    EXPECT_EQ(restarted.codec(1 - w).load_state(state).error().code, Errc::kMismatch);
    ASSERT_TRUE(restarted.codec(w).load_state(state));
  }
  std::vector<Bytes> sums = standard_normal(layout, 2), expected = sums;
  ASSERT_TRUE(workers.step(expected) && restarted.step(sums));
  EXPECT_EQ(sums, expected);
}

TEST(LowrankLaw, ASegmentsResultDoesNotDependOnItsBucketOrderOrRestarts) {
  for (const char* spec : {"lowrank:rank=1", "lowrank", "lowrank:factors=quant"}) {
    for (uint64_t seed = 1; seed < 4; ++seed) {
      check_regrouping(spec, seed == 3 ? DType::kF16 : DType::kF32, seed);
      if (HasFatalFailure()) return;
    }
  }
}

// How factors travel may change from one step to the next: what is kept is in the gradient's
// coordinates.
TEST(LowrankLaw, AStateGoesOnWithFactorsThatTravelOtherwise) {
  Layout layout = shapes_of(2);
  Lockstep before("lowrank:factors=quant", layout);
  std::vector<Bytes> gradients = standard_normal(layout, 1);
  ASSERT_TRUE(before.step(gradients));
  layout.first_step = 1;
  Lockstep after("lowrank:factors=f32", layout);
  for (uint32_t w = 0; w < 2; ++w) {
    for (const std::size_t s : kMatrices)
      ASSERT_TRUE(after.codec(w).load_segment(s, *before.codec(w).save_segment(s)));
  }
  gradients = standard_normal(layout, 2);
  check_conservation(after, layout, gradients, 16 * 0x1p-24);
}

TEST(LowrankLaw, WhereAStepBeginsAndEndsDoesNotChangeItsResult) {
  const HandStep ways[] = {{false, false}, {false, true}, {true, false}, {true, true}};
  for (const DType dtype : kTypes) {
    const Layout layout = shapes_of(2, dtype, 0.25);
    std::vector<Lockstep> workers;
    for (std::size_t way = 0; way < 4; ++way)
      workers.emplace_back("lowrank:rank=2", layout);
    for (uint64_t step = 0; step < 3; ++step) {
      std::vector<Bytes> expected;
      for (std::size_t way = 0; way < 4; ++way) {
        std::vector<Bytes> gradients = standard_normal(layout, step);
        const auto seen = step_pair(workers[way], gradients, ways[way]);
        ASSERT_TRUE(seen);
        EXPECT_EQ(seen->rounds.size(), 2u);
        EXPECT_TRUE(!seen->rounds[0].last && seen->rounds[1].last);
        if (way == 0) expected = gradients;
        ASSERT_EQ(gradients, expected) << "way " << way << " step " << step;
      }
    }
  }
}

TEST(LowrankLaw, APowerOfTwoAsScaleOnlyMultiplies) {
  const Layout layout = shapes_of(2), quarter = shapes_of(2, DType::kF32, 0.25);
  Lockstep workers("lowrank", layout), scaled("lowrank", quarter);
  EXPECT_NE(workers.codec(0).fingerprint(), scaled.codec(0).fingerprint());
  for (uint64_t step = 0; step < 2; ++step) {
    std::vector<Bytes> sums = standard_normal(layout, step), quarters = sums;
    ASSERT_TRUE(workers.step(sums) && scaled.step(quarters));
    for (uint64_t i = 0; i < layout.count; ++i)
      ASSERT_EQ(read(DType::kF32, quarters[1], i), read(DType::kF32, sums[1], i) / 4);
  }
}

}  // namespace
}  // namespace addend::testing_support
