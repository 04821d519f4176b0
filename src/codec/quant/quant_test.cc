// SPDX-License-Identifier: Apache-2.0
// What the quant codec does beyond its law (tests/laws): options, lengths and types, silence,
// hostile numbers. state_test.cc has what it keeps from step to step.
#include "codec/quant/quant.h"

#include <cmath>
#include <cstring>
#include <functional>

#include <gtest/gtest.h>

#include "codec/quant/device_quant.h"
#include "tests/support/quant_gradients.h"
#include "tests/support/quant_workers.h"

namespace addend::quant {
namespace {

using namespace testing_support;

Result<std::unique_ptr<Codec>> create(const std::string& spec, const Layout& layout) {
  return create_codec(*CodecSpec::parse(spec), layout);
}

TEST(QuantOptions, AreRefusedByName) {
  const struct {
    const char* spec;
    const char* named;
  } cases[] = {
      {"quant:bits=0", "bits"},
      {"quant:bits=9", "bits"},
      {"quant:bits=four", "bits"},
      {"quant:block=100", "block"},
      {"quant:block=32", "block"},
      {"quant:block=32768", "block"},
      {"quant:carrier=indices,bits=5", "carrier=indices"},
      {"quant:carrier=indices,bits=auto", "carrier=indices"},
      {"quant:levels=published,bits=3", "levels=published"},
      {"quant:levels=uniform,bits=auto", "bits=auto"},
      {"quant:levels=uniform,granularity=30", "granularity"},
      {"quant:bits=auto,clipped=0.1", "clipped"},
      {"quant:granularity=14", "granularity"},
      {"quant:granularity=256", "granularity"},
      {"quant:clipped=0.9", "clipped"},
      {"quant:budget=1", "budget"},
      {"quant:feedback=half", "feedback"},
      {"quant:rounding=nearest", "rounding"},
      {"quant:nonfinite=zero", "nonfinite"},
      {"quant:rotate=whole", "rotate"},
      {"quant:down=6", "down"},
      {"quant:norms=ahead", "needs feedback"},
      {"quant:norms=ahead,feedback=float,bits=auto", "norms=ahead"},
      {"quant:norms=ahead,feedback=float,index=auto", "norms=ahead"},
      {"quant:down=8,carrier=levels", "carrier=indices"},
      {"quant:down=8,bits=auto", "fixed number of bits"},
      {"quant:colour=blue", "colour"},
  };
  for (const auto& c : cases) {
    const auto codec = create(c.spec, quant_layout(2, 100));
    ASSERT_FALSE(codec) << c.spec;
    EXPECT_EQ(codec.error().code, Errc::kInvalidArgument) << c.spec;
    EXPECT_NE(codec.error().message.find(c.named), std::string::npos) << codec.error().message;
  }
  Layout outside = quant_layout(2, 100);
  outside.worker = 2;
  const auto codec = create("quant", outside);
  ASSERT_FALSE(codec);
  EXPECT_NE(codec.error().message.find("worker"), std::string::npos) << codec.error().message;
}

Op lane_of(const std::string& spec, uint32_t world, const NetworkHint& network = {}) {
  Layout layout = quant_layout(world, 64);
  layout.network = network;
  auto codec = create(spec, layout);
  EXPECT_TRUE(codec) << spec;
  std::vector<float> gradient(64, 1.0f);
  Round round;
  EXPECT_TRUE((*codec)->begin(gradient.data()));
  EXPECT_TRUE(*(*codec)->next_round(round));
  EXPECT_TRUE(*(*codec)->next_round(round));
  return round.planes[0].op;
}

TEST(QuantOptions, AnOverriddenGranularityTakesTheLaneThatHoldsItOrIsRefused) {
  EXPECT_EQ(lane_of("quant:granularity=85", 3), Op::kSumU8) << "3 * 85 = 255";
  EXPECT_EQ(lane_of("quant:granularity=86", 3), Op::kSumU16);
  EXPECT_EQ(lane_of("quant:granularity=255", 257), Op::kSumU16) << "257 * 255 = 65535";
  EXPECT_EQ(lane_of("quant:granularity=255", 258), Op::kSumI32);
  EXPECT_EQ(lane_of("quant:granularity=85,carrier=indices", 3), Op::kTableSumU8);
  EXPECT_EQ(lane_of("quant:granularity=86,carrier=indices", 3), Op::kTableSumU16);
  EXPECT_EQ(lane_of("quant:levels=published", 8), Op::kSumU8);
  EXPECT_EQ(lane_of("quant:levels=published", 9), Op::kSumU16);
  const auto codec = create("quant:granularity=255,carrier=indices", quant_layout(258, 64));
  ASSERT_FALSE(codec);
  EXPECT_EQ(codec.error().code, Errc::kCapacity);
  EXPECT_NE(codec.error().message.find("carrier=levels"), std::string::npos);
}

TEST(QuantOptions, WithoutBitsSumsOfManyWorkersAreNarrowedWhereThatCanBe) {
  NetworkHint narrows;
  narrows.narrows = true;
  for (const uint32_t world : {2u, 8u, 17u})
    EXPECT_EQ(lane_of("quant", world, narrows), Op::kSumU8) << "nothing to save";
  for (const uint32_t world : {18u, 64u, 257u, 2114u}) {
    for (const char* spec : {"quant", "quant:carrier=indices"})
      EXPECT_EQ(lane_of(spec, world, narrows), Op::kNarrowSum88) << spec << " " << world;
    EXPECT_EQ(lane_of("quant", world), Op::kSumU16) << world;
  }
  EXPECT_EQ(lane_of("quant", 4369, narrows), Op::kNarrowSum48) << "16 bits hold sums of four";
  EXPECT_EQ(lane_of("quant", 4370, narrows), Op::kSumI32) << "16 bits do not hold the sums";
  for (const char* spec : {"quant:bits=4", "quant:carrier=levels", "quant:down=full"})
    EXPECT_EQ(lane_of(spec, 18, narrows), Op::kSumU16) << spec << " says what it wants";
  for (const char* spec : {"bits=4", "down=full", "feedback=float"}) {
    EXPECT_EQ(lane_of(std::string("quant:carrier=indices,") + spec, 18, narrows), Op::kTableSumU16)
        << spec;
  }
  EXPECT_EQ(lane_of("quant:carrier=indices", 18), Op::kTableSumU16);
  EXPECT_EQ(lane_of("quant:carrier=indices", 17, narrows), Op::kTableSumU8);
  for (const char* spec : {"quant:feedback=float", "quant:feedback=byte"})
    EXPECT_EQ(lane_of(spec, 18, narrows), Op::kSumU16) << spec << " owns every rounding";
}

// Eight bits hold such sums whole, so nothing changes but what travels.
TEST(QuantOptions, FewBitsTravelAsFewWhereSumsCanBeNarrowed) {
  NetworkHint narrows;
  narrows.narrows = true;
  constexpr Op kNarrow[] = {Op::kNarrowSum18, Op::kNarrowSum28, Op::kNarrowSum38};
  for (uint32_t bits = 1; bits <= 3; ++bits) {
    const std::string spec = "quant:bits=" + std::to_string(bits);
    const uint32_t most = 255 / ((1u << bits) - 1);
    for (const char* with : {"", ",carrier=indices", ",feedback=float", ",levels=uniform"}) {
      for (const uint32_t world : {1u, 2u, most})
        EXPECT_EQ(lane_of(spec + with, world, narrows), kNarrow[bits - 1]) << spec << with;
    }
    EXPECT_EQ(lane_of(spec, most), Op::kSumU8) << "whoever adds may not know them";
    EXPECT_EQ(lane_of(spec, most + 1, narrows), Op::kSumU16) << "they would be rounded again";
    EXPECT_EQ(lane_of(spec + ",granularity=128", 2, narrows), Op::kSumU16) << "so would these";
    EXPECT_EQ(lane_of(spec + ",carrier=levels", 2, narrows), Op::kSumU8) << "says what it wants";
    EXPECT_EQ(lane_of(spec + ",down=full", 2, narrows), Op::kSumU8) << "says what it wants";
  }
  EXPECT_EQ(lane_of("quant:bits=4", 2, narrows), Op::kSumU8);
  EXPECT_EQ(lane_of("quant:bits=4,carrier=indices", 2, narrows), Op::kTableSumU8);
}

// What travels does not depend on where one worker is, or workers would split.
TEST(QuantOptions, ADeviceRefusesNarrowSumsByNameWhereverTheyComeFrom) {
  Layout layout = quant_layout(18, 64);
  layout.network.narrows = true;
  layout.execution.device = Execution::Device::kCuda;
  const auto codec = create_quant_on_device(*CodecSpec::parse("quant"), layout);
  ASSERT_FALSE(codec);
  EXPECT_EQ(codec.error().code, Errc::kUnsupported);
  EXPECT_NE(codec.error().message.find("quant:down"), std::string::npos) << codec.error().message;
}

TEST(QuantOptions, ADeviceRefusesByNameWhatItHasNot) {
  Layout layout = quant_layout(2, 3000);
  layout.execution.device = Execution::Device::kCuda;
  const std::pair<const char*, const char*> specs[] = {
      {"quant:bits=auto", "quant:bits=auto"},
      {"quant:block=whole", "quant:block=whole"},
      {"quant:norms=ahead,feedback=float", "quant:norms=ahead"},
      {"quant:down=4", "quant:down"},
      {"quant:down=8", "quant:down"}};
  for (const auto& [spec, named] : specs) {
    const auto codec = create_quant_on_device(*CodecSpec::parse(spec), layout);
    ASSERT_FALSE(codec) << spec;
    EXPECT_EQ(codec.error().code, Errc::kUnsupported) << spec;
    EXPECT_EQ(codec.error().message, std::string(named) + " does not run on a device yet");
  }
}

// Bits may change under a residual, and what carries them.
TEST(QuantOptions, AResidualGoesOnWhereTheWorldGrowsBeyondALane) {
  const std::pair<const char*, uint32_t> lasts[] = {{"quant:feedback=float", 17},
                                                    {"quant:bits=3,feedback=float", 36}};
  for (const auto& [spec, last] : lasts) {
    Layout layout = quant_layout(last, 3000);
    layout.network.narrows = true;
    const auto before = create(spec, layout);
    ASSERT_TRUE(before) << spec;
    layout.world = last + 1;
    const auto after = create(spec, layout);
    ASSERT_TRUE(after) << spec;
    ASSERT_TRUE((*after)->load_segment(0, *(*before)->save_segment(0))) << spec;
  }
}

TEST(Quant, EveryLengthAndTypeComesBackCloseAndAlikeOnAllRanks) {
  for (const char* spec : {"quant", "quant:carrier=indices,feedback=float", "quant:block=64,bits=5",
                           "quant:block=whole,feedback=byte", "quant:rotate=none,bits=8"}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const uint64_t count : {0, 1, 63, 64, 65, 2047, 2048, 2049, 5000}) {
        const Layout layout = quant_layout(3, count, dtype);
        QuantWorkers workers(spec, layout);
        for (int step = 0; step < 2; ++step) {
          const Gradients before = gaussian(layout, count + static_cast<uint64_t>(step));
          Gradients after = before;
          ASSERT_TRUE(workers.step(after)) << spec;
          // With feedback, the second step also delivers what the first left.
          expect_close(layout, before, after,
                       std::string(spec) + " " + dtype_name(dtype) + " " + std::to_string(count),
                       step == 0 ? kPlausible : 2 * kPlausible);
        }
      }
    }
  }
}

TEST(Quant, AnAllZeroGradientCostsRoundZeroAndGivesZeros) {
  for (const char* spec : {"quant", "quant:feedback=float", "quant:carrier=indices"}) {
    const Layout layout = quant_layout(3, 5000);
    QuantWorkers workers(spec, layout);
    const Gradients zeros =
        gradients_of(layout, [](uint32_t, uint64_t i) { return i % 2 == 0 ? 0.0f : -0.0f; });
    Gradients after = zeros;
    ASSERT_TRUE(workers.step(after));
    EXPECT_EQ(workers.report().rounds, 1u);
    EXPECT_EQ(workers.report().wire_bytes, 3 * 4u);
    for (uint64_t i = 0; i < layout.count; ++i)
      ASSERT_EQ(read(DType::kF32, after[1], i), 0.0f);
  }
}

TEST(Quant, AllZeroBlocksCostNoLanes) {
  const Layout layout = quant_layout(2, 5 * 2048);
  const auto live = [](uint64_t i) { return i / 2048 == 1 || i / 2048 == 4; };
  const Gradients before = gradients_of(layout, [&](uint32_t w, uint64_t i) {
    return live(i) && (w == 0 || i / 2048 == 1) ? normal(w, i) : 0.0;
  });
  for (const char* spec : {"quant", "quant:carrier=indices"}) {
    QuantWorkers workers(spec, layout);
    Gradients after = before;
    ASSERT_TRUE(workers.step(after));
    const uint64_t lanes = 2 * 2048;
    EXPECT_EQ(workers.report().round_bytes[1],
              (std::string(spec) == "quant" ? lanes : lanes / 2) + 4);
    expect_close(layout, before, after, spec);
    for (uint64_t i = 0; i < layout.count; ++i) {
      if (!live(i)) {
        ASSERT_EQ(read(DType::kF32, after[1], i), 0.0f) << i;
      }
    }
  }
}

double energy_of(const Layout& layout, const Bytes& x, const Bytes* minus = nullptr) {
  double energy = 0;
  for (uint64_t i = 0; i < layout.count; ++i) {
    const auto other = minus != nullptr ? static_cast<double>(read(layout.dtype, *minus, i)) : 0.0;
    energy += std::pow(static_cast<double>(read(layout.dtype, x, i)) - other, 2);
  }
  return energy;
}

// With one worker its own contribution is all there is, so what was lost can be seen.
TEST(QuantSample, TellsTheErrorOfAWorkersContribution) {
  for (const char* spec :
       {"quant", "quant:bits=2", "quant:bits=8", "quant:carrier=indices", "quant:block=64",
        "quant:block=whole", "quant:rotate=none", "quant:bits=auto"}) {
    for (const double size : {1.0, 0x1p80, 0x1p-70}) {
      const Layout layout = quant_layout(1, 64 * 2048 - 5);
      QuantWorkers worker(spec, layout);
      double energy = 0, error = 0, sampled_energy = 0, sampled_error = 0;
      for (uint64_t step = 0; step < 16; ++step) {
        Gradients gradients = gaussian(layout, step, size);
        const Gradients before = gradients;
        ASSERT_TRUE(worker.step(gradients));
        energy += energy_of(layout, before[0]);
        error += energy_of(layout, gradients[0], &before[0]);
        sampled_energy += worker.report().sampled_energy;
        sampled_error += worker.report().sampled_error;
      }
      ASSERT_GT(sampled_error, 0) << spec;
      // A few thousand elements: a few hundredths off, at the most.
      EXPECT_NEAR(sampled_error / sampled_energy / (error / energy), 1, 0.1) << spec << " " << size;
      EXPECT_LT(sampled_energy, 0.1 * energy) << spec << ": a sample";
    }
  }
}

TEST(QuantSample, ComesFromLiveBlocksAndCountsTheResidual) {
  const Layout layout = quant_layout(1, 10 * 2048);
  QuantWorkers worker("quant:bits=1,feedback=float", layout);
  for (uint64_t step = 0; step < 12; ++step) {
    Gradients gradients = gradients_of(layout, [&](uint32_t, uint64_t i) {
      return i / 2048 == 7 && step == 0 ? normal(step, i) : 0.0;
    });
    ASSERT_TRUE(worker.step(gradients));
    EXPECT_GT(worker.report().sampled_energy, 0) << "later, only the residual is left";
    EXPECT_GT(worker.report().sampled_error, 0);
  }
}

TEST(QuantNonFinite, MakesExactlyItsBlockNanOnEveryRank) {
  for (const char* spec : {"quant", "quant:feedback=float", "quant:feedback=byte",
                           "quant:rotate=none", "quant:bits=auto", "quant:carrier=indices"}) {
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
        const Layout layout = quant_layout(3, 6001, dtype);
        QuantWorkers workers(spec, layout), clean(spec, layout);
        Gradients after = gaussian(layout, 4), expected = after;
        write(dtype, after[2], 3000, bad);
        ASSERT_TRUE(workers.step(after)) << spec;
        ASSERT_TRUE(clean.step(expected));
        EXPECT_EQ(workers.report().escaped_values, 2048u);
        for (uint64_t i = 0; i < layout.count; ++i) {
          const float value = read(dtype, after[0], i);
          ASSERT_EQ(std::isnan(value), i / 2048 == 1) << spec << " " << i;
          // A broken block changes what auto may spend on the others.
          if (i / 2048 != 1 && std::string(spec) != "quant:bits=auto") {
            ASSERT_EQ(value, read(dtype, expected[0], i)) << spec << " " << i;
          }
        }
        EXPECT_EQ(after[1], after[0]);
        EXPECT_EQ(after[2], after[0]);
        const Gradients next = gaussian(layout, 5);
        after = next;
        ASSERT_TRUE(workers.step(after));
        expect_close(layout, next, after, std::string(spec) + " after it", 2 * kPlausible);
      }
    }
  }
}

TEST(QuantNonFinite, IsAnErrorOnEveryRankByOptionAndLeavesGradientsAlone) {
  const Layout layout = quant_layout(2, 3000);
  QuantWorkers workers("quant:nonfinite=error,feedback=float", layout);
  const auto state = *workers.codec(0).save_state();
  Gradients before = gaussian(layout, 1);
  write(DType::kF32, before[1], 10, std::nanf(""));
  Gradients after = before;
  std::vector<Round> rounds(2);
  for (uint32_t w = 0; w < 2; ++w) {
    ASSERT_TRUE(workers.codec(w).begin(after[w].data()));
    ASSERT_TRUE(*workers.codec(w).next_round(rounds[w]));
  }
  const Plane& norms = rounds[1].planes[0];
  std::memcpy(rounds[0].planes[0].data, norms.data, norms.lanes * 4);
  for (uint32_t w = 0; w < 2; ++w) {
    const auto more = workers.codec(w).next_round(rounds[w]);
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().code, Errc::kUndecodable);
  }
  EXPECT_EQ(after, before);
  EXPECT_EQ(*workers.codec(0).save_state(), state);
  Gradients next = gaussian(layout, 2);
  EXPECT_TRUE(workers.step(next));
}

TEST(QuantHostile, OutliersConstantsAndDenormalsComeBackPlausible) {
  const struct {
    const char* name;
    std::function<double(uint32_t, uint64_t)> value;
  } cases[] = {
      {"outlier 1e38", [](uint32_t w, uint64_t i) { return w == 1 && i == 77 ? 1e38 : 0.01; }},
      {"outlier 3e38", [](uint32_t w, uint64_t i) { return w == 0 && i == 4999 ? -3e38 : 1.0; }},
      {"constant", [](uint32_t, uint64_t) { return 0.125; }},
      {"large constant", [](uint32_t, uint64_t) { return 1e36; }},
      {"tiny constant", [](uint32_t, uint64_t) { return -1e-36; }},
      {"denormal constant", [](uint32_t, uint64_t) { return 1e-42; }},
      {"one denormal", [](uint32_t w, uint64_t i) { return w == 2 && i == 9 ? 1e-42 : 0.0; }},
      {"denormal and huge workers",
       [](uint32_t w, uint64_t i) { return (w == 0 ? 1e-42 : 1e30) * normal(w, i); }},
      {"tiny, plain and huge blocks",
       [](uint32_t w, uint64_t i) {
         return (i < 2048 ? 1e-35 : i < 4096 ? 1.0 : 1e35) * normal(w, i);
       }},
  };
  for (const char* spec : {"quant", "quant:feedback=float", "quant:feedback=byte",
                           "quant:bits=auto", "quant:rotate=none", "quant:block=whole"}) {
    for (const auto& c : cases) {
      const Layout layout = quant_layout(3, 5000);
      QuantWorkers workers(spec, layout);
      const Gradients before = gradients_of(layout, c.value);
      Gradients after = before;
      ASSERT_TRUE(workers.step(after));
      const std::string name = spec, what = name + " " + c.name;
      // Few bits in some blocks, one scale for all elements, levels for the largest element alone.
      const double bound = name == "quant:bits=auto"     ? 2 * kPlausible
                           : name == "quant:rotate=none" ? 8
                                                         : kPlausible;
      const Distance d = distance(layout, before, after[0], 0, layout.count);
      EXPECT_LE(d.error, bound * d.largest) << what;
      if (name != "quant:block=whole") expect_close(layout, before, after, what, bound);
    }
  }
}

TEST(QuantHostile, ABlockWhoseNormNoFloatHoldsIsNanNotPlausible) {
  for (const char* spec : {"quant", "quant:feedback=float", "quant:feedback=byte"}) {
    const Layout layout = quant_layout(2, 4096);
    QuantWorkers workers(spec, layout);
    Gradients after =
        gradients_of(layout, [](uint32_t w, uint64_t i) { return w == 1 && i < 2048 ? 1e38 : 1; });
    ASSERT_TRUE(workers.step(after));
    for (uint64_t i = 0; i < layout.count; ++i)
      ASSERT_EQ(std::isnan(read(DType::kF32, after[0], i)), i < 2048) << spec << " " << i;
  }
}

TEST(Quant, AnIndexThatLostBitsIsRefusedAndChangesNothing) {
  for (const char* spec : {"quant:index=packed,feedback=float", "quant:index=two-level"}) {
    const Layout layout = quant_layout(2, 1000);
    QuantWorkers workers(spec, layout);
    Gradients gradients = gaussian(layout, 1);
    const Gradients before = gradients;
    const auto state = *workers.codec(0).save_state();
    const Status status =
        workers.step(gradients, [](uint32_t number, const Plane&, std::span<uint8_t> sums) {
          if (number == 0) sums[0] = 0;
        });
    ASSERT_FALSE(status) << spec;
    EXPECT_EQ(status.error().code, Errc::kUndecodable) << spec;
    EXPECT_EQ(gradients, before) << spec;
    EXPECT_EQ(*workers.codec(0).save_state(), state) << spec;
  }
}

TEST(Quant, RefusesAnIndexWithBytesForAResidual) {
  const auto codec =
      create_codec(*CodecSpec::parse("quant:index=auto,feedback=byte"), quant_layout(2, 100));
  ASSERT_FALSE(codec);
  EXPECT_NE(codec.error().message.find("feedback=none or float"), std::string::npos);
}

}  // namespace
}  // namespace addend::quant
