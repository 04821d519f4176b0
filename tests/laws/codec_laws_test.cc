// SPDX-License-Identifier: Apache-2.0
// The law of the project: decode(fold(encode a, encode b, ...)) = a + b + ..., for every codec,
// mode, value mode, element type, instruction set, world size, density, length and overlap.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "addend/simd.h"
#include "gtest/gtest.h"
#include "tests/laws/by_hand.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

const std::vector<std::string> kSpecs = {
    "dense",
    "cast:to=bf16",
    "cast:to=f16",
    "cast:to=bf16,feedback=float",
    "cast:to=f16,feedback=float",
    "exact",
    "exact:mode=packed",
    "exact:mode=two-level",
    "exact:mode=two-level,block=7",
    "exact:mode=two-level,block=256",
    "exact:mode=bloom",
    "exact:mode=bloom,density=0.01",
    "exact:mode=bloom,density=0.001,values=reproducible",
    "exact:mode=gather",
    "exact:mode=sketch",
    "exact:mode=sketch,lanes=8",
    "exact:values=reproducible",
    "exact:mode=packed,values=reproducible",
    "exact:mode=two-level,values=reproducible",
    "exact:mode=sketch,values=reproducible",
    // All elements travel: what is selected of all is the gradient.
    "topk:density=1",
    "leader:density=1",
};
constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16};
constexpr double kDensities[] = {0, 0.001, 0.01, 0.2, 1};
constexpr Overlap kOverlaps[] = {Overlap::kNone, Overlap::kRandom, Overlap::kFull};

// The types that an element is rounded to on its way.
std::vector<DType> types_of(const std::string& spec, DType dtype) {
  if (spec.find("to=bf16") != std::string::npos) return {dtype, DType::kBf16};
  if (spec.find("to=f16") != std::string::npos) return {dtype, DType::kF16};
  return {dtype};
}

// The largest of a figure of those types.
template <typename Figure>
double largest(const std::string& spec, DType dtype, Figure figure) {
  double most = 0;
  for (const DType type : types_of(spec, dtype))
    most = std::max(most, figure(type));
  return most;
}

double epsilon_of(const std::string& spec, DType dtype) {
  return largest(spec, dtype, [](DType type) {
    return type == DType::kF32 ? 0x1p-24 : type == DType::kBf16 ? 0x1p-8 : 0x1p-11;
  });
}

// What is smaller than this is rounded to nothing.
double smallest_of(const std::string& spec, DType dtype) {
  return largest(spec, dtype, [](DType type) {
    return type == DType::kF32 ? 0x1p-149 : type == DType::kBf16 ? 0x1p-133 : 0x1p-24;
  });
}

std::string describe(const std::string& spec, const Scenario& s) {
  return spec + " " + dtype_name(s.dtype) + " world " + std::to_string(s.world) + " count " +
         std::to_string(s.count) + " density " + std::to_string(s.density) + " overlap " +
         std::to_string(static_cast<int>(s.overlap)) + " seed " + std::to_string(s.seed) + " on " +
         simd_target();
}

// Two steps, the second planned from the first, with integers: the sum is exact, whatever the codec
// and the order.
void check_integers(const std::string& spec, Scenario s) {
  Lockstep workers(spec, layout_of(s));
  const uint32_t decoders = std::min(s.world, 3u);
  for (int step = 0; step < 2; ++step, s.seed += 17) {
    std::vector<Bytes> gradients =
        make_gradients(s, [&](uint32_t w, uint64_t i) { return small_integer(s.seed, w, i); });
    const std::vector<double> expected = sums(s, gradients);
    // Workers that do not decode must learn nothing, so the second step needs all of them.
    const Status status = workers.step(gradients, step == 0 ? s.world : decoders);
    ASSERT_TRUE(status) << describe(spec, s) << ": " << status.error().message;
    for (uint32_t w = 0; w < decoders; ++w) {
      for (uint64_t i = 0; i < s.count; ++i) {
        ASSERT_EQ(static_cast<double>(read(s.dtype, gradients[w], i)), expected[i])
            << describe(spec, s) << " worker " << w << " element " << i << " step " << step;
      }
    }
  }
}

class CodecLaw : public testing::TestWithParam<std::string> {};

TEST_P(CodecLaw, SumsIntegersExactlyForEveryWorldDensityLengthAndOverlap) {
  for (const DType dtype : kTypes) {
    for (const uint32_t world : {1u, 2u, 3u, 8u, 15u, 16u, 17u, 64u, 257u}) {
      for (const uint64_t count : {0, 1, 63, 64, 65, 127, 1009, 4099}) {
        if (world * count > 70000)
          continue;  // large worlds get the short lengths, long lengths the small worlds
        for (const double density : kDensities) {
          for (const Overlap overlap : kOverlaps) {
            check_integers(GetParam(), {dtype, count, world, density, overlap, world + count});
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(CodecLaw, SumsIntegersExactlyOnEveryInstructionSet) {
  for (const std::string& target : simd_targets()) {
    ASSERT_TRUE(force_simd_target(target));
    ASSERT_EQ(simd_target(), target);
    for (const DType dtype : kTypes) {
      for (const uint64_t count : {65, 1000, 20011}) {
        for (const double density : {0.01, 0.2, 1.0}) {
          check_integers(GetParam(), {dtype, count, 3, density, Overlap::kRandom, count});
          if (HasFatalFailure()) break;
        }
      }
    }
    ASSERT_TRUE(force_simd_target(""));
  }
}

TEST_P(CodecLaw, OneEmptyWorkerChangesNothing) {
  Scenario s{DType::kF32, 3001, 4, 0.05, Overlap::kRandom, 5};
  std::vector<Bytes> gradients =
      make_gradients(s, [&](uint32_t w, uint64_t i) { return small_integer(9, w, i); });
  std::fill(gradients[2].begin(), gradients[2].end(), uint8_t{0});
  const std::vector<double> expected = sums(s, gradients);
  Lockstep workers(GetParam(), layout_of(s));
  ASSERT_TRUE(workers.step(gradients));
  for (uint64_t i = 0; i < s.count; ++i)
    ASSERT_EQ(static_cast<double>(read(s.dtype, gradients[2], i)), expected[i]);
}

TEST_P(CodecLaw, NonFiniteAndTinyValuesArriveAsADenseSumGivesThem) {
  for (const DType dtype : kTypes) {
    Scenario s{dtype, 2000, 3, 0.1, Overlap::kRandom, 12};
    std::vector<Bytes> gradients =
        make_gradients(s, [&](uint32_t w, uint64_t i) { return small_integer(4, w, i); });
    const float infinity = HUGE_VALF;
    const auto tiny = static_cast<float>(smallest_of(GetParam(), dtype));
    write(dtype, gradients[0], 10, NAN);
    write(dtype, gradients[1], 700, infinity);
    write(dtype, gradients[0], 701, infinity);
    write(dtype, gradients[2], 701, -infinity);
    write(dtype, gradients[2], 702, -infinity);
    for (uint32_t w = 0; w < 3; ++w) {
      write(dtype, gradients[w], 1500, tiny);
      write(dtype, gradients[w], 1501, -0.0f);
      write(dtype, gradients[w], 1502, w == 1 ? tiny : -0.0f);
    }
    std::vector<Bytes> dense = gradients;
    Lockstep baseline("dense", layout_of(s)), workers(GetParam(), layout_of(s));
    for (int step = 0; step < 2; ++step) {  // the second step of a sketch is planned from the first
      std::vector<Bytes> copy = gradients;
      ASSERT_TRUE(workers.step(copy)) << GetParam();
      if (step == 0) {
        ASSERT_TRUE(baseline.step(dense));
      }
      for (uint32_t w = 0; w < 3; ++w) {
        for (uint64_t i = 0; i < s.count; ++i) {
          const float expected = read(dtype, dense[w], i), actual = read(dtype, copy[w], i);
          ASSERT_EQ(std::isnan(expected), std::isnan(actual))
              << GetParam() << " " << dtype_name(dtype) << " " << i;
          if (!std::isnan(expected)) {
            ASSERT_EQ(expected, actual) << GetParam() << " " << dtype_name(dtype) << " " << i;
          }
        }
      }
    }
  }
}

// Floats of every magnitude: each decoded element must be within what a float sum in some order may
// differ by, and all workers must hold the same bits.
TEST_P(CodecLaw, HeavyTailedFloatsStayWithinAFloatSumsBoundAndWorkersAgree) {
  for (const DType dtype : kTypes) {
    for (const double sigma : {1.0, 6.0}) {
      Scenario s{dtype, 5003, 5, 0.1, Overlap::kRandom, 21};
      Lockstep workers(GetParam(), layout_of(s));
      const double epsilon = epsilon_of(GetParam(), dtype);
      const double smallest = 2 * s.world * smallest_of(GetParam(), dtype);
      const bool keeps = GetParam().find("feedback") != std::string::npos;
      std::vector<double> magnitude(s.count, 0.0);
      for (int step = 0; step < 3; ++step, ++s.seed) {
        std::vector<Bytes> gradients = make_gradients(s, [&](uint32_t w, uint64_t i) {
          const double scale = dtype == DType::kF16 ? 1e-2 : 1e-3;
          return static_cast<float>(scale * std::exp(sigma * normal(s.seed + w, i)) *
                                    (normal(s.seed + 50 + w, i) < 0 ? -1 : 1));
        });
        const std::vector<double> expected = sums(s, gradients);
        // What feedback kept of earlier steps is an addend, too.
        if (!keeps) std::fill(magnitude.begin(), magnitude.end(), 0.0);
        for (const Bytes& gradient : gradients) {
          for (uint64_t i = 0; i < s.count; ++i)
            magnitude[i] += std::fabs(static_cast<double>(read(dtype, gradient, i)));
        }
        ASSERT_TRUE(workers.step(gradients));
        for (uint64_t i = 0; i < s.count; ++i) {
          const double actual = static_cast<double>(read(dtype, gradients[0], i));
          if (std::isinf(actual)) continue;  // f16 overflows where the sum does
          ASSERT_LE(std::fabs(actual - expected[i]), 6 * epsilon * magnitude[i] + smallest)
              << describe(GetParam(), s) << " element " << i << " step " << step;
        }
        for (uint32_t w = 1; w < s.world; ++w)
          ASSERT_EQ(gradients[w], gradients[0]) << describe(GetParam(), s);
      }
    }
  }
}

TEST_P(CodecLaw, EncodingIsDeterministic) {
  Scenario s{DType::kF32, 4001, 3, 0.05, Overlap::kRandom, 33};
  const auto run = [&] {
    Lockstep workers(GetParam(), layout_of(s));
    std::vector<Bytes> gradients = make_gradients(
        s, [&](uint32_t w, uint64_t i) { return static_cast<float>(normal(s.seed + w, i)); });
    EXPECT_TRUE(workers.step(gradients));
    return std::make_pair(gradients[0], workers.codec(0).fingerprint());
  };
  EXPECT_EQ(run(), run());
}

// A mix of sparse and dense steps, so that modes change and every fallback runs.
constexpr double kMixedDensities[] = {0.05, 0.05, 0.3, 1, 1, 0.02, 0};

std::vector<Bytes> mixed_gradients(const std::string& spec, Scenario s, std::size_t step) {
  s.density = kMixedDensities[step];
  s.seed += step;
  auto gradients =
      make_gradients(s, [&](uint32_t w, uint64_t i) { return small_integer(s.seed, w, i); });
  if (step == 1) {  // outside a sketch's window, where the type has such numbers: it escapes
    write(s.dtype, gradients[0], 3, smallest_of(spec, s.dtype) > 0x1p-100 ? 0x1p-14f : 0x1p-100f);
    write(s.dtype, gradients[1], 3, 0);
  }
  if (step > 1) write(s.dtype, gradients[1], 5, -0.0f);
  return gradients;
}

TEST_P(CodecLaw, NoRoundFollowsOneThatSaysItIsTheLast) {
  for (const DType dtype : kTypes) {
    const Scenario s{dtype, 3001, 2, 0, Overlap::kRandom, 8};
    Lockstep workers(GetParam(), layout_of(s));
    for (std::size_t step = 0; step < std::size(kMixedDensities); ++step) {
      std::vector<Bytes> gradients = mixed_gradients(GetParam(), s, step);
      const auto seen = step_pair(workers, gradients, {});
      ASSERT_TRUE(seen) << GetParam() << ": " << seen.error().message;
      const std::string mode(workers.codec(0).report().mode);
      const std::vector<Round>& rounds = seen->rounds;
      for (std::size_t r = 0; r + 1 < rounds.size(); ++r)
        EXPECT_FALSE(rounds[r].last) << GetParam() << " " << mode << " step " << step;
      // Only an empty union, or a sketch that peels, ends a step without notice.
      const bool noticed = mode != "sketch" && kMixedDensities[step] > 0;
      ASSERT_TRUE(!noticed || rounds.back().last) << GetParam() << " " << mode << " step " << step;
    }
  }
}

TEST_P(CodecLaw, WhereAStepBeginsAndEndsDoesNotChangeItsResult) {
  const HandStep ways[] = {{false, false}, {false, true}, {true, false}, {true, true}};
  for (const std::string& target : simd_targets()) {
    ASSERT_TRUE(force_simd_target(target));
    for (const DType dtype : kTypes) {
      const Scenario s{dtype, 3001, 2, 0, Overlap::kRandom, 8};
      std::vector<Lockstep> workers;
      for (std::size_t way = 0; way < 4; ++way)
        workers.emplace_back(GetParam(), layout_of(s));
      for (std::size_t step = 0; step < std::size(kMixedDensities); ++step) {
        std::vector<Bytes> expected;
        for (std::size_t way = 0; way < 4; ++way) {
          std::vector<Bytes> gradients = mixed_gradients(GetParam(), s, step);
          const auto seen = step_pair(workers[way], gradients, ways[way]);
          ASSERT_TRUE(seen) << GetParam() << ": " << seen.error().message;
          const Report& report = workers[way].codec(0).report();
          // What was selected lies elsewhere, however it travels.
          const bool selects = GetParam().find("density=1") != std::string::npos;
          const bool dense = !selects && (report.mode == "dense" || report.fallback == "dense");
          EXPECT_EQ(seen->in_gradient, dense && ways[way].in_place) << GetParam();
          if (way == 0) expected = gradients;
          ASSERT_EQ(gradients, expected) << GetParam() << " way " << way << " step " << step;
          ASSERT_EQ(gradients[1], gradients[0]) << "also the signs of zeros";
        }
      }
    }
    ASSERT_TRUE(force_simd_target(""));
  }
}

TEST_P(CodecLaw, AScaleMultipliesTheSumOfIntegersExactly) {
  for (const DType dtype : kTypes) {
    const Scenario s{dtype, 3001, 2, 0, Overlap::kRandom, 8};
    Layout layout = layout_of(s);
    const uint64_t plain = Lockstep(GetParam(), layout).codec(0).fingerprint();
    layout.scale = 0.25;
    Lockstep workers(GetParam(), layout);
    EXPECT_NE(workers.codec(0).fingerprint(), plain) << "workers must share one scale";
    for (std::size_t step = 0; step < std::size(kMixedDensities); ++step) {
      std::vector<Bytes> gradients = mixed_gradients(GetParam(), s, step);
      const std::vector<double> total = sums(s, gradients);
      ASSERT_TRUE(workers.step(gradients));
      for (uint64_t i = 0; i < s.count; ++i) {
        ASSERT_EQ(static_cast<double>(read(dtype, gradients[1], i)), 0.25 * total[i])
            << GetParam() << " " << dtype_name(dtype) << " step " << step << " element " << i;
      }
    }
  }
}

TEST_P(CodecLaw, AMeanStaysWithinAFloatSumsBoundAndDoesNotOverflowOnTheWay) {
  for (const DType dtype : kTypes) {
    const Scenario s{dtype, 4001, 3, 0.1, Overlap::kFull, 6};
    Layout layout = layout_of(s);
    layout.scale = 1.0 / 3;
    Lockstep workers(GetParam(), layout);
    const double epsilon = epsilon_of(GetParam(), dtype);
    for (int step = 0; step < 3; ++step) {  // the sketch's window is planned from the step before
      std::vector<Bytes> gradients = make_gradients(
          s, [&](uint32_t w, uint64_t i) { return static_cast<float>(55000 + 37 * w + i); });
      const std::vector<double> total = sums(s, gradients);
      ASSERT_TRUE(workers.step(gradients));
      for (uint64_t i = 0; i < s.count; ++i) {
        ASSERT_NEAR(static_cast<double>(read(dtype, gradients[0], i)), total[i] / 3,
                    6 * epsilon * total[i])
            << GetParam() << " " << dtype_name(dtype) << " element " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, CodecLaw, testing::ValuesIn(kSpecs), [](const auto& suite) {
  std::string name = suite.param;
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace addend::testing_support
