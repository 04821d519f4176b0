// SPDX-License-Identifier: Apache-2.0
// What the exact codec does beyond its law (tests/laws): reports, fallbacks, escapes, memory, and
// sums that a broken adder hands back.
#include "codec/exact/exact.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "base/bits.h"
#include "tests/support/exact_sum.h"
#include "tests/support/tampered_steps.h"
#include "wire/hash.h"

namespace addend::exact {
namespace {

using testing_support::ExactSum;
using testing_support::Gradient;
using testing_support::TamperedSteps;
using Gradients = std::vector<Gradient>;

constexpr uint64_t kCount = 10007;

Layout layout_of(uint32_t world, uint64_t count = kCount, DType dtype = DType::kF32) {
  Layout layout;
  layout.dtype = dtype;
  layout.count = count;
  layout.world = world;
  layout.seed = 5;
  return layout;
}

TamperedSteps steps_of(const std::string& spec, const Layout& layout) {
  auto steps = TamperedSteps::create(spec, layout);
  EXPECT_TRUE(steps) << steps.error().message;
  return std::move(*steps);
}

// Small whole numbers at random positions: every order of addition gives the same sum.
Gradients whole_numbers(const Layout& layout, double density, uint64_t seed, float scale = 1) {
  Gradients gradients(layout.world, Gradient(layout.count * dtype_bytes(layout.dtype)));
  for (uint32_t w = 0; w < layout.world; ++w) {
    for (uint64_t i = 0; i < layout.count; ++i) {
      const uint64_t random = addend_random(seed + 50 * w, i);
      if (static_cast<double>(random >> 40) >= density * 0x1p24) continue;
      const auto value = static_cast<float>(1 + random % 7) * scale;
      store_float(layout.dtype, gradients[w].data(), i, (random & 8) != 0 ? -value : value);
    }
  }
  return gradients;
}

uint64_t union_of(const Layout& layout, const Gradients& gradients) {
  uint64_t total = 0;
  for (uint64_t i = 0; i < layout.count; ++i) {
    bool live = false;
    for (const Gradient& gradient : gradients)
      live = live || load_float(layout.dtype, gradient.data(), i) != 0;
    total += live ? 1 : 0;
  }
  return total;
}

void expect_sums(const Layout& layout, const Gradients& before, const Gradients& after) {
  for (uint64_t i = 0; i < layout.count; ++i) {
    ExactSum exact;
    for (const Gradient& gradient : before)
      exact.add(load_float(layout.dtype, gradient.data(), i));
    const float expected = exact.round(layout.dtype);
    for (const Gradient& gradient : after) {
      const float actual = load_float(layout.dtype, gradient.data(), i);
      ASSERT_TRUE(actual == expected || (std::isnan(actual) && std::isnan(expected)))
          << i << ": " << actual << ", expected " << expected;
    }
  }
}

// One step with checked sums.
void run(TamperedSteps& steps, const Layout& layout, const Gradients& gradients) {
  Gradients sums = gradients;
  const Status status = steps.step(sums);
  ASSERT_TRUE(status) << status.error().message;
  expect_sums(layout, gradients, sums);
}

TEST(ExactReport, SaysWhatAPackedStepDid) {
  const Layout layout = layout_of(3);
  auto steps = steps_of("exact:mode=packed", layout);
  const Gradients gradients = whole_numbers(layout, 0.05, 1);
  run(steps, layout, gradients);
  const Report& report = steps.report();
  const uint64_t nonzeros = union_of(layout, gradients);
  EXPECT_EQ(report.mode, "packed");
  EXPECT_EQ(report.fallback, "none");
  EXPECT_EQ(report.rounds, 2u);
  EXPECT_EQ(report.union_nonzeros, nonzeros);
  EXPECT_EQ(report.local_nonzeros, union_of(layout, {gradients[0]}));
  EXPECT_EQ(report.round_bytes[0], words_for(kCount) * 8);
  EXPECT_EQ(report.round_bytes[1], nonzeros * 4);
  EXPECT_EQ(report.wire_bytes, report.round_bytes[0] + report.round_bytes[1]);
  EXPECT_EQ(report.dense_bytes, kCount * 4);
  EXPECT_EQ(report.cells, 0u);
}

TEST(ExactReport, SaysWhatATwoLevelStepDid) {
  const Layout layout = layout_of(2, 6400);
  Gradients gradients(2, Gradient(6400 * 4));
  for (uint64_t i = 0; i < 64; ++i) {
    store_float(DType::kF32, gradients[0].data(), 640 + i, 1);
    store_float(DType::kF32, gradients[1].data(), 1280 + i, 2);
  }
  auto steps = steps_of("exact:mode=two-level", layout);
  run(steps, layout, gradients);
  EXPECT_EQ(steps.report().mode, "two-level");
  EXPECT_EQ(steps.report().rounds, 2u) << "full rows need no element bits";
  EXPECT_EQ(steps.report().wire_bytes, 2 * 2 * 8 + 128 * 4u);
  store_float(DType::kF32, gradients[1].data(), 5, 3);
  run(steps, layout, gradients);
  EXPECT_EQ(steps.report().rounds, 3u);
  EXPECT_EQ(steps.report().wire_bytes, 2 * 2 * 8 + 8 + 129 * 4u);
}

TEST(ExactReport, SaysWhatASketchDid) {
  const Layout layout = layout_of(3);
  auto steps = steps_of("exact:mode=sketch,density=0.16", layout);
  run(steps, layout, whole_numbers(layout, 0.05, 1));
  const Report& report = steps.report();
  EXPECT_EQ(report.mode, "sketch");
  EXPECT_EQ(report.fallback, "none");
  EXPECT_EQ(report.rounds, 1u);
  EXPECT_EQ(report.stuck_keys, 0u);
  EXPECT_EQ(report.escaped_values, 0u);
  EXPECT_GT(report.cells, report.union_nonzeros);
  EXPECT_EQ(report.wire_bytes,
            words_for(kCount) * 8 + report.cells * 8 + words_for(words_for(kCount)) * 8 + 4);
}

TEST(ExactReport, KeepsTheLastFinishedStep) {
  const Layout layout = layout_of(1);
  auto steps = steps_of("exact:mode=packed", layout);
  run(steps, layout, whole_numbers(layout, 0.05, 1));
  const uint64_t bytes = steps.report().wire_bytes;
  const Gradients other = whole_numbers(layout, 0.5, 2);
  Round round;
  ASSERT_TRUE(steps.worker(0).begin(other[0].data()));
  ASSERT_TRUE(steps.worker(0).next_round(round));
  steps.worker(0).cancel();
  EXPECT_EQ(steps.report().wire_bytes, bytes);
}

TEST(ExactSketch, PacksItsFirstStepToLearnTheUnion) {
  const Layout layout = layout_of(2);
  auto steps = steps_of("exact:mode=sketch", layout);
  for (uint64_t step = 0; step < 3; ++step) {
    run(steps, layout, whole_numbers(layout, 0.05, step));
    EXPECT_EQ(steps.report().mode, step == 0 ? "packed" : "sketch");
    EXPECT_EQ(steps.report().fallback == "first-step", step == 0);
  }
}

TEST(ExactSketch, FetchesStuckKeysWhenThePlanWasTooSmall) {
  const Layout layout = layout_of(3);
  for (const char* values : {"", ",values=reproducible"}) {
    bool seen = false;
    for (int percent = 100; percent <= 130 && !seen; ++percent) {
      const Gradients gradients = whole_numbers(layout, 0.05, 1);
      const double density = static_cast<double>(union_of(layout, gradients)) / kCount;
      const std::string spec =
          "exact:mode=sketch,density=" + std::to_string(density * 100 / percent) + values;
      auto steps = steps_of(spec, layout);
      run(steps, layout, gradients);
      if (HasFatalFailure()) return;
      const Report& report = steps.report();
      if (report.fallback != "fix-up") continue;
      seen = true;
      EXPECT_GT(report.stuck_keys, 0u);
      EXPECT_EQ(report.round_bytes[report.rounds - 1], report.stuck_keys * 8);
    }
    EXPECT_TRUE(seen) << "no density in between peels all but a few";
  }
}

TEST(ExactSketch, FallsBackToPackedBeyondTheThreshold) {
  const Layout layout = layout_of(3);
  for (const char* spec : {"exact:mode=sketch,density=0.01", "exact:mode=sketch,density=0",
                           "exact:mode=sketch,density=0.01,values=reproducible"}) {
    auto steps = steps_of(spec, layout);
    const Gradients gradients = whole_numbers(layout, 0.05, 1);
    run(steps, layout, gradients);
    EXPECT_EQ(steps.report().mode, "sketch");
    EXPECT_EQ(steps.report().fallback, "packed");
    run(steps, layout, gradients);
    EXPECT_EQ(steps.report().fallback, "none") << "the second step knows the union";
  }
}

TEST(ExactCodec, SendsNearlyDenseUnionsDense) {
  const Layout layout = layout_of(2);
  for (const char* spec :
       {"exact:mode=packed", "exact:mode=two-level", "exact:mode=sketch,density=0.01"}) {
    auto steps = steps_of(spec, layout);
    run(steps, layout, whole_numbers(layout, 1.0, 1));
    EXPECT_EQ(steps.report().fallback, "dense") << spec;
    EXPECT_EQ(steps.report().union_nonzeros, kCount);
  }
}

TEST(ExactCodec, PacksFromOneZeroIn1024On) {
  const Layout layout = layout_of(2, 10 * 1024);
  for (const uint64_t zeros : {0, 10, 11, 20}) {
    Gradients gradients = whole_numbers(layout, 1.0, 1);
    for (uint64_t i = 0; i < zeros; ++i) {
      for (Gradient& gradient : gradients)
        store_float(DType::kF32, gradient.data(), 500 * i, 0);
    }
    auto steps = steps_of("exact:mode=packed", layout);
    run(steps, layout, gradients);
    EXPECT_EQ(steps.report().fallback, zeros <= 10 ? "dense" : "none") << zeros;
  }
}

TEST(ExactSketch, LetsValuesEscapeThatTheWindowDoesNotHold) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const Layout layout = layout_of(3);
  for (const float odd : {0x1p100f, 0x1p-100f, 0x1p-149f, kInf, -kInf, std::nanf("")}) {
    auto steps = steps_of("exact:mode=sketch,density=0.2", layout);
    Gradients gradients = whole_numbers(layout, 0.05, 1);
    const uint64_t word = 64 * 20;
    for (uint32_t w = 0; w < 3; ++w)
      std::memset(gradients[w].data() + word * 4, 0, 64 * 4);
    // One worker's odd value takes its word out of the sketch for all of them.
    store_float(DType::kF32, gradients[1].data(), word + 9, odd);
    store_float(DType::kF32, gradients[0].data(), word + 10, 3);
    store_float(DType::kF32, gradients[2].data(), word + 10, 4);
    run(steps, layout, gradients);
    EXPECT_EQ(steps.report().escaped_values, 2u) << odd;
    EXPECT_EQ(steps.report().fallback, "fix-up");
    EXPECT_EQ(steps.report().rounds, 2u);
  }
}

TEST(ExactSketch, LetsBlocksEscapeThatNeedSeveralIntegers) {
  const Layout layout = layout_of(3);
  auto steps = steps_of("exact:mode=sketch,values=reproducible,density=0.2", layout);
  Gradients gradients = whole_numbers(layout, 0.05, 1);
  store_float(DType::kF32, gradients[1].data(), 2048 + 9, 0x1p-100f);
  store_float(DType::kF32, gradients[2].data(), 5000, std::nanf(""));
  run(steps, layout, gradients);
  EXPECT_GT(steps.report().escaped_values, 100u);
  EXPECT_LT(steps.report().escaped_values, 600u);
  EXPECT_EQ(steps.report().fallback, "fix-up");
}

TEST(ExactSketch, SurvivesStuckAndEscapedKeysTogether) {
  const Layout layout = layout_of(4);
  for (const char* values : {"", ",values=reproducible"}) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      Gradients gradients = whole_numbers(layout, 0.05, seed);
      for (uint64_t i = 0; i < 5; ++i) {
        store_float(DType::kF32, gradients[i % 4].data(), 64 * 31 * i + 3, 0x1p100f);
        store_float(DType::kF32, gradients[i % 4].data(), 64 * 31 * i + 5, 0x1p-120f);
      }
      const double density = static_cast<double>(union_of(layout, gradients)) / kCount;
      auto steps =
          steps_of("exact:mode=sketch,density=" + std::to_string(density * 0.93) + values, layout);
      run(steps, layout, gradients);
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << values;
      EXPECT_GT(steps.report().escaped_values, 0u);
    }
  }
}

// A word escapes on one worker only, with ordinary values beside the odd one: if its keys stick,
// that worker put zeros into the sketch and the others did not.
TEST(ExactSketch, SurvivesStuckKeysInsideEscapedWords) {
  const Layout layout = layout_of(3, 1000);
  int both = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Gradients gradients = whole_numbers(layout, 0.08, seed);
    // Alone at its position: escaped words are float sums, which would depend on the order.
    for (uint64_t word = 0; word < 1000 / 64; ++word) {
      for (uint32_t w = 0; w < 3; ++w) {
        store_float(DType::kF32, gradients[w].data(), 64 * word + word,
                    w == word % 3 ? 0x1p-100f : 0.0f);
      }
    }
    const uint64_t keys = union_of(layout, gradients);
    // The smallest plan that is not given up at once: at the threshold, some sets do not peel.
    uint64_t planned = 1;
    while (!SketchShape::plan(planned, 1, 1, 0).can_hold(keys))
      ++planned;
    const double density = (static_cast<double>(planned) - 0.5) / 1000;
    auto steps = steps_of("exact:mode=sketch,density=" + std::to_string(density), layout);
    run(steps, layout, gradients);
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    const Report& report = steps.report();
    both += report.stuck_keys > 0 && report.escaped_values > report.union_nonzeros / 2 ? 1 : 0;
  }
  EXPECT_GT(both, 2);
}

TEST(ExactSketch, MovesItsWindowToTheLastStepsLargestValue) {
  const Layout layout = layout_of(2);
  for (const float scale : {0x1p60f, 0x1p-60f, 0x1p-140f, 0x1p120f}) {
    auto steps = steps_of("exact:mode=sketch,density=0.2", layout);
    run(steps, layout, whole_numbers(layout, 0.05, 1, scale));
    EXPECT_GT(steps.report().escaped_values, 0u) << "the first window is for ordinary values";
    for (uint64_t step = 2; step < 4; ++step) {
      run(steps, layout, whole_numbers(layout, 0.05, step, scale));
      EXPECT_EQ(steps.report().escaped_values, 0u) << scale;
    }
  }
}

TEST(ExactSketch, ForgetsTheWindowWhenNothingWasThere) {
  const Layout layout = layout_of(2);
  auto steps = steps_of("exact:mode=sketch,density=0.2", layout);
  run(steps, layout, whole_numbers(layout, 0.05, 1, 0x1p60f));
  run(steps, layout, whole_numbers(layout, 0, 1));
  EXPECT_EQ(steps.report().union_nonzeros, 0u);
  EXPECT_EQ(steps.report().rounds, 1u);
  run(steps, layout, whole_numbers(layout, 0.0005, 3));
  EXPECT_EQ(steps.report().escaped_values, 0u);
}

TEST(ExactSketch, SurvivesATopThatNoFloatHas) {
  const Layout layout = layout_of(2);
  for (const uint32_t top : {0u, 1u, 384u, 0x7FFFFFFFu, 0x80000000u, 0x800000FFu, 0xFFFFFFFFu}) {
    auto steps = steps_of("exact:mode=sketch,density=0.15", layout);
    Gradients sums = whole_numbers(layout, 0.05, 1);
    ASSERT_TRUE(steps.step(sums, [&](uint32_t, Round& round) {
      for (Plane& plane : round) {
        if (plane.op == Op::kMaxU32) *static_cast<uint32_t*>(plane.data) = top;
      }
    }));
    run(steps, layout, whole_numbers(layout, 0.05, 2));
  }
}

TEST(ExactCodec, ReusesItsMemory) {
  for (const char* spec :
       {"exact:mode=packed", "exact:mode=two-level", "exact:mode=sketch", "exact",
        "exact:mode=packed,values=reproducible", "exact:mode=sketch,values=reproducible"}) {
    const Layout layout = layout_of(2, 50000);
    auto steps = steps_of(spec, layout);
    const Gradients gradients = whole_numbers(layout, 0.1, 1);
    uint64_t bytes = 0;
    for (int step = 0; step < 6; ++step) {
      run(steps, layout, gradients);
      if (step == 1) bytes = steps.worker(0).memory_bytes();
      if (step > 1) {
        EXPECT_EQ(steps.worker(0).memory_bytes(), bytes) << spec << " step " << step;
      }
    }
    EXPECT_LT(bytes, 50000 * 4 * 6) << spec;
  }
}

// A peer that sets bits past the end of the gradient cannot shift anyone's values.
TEST(ExactCodec, IgnoresIndexBitsPastTheEnd) {
  const Layout layout = layout_of(2, 1000);
  for (const char* spec : {"exact:mode=packed", "exact:mode=packed,values=reproducible",
                           "exact:mode=sketch,density=0.2"}) {
    auto steps = steps_of(spec, layout);
    const Gradients gradients = whole_numbers(layout, 0.05, 1);
    Gradients sums = gradients;
    const Status status = steps.step(sums, [](uint32_t number, Round& round) {
      if (number > 0) return;
      ASSERT_EQ(round.planes[0].op, Op::kOrU64);
      static_cast<uint64_t*>(round.planes[0].data)[1000 / 64] |= ~low_mask(1000 % 64);
    });
    ASSERT_TRUE(status) << spec;
    expect_sums(layout, gradients, sums);
  }
}

TEST(ExactCodec, LeavesTheGradientAloneWhenASumIsImpossible) {
  const Layout layout = layout_of(2);
  for (const char* spec :
       {"exact:mode=sketch,density=0.15", "exact:mode=sketch,density=0.15,values=reproducible"}) {
    auto steps = steps_of(spec, layout);
    const Gradients gradients = whole_numbers(layout, 0.05, 1);
    for (uint64_t trial = 0; trial < 10; ++trial) {
      const uint64_t plan = steps.worker(0).fingerprint();
      Gradients sums = gradients;
      const Status status = steps.step(sums, [&](uint32_t, Round& round) {
        for (Plane& plane : round) {
          if (plane.op != Op::kSumI64) continue;
          static_cast<uint64_t*>(plane.data)[addend_random(9, trial) % plane.lanes] += 1 + trial;
        }
      });
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kUndecodable);
      EXPECT_EQ(sums, gradients);
      EXPECT_EQ(steps.worker(0).fingerprint(), plan) << "a failed step teaches nothing";
    }
    run(steps, layout, gradients);
  }
}

// Planes full of anything, in every mode: an error or a sum, never a crash, and steps go on.
TEST(ExactCodec, SurvivesAnythingThatAnAdderHandsBack) {
  for (const char* spec :
       {"exact:mode=packed", "exact:mode=two-level,block=10", "exact:mode=sketch,density=0.3",
        "exact:mode=packed,values=reproducible", "exact:mode=two-level,values=reproducible",
        "exact:mode=sketch,density=0.3,values=reproducible", "exact"}) {
    const Layout layout = layout_of(2, 1500);
    for (uint64_t seed = 0; seed < 40; ++seed) {
      auto steps = steps_of(spec, layout);
      uint64_t next = 0;
      for (int step = 0; step < 3; ++step) {
        Gradients gradients = whole_numbers(layout, 0.1, seed);
        (void)steps
            .step(gradients,
                  [&](uint32_t, Round& round) {
                    for (Plane& plane : round) {
                      if (addend_random(seed, next++) % 2 == 0) continue;
                      auto* bytes = static_cast<uint8_t*>(plane.data);
                      const uint64_t sparse = addend_random(seed, next++) % 3;
                      for (uint64_t i = 0; i < op_bytes(plane.op, plane.lanes); ++i) {
                        const uint64_t random = addend_random(seed, next++);
                        if (sparse > 0 && random % 16 != 0) continue;
                        bytes[i] = static_cast<uint8_t>(random >> 8);
                      }
                    }
                  })
            .has_value();
      }
    }
  }
}

// Rows of `row` elements at some places, each worker's others.
Gradients rows_of(const Layout& layout, uint64_t row, uint64_t seed) {
  Gradients gradients(layout.world, Gradient(layout.count * dtype_bytes(layout.dtype)));
  for (uint32_t w = 0; w < layout.world; ++w) {
    for (uint64_t i = 0; i < layout.count; ++i) {
      if (addend_random(seed + w, i / row) % 20 != 0) continue;
      const auto value = static_cast<float>(1 + addend_random(seed + w + 100, i) % 7);
      store_float(layout.dtype, gradients[w].data(), i, value);
    }
  }
  return gradients;
}

TEST(ExactAuto, PicksTheBlockThatFitsTheRows) {
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const uint64_t row : {64, 128, 256}) {
      Layout layout = layout_of(3, 256 * 40, dtype);
      layout.network = {50, 0.1};
      auto steps = steps_of("exact", layout);
      auto fixed = steps_of("exact:block=64", layout);
      for (uint64_t step = 0; step < 3; ++step) {
        const Gradients rows = rows_of(layout, row, 10 * step);
        run(steps, layout, rows);
        run(fixed, layout, rows);
      }
      const Report& report = steps.report();
      EXPECT_EQ(report.mode, "two-level");
      EXPECT_EQ(report.rounds, 2u) << "whole rows need no element bits";
      EXPECT_EQ(report.round_bytes[0], 2 * 8 * words_for(layout.count / row));
      EXPECT_EQ(fixed.report().round_bytes[0], 2 * 8 * words_for(layout.count / 64));
      EXPECT_EQ(steps.worker(0).fingerprint(), steps.worker(2).fingerprint());
      EXPECT_NE(steps.worker(0).fingerprint(), fixed.worker(0).fingerprint());
    }
  }
}

TEST(ExactAuto, FollowsRowsThatGrow) {
  Layout layout = layout_of(2, 256 * 40);
  layout.network = {50, 0.1};
  auto steps = steps_of("exact", layout);
  for (uint64_t step = 0; step < 2; ++step)
    run(steps, layout, rows_of(layout, 64, step));
  EXPECT_EQ(steps.report().round_bytes[0], 2 * 8 * words_for(layout.count / 64));
  for (uint64_t step = 0; step < 17; ++step)  // a survey among them
    run(steps, layout, rows_of(layout, 256, step));
  EXPECT_EQ(steps.report().mode, "two-level");
  EXPECT_EQ(steps.report().round_bytes[0], 2 * 8 * words_for(layout.count / 256));
}

TEST(ExactTwoLevel, WorksOnLiveBlocksWithoutABitmapOfAllElements) {
  const Layout layout = layout_of(2, 64 * 100000);
  auto steps = steps_of("exact:mode=two-level", layout);
  Gradients gradients = rows_of(layout, 64, 1);
  ASSERT_TRUE(steps.step(gradients));
  EXPECT_GT(steps.report().union_nonzeros, layout.count / 12);
  EXPECT_LT(steps.worker(0).memory_bytes(), layout.count * 4 / 4)
      << "values of some 10 % of the rows, and block bits";
}

// A quarter of the elements: values go by a bitmap, whose words without a bit are not written. The
// block is live here, so the scan did not look at its -0.0.
TEST(ExactTwoLevel, LeavesNoNegativeZeroInAWordWithoutNonZeros) {
  const Layout layout = layout_of(2, 256 * 40);
  auto steps = steps_of("exact:mode=two-level,block=256", layout);
  Gradients gradients(2, Gradient(layout.count * 4));
  for (uint64_t i = 0; i < layout.count; ++i) {
    for (Gradient& gradient : gradients)
      store_float(DType::kF32, gradient.data(), i, i % 256 < 64 ? 1.0f : 0.0f);
  }
  store_float(DType::kF32, gradients[0].data(), 256 * 3 + 130, -0.0f);
  ASSERT_TRUE(steps.step(gradients));
  EXPECT_EQ(steps.report().mode, "two-level");
  EXPECT_EQ(gradients[0], gradients[1]) << "replicas differ in the sign of a zero";
}

TEST(ExactTwoLevel, RefusesAUnionWithoutItsOwnBits) {
  const Layout layout = layout_of(2, 6400);
  for (const char* spec : {"exact:mode=two-level", "exact:mode=two-level,values=reproducible"}) {
    for (const uint32_t broken : {0u, 1u}) {
      auto steps = steps_of(spec, layout);
      const Gradients gradients = whole_numbers(layout, 0.01, 1);
      Gradients sums = gradients;
      const Status status = steps.step(sums, [&](uint32_t number, Round& round) {
        if (number != broken) return;
        auto* words = static_cast<uint64_t*>(round.planes[0].data);
        words[0] &= words[0] - 1;
      });
      ASSERT_FALSE(status) << spec << " round " << broken;
      EXPECT_EQ(status.error().code, Errc::kUndecodable);
      EXPECT_EQ(sums, gradients);
    }
  }
}

TEST(ExactAuto, LearnsTheUnionAndTheBlocks) {
  Layout layout = layout_of(2, 64 * 1000);
  layout.network = {50, 0.1};
  auto steps = steps_of("exact", layout);
  Gradients rows(2, Gradient(layout.count * 4));
  for (uint64_t i = 0; i < 64; ++i) {
    store_float(DType::kF32, rows[0].data(), 64 * 100 + i, 1);
    store_float(DType::kF32, rows[1].data(), 64 * 900 + i, 1);
  }
  run(steps, layout, rows);
  EXPECT_EQ(steps.report().mode, "packed");
  run(steps, layout, rows);
  EXPECT_EQ(steps.report().mode, "two-level");
  const Gradients dense = whole_numbers(layout, 1, 1);
  run(steps, layout, dense);
  run(steps, layout, rows);
  EXPECT_EQ(steps.report().mode, "two-level") << "one dense step changes nothing";
  for (uint64_t step = 0; step <= SeenUnions::kRecent; ++step)
    run(steps, layout, dense);
  EXPECT_EQ(steps.report().mode, "dense");
}

}  // namespace
}  // namespace addend::exact
