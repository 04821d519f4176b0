// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/choose.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/bits.h"

namespace addend::exact {
namespace {

constexpr uint64_t kCount = uint64_t{1} << 22;

Layout layout_on(double latency_us, double gbit_per_s) {
  Layout layout;
  layout.count = kCount;
  layout.world = 8;
  layout.network = {latency_us, gbit_per_s};
  return layout;
}

// A union of this density, scattered so that every block is live and partial.
Observation scattered(double density) {
  Observation seen;
  seen.steps = 1;
  seen.nonzeros = seen.capacity = static_cast<uint64_t>(density * kCount);
  seen.live_blocks = kCount / 64;
  seen.element_bits = kCount;
  return seen;
}

Observation full_rows(double density) {
  Observation seen = scattered(density);
  seen.live_blocks = seen.nonzeros / 64;
  seen.element_bits = 0;
  return seen;
}

TEST(Choose, KeepsTheModeThatTheUserAskedFor) {
  for (const Mode mode : {Mode::kPacked, Mode::kTwoLevel, Mode::kSketch}) {
    Options options;
    options.mode = mode;
    for (const double density : {0.0, 0.05, 1.0})
      EXPECT_EQ(choose(layout_on(50, 10), options, scattered(density)), mode);
  }
}

TEST(Choose, TakesPackedToLearnTheUnion) {
  Options options;
  EXPECT_EQ(choose(layout_on(50, 10), options, {}), Mode::kPacked);
  options.mode = Mode::kSketch;
  EXPECT_EQ(choose(layout_on(50, 10), options, {}), Mode::kPacked);
  options.mode = Mode::kTwoLevel;
  EXPECT_EQ(choose(layout_on(50, 10), options, {}), Mode::kTwoLevel);
}

TEST(Choose, TakesDenseForDenseGradients) {
  EXPECT_EQ(choose(layout_on(50, 10), {}, scattered(1.0)), Mode::kDense);
  EXPECT_EQ(choose(layout_on(50, 1), {}, scattered(1.0)), Mode::kDense);
  EXPECT_EQ(choose(layout_on(50, 10), {}, scattered(0.98)), Mode::kDense);
}

TEST(Choose, TakesPackedForScatteredNonZerosOnASlowNetwork) {
  EXPECT_EQ(choose(layout_on(50, 1), {}, scattered(0.1)), Mode::kPacked);
  EXPECT_EQ(choose(layout_on(50, 10), {}, scattered(0.05)), Mode::kPacked);
}

TEST(Choose, ForDevicesTakesTwoLevelsButNoOtherForm) {
  Options options;
  options.choice = Choice::kDevice;
  EXPECT_EQ(choose(layout_on(50, 1), options, full_rows(0.05)), Mode::kTwoLevel);
  EXPECT_EQ(choose(layout_on(50, 1), options, scattered(0.01)), Mode::kPacked) << "not a filter";
  EXPECT_NE(choose(layout_on(20000, 10), options, scattered(0.001)), Mode::kSketch);
  EXPECT_EQ(choose(layout_on(50, 10), options, scattered(1.0)), Mode::kDense);
  EXPECT_TRUE(surveys_blocks(options, {}));
}

TEST(Choose, TakesAFilterForVerySparseUnionsOnASlowNetwork) {
  for (const double density : {0.0, 1e-6, 1e-4, 1e-2, 0.03})
    EXPECT_EQ(choose(layout_on(50, 1), {}, scattered(density)), Mode::kBloom) << density;
  EXPECT_EQ(choose(layout_on(50, 0.1), {}, full_rows(1e-5)), Mode::kBloom);
  Options options;
  options.mode = Mode::kBloom;
  EXPECT_EQ(choose(layout_on(50, 1), options, {}), Mode::kPacked);
  EXPECT_EQ(choose(layout_on(50, 1), options, scattered(0.01)), Mode::kBloom);
  EXPECT_EQ(choose(layout_on(50, 1), options, scattered(0.5)), Mode::kPacked) << "a larger filter";
}

TEST(Choose, ChangesTheFormOfTheIndexOnlyForAClearGain) {
  uint64_t stayed = 0;
  for (double density = 0.01; density < 0.1; density += 0.0005) {
    Observation seen = scattered(density);
    const Layout layout = layout_on(50, 1);
    const Mode best = choose(layout, {}, seen);
    for (const Mode last : {Mode::kPacked, Mode::kBloom}) {
      seen.mode = last;
      const double costs = estimate(last, layout, {}, seen).seconds(layout.network);
      const double least = estimate(best, layout, {}, seen).seconds(layout.network);
      EXPECT_EQ(choose(layout, {}, seen), least < 0.97 * costs ? best : last) << density;
      stayed += last != best && least >= 0.97 * costs ? 1 : 0;
    }
  }
  EXPECT_GT(stayed, 5u);
}

TEST(Choose, GathersOnAMeshWhereOwnNonZerosAreLessThanTwoUnionsByTheWorld) {
  Observation seen = full_rows(0.05);  // 8 workers
  const uint64_t values = seen.nonzeros / 2;
  for (const auto& [own, mode] :
       {std::pair(values / 8, Mode::kGather), std::pair(values / 5, Mode::kGather),
        std::pair(values / 3, Mode::kTwoLevel)}) {
    seen.own_lanes = own;
    Layout layout = layout_on(50, 1);
    EXPECT_EQ(choose(layout, {}, seen), Mode::kTwoLevel) << "others fold all lanes";
    layout.network.gathers = true;
    EXPECT_EQ(choose(layout, {}, seen), mode) << own;
    Options integers;
    integers.values = Values::kReproducible;
    EXPECT_NE(choose(layout, integers, seen), Mode::kGather);
  }
}

TEST(CountsOwn, OnceAndThenNowAndThenWhereAGatherMayPay) {
  Layout layout = layout_on(50, 1);
  Observation seen;
  EXPECT_FALSE(counts_own(Mode::kPacked, layout, {}, seen));
  layout.network.gathers = true;
  EXPECT_TRUE(counts_own(Mode::kPacked, layout, {}, seen));
  EXPECT_FALSE(counts_own(Mode::kSketch, layout, {}, seen)) << "a round has four planes";
  EXPECT_FALSE(counts_own(Mode::kDense, layout, {}, seen));
  seen.own_lanes = 5;
  seen.steps = 14;
  EXPECT_FALSE(counts_own(Mode::kTwoLevel, layout, {}, seen));
  seen.steps = 15;
  EXPECT_TRUE(counts_own(Mode::kTwoLevel, layout, {}, seen));
  layout.world = 1;
  EXPECT_FALSE(counts_own(Mode::kTwoLevel, layout, {}, seen));
}

TEST(PaysToAsk, WhereFalseValuesCostMoreThanABitAPositionAndARound) {
  EXPECT_FALSE(pays_to_ask(layout_on(0, 1), {}, 3200, 100));
  EXPECT_TRUE(pays_to_ask(layout_on(0, 1), {}, 3200, 101));
  EXPECT_FALSE(pays_to_ask(layout_on(50, 1), {}, 3200, 881));
  EXPECT_TRUE(pays_to_ask(layout_on(50, 1), {}, 3200, 882));
  Options integers;
  integers.values = Values::kReproducible;
  EXPECT_TRUE(pays_to_ask(layout_on(0, 1), integers, 3200, 51));
}

TEST(Choose, TakesTwoLevelsForFullRows) {
  EXPECT_EQ(choose(layout_on(50, 1), {}, full_rows(0.05)), Mode::kTwoLevel);
  EXPECT_EQ(choose(layout_on(50, 10), {}, full_rows(0.01)), Mode::kTwoLevel);
}

TEST(Choose, DoesNotTakeTwoLevelsBeforeBlocksWereCounted) {
  Observation seen = full_rows(0.05);
  seen.live_blocks = Observation::kUnknown;
  EXPECT_NE(choose(layout_on(50, 1), {}, seen), Mode::kTwoLevel);
}

TEST(Choose, TakesTheSketchWhenLatencyDominates) {
  EXPECT_EQ(choose(layout_on(20000, 10), {}, scattered(0.001)), Mode::kSketch);
}

TEST(Choose, NeverTakesDenseForReproducibleValues) {
  Options options;
  options.values = Values::kReproducible;
  for (const double density : {0.0, 0.1, 0.5, 1.0}) {
    for (const double gbit : {1.0, 100.0, 10000.0})
      EXPECT_NE(choose(layout_on(50, gbit), options, scattered(density)), Mode::kDense);
  }
}

TEST(Choose, LooksAtTheUnionAgainAfterARunOfDenseSteps) {
  for (const uint64_t probe : {uint64_t{0}, uint64_t{1}, Options{}.probe}) {
    Options options;
    options.probe = probe;
    for (const uint64_t wanted : {1, 16, 1024}) {
      Observation seen = scattered(1.0);
      seen.look_after = wanted;
      for (seen.dense_steps = 0; seen.dense_steps < std::min(wanted, probe); ++seen.dense_steps)
        ASSERT_EQ(choose(layout_on(50, 10), options, seen), Mode::kDense) << seen.dense_steps;
      EXPECT_EQ(choose(layout_on(50, 10), options, seen), Mode::kPacked);
    }
    // What pays is taken all the same.
    EXPECT_EQ(choose(layout_on(50, 1), options, full_rows(0.05)), Mode::kTwoLevel);
  }
}

TEST(Choose, DoesNotLookWhereEvenAnEmptyUnionWouldNotPay) {
  Layout layout = layout_on(50, 10);
  layout.count = 100;  // a round more costs more than all of its bytes
  Observation seen;
  seen.nonzeros = seen.capacity = layout.count;
  seen.dense_steps = 1000;
  EXPECT_EQ(choose(layout, {}, seen), Mode::kDense);
}

TEST(Choose, LeavesDenseOnlyForAClearGain) {
  bool stayed = false, left = false;
  for (double density = 0.5; density < 1; density += 0.002) {
    const Layout layout = layout_on(50, 1);
    const Observation seen = scattered(density);
    const double packed = estimate(Mode::kPacked, layout, {}, seen).seconds(layout.network);
    const double dense = estimate(Mode::kDense, layout, {}, seen).seconds(layout.network);
    const bool clear = packed < 0.85 * dense;
    EXPECT_EQ(choose(layout, {}, seen), clear ? Mode::kPacked : Mode::kDense) << density;
    left = left || clear;
    stayed = stayed || (!clear && packed < dense);
  }
  EXPECT_TRUE(left && stayed) << "both sides of the margin were seen";
}

// Worked out from docs/formats/exact.md by other means. Density by density: scattered non-zeros,
// then full rows.
TEST(Choose, TakesWhatTheFormatSays) {
  constexpr Mode kD = Mode::kDense, kP = Mode::kPacked, kT = Mode::kTwoLevel, kS = Mode::kSketch,
                 kB = Mode::kBloom;
  struct Case {
    double latency_us, gbit_per_s;
    std::vector<std::pair<Mode, Mode>> modes;  // at densities 0.0001, 0.001, 0.1, 0.4, 1
  };
  const std::vector<Case> cases = {
      {1, 0.1, {{kB, kB}, {kB, kT}, {kP, kT}, {kP, kT}, {kD, kD}}},
      {1, 10, {{kP, kT}, {kP, kT}, {kP, kT}, {kP, kT}, {kD, kD}}},
      {1, 800, {{kD, kT}, {kD, kT}, {kD, kT}, {kD, kD}, {kD, kD}}},
      {50, 0.1, {{kB, kB}, {kB, kT}, {kP, kT}, {kP, kT}, {kD, kD}}},
      {50, 10, {{kS, kT}, {kP, kT}, {kP, kT}, {kP, kT}, {kD, kD}}},
      {50, 800, {{kD, kT}, {kD, kT}, {kD, kT}, {kD, kD}, {kD, kD}}},
      {5000, 0.1, {{kB, kB}, {kB, kT}, {kP, kT}, {kP, kT}, {kD, kD}}},
      {5000, 10, {{kS, kS}, {kS, kS}, {kP, kT}, {kP, kT}, {kD, kD}}},
      {5000, 800, {{kD, kD}, {kD, kD}, {kD, kD}, {kD, kD}, {kD, kD}}},
  };
  for (const Case& one : cases) {
    const Layout layout = layout_on(one.latency_us, one.gbit_per_s);
    std::size_t next = 0;
    for (const double density : {0.0001, 0.001, 0.1, 0.4, 1.0}) {
      const auto [apart, rows] = one.modes[next++];
      EXPECT_EQ(choose(layout, {}, scattered(density)), apart) << one.latency_us << " " << density;
      EXPECT_EQ(choose(layout, {}, full_rows(density)), rows) << one.latency_us << " " << density;
    }
  }
}

// The constants are part of the format too: whoever joins an automatic group chooses by them.
TEST(Estimate, HasTheCodecSecondsOfTheFormat) {
  const Layout layout = layout_on(50, 10);
  const Observation seen = full_rows(0.25);  // 2^20 keys in 2^14 of 2^16 blocks
  const double copy = 16777216 / 1e10;
  Options floats, integers;
  integers.values = Values::kReproducible;
  const auto seconds = [&](Mode mode, const Options& options) {
    return estimate(mode, layout, options, seen).codec_seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(Mode::kDense, floats), copy);
  EXPECT_DOUBLE_EQ(seconds(Mode::kPacked, floats), 1.2 * copy);
  EXPECT_DOUBLE_EQ(seconds(Mode::kTwoLevel, floats), (0.6 + 1.2 * 0.25) * copy);
  EXPECT_DOUBLE_EQ(seconds(Mode::kSketch, floats), 1.2 * copy + 1048576 * 45e-9);
  EXPECT_DOUBLE_EQ(seconds(Mode::kBloom, floats), 1.7 * copy + 1048576 * 15e-9);
  EXPECT_DOUBLE_EQ(seconds(Mode::kPacked, integers), 1.2 * copy + 1048576 * 12e-9);
  EXPECT_DOUBLE_EQ(seconds(Mode::kTwoLevel, integers), 2.1 * copy + 1048576 * 12e-9);
  EXPECT_DOUBLE_EQ(seconds(Mode::kSketch, integers), 1.2 * copy + 1048576 * (45e-9 + 12e-9));
}

TEST(Estimate, CountsTheBytesThatTravel) {
  const Layout layout = layout_on(50, 10);
  const Observation seen = full_rows(0.05);
  const double keys = static_cast<double>(seen.nonzeros);
  EXPECT_EQ(estimate(Mode::kDense, layout, {}, seen).wire_bytes, 4.0 * kCount);
  EXPECT_EQ(estimate(Mode::kPacked, layout, {}, seen).wire_bytes, kCount / 8.0 + 4 * keys);
  EXPECT_EQ(estimate(Mode::kTwoLevel, layout, {}, seen).wire_bytes, kCount / 256.0 + 4 * keys);
  EXPECT_EQ(estimate(Mode::kTwoLevel, layout, {}, seen).rounds, 2u);
  EXPECT_EQ(estimate(Mode::kTwoLevel, layout, {}, scattered(0.05)).rounds, 3u);
  EXPECT_EQ(estimate(Mode::kSketch, layout, {}, seen).rounds, 1u);
  Observation sketched = seen;
  sketched.capacity = 100000;  // 128,016 cells
  sketched.nonzeros = 70000;
  const double cells = kCount / 8.0 + kCount / 512.0 + 8 * 128016;
  EXPECT_EQ(estimate(Mode::kSketch, layout, {}, sketched).wire_bytes, cells);
  sketched.nonzeros = 101000;
  EXPECT_EQ(estimate(Mode::kSketch, layout, {}, sketched).wire_bytes, cells + 4 * 1000);
  // 100 keys take 19 hashes and 43 words.
  sketched.nonzeros = sketched.capacity = 100;
  EXPECT_EQ(estimate(Mode::kBloom, layout, {}, sketched).wire_bytes,
            8 * 43 + 400 + (kCount - 100.0) / (1 << 19) * 4);
  EXPECT_EQ(estimate(Mode::kBloom, layout, {}, sketched).rounds, 2u);
  sketched.own_lanes = 1000;
  EXPECT_EQ(estimate(Mode::kGather, layout, {}, sketched).wire_bytes, 8 * 8 * 1000 / 2);
  Options integers;
  integers.values = Values::kReproducible;
  EXPECT_EQ(estimate(Mode::kPacked, layout, integers, seen).wire_bytes, kCount / 8.0 + 8 * keys);
  EXPECT_EQ(estimate(Mode::kSketch, layout, integers, seen).rounds, 2u);
}

TEST(Estimate, TakesTheBlockThatWasSurveyed) {
  const Layout layout = layout_on(50, 10);
  Observation seen = full_rows(0.05);
  const double rows = estimate(Mode::kTwoLevel, layout, {}, seen).wire_bytes;
  seen.block = 256;
  seen.live_blocks /= 4;
  EXPECT_EQ(estimate(Mode::kTwoLevel, layout, {}, seen).wire_bytes,
            rows - 2 * (kCount / 64 - kCount / 256) / 8.0);
}

TEST(Estimate, ChargesTwoLevelsForLiveBlocksAboveAll) {
  const Layout layout = layout_on(50, 10);
  const auto seconds = [&](Mode mode, const Observation& seen) {
    return estimate(mode, layout, {}, seen).codec_seconds;
  };
  EXPECT_LT(seconds(Mode::kTwoLevel, full_rows(0.01)), seconds(Mode::kPacked, full_rows(0.01)));
  EXPECT_GT(seconds(Mode::kTwoLevel, scattered(0.1)), seconds(Mode::kPacked, scattered(0.1)));
}

TEST(CountBlocks, CountsWhatTheTwoLevelFormWouldSend) {
  constexpr uint64_t kLength = 64 * 9 + 10;
  std::vector<uint64_t> bitmap(words_for(kLength));
  bitmap[1] = ~uint64_t{0};
  bitmap[2] = ~uint64_t{0};
  bitmap[5] = 1;
  bitmap[9] = low_mask(10);  // the short last block is full
  Observation seen;
  const auto counted = [&](uint64_t block) {
    seen.block = block;
    count_blocks(bitmap.data(), kLength, seen);
    return std::pair(seen.live_blocks, seen.element_bits);
  };
  EXPECT_EQ(counted(64), std::pair(uint64_t{4}, uint64_t{64}));
  EXPECT_EQ(counted(128), std::pair(uint64_t{4}, uint64_t{128 * 3 + 74}));
  EXPECT_EQ(counted(kLength), std::pair(uint64_t{1}, kLength));
  EXPECT_EQ(counted(2), std::pair(uint64_t{64 + 1 + 5}, uint64_t{2}));
}

TEST(Estimate, TurnsRoundsAndBytesIntoSeconds) {
  const Cost cost{2, 1e6, 0.25};
  EXPECT_DOUBLE_EQ(cost.seconds({100, 8}), 2 * 100e-6 + 2 * 1e6 / 1e9 + 0.25);
}

TEST(SurveysBlocks, OnceAndThenNowAndThen) {
  Options options;
  Observation seen;
  EXPECT_TRUE(surveys_blocks(options, seen));
  seen.live_blocks = 5;
  seen.steps = 3;
  EXPECT_FALSE(surveys_blocks(options, seen));
  seen.steps = 32;
  EXPECT_TRUE(surveys_blocks(options, seen));
  options.mode = Mode::kPacked;
  EXPECT_FALSE(surveys_blocks(options, seen));
}

}  // namespace
}  // namespace addend::exact
