// SPDX-License-Identifier: Apache-2.0
// The law of quant with an index: what nobody touched is exactly zero, what somebody touched is
// near the sum, however the index travelled; and where everything is touched, it is quant.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "addend/simd.h"
#include "gtest/gtest.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

// Worker w's normal numbers where it is live.
std::vector<Bytes> sparse_normal(const Scenario& s) {
  return make_gradients(
      s, [&](uint32_t w, uint64_t i) { return static_cast<float>(normal(s.seed + 100 * w, i)); });
}

// Rows of 64 elements that are live together, `density` of them on some worker, the same on all.
std::vector<Bytes> live_rows(const Layout& layout, double density, uint64_t seed) {
  return make_gradients(scenario_of(layout), [&](uint32_t w, uint64_t i) {
    if (uniform(seed, i / 64) >= density) return 0.0f;
    return static_cast<float>(normal(seed + 100 * w, i));
  });
}

bool touched(DType dtype, const std::vector<Bytes>& gradients, uint64_t i) {
  return std::any_of(gradients.begin(), gradients.end(),
                     [&](const Bytes& one) { return read(dtype, one, i) != 0; });
}

// Zero where nobody has anything; elsewhere off by no more than a lossy sum of so many bits is.
void expect_near(const Scenario& s, const std::vector<Bytes>& before,
                 const std::vector<Bytes>& after, double bound, const std::string& what) {
  const std::vector<double> expected = sums(s, before);
  double error = 0, energy = 0;
  for (uint64_t i = 0; i < s.count; ++i) {
    const auto actual = static_cast<double>(read(s.dtype, after[0], i));
    if (!touched(s.dtype, before, i)) {
      ASSERT_EQ(actual, 0) << what << " element " << i;
      continue;
    }
    error += std::pow(actual - expected[i], 2);
    for (const Bytes& gradient : before)
      energy += std::pow(static_cast<double>(read(s.dtype, gradient, i)), 2);
  }
  EXPECT_LE(error, bound * s.world * energy + 1e-12) << what;
  for (uint32_t w = 1; w < after.size(); ++w)
    ASSERT_EQ(after[w], after[0]) << what << ": worker " << w << " has other bits";
}

TEST(QuantIndex, LeavesZerosAloneForEveryTypeWorldDensityAndOverlap) {
  // Of the fewest bits that a world has by itself; with feedback the difference of two residuals.
  const std::pair<const char*, double> specs[] = {
      {"quant:index=packed", 0.004},
      {"quant:index=two-level,block=64", 0.004},
      {"quant:index=auto,feedback=float", 0.01},
      {"quant:index=auto,carrier=indices,block=whole", 0.04},
      {"quant:index=auto,bits=auto", 0.04},
      {"quant:index=packed,bits=8,rotate=none", 0.0003},
      {"quant:index=auto,bits=4,down=8", 0.04},
      {"quant:index=two-level,bits=8,down=4,feedback=float", 0.02},
  };
  for (const auto& [spec, bound] : specs) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const uint32_t world : {1u, 2u, 3u, 17u, 18u}) {
        for (const uint64_t count : {1, 64, 65, 3001}) {
          if (world * count > 20000) continue;
          for (const double density : {0.0, 0.01, 0.2, 1.0}) {
            for (const Overlap overlap : {Overlap::kNone, Overlap::kRandom, Overlap::kFull}) {
              Scenario s{dtype, count, world, density, overlap, world + count};
              Lockstep workers(spec, layout_of(s));
              for (int step = 0; step < 3; ++step, ++s.seed) {
                const std::vector<Bytes> before = sparse_normal(s);
                std::vector<Bytes> after = before;
                const Status status = workers.step(after);
                ASSERT_TRUE(status) << spec << ": " << status.error().message;
                expect_near(s, before, after, bound,
                            std::string(spec) + " " + dtype_name(dtype) + " world " +
                                std::to_string(world) + " count " + std::to_string(count) +
                                " density " + std::to_string(density));
                if (HasFailure()) return;
              }
            }
          }
        }
      }
    }
  }
}

TEST(QuantIndex, GivesQuantsBitsWhereEverythingIsTouched) {
  for (const char* options : {"", ",carrier=indices", ",bits=auto,block=256", ",bits=7",
                              ",bits=3,down=8", ",bits=8,down=4"}) {
    Layout layout = layout_of(3, 5003);
    layout.network = {50, 0.1};  // bytes decide how the index travels
    Lockstep plain(std::string("quant:nonfinite=nan") + options, layout);
    Lockstep indexed(std::string("quant:index=auto") + options, layout);
    for (uint64_t step = 0; step < 3; ++step) {
      std::vector<Bytes> expected = standard_normal(layout, step), actual = expected;
      ASSERT_TRUE(plain.step(expected));
      ASSERT_TRUE(indexed.step(actual));
      ASSERT_EQ(actual, expected) << options << " step " << step;
      if (step == 0) continue;
      // A full union costs two bits a block of the index, and a round.
      const Report& report = indexed.codec(0).report();
      EXPECT_LE(report.wire_bytes, plain.codec(0).report().wire_bytes * 102 / 100) << options;
      EXPECT_EQ(report.rounds, 3u) << options;
    }
  }
}

// What a group in which sums may be narrow takes by itself: eight bits both ways, of the union
// only.
TEST(QuantIndex, ManyWorkersWhoseSumsMayBeNarrowSendEightBitsOfTheUnion) {
  for (const uint32_t world : {18u, 64u}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      Layout layout = layout_of(world, 64 * 60 + 7);
      layout.dtype = dtype;
      Lockstep whole("quant:index=auto", layout);
      Lockstep named("quant:index=auto,bits=8,down=8", layout);
      layout.network.narrows = true;
      Lockstep workers("quant:index=auto", layout);
      for (uint64_t step = 0; step < 3; ++step) {
        const std::vector<Bytes> before = live_rows(layout, 0.3, step);
        std::vector<Bytes> after = before, others = before, same = before;
        ASSERT_TRUE(workers.step(after) && whole.step(others) && named.step(same));
        const std::string what = std::string(dtype_name(dtype)) + " world " + std::to_string(world);
        expect_near(scenario_of(layout), before, after, 0.001 / world, what);
        EXPECT_EQ(after, same) << what;
        EXPECT_LT(workers.codec(0).report().wire_bytes, whole.codec(0).report().wire_bytes * 6 / 10)
            << what;
      }
    }
  }
}

TEST(QuantIndex, EveryFormAndInstructionSetGivesTheSameBits) {
  for (const std::string spec :
       {"quant:feedback=float", "quant:bits=3,down=4,feedback=float", "quant:bits=8,down=8"}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      Layout layout = layout_of(3, 64 * 100 + 7);
      layout.dtype = dtype;
      std::vector<std::vector<Bytes>> first;
      for (const std::string& target : simd_targets()) {
        ASSERT_TRUE(force_simd_target(target));
        for (const char* form : {"packed", "two-level", "auto"}) {
          Lockstep workers(spec + ",index=" + form, layout);
          std::vector<std::vector<Bytes>> results;
          for (uint64_t step = 0; step < 4; ++step) {
            results.push_back(live_rows(layout, 0.1, step));
            ASSERT_TRUE(workers.step(results.back()));
          }
          if (first.empty()) first = results;
          EXPECT_EQ(results, first)
              << spec << " " << dtype_name(dtype) << ", " << form << " on " << target;
        }
        ASSERT_TRUE(force_simd_target(""));
      }
    }
  }
}

// A position that sits out some steps keeps what is owed to it, and gets it when it is back.
TEST(QuantIndex, FeedbackStaysWithPositionsAndIsPaidWhereTheUnionIs) {
  const Layout layout = layout_of(2, 6000);
  constexpr int kSteps = 240;
  double errors[2] = {};
  const char* specs[] = {"quant:index=auto", "quant:index=auto,feedback=float"};
  for (int with = 0; with < 2; ++with) {
    Lockstep workers(specs[with], layout);
    std::vector<double> owed(layout.count, 0.0);
    for (uint64_t step = 0; step < kSteps; ++step) {
      // Each element in one step of three, always with the same value.
      std::vector<Bytes> gradients =
          make_gradients(scenario_of(layout), [&](uint32_t w, uint64_t i) {
            if (addend_random(3, i) % 3 != step % 3) return 0.0f;
            return static_cast<float>(normal(100 * w, i));
          });
      const std::vector<double> expected = sums(scenario_of(layout), gradients);
      std::vector<Bytes> after = gradients;
      ASSERT_TRUE(workers.step(after));
      for (uint64_t i = 0; i < layout.count; ++i) {
        const auto actual = static_cast<double>(read(layout.dtype, after[1], i));
        if (!touched(layout.dtype, gradients, i)) {
          ASSERT_EQ(actual, 0) << step << " " << i;
        }
        owed[i] += expected[i] - actual;
      }
    }
    for (const double one : owed)
      errors[with] += one * one;
  }
  std::printf("squared error of all steps together: %.1f without feedback, %.1f with\n", errors[0],
              errors[1]);
  EXPECT_LT(errors[1], errors[0] / 20);
}

// Bytes up, and the squared error of the sum over its energy.
TEST(QuantIndex, RowsThatAreFewCostLittle) {
  const Layout layout = layout_of(2, uint64_t{1} << 18);
  struct Cost {
    double bytes = 0, error = 0;
  };
  const auto cost = [&](const char* spec) {
    Lockstep workers(spec, layout);
    double error = 0, energy = 0;
    for (uint64_t step = 0; step < 3; ++step) {
      std::vector<Bytes> gradients = live_rows(layout, 0.05, step);
      const std::vector<double> truth = sums(scenario_of(layout), gradients);
      EXPECT_TRUE(workers.step(gradients)) << spec;
      for (uint64_t i = 0; i < layout.count; ++i) {
        const auto sum = static_cast<double>(read(layout.dtype, gradients[0], i));
        error += std::pow(sum - truth[i], 2);
        energy += truth[i] * truth[i];
      }
    }
    const auto bytes = static_cast<double>(workers.codec(0).report().wire_bytes);
    return Cost{bytes, error / energy};
  };
  const double exact = cost("exact").bytes, quant = cost("quant").bytes;
  const struct {
    const char* spec;
    double of_exact, of_quant, error;  // times fewer bytes, at least; error at most
  } cases[] = {{"quant:index=auto", 3.5, 14, 5e-4},
               {"quant:index=auto,carrier=indices", 6.5, 20, 0.015},
               {"quant:index=auto,bits=4,down=4", 6.5, 20, 0.03},
               {"quant:index=auto,bits=3,down=4", 8, 30, 0.06}};
  for (const auto& [spec, of_exact, of_quant, error] : cases) {
    const Cost one = cost(spec);
    std::printf("5 %% of rows, %s: %.0f bytes, exact %.2f times, quant %.1f times; error %.5f\n",
                spec, one.bytes, exact / one.bytes, quant / one.bytes, one.error);
    EXPECT_GE(exact / one.bytes, of_exact) << spec;
    EXPECT_GE(quant / one.bytes, of_quant) << spec;
    EXPECT_LE(one.error, error) << spec;
  }
}

TEST(QuantIndex, ABlockThatIsNotFiniteIsNanAndTheZerosStay) {
  const Layout layout = layout_of(2, 6400);
  Lockstep workers("quant:index=packed,block=64,feedback=float", layout);
  std::vector<Bytes> gradients = live_rows(layout, 0.2, 3);
  const std::vector<Bytes> before = gradients;
  uint64_t first = 0;
  while (!touched(layout.dtype, before, first))
    ++first;
  write(layout.dtype, gradients[1], first, HUGE_VALF);
  ASSERT_TRUE(workers.step(gradients));
  uint64_t nans = 0;
  for (uint64_t i = 0; i < layout.count; ++i) {
    const float actual = read(layout.dtype, gradients[0], i);
    nans += std::isnan(actual) ? 1 : 0;
    if (!touched(layout.dtype, before, i)) {
      ASSERT_EQ(actual, 0) << i;
    }
  }
  EXPECT_EQ(nans, 64u) << "one row is one block here";
  EXPECT_EQ(workers.codec(0).report().nonfinite, 64u);
  std::vector<Bytes> next = live_rows(layout, 0.2, 3);
  ASSERT_TRUE(workers.step(next));
  expect_near(scenario_of(layout), before, next, 0.001, "the step after");
}

}  // namespace
}  // namespace addend::testing_support
