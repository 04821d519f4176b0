// SPDX-License-Identifier: Apache-2.0
// What codecs that select owe: everything that they do not send now they send later, once. With
// integers all of it is exact: what was sent and what is owed are the sum of all gradients, after
// every step, over restarts, moves of segments and changes of codec.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "addend/simd.h"
#include "gtest/gtest.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

const std::vector<std::string> kSpecs = {
    "topk:density=0.1",
    "topk:density=0.02,index=bloom",
    "topk:density=0.1,values=reproducible",
    "topk:density=0.1,index=gather",
    "topk:density=0.1,index=two-level",
    "threshold:density=0.1",
    "dgc:density=0.1,momentum=0",
    "dgc:density=0.05,momentum=0,warmup=5",
    "redsync:density=0.1",
    "random:density=0.1",
    "leader:density=0.1",
};
constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

std::vector<Bytes> integers(const Layout& layout, uint64_t step) {
  return make_gradients(scenario_of(layout), [&](uint32_t w, uint64_t i) {
    return small_integer(1000 * step + layout.seed, w, i);
  });
}

// Sums over steps, by element.
class Ledger {
 public:
  explicit Ledger(const Layout& layout) : layout_(layout), owed_(layout.count, 0.0) {}

  void give(const std::vector<Bytes>& gradients) {
    for (const Bytes& gradient : gradients)
      book(gradient, 1);
  }
  void receive(const Bytes& sum) { book(sum, -1); }

  // What all workers still owe, as their states say.
  void expect_owed_by(Lockstep& workers, const std::string& what) const {
    std::vector<double> kept(layout_.count, 0.0);
    for (uint32_t w = 0; w < layout_.world; ++w) {
      const auto state = workers.codec(w).save_state();
      ASSERT_TRUE(state);
      const std::vector<float> residual = tail(*state);
      for (uint64_t i = 0; i < layout_.count; ++i)
        kept[i] += static_cast<double>(residual[i]);
    }
    for (uint64_t i = 0; i < layout_.count; ++i)
      ASSERT_EQ(kept[i] * layout_.scale, owed_[i]) << what << " element " << i;
  }

  double total() const {
    return std::accumulate(owed_.begin(), owed_.end(), 0.0,
                           [](double sum, double x) { return sum + std::fabs(x); });
  }

 private:
  void book(const Bytes& gradient, double sign) {
    for (uint64_t i = 0; i < layout_.count; ++i) {
      const double unit = sign > 0 ? layout_.scale : -1;
      owed_[i] += unit * static_cast<double>(read(layout_.dtype, gradient, i));
    }
  }
  std::vector<float> tail(const Bytes& state) const {
    std::vector<float> residual(layout_.count);
    if (layout_.count > 0) {
      const std::size_t bytes = residual.size() * sizeof(float);
      std::memcpy(residual.data(), state.data() + state.size() - bytes, bytes);
    }
    return residual;
  }

  Layout layout_;
  std::vector<double> owed_;
};

std::string describe(const std::string& spec, const Layout& layout, uint64_t step) {
  return spec + " " + dtype_name(layout.dtype) + " world " + std::to_string(layout.world) +
         " count " + std::to_string(layout.count) + " step " + std::to_string(step) + " on " +
         simd_target();
}

void step_and_check(Lockstep& workers, const Layout& layout, std::vector<Bytes> gradients,
                    Ledger& ledger, const std::string& what) {
  ledger.give(gradients);
  const Status status = workers.step(gradients);
  ASSERT_TRUE(status) << what << ": " << status.error().message;
  for (uint32_t w = 1; w < layout.world; ++w)
    ASSERT_EQ(gradients[w], gradients[0]) << what << " worker " << w;
  ledger.receive(gradients[0]);
  ledger.expect_owed_by(workers, what);
}

void conserve(const std::string& spec, const Layout& layout) {
  Lockstep workers(spec, layout);
  Ledger ledger(layout);
  for (uint64_t step = 0; step < 6 && !testing::Test::HasFatalFailure(); ++step)
    step_and_check(workers, layout, integers(layout, step), ledger, describe(spec, layout, step));
}

class SelectLaw : public testing::TestWithParam<std::string> {};

TEST_P(SelectLaw, WhatWasSentAndWhatIsOwedIsTheSumOfAllGradients) {
  for (const DType dtype : kTypes) {
    for (const uint32_t world : {1u, 2u, 3u, 8u}) {
      for (const uint64_t count : {0, 1, 63, 65, 1009, 4099}) {
        if (world * count > 9000) continue;
        Layout layout = layout_of(world, count);
        layout.dtype = dtype;
        conserve(GetParam(), layout);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(SelectLaw, TheSameWithSegmentsAScaleAndOnEveryInstructionSet) {
  for (const std::string& target : simd_targets()) {
    ASSERT_TRUE(force_simd_target(target));
    Layout layout = layout_of(2, 20011);
    layout.segments = {{4, 30}, {9, 0}, {7, 15000}, {8, 4981}};
    layout.scale = 0.25;
    conserve(GetParam(), layout);
    ASSERT_TRUE(force_simd_target(""));
  }
}

TEST_P(SelectLaw, EverythingOwedIsPaidWhenGradientsEnd) {
  const Layout layout = layout_of(3, 601);
  Lockstep workers(GetParam(), layout);
  Ledger ledger(layout);
  step_and_check(workers, layout, integers(layout, 1), ledger, GetParam());
  const std::vector<Bytes> nothing(3, Bytes(601 * 4, 0));
  // Draws are independent, so that some positions wait for long.
  const uint64_t enough = GetParam().rfind("random", 0) == 0 ? 400 : 160;
  for (uint64_t step = 0; step < enough && ledger.total() > 0; ++step)
    step_and_check(workers, layout, nothing, ledger, GetParam());
  EXPECT_EQ(ledger.total(), 0);
}

TEST_P(SelectLaw, ARestartedRunGoesOnBitForBit) {
  const Layout layout = layout_of(3, 1009);
  Lockstep all(GetParam(), layout), before(GetParam(), layout), after(GetParam(), layout);
  for (uint64_t step = 0; step < 6; ++step) {
    std::vector<Bytes> expected = standard_normal(layout, step), found = expected;
    ASSERT_TRUE(all.step(expected));
    if (step == 3) {
      for (uint32_t w = 0; w < 3; ++w) {
        const auto state = before.codec(w).save_state();
        ASSERT_TRUE(state);
        ASSERT_TRUE(after.codec(w).load_state(*state));
        const Status other = after.codec((w + 1) % 3).load_state(*state);
        ASSERT_FALSE(other);
        EXPECT_EQ(other.error().code, Errc::kMismatch);
      }
    }
    ASSERT_TRUE((step < 3 ? before : after).step(found));
    ASSERT_EQ(found, expected) << GetParam() << " step " << step;
  }
}

TEST_P(SelectLaw, AStepThatIsGivenUpChangesNothing) {
  const Layout layout = layout_of(2, 1009);
  Lockstep straight(GetParam(), layout), broken(GetParam(), layout);
  for (uint64_t step = 0; step < 4; ++step) {
    std::vector<Bytes> other = standard_normal(layout, 77 + step);
    ASSERT_TRUE(broken.step(other, 0)) << "nobody decodes";
    std::vector<Bytes> expected = standard_normal(layout, step), found = expected;
    ASSERT_TRUE(straight.step(expected));
    ASSERT_TRUE(broken.step(found));
    ASSERT_EQ(found, expected) << GetParam() << " step " << step;
  }
}

// Everybody learns of it: at its place where its worker chooses, somewhere in its segment where all
// send the same positions. Later steps are as if that element had sent nothing.
TEST_P(SelectLaw, WhatIsNotFiniteArrivesAndIsNotOwed) {
  Layout layout = layout_of(3, 1009);
  layout.segments = {{1, 1000}, {2, 9}};  // of which one travels, but for these
  const bool agreed = GetParam().rfind("random", 0) == 0 || GetParam().rfind("leader", 0) == 0;
  for (const float odd : {NAN, HUGE_VALF, -HUGE_VALF}) {
    Lockstep workers(GetParam(), layout);
    std::vector<Bytes> gradients = integers(layout, 0);
    for (const uint64_t i : {1001, 1004, 1008})
      write(layout.dtype, gradients[1], i, odd);
    ASSERT_TRUE(workers.step(gradients));
    uint64_t broken = 0;
    for (uint64_t i = 0; i < layout.count; ++i)
      broken += std::isfinite(read(layout.dtype, gradients[0], i)) ? 0 : 1;
    EXPECT_EQ(gradients[1], gradients[0]);
    EXPECT_GE(broken, 1u) << GetParam();
    if (!agreed) {
      EXPECT_EQ(broken, 3u) << GetParam();
      EXPECT_FALSE(std::isfinite(read(layout.dtype, gradients[2], 1004)));
    }
    for (uint64_t step = 1; step < 4; ++step) {
      gradients = integers(layout, step);
      ASSERT_TRUE(workers.step(gradients));
      for (uint64_t i = 0; i < layout.count; ++i)
        ASSERT_TRUE(std::isfinite(read(layout.dtype, gradients[0], i))) << GetParam();
    }
  }
}

// Segments move to other buckets, and another selector goes on: what is owed goes with them.
TEST_P(SelectLaw, SegmentsTakeWhatTheyAreOwedToOtherBucketsAndSelectors) {
  Layout layout = layout_of(2, 1100);
  layout.segments = {{1, 500}, {2, 600}};
  Lockstep first(GetParam(), layout);
  Ledger ledger(layout);
  for (uint64_t step = 0; step < 3; ++step)
    step_and_check(first, layout, integers(layout, step), ledger, GetParam());
  for (const std::string spec : {"topk:0.01", "random:density=0.3", "leader"}) {
    if (GetParam().rfind("dgc", 0) == 0) break;  // its velocity is not theirs
    Layout moved = layout;
    moved.first_step = 3;
    moved.bucket = 5;
    Lockstep then(spec, moved);
    for (uint32_t w = 0; w < 2; ++w) {
      for (uint64_t s = 0; s < 2; ++s) {
        const auto state = first.codec(w).save_segment(s);
        ASSERT_TRUE(state);
        const Status loaded = then.codec(w).load_segment(s, *state);
        ASSERT_TRUE(loaded) << loaded.error().message;
        EXPECT_FALSE(then.codec(w).load_segment(1 - s, *state));
      }
    }
    Ledger goes_on = ledger;
    for (uint64_t step = 3; step < 5; ++step)
      step_and_check(then, moved, integers(layout, step), goes_on, GetParam() + " then " + spec);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SelectLaw, testing::ValuesIn(kSpecs), [](const auto& suite) {
  std::string name = suite.param;
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

// The largest magnitudes of each segment, of equal ones the first: by sorting.
std::vector<bool> by_sorting(const std::vector<float>& x, const Layout& layout, double density) {
  std::vector<bool> kept(x.size());
  uint64_t begin = 0;
  for (const Segment& segment : layout.segments) {
    std::vector<uint64_t> order(segment.count);
    std::iota(order.begin(), order.end(), begin);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint64_t a, uint64_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
    const auto most =
        static_cast<uint64_t>(std::ceil(density * static_cast<double>(segment.count)));
    for (uint64_t r = 0; r < most; ++r)
      kept[order[r]] = x[order[r]] != 0;
    begin += segment.count;
  }
  return kept;
}

TEST(Topk, SendsTheLargestOfEachSegmentAndOfEqualOnesTheFirst) {
  for (const std::string& target : simd_targets()) {
    ASSERT_TRUE(force_simd_target(target));
    for (const double density : {0.001, 0.01, 0.3, 0.9}) {
      for (const int shape : {0, 1, 2}) {
        Layout layout = layout_of(1, 30011);
        layout.segments = {{1, 100}, {2, 29001}, {3, 0}, {4, 910}};
        Lockstep worker("topk:density=" + std::to_string(density), layout);
        std::vector<Bytes> gradients =
            make_gradients(scenario_of(layout), [&](uint32_t, uint64_t i) {
              const auto x = static_cast<float>(normal(31, i));
              if (shape == 1) return std::nearbyint(3 * x);          // many are equal
              return shape == 2 && i % 50 != 0 ? 0.0f : x * 1e-30f;  // most are zero
            });
        std::vector<float> x(layout.count);
        std::memcpy(x.data(), gradients[0].data(), layout.count * 4);
        const std::vector<bool> kept = by_sorting(x, layout, density);
        ASSERT_TRUE(worker.step(gradients));
        for (uint64_t i = 0; i < layout.count; ++i) {
          ASSERT_EQ(read(DType::kF32, gradients[0], i), kept[i] ? x[i] : 0)
              << target << " density " << density << " shape " << shape << " element " << i;
        }
      }
    }
    ASSERT_TRUE(force_simd_target(""));
  }
}

// Where to look is guessed from the last step's cut, and wrong guesses must not show: gradients
// that grow, shrink, vanish, tie and are not finite, one after the other.
TEST(Topk, SendsTheLargestWhateverTheLastStepWasLike) {
  Layout layout = layout_of(1, 90011);
  layout.segments = {{1, 100}, {2, 70001}, {3, 0}, {4, 19910}};
  const float scales[] = {1, 1, 1, 1e-3f, 1, 1e3f, 1e3f, 0, 1, 1, 1e-30f, 1};
  for (const std::string& target : simd_targets()) {
    ASSERT_TRUE(force_simd_target(target));
    Lockstep worker("topk:density=0.02", layout);
    std::vector<float> owed(layout.count, 0.0f);
    for (uint64_t step = 0; step < std::size(scales); ++step) {
      std::vector<Bytes> gradients = make_gradients(scenario_of(layout), [&](uint32_t, uint64_t i) {
        const auto x = static_cast<float>(normal(31 + step, i)) * scales[step];
        return step % 5 == 4 ? std::nearbyint(2 * x) : x;
      });
      for (uint64_t i = 0; i < layout.count; ++i)
        owed[i] += read(DType::kF32, gradients[0], i);
      const std::vector<bool> kept = by_sorting(owed, layout, 0.02);
      ASSERT_TRUE(worker.step(gradients));
      for (uint64_t i = 0; i < layout.count; ++i) {
        ASSERT_EQ(read(DType::kF32, gradients[0], i), kept[i] ? owed[i] : 0)
            << target << " step " << step << " element " << i;
        if (kept[i]) owed[i] = 0;
      }
    }
    ASSERT_TRUE(force_simd_target(""));
  }
}

// It has to tell as many positions as everybody expects, also where the last step's cut would have
// it tell others: of gradients with more that is not finite, or less that is not zero.
TEST(Leader, TellsAsManyPositionsWhateverTheLastStepWasLike) {
  const Layout layout = layout_of(1, 5000);
  for (const bool vanishes : {false, true}) {
    Lockstep worker("leader:density=0.002", layout);  // ten
    for (uint64_t step = 0; step < 5; ++step) {
      std::vector<Bytes> gradients = make_gradients(scenario_of(layout), [&](uint32_t, uint64_t i) {
        if (vanishes) return step == 0 && i % 250 == 0 ? 1e-43f : 0.0f;  // twenty, then none
        if (step == 2 && i % 100 == 7) return HUGE_VALF;                 // fifty
        return static_cast<float>(normal(step, i));
      });
      const Status status = worker.step(gradients);
      ASSERT_TRUE(status) << "step " << step << ": " << status.error().message;
      EXPECT_EQ(worker.codec(0).report().local_nonzeros, 10u);
    }
  }
}

// Also what looks at elements by their positions, which exact then has to write out.
TEST(Topk, OwesWhatASketchDoesNotSend) {
  conserve("topk:density=0.1,index=sketch", layout_of(2, 4099));
}

// The first step looks at all magnitudes, later ones at those near the last cut.
TEST(Threshold, CutsWhereTheHistogramOfAllMagnitudesSays) {
  const Layout layout = layout_of(1, 200000);
  Lockstep goes_on("threshold:density=0.01", layout);
  for (uint64_t step = 0; step < 6; ++step) {
    Layout fresh = layout;
    fresh.first_step = step;
    Lockstep begins("threshold:density=0.01", fresh);
    if (step > 0) {
      const auto state = goes_on.codec(0).save_segment(0);
      ASSERT_TRUE(state);
      ASSERT_TRUE(begins.codec(0).load_segment(0, *state));
    }
    std::vector<Bytes> expected = standard_normal(layout, step), found = expected;
    ASSERT_TRUE(begins.step(expected));
    ASSERT_TRUE(goes_on.step(found));
    ASSERT_EQ(found, expected) << "step " << step;
  }
}

// How many elements a worker selects, over what was asked for, and the kept energy.
Report one_step(const std::string& spec, uint64_t count) {
  const Layout layout = layout_of(2, count);
  Lockstep workers(spec, layout);
  std::vector<Bytes> gradients = standard_normal(layout, 5);
  EXPECT_TRUE(workers.step(gradients));
  return workers.codec(1).report();
}

TEST(Selectors, KeepAboutWhatTheyWereAskedFor) {
  constexpr uint64_t kCount = 300000;
  const auto share = [&](const std::string& spec) {
    const Report report = one_step(spec + ":density=0.01", kCount);
    EXPECT_EQ(report.mode, spec);
    EXPECT_LE(report.union_nonzeros, 2 * report.local_nonzeros);
    return static_cast<double>(report.local_nonzeros) / (0.01 * kCount);
  };
  EXPECT_EQ(share("topk"), 1);
  EXPECT_NEAR(share("threshold"), 1, 0.01);
  EXPECT_NEAR(share("dgc"), 1, 0.31);
  EXPECT_NEAR(share("redsync"), 1.5, 0.51);
  EXPECT_EQ(share("random"), 1);
  EXPECT_EQ(share("leader"), 1);
}

// The largest percent of normal numbers holds 8.4 % of their energy, any percent 1 %.
TEST(Selectors, ReportTheEnergyThatTravels) {
  const auto kept = [](const Report& report) {
    return 1 - report.sampled_error / report.sampled_energy;
  };
  EXPECT_NEAR(kept(one_step("topk:density=0.01", 300000)), 0.0844, 0.002);
  EXPECT_NEAR(kept(one_step("random:density=0.01", 300000)), 0.01, 0.006);
}

TEST(Selectors, ThatAgreeOnPositionsSendNoUnion) {
  const Report random = one_step("random:density=0.01", 64000);
  EXPECT_EQ(random.rounds, 1u);
  EXPECT_EQ(random.wire_bytes, 640u * 4);
  EXPECT_EQ(random.union_nonzeros, 640u);
  const Report leader = one_step("leader:density=0.01", 64000);
  EXPECT_EQ(leader.rounds, 2u);
  EXPECT_EQ(leader.wire_bytes, 8000u + 640 * 4);
}

// Worker w has its large elements where i % 4 == w; the leader of a step is the step's number.
TEST(Leader, ChoosesForAllInTurn) {
  const Layout layout = layout_of(4, 400);
  Lockstep workers("leader:density=0.25", layout);
  for (uint64_t step = 0; step < 8; ++step) {
    std::vector<Bytes> gradients = make_gradients(
        scenario_of(layout), [&](uint32_t w, uint64_t i) { return i % 4 == w ? 1000.0f : 1.0f; });
    ASSERT_TRUE(workers.step(gradients));
    for (uint64_t i = 0; i < 400; ++i)
      ASSERT_EQ(read(DType::kF32, gradients[0], i) != 0, i % 4 == step % 4) << step << " " << i;
  }
}

// An adder that loses bits, or sets some, would have values added in the wrong places.
TEST(Leader, RefusesAnIndexThatIsNotTheLeaders) {
  for (const uint64_t damage : {uint64_t{1} << 5, uint64_t{1} << 60, uint64_t{3} << 5}) {
    Lockstep workers("leader:density=0.1", layout_of(2, 64));
    std::vector<float> gradient(64);
    gradient[5] = 1;
    gradient[60] = 2;
    Codec& leads = workers.codec(0);
    ASSERT_TRUE(leads.begin(gradient.data()));
    Round round;
    ASSERT_TRUE(leads.next_round(round));
    *static_cast<uint64_t*>(round.planes[0].data) ^= damage;
    const Result<bool> more = leads.next_round(round);
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().code, Errc::kUndecodable);
  }
}

TEST(Random, DrawsOtherPositionsInEveryStepAndEachWithTheSameChance) {
  Layout layout = layout_of(1, 1000);
  Lockstep worker("random:density=0.1", layout);
  std::vector<int> hits(1000);
  for (uint64_t step = 0; step < 1000; ++step) {
    std::vector<Bytes> gradients(1, Bytes(4000));
    for (uint64_t i = 0; i < 1000; ++i)
      write(DType::kF32, gradients[0], i, 1);
    ASSERT_TRUE(worker.step(gradients));
    int drawn = 0;
    for (uint64_t i = 0; i < 1000; ++i) {
      const bool hit = read(DType::kF32, gradients[0], i) != 0;
      hits[i] += hit ? 1 : 0;
      drawn += hit ? 1 : 0;
    }
    ASSERT_EQ(drawn, 100);
  }
  const auto [least, most] = std::minmax_element(hits.begin(), hits.end());
  EXPECT_GT(*least, 60);
  EXPECT_LT(*most, 145);
}

// Momentum goes on for elements that wait, and ends for those that are sent.
TEST(Dgc, AddsMomentumBeforeItSelects) {
  Layout layout = layout_of(1, 512);
  Lockstep worker("dgc:density=0.1,momentum=0.5", layout);
  std::vector<float> velocity(512), owed(512);
  for (uint64_t step = 0; step < 20; ++step) {
    std::vector<Bytes> gradients = integers(layout, step);
    for (uint64_t i = 0; i < 512; ++i) {
      velocity[i] = 0.5f * velocity[i] + read(DType::kF32, gradients[0], i);
      owed[i] += velocity[i];
    }
    ASSERT_TRUE(worker.step(gradients));
    for (uint64_t i = 0; i < 512; ++i) {
      const float sent = read(DType::kF32, gradients[0], i);
      if (sent == 0) continue;
      ASSERT_EQ(sent, owed[i]) << step << " " << i;
      velocity[i] = owed[i] = 0;
    }
  }
}

TEST(Dgc, GoesOnWithItsVelocityAfterARestart) {
  Layout layout = layout_of(2, 700);
  layout.segments = {{3, 200}, {5, 500}};
  Lockstep all("dgc:density=0.1", layout), first("dgc:density=0.1", layout);
  layout.first_step = 4;
  Lockstep then("dgc:density=0.1", layout);
  for (uint64_t step = 0; step < 8; ++step) {
    std::vector<Bytes> expected = standard_normal(layout, step), found = expected;
    ASSERT_TRUE(all.step(expected));
    for (uint32_t w = 0; step == 4 && w < 2; ++w) {
      for (uint64_t s = 0; s < 2; ++s) {
        const auto state = first.codec(w).save_segment(s);
        ASSERT_TRUE(state);
        ASSERT_TRUE(then.codec(w).load_segment(s, *state));
        Lockstep other("topk", layout);
        EXPECT_FALSE(other.codec(w).load_segment(s, *state)) << "it has no velocity";
      }
    }
    ASSERT_TRUE((step < 4 ? first : then).step(found));
    ASSERT_EQ(found, expected) << step;
  }
}

TEST(Dgc, ClipsGradientsAndWarmsUp) {
  const Layout layout = layout_of(4, 40000);
  Lockstep workers("dgc:density=0.001,momentum=0,clip=8,warmup=10", layout);
  for (uint64_t step = 0; step < 12; ++step) {
    std::vector<Bytes> gradients = standard_normal(layout, step);
    ASSERT_TRUE(workers.step(gradients));
    const Report& report = workers.codec(0).report();
    const double asked =
        std::max(0.001, std::pow(0.25, 1 + std::min(static_cast<int>(step) / 2, 5)));
    EXPECT_NEAR(static_cast<double>(report.local_nonzeros) / (40000 * asked), 1, 0.35) << step;
    if (step > 0) continue;
    // Norms of 200 are cut to 8 / 2, and a sum of four such is near 8.
    EXPECT_NEAR(report.sampled_energy, 16, 0.1);
  }
}

// No factor makes an infinite norm a finite one: what is finite is neither lost nor made smaller.
TEST(Dgc, DoesNotClipByANormThatIsNotFinite) {
  for (const float odd : {NAN, HUGE_VALF, -HUGE_VALF}) {
    const Layout layout = layout_of(1, 512);
    Lockstep worker("dgc:density=0.1,momentum=0,clip=1", layout);
    const std::vector<Bytes> given = integers(layout, 0);
    std::vector<float> received(512);
    for (uint64_t step = 0; step < 40; ++step) {
      std::vector<Bytes> gradients(1, step == 0 ? given[0] : Bytes(512 * 4, 0));
      if (step == 0) write(DType::kF32, gradients[0], 77, odd);
      ASSERT_TRUE(worker.step(gradients));
      for (uint64_t i = 0; i < 512; ++i)
        received[i] += read(DType::kF32, gradients[0], i);
    }
    for (uint64_t i = 0; i < 512; ++i) {
      const float expected = i == 77 ? odd : read(DType::kF32, given[0], i);
      ASSERT_TRUE(received[i] == expected || (std::isnan(expected) && std::isnan(received[i])))
          << odd << ": element " << i << " is " << received[i] << ", not " << expected;
    }
  }
}

// What is owed may be more than the type holds: the rest waits.
TEST(Selectors, SendWhatTheTypeHoldsAndOweTheRest) {
  Layout layout = layout_of(1, 4);
  layout.dtype = DType::kF16;
  Lockstep worker("topk:density=0.25", layout);
  std::vector<float> sent(3);
  for (uint64_t step = 0; step < 3; ++step) {
    std::vector<Bytes> gradients(1, Bytes(8, 0));
    for (uint64_t i = 0; i < 2; ++i)  // one of the two waits
      write(DType::kF16, gradients[0], i, step < 2 ? 60000.0f : 0);
    ASSERT_TRUE(worker.step(gradients));
    sent[step] = read(DType::kF16, gradients[0], 0) + read(DType::kF16, gradients[0], 1);
  }
  EXPECT_EQ(sent[0], 60000);
  EXPECT_EQ(sent[1], 65504) << "of 120000";
  EXPECT_EQ(sent[2], 60000) << "the other one's; the rest of 54496 is smaller";
}

}  // namespace
}  // namespace addend::testing_support
