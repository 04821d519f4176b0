// SPDX-License-Identifier: Apache-2.0
// Each guard rail by itself, on a job that would do something else without it.
#include <gtest/gtest.h>

#include "control/simulated_training.h"

namespace addend::control {
namespace {

// More than a cast does.
bool any_lossy(const SimulatedTraining& job, const Decision& decision) {
  return std::any_of(decision.plan.begin(), decision.plan.end(),
                     [&](uint32_t c) { return job.error[c] > 1e-3; });
}

SimulatedTraining slow_job(const char* options = "") {
  SimulatedTraining job(options);
  job.gbit = 1;
  job.setup.bytes_per_s = job.gbit * 1.25e8;
  return job;
}

void lose(SimulatedTraining& job, double top10, double top20, double top40) {
  job.error[kTop10] = top10;
  job.error[kTop20] = top20;
  job.error[kTop40] = top40;
  for (const uint32_t c : {kTop10, kTop20, kTop40})
    job.kept[c] = 1 - job.error[c];
}

TEST(Guard, NothingLossyBeforeNormsHaveSettled) {
  SimulatedTraining job = slow_job();
  ControlledRun run(job);
  for (int window = 0; window < 5; ++window) {
    EXPECT_FALSE(any_lossy(job, run.go(1))) << window;
    EXPECT_EQ(run.next.why[0], Reason::kWarmUp);
    job.energy /= 4;
  }
  run.go(2);
  EXPECT_TRUE(any_lossy(job, run.next));
}

// Steps that lose a thousandth of the energy do no harm; dense ones take three times as long.
TEST(Guard, ACastMayGoBeforeNormsHaveSettled) {
  for (const double error : {1e-5, 2e-3}) {
    SimulatedTraining job = slow_job();
    job.error[kCast] = error;
    ControlledRun run(job);
    EXPECT_EQ(run.go(1).plan, all(job, error < 1e-3 ? kCast : kDense)) << error;
    EXPECT_EQ(run.next.why[0], Reason::kWarmUp);
  }
}

// The first steps of a codec touch memory and connections that none has touched before.
TEST(Guard, ASlowFirstWindowIsNoReasonToLeaveWhatTheWarmUpChose) {
  SimulatedTraining job = slow_job();
  job.density = 0.25;
  ControlledRun run(job);
  ASSERT_EQ(run.go(1).plan, all(job, kExact));
  job.drag_s[kExact] = 1.5 * (job.step(all(job, kDense)) - job.step(all(job, kExact)));
  for (int window = 0; window < 6; ++window) {
    job.energy *= 4;
    EXPECT_EQ(run.go(1).plan, all(job, kExact)) << window;
    job.drag_s[kExact] = 0;
  }
}

TEST(Guard, WarmUpEndsEvenIfNormsNeverSettle) {
  SimulatedTraining job = slow_job();
  ControlledRun run(job);
  for (int window = 0; window < 12; ++window) {
    run.go(1);
    job.energy *= window % 2 == 0 ? 10 : 0.1;
  }
  EXPECT_TRUE(any_lossy(job, run.next));
}

TEST(Guard, NothingLossyForAWindowAfterTheLearningRateChanged) {
  SimulatedTraining job = slow_job();
  ControlledRun run(job);
  ASSERT_TRUE(any_lossy(job, run.go(8)));
  job.learning_rate /= 10;
  EXPECT_FALSE(any_lossy(job, run.go(1)));
  EXPECT_EQ(run.next.why[0], Reason::kRate);
  EXPECT_TRUE(any_lossy(job, run.go(1)));
  // A schedule that moves a little every step is no such change each time.
  for (int window = 0; window < 10; ++window) {
    job.learning_rate *= 0.99;
    EXPECT_TRUE(any_lossy(job, run.go(1))) << window;
  }
}

// Beside a quantiser there is a cast that is like it but for its codec's speed, and that gets fast.
double gain_of_a_fast_cast(SimulatedTraining& job, double quant_seconds_per_element) {
  job.setup.candidates[kCast] = job.setup.candidates[kQuant];
  job.error[kCast] = job.error[kQuant];
  job.seconds_per_element[kQuant] = quant_seconds_per_element;
  job.seconds_per_element[kCast] = 0;
  const double gain = job.step(all(job, kQuant)) / job.step(all(job, kCast));
  job.seconds_per_element[kCast] = 2e-8;
  return gain;
}

TEST(Guard, AGainBelowFivePercentIsNoReasonToSwitch) {
  SimulatedTraining job = slow_job();
  const double gain = gain_of_a_fast_cast(job, 6e-10);
  ASSERT_GT(gain, 1.02);
  ASSERT_LT(gain, 1.045);
  ControlledRun run(job);
  ASSERT_EQ(run.go(20).plan, all(job, kQuant));
  job.seconds_per_element[kCast] = 0;
  EXPECT_EQ(run.go(20).plan, all(job, kQuant));
  EXPECT_EQ(run.next.why[0], Reason::kKept);
}

TEST(Guard, AGainAboveFivePercentIs) {
  SimulatedTraining job = slow_job();
  ASSERT_GT(gain_of_a_fast_cast(job, 1.5e-9), 1.06);
  ControlledRun run(job);
  ASSERT_EQ(run.go(20).plan, all(job, kQuant));
  job.seconds_per_element[kCast] = 0;
  EXPECT_EQ(run.go(20).plan, all(job, kCast));
}

// Steps of this machine vary by more than the gain.
TEST(Guard, AGainThatNoiseWouldHideIsNoReasonToSwitch) {
  for (const double noise : {0.0, 0.8}) {
    SimulatedTraining job = slow_job();
    const double gain = gain_of_a_fast_cast(job, 1.5e-9);
    ASSERT_GT(gain, 1.06);
    ASSERT_LT(gain, 1.12);
    ControlledRun run(job);
    ASSERT_EQ(run.go(20).plan, all(job, kQuant));
    for (int window = 0; window < 10; ++window) {
      job.backward_s = window % 2 == 0 ? 0.1 * (1 + noise) : 0.1 * (1 - noise);
      run.go(1);
    }
    job.seconds_per_element[kCast] = 0;
    EXPECT_EQ(run.go(1).plan, all(job, noise > 0 ? kQuant : kCast)) << noise;
  }
}

TEST(Guard, DenseIsNotLeftForAGainBelowFivePercent) {
  SimulatedTraining job("floor=exact");
  job.density = 0.02;
  job.backward_s = 1;  // hides all but the last bucket
  const double gain = job.step(all(job, kDense)) / job.step(all(job, kExact));
  ASSERT_GT(gain, 1.005);
  ASSERT_LT(gain, 1.045);
  EXPECT_EQ(ControlledRun(job).go(20).plan, all(job, kDense));
}

TEST(Guard, ACodecStaysForThreeWindows) {
  SimulatedTraining job = slow_job();
  gain_of_a_fast_cast(job, 1.5e-9);
  ControlledRun run(job);
  ASSERT_EQ(run.go(20).plan, all(job, kQuant));
  job.seconds_per_element[kCast] = 0;
  while (run.go(1).plan != all(job, kCast))
    ASSERT_LT(run.next.window, 40u);
  // At once the other one looks better again, and has to wait.
  job.seconds_per_element[kCast] = 1e-8;
  for (int window = 0; window < 2; ++window) {
    EXPECT_EQ(run.go(1).plan, all(job, kCast)) << window;
    EXPECT_EQ(run.next.why[0], Reason::kDwell);
  }
  EXPECT_EQ(run.go(1).plan, all(job, kQuant));
}

// It was chosen for what it loses.
TEST(Guard, ACodecWhoseGainMovedByATenthNeedNotStay) {
  SimulatedTraining job = slow_job("floor=fast");
  gain_of_a_fast_cast(job, 1.5e-9);
  ControlledRun run(job);
  ASSERT_EQ(run.go(20).plan, all(job, kQuant));
  job.seconds_per_element[kCast] = 0;
  while (run.go(1).plan != all(job, kCast))
    ASSERT_LT(run.next.window, 40u);
  job.error[kCast] = 0.2;  // which the floor allows
  EXPECT_EQ(run.go(1).plan, all(job, kQuant));
}

// What was the best of what loses nothing need not be kept when there is more to choose from.
TEST(Guard, WhatWasChosenInTheWarmUpDoesNotDwell) {
  SimulatedTraining job = slow_job();
  job.density = 0.25;
  ControlledRun run(job);
  ASSERT_EQ(run.go(1).plan, all(job, kExact));
  EXPECT_EQ(run.next.why[0], Reason::kWarmUp);
  EXPECT_EQ(run.go(1).plan, all(job, kQuant));
}

TEST(Guard, TheFactorRisesByTwoAWindowAndFallsAtOnce) {
  SimulatedTraining job("floor=fast");
  job.gbit = 0.1;
  job.setup.bytes_per_s = job.gbit * 1.25e8;
  job.error[kCast] = job.error[kQuant] = 0.5;
  lose(job, 0.01, 0.02, 0.03);
  ControlledRun run(job);
  double factor = 1;
  for (int window = 0; window < 8; ++window) {
    const double next = job.setup.candidates[run.go(1).plan[0]].factor;
    EXPECT_LE(next, factor > 1 ? 2 * factor : 10) << window;
    factor = next;
  }
  EXPECT_EQ(factor, 40);
  lose(job, 0.2, 0.4, 0.6);
  EXPECT_EQ(run.go(1).plan, all(job, kTop10));
}

// Deterministic runs probe once: what a codec keeps later, only its own steps show.
TEST(Guard, ASparsifierThatNobodyProbesGoesWhenItsStepsKeepTooLittle) {
  SimulatedTraining job("floor=fast");
  job.gbit = 0.1;
  job.setup.bytes_per_s = job.gbit * 1.25e8;
  job.error[kCast] = job.error[kQuant] = 0.5;
  auto controller = std::move(*create_controller(job.setup));
  Decision next;
  next.plan = all(job, kDense);
  for (int window = 0; window < 9; ++window) {
    if (window == 8) {
      ASSERT_EQ(next.plan, all(job, kTop10));
      job.error[kTop10] = 0.4;
    }
    Observation seen = job.window(next.plan, 100, 0);
    for (CandidateSignals& one : seen.candidates) {
      if (window > 0) one.error = one.kept = std::nan("");
    }
    next = *controller->decide(seen);
  }
  EXPECT_EQ(next.plan, all(job, kDense));
  EXPECT_EQ(next.why[0], Reason::kFloor);
}

TEST(Guard, WhatIsBelowTheFloorGoesAtOnceAndAfterThreeTimesStaysAway) {
  SimulatedTraining job = slow_job();
  ControlledRun run(job);
  ASSERT_EQ(run.go(8).plan, all(job, kQuant));
  int drops = 0;
  uint64_t back = 0;
  for (int window = 0; window < 9 && drops < 3; ++window) {
    job.error[kQuant] = 0.3;
    if (run.next.plan == all(job, kQuant)) ++drops;
    EXPECT_NE(run.go(1).plan, all(job, kQuant));
    EXPECT_EQ(run.next.why[0], Reason::kFloor);
    job.error[kQuant] = 0.01;
    while (run.go(1).plan != all(job, kQuant) && ++back < 8)
      continue;
    if (back >= 8) break;
  }
  EXPECT_EQ(drops, 3);
  EXPECT_GE(back, 8u) << "the third drop keeps it away for ten windows";
}

TEST(Guard, AFactorThatFellBelowTheFloorThreeTimesIsHalvedForGood) {
  SimulatedTraining job("floor=fast");
  job.gbit = 0.1;
  job.setup.bytes_per_s = job.gbit * 1.25e8;
  job.error[kCast] = job.error[kQuant] = 0.5;
  const auto top40_keeps = [&](double kept) { lose(job, 0.01, 0.02, 1 - kept); };
  top40_keeps(0.97);
  ControlledRun run(job);
  ASSERT_EQ(run.go(8).plan, all(job, kTop40));
  for (int drop = 0; drop < 3; ++drop) {
    for (int window = 0; run.next.plan != all(job, kTop40); ++window) {
      ASSERT_LT(window, 4) << drop;
      run.go(1);
    }
    top40_keeps(0.4);
    EXPECT_NE(run.go(1).plan, all(job, kTop40)) << drop;
    EXPECT_EQ(run.next.why[0], Reason::kFloor);
    top40_keeps(0.97);
  }
  // Barred it is for ten windows only.
  for (int window = 0; window < 40; ++window)
    EXPECT_LE(job.setup.candidates[run.go(1).plan[0]].factor, 20) << window;
  EXPECT_EQ(run.next.plan, all(job, kTop20));
}

TEST(Guard, NonfiniteGradientsTravelAsTheyAre) {
  SimulatedTraining job = slow_job();
  ControlledRun run(job);
  ASSERT_EQ(run.go(8).plan, all(job, kQuant));
  job.nonfinite = 1;
  EXPECT_EQ(run.go(1).plan, all(job, kDense));
  EXPECT_EQ(run.next.why[0], Reason::kNonfinite);
  job.nonfinite = 0;
  EXPECT_EQ(run.go(1).plan, all(job, kQuant));
}

TEST(Guard, AResidualOfTwentyGradientsIsSentWhole) {
  SimulatedTraining job = slow_job();
  ControlledRun run(job);
  ASSERT_EQ(run.go(8).plan, all(job, kQuant));
  job.residual = 19;
  EXPECT_EQ(run.go(1).plan, all(job, kQuant));
  job.residual = 21;
  EXPECT_EQ(run.go(1).plan, all(job, kDense));
  EXPECT_EQ(run.next.why[0], Reason::kResidual);
}

TEST(Guard, SmallBucketsStayDense) {
  SimulatedTraining job("", 4, 1023);
  job.gbit = 0.00001;
  job.setup.bytes_per_s = job.gbit * 1.25e8;
  ControlledRun run(job);
  EXPECT_EQ(run.go(8).plan, all(job, kDense));
  EXPECT_EQ(run.next.why[0], Reason::kSmall);
  SimulatedTraining larger("", 4, 1024);
  larger.gbit = job.gbit;
  larger.setup.bytes_per_s = job.setup.bytes_per_s;
  EXPECT_NE(ControlledRun(larger).go(8).plan, all(larger, kDense));
}

TEST(Guard, APlanThatIsSlowerThanDenseGoesForTenWindowsThenForTwenty) {
  SimulatedTraining job = slow_job("floor=exact");
  job.density = 0.01;
  job.drag(1);
  ControlledRun run(job);
  std::vector<uint64_t> away;  // windows in which it was held
  for (int window = 0; window < 60; ++window) {
    const Decision before = run.next;
    run.go(1);
    const bool held = run.next.why[0] == Reason::kSlower;
    if (!held) continue;
    EXPECT_EQ(run.next.plan, all(job, kDense));
    if (before.why.empty() || before.why[0] != Reason::kSlower) away.push_back(0);
    ++away.back();
  }
  ASSERT_GE(away.size(), 2u);
  EXPECT_EQ(away[0], 10u);
  EXPECT_EQ(away[1], 20u);
}

// As often as a hundredth of the time allows, and not more often than in 500 steps.
TEST(Guard, ThereAreDenseStepsToCompareWithNowAndThen) {
  for (const double gbit : {1.0, 0.02}) {
    SimulatedTraining job("window=100,window_s=0");
    job.gbit = gbit;
    job.setup.bytes_per_s = gbit * 1.25e8;
    ControlledRun run(job);
    run.go(8);
    ASSERT_NE(run.next.plan, all(job, kDense));
    const double dense_s = job.step(all(job, kDense)), step_s = job.step(run.next.plan);
    const double every = std::max(500.0, 3 * (dense_s - step_s) / (0.01 * step_s));
    uint64_t steps = 0, references = 0;
    for (int window = 0; window < 200; ++window) {
      run.go(1);
      steps += run.next.steps;
      references += run.next.reference_steps;
    }
    const double expected = 3 * static_cast<double>(steps) / every;
    EXPECT_NEAR(static_cast<double>(references), expected, 0.2 * expected) << gbit;
  }
}

TEST(Guard, APlanThatIsClearlyFasterIsTriedWithoutDenseSteps) {
  for (const double drag_s : {0.0, 0.45}) {
    SimulatedTraining job = slow_job("floor=exact");
    job.density = 0.01;
    job.drag(drag_s);
    ControlledRun run(job);
    ASSERT_EQ(run.go(1).plan, all(job, kExact));
    EXPECT_EQ(run.next.reference_steps, 0u) << "it is predicted to be";
    run.go(1);
    EXPECT_EQ(run.next.reference_steps > 0, drag_s > 0) << drag_s;
  }
}

// How often the plan changes in so many windows.
uint64_t switches_in(ControlledRun& run, int windows) {
  uint64_t switches = 0;
  for (int window = 0; window < windows; ++window) {
    const std::vector<uint32_t> before = run.next.plan;
    switches += run.go(1).plan != before ? 1 : 0;
  }
  return switches;
}

// Cores are shared, so a codec can slow down what no lane shows. Once it ran, that is known.
TEST(Guard, APlanThatRanIsKnownByItsOwnSteps) {
  SimulatedTraining job = slow_job();
  gain_of_a_fast_cast(job, 1.5e-9);
  job.drag_s[kCast] = 0.1;
  ControlledRun run(job);
  ASSERT_EQ(run.go(20).plan, all(job, kQuant));
  job.seconds_per_element[kCast] = 0;
  EXPECT_EQ(switches_in(run, 20), 2u) << "tried, and left";
  EXPECT_EQ(run.next.plan, all(job, kQuant));
}

// What one plan drags is neither dense's nor another's: that both seem slower is no reason to stay.
TEST(Guard, APlanThatDragsIsLeftForOneThatDoesNot) {
  SimulatedTraining job("", 1, 1 << 24);
  job.gbit = 4;
  job.setup.bytes_per_s = job.gbit * 1.25e8;
  gain_of_a_fast_cast(job, 4e-10);
  job.drag_s[kCast] = 0.03;
  ControlledRun run(job);
  ASSERT_EQ(run.go(20).plan, all(job, kQuant));
  job.seconds_per_element[kCast] = 0;
  ASSERT_LT(1.06 * job.step(all(job, kQuant)), job.step(all(job, kCast)));
  ASSERT_LT(1.04 * job.step(all(job, kCast)), job.step(all(job, kDense)));
  EXPECT_EQ(switches_in(run, 18), 2u) << "tried, and left";
  EXPECT_EQ(run.next.plan, all(job, kQuant));
}

// Two that are said to be a tenth faster, and are not: after the first, the second is not tried.
TEST(Guard, WhereAPlanDisappointedAnotherHasToPromiseMore) {
  SimulatedTraining job("", 1, 1 << 24);
  job.gbit = 4;
  job.setup.bytes_per_s = job.gbit * 1.25e8;
  gain_of_a_fast_cast(job, 4e-10);
  job.setup.candidates[kExact] = job.setup.candidates[kQuant];
  job.error[kExact] = job.error[kQuant];
  job.seconds_per_element[kExact] = job.seconds_per_element[kCast];
  job.drag_s[kExact] = job.drag_s[kCast] = 0.03;
  ControlledRun run(job);
  ASSERT_EQ(run.go(20).plan, all(job, kQuant));
  job.seconds_per_element[kExact] = job.seconds_per_element[kCast] = 0;
  EXPECT_EQ(switches_in(run, 12), 2u) << "one is tried, and left";
  EXPECT_EQ(run.next.plan, all(job, kQuant));
}

// A cast goes, then a quantiser that was to be much faster and loses too much, then the cast again:
// its third window is as it was foreseen to be, so that a plan which is 15 % better is taken.
TEST(Guard, APlanThatComesBackIsHeldToItsOwnPromise) {
  SimulatedTraining job = slow_job();
  job.setup.candidates[kExact] = job.setup.candidates[kCast];
  job.setup.candidates[kExact].bits = 13.6;
  job.error[kExact] = job.error[kCast];
  job.seconds_per_element[kExact] = 2e-8;
  ControlledRun run(job);
  ASSERT_EQ(run.go(1).plan, all(job, kCast));
  ASSERT_EQ(run.go(1).plan, all(job, kQuant));
  ASSERT_GT(job.step(all(job, kCast)), 1.3 * job.step(all(job, kQuant)));
  job.error[kQuant] = 0.5;
  ASSERT_EQ(run.go(1).plan, all(job, kCast));
  ASSERT_EQ(run.go(2).plan, all(job, kCast)) << "three windows by now";
  job.seconds_per_element[kExact] = 0;
  ASSERT_NEAR(job.step(all(job, kCast)) / job.step(all(job, kExact)), 1.15, 0.02);
  EXPECT_EQ(run.go(2).plan, all(job, kExact));
}

// A plan's first steps are slow for reasons of their own: what it takes is known when it has run.
TEST(Guard, AColdFirstWindowKeepsNoBetterPlanAway) {
  for (const double cold : {0.0, 0.5}) {
    SimulatedTraining job = slow_job();
    job.density = 0.25;
    job.seconds_per_element[kQuant] = 4e-9;
    job.error[kCast] = 0.01;  // so that exact goes first
    ControlledRun run(job);
    ASSERT_EQ(run.go(1).plan, all(job, kExact));
    EXPECT_GT(job.step(all(job, kExact)), 1.2 * job.step(all(job, kQuant)));
    job.drag_s[kExact] = cold * job.step(all(job, kExact));
    run.go(1);
    job.drag_s[kExact] = 0;
    EXPECT_EQ(run.go(3).plan, all(job, kQuant)) << cold;
  }
}

// Beside a slow dense window a cast seems to drag nothing. When a quantiser's steps show that the
// machine was not that slow, the cast is known to drag, and is not tried again.
TEST(Guard, APlanThatRanBesideASlowWindowKeepsWhatItTook) {
  SimulatedTraining job = slow_job();
  job.setup.candidates[kCast].bits = 8;
  job.drag_s[kCast] = 0.06;
  job.drag_s[kDense] = 0.3;
  ControlledRun run(job);
  ASSERT_EQ(run.go(1).plan, all(job, kCast));
  job.drag_s[kDense] = 0;
  ASSERT_EQ(run.go(10).plan, all(job, kQuant));
  const double cast_s = job.step(all(job, kCast));
  while (job.step(all(job, kQuant)) < 1.1 * (cast_s - job.drag_s[kCast]))
    job.seconds_per_element[kQuant] *= 1.1;
  ASSERT_LT(job.step(all(job, kQuant)), 0.95 * cast_s);
  EXPECT_EQ(switches_in(run, 8), 0u);
}

// A cast had one window, in which by chance it dragged nothing. A quantiser then disappoints, and
// seems a little slower than that: the cast has to promise more, as if it had not run.
TEST(Guard, OneLuckyWindowIsNotWhatAPlanTakes) {
  SimulatedTraining job = slow_job();
  job.setup.candidates[kCast].bits = 10;
  const double lucky_s = job.step(all(job, kCast));
  ControlledRun run(job);
  ASSERT_EQ(run.go(1).plan, all(job, kCast));
  ASSERT_EQ(run.go(1).plan, all(job, kQuant));
  ASSERT_GT(1.08 * lucky_s, 1.15 * run.next.predicted_s);
  job.drag_s[kCast] = 0.2 * lucky_s;
  job.drag_s[kQuant] = 1.08 * lucky_s - job.step(all(job, kQuant));
  ASSERT_LT(job.step(all(job, kQuant)), 0.95 * job.step(all(job, kCast)));
  EXPECT_EQ(switches_in(run, 6), 0u);
}

// The window before a plan's first one was slow: that is no merit of the plan's.
TEST(Guard, ASlowWindowBeforeAPlanIsNotItsMerit) {
  SimulatedTraining job = slow_job();
  auto controller = std::move(*create_controller(job.setup));
  Decision next;
  next.plan = all(job, kDense);
  for (int window = 0; window < 15; ++window) {
    job.drag_s[kDense] = window == 0 ? 0.22 : 0;
    // In later windows there are dense steps to compare with.
    next = *controller->decide(job.window(next.plan, 20, window > 1 ? 3 : 0));
    EXPECT_EQ(next.plan, all(job, window == 0 ? kCast : kQuant)) << window;
  }
}

TEST(Guard, ASuspicionAboutALinkLastsForOneWindow) {
  SimulatedTraining job = slow_job();
  ControlledRun run(job);
  ASSERT_EQ(run.go(20).plan, all(job, kQuant));
  const double before = run.next.bytes_per_s;
  job.gbit = 2;
  run.go(1);
  job.gbit = std::nan("");  // what was on the wire was not timed
  run.go(1);
  job.gbit = 2;
  EXPECT_EQ(run.go(1).bytes_per_s, before);
  EXPECT_GT(run.go(1).bytes_per_s, 1.5 * before);
}

TEST(Guard, OneNoisyWindowIsNoOtherLink) {
  SimulatedTraining job = slow_job();
  ControlledRun run(job);
  ASSERT_EQ(run.go(20).plan, all(job, kQuant));
  const double before = run.next.bytes_per_s;
  job.gbit = 10;
  run.go(1);
  EXPECT_EQ(run.next.bytes_per_s, before);
  job.gbit = 1;
  run.go(1);
  EXPECT_NEAR(run.next.bytes_per_s, before, 0.05 * before);
}

// Of gradient and residual less is kept than of a gradient alone, which is all that probes see.
TEST(Guard, WhatASelectorKeepsInItsStepsCountsForItsProbes) {
  SimulatedTraining job("floor=fast");
  job.gbit = 0.1;
  job.setup.bytes_per_s = job.gbit * 1.25e8;
  job.error[kCast] = job.error[kQuant] = 0.5;
  lose(job, 0.2, 0.28, 0.6);  // probes of the first two are above the floor,
  job.error[kTop10] = 0.35;   // steps are not
  ControlledRun run(job);
  EXPECT_EQ(switches_in(run, 40), 2u) << "tried once, and left for good";
  EXPECT_EQ(run.next.plan, all(job, kDense));
}

// A gradient alone says how much a selector would keep at best, of each density in every window.
TEST(Guard, ASelectorIsTriedIfItsProbeKeepsEnoughAndThenByWhatGradientsShow) {
  SimulatedTraining job("floor=fast");
  job.gbit = 0.1;
  job.setup.bytes_per_s = job.gbit * 1.25e8;
  job.error[kCast] = job.error[kQuant] = 0.5;
  lose(job, 0.1, 0.2, 0.6);
  for (const double probed : {0.4, 0.2}) {
    const auto controller = *create_controller(job.setup);
    Decision next;
    next.plan = all(job, kDense);
    next.steps = controller->first_steps();
    for (int window = 0; window < 20; ++window) {
      Observation seen = job.window(next.plan, next.steps, next.reference_steps);
      for (std::size_t i = 0; i < seen.candidates.size(); ++i) {
        const auto c = static_cast<uint32_t>(i % job.setup.candidates.size());
        if (c < kTop10) continue;
        CandidateSignals& one = seen.candidates[i];
        if (window > 0) one.encode_s = one.decode_s = one.error = std::nan("");
        if (window == 0) one.error = probed;
        if (window <= 12 && c == kTop20) one.kept = 0.5;
      }
      next = *controller->decide(seen);
      if (window != 12) continue;
      EXPECT_EQ(next.plan, all(job, probed == 0.2 ? kTop10 : kDense));
    }
    EXPECT_EQ(next.plan, all(job, probed == 0.2 ? kTop20 : kDense));
  }
}

// Where a codec's steps take twice what its probes did, so will another's.
TEST(Guard, CodecsThatNoStepHadAreAsSlowInStepsAsThoseThatSomeHad) {
  SimulatedTraining job = slow_job();
  gain_of_a_fast_cast(job, 1.5e-9);
  job.excess[kQuant] = 2.5;
  ControlledRun run(job);
  ASSERT_EQ(run.go(20).plan, all(job, kQuant));
  // By its probes alone it would be worth leaving for.
  job.seconds_per_element[kCast] = 1.3e-9;
  ASSERT_GT(job.step(all(job, kQuant)) / job.step(all(job, kCast)), 1.06);
  job.excess[kCast] = 2.5;
  ASSERT_LT(job.step(all(job, kQuant)) / job.step(all(job, kCast)), 1.045);
  EXPECT_EQ(run.go(3).plan, all(job, kQuant));
}

TEST(Guard, ANewWorldKnowsNothing) {
  SimulatedTraining job = slow_job();
  ControlledRun run(job);
  ASSERT_EQ(run.go(8).plan, all(job, kQuant));
  job.setup.world = 8;
  EXPECT_EQ(run.go(1).plan, all(job, kDense)) << "not even a cast";
  EXPECT_EQ(run.next.why[0], Reason::kWarmUp);
}

// The old world's window went by its plan: what that took is not what dense takes.
TEST(Guard, ANewWorldIsAFreshRun) {
  SimulatedTraining job = slow_job();
  ControlledRun run(job);
  ASSERT_EQ(run.go(8).plan, all(job, kQuant));
  job.learning_rate /= 2;
  job.setup.world = 8;
  run.go(1);
  SimulatedTraining other = job;
  ControlledRun fresh(other);
  EXPECT_EQ(run.next.plan, fresh.next.plan);
  EXPECT_EQ(run.next.steps, fresh.next.steps);
  for (int window = 0; window < 20; ++window) {
    const Decision& expected = fresh.go(1);
    run.go(1);
    EXPECT_EQ(run.next.plan, expected.plan) << window;
    EXPECT_EQ(run.next.why, expected.why) << window;
    EXPECT_EQ(run.next.steps, expected.steps) << window;
    EXPECT_EQ(run.next.probe, expected.probe) << window;
    EXPECT_EQ(run.next.predicted_s, expected.predicted_s) << window;
    EXPECT_EQ(run.next.predicted_dense_s, expected.predicted_dense_s) << window;
    EXPECT_EQ(run.next.bytes_per_s, expected.bytes_per_s) << window;
  }
}

TEST(Guard, ProbingTakesAHundredthOfTheTime) {
  for (const double tries : {1.0, 4.0}) {
    SimulatedTraining job = slow_job();
    job.probes = tries;
    // To probe all of these in a window would take longer than that.
    for (const uint32_t c : {kTop10, kTop20, kTop40})
      job.seconds_per_element[c] = 2e-8;
    ControlledRun run(job);
    double probing = 0;
    uint64_t probes = 0;
    for (int window = 0; window < 100; ++window) {
      run.go(1);
      for (std::size_t i = 0; i < run.next.probe.size(); ++i) {
        if (run.next.probe[i] == 0) continue;
        const double elements = static_cast<double>(job.setup.buckets[0].elements);
        probing += tries * 2 * elements * job.seconds_per_element[i % job.setup.candidates.size()];
        ++probes;
      }
    }
    EXPECT_GT(static_cast<double>(probes), 100 / tries);
    EXPECT_LE(probing, 0.011 * job.seconds) << tries;
    EXPECT_GE(probing, 0.005 * job.seconds) << "time that candidates wait for is left";
  }
}

// Elsewhere it would take its turn, of which there is about one bucket a window.
TEST(Guard, WhatWasPredictedTwentyPercentWrongIsProbedFirst) {
  for (const double slower : {1.15, 1.3}) {
    SimulatedTraining job = slow_job();
    for (const uint32_t c : {kTop10, kTop20, kTop40})
      job.seconds_per_element[c] = 2e-8;
    ControlledRun run(job);
    ASSERT_EQ(run.go(20).plan, all(job, kQuant));
    const auto probed = [&] {
      uint64_t buckets = 0;
      for (std::size_t b = 0; b < job.setup.buckets.size(); ++b)
        buckets += run.next.probe[b * job.setup.candidates.size() + kQuant];
      return buckets;
    };
    ASSERT_LT(probed(), job.setup.buckets.size());
    job.drag((slower - 1) * job.step(all(job, kQuant)));
    ASSERT_EQ(run.go(1).plan, all(job, kQuant)) << slower;
    EXPECT_EQ(probed() == job.setup.buckets.size(), slower > 1.2) << slower;
  }
}

TEST(Guard, AStepThatWasNotMeasuredIsNotSlower) {
  SimulatedTraining job = slow_job("floor=exact");
  job.density = 0.01;
  auto controller = std::move(*create_controller(job.setup));
  Decision next;
  next.plan = all(job, kDense);
  for (int window = 0; window < 12; ++window) {
    Observation seen = job.window(next.plan, 10, 3);
    if (window > 2) seen.step.step_s = std::nan("");
    next = *controller->decide(seen);
  }
  EXPECT_EQ(next.plan, all(job, kExact));
}

// Ranks share cores, so one probe may take many times what a codec does; the next one is far away.
TEST(Guard, ProbesThatWereDisturbedAreMadeAgain) {
  SimulatedTraining job = slow_job();
  job.density = 0.25;
  auto controller = std::move(*create_controller(job.setup));
  Decision next;
  next.plan = all(job, kDense);
  for (int window = 0; window < 8; ++window) {
    Observation seen = job.window(next.plan, 10, 0);
    for (std::size_t i = 0; i < seen.candidates.size(); ++i) {
      CandidateSignals& one = seen.candidates[i];
      if (window == 0) one.encode_s *= 50;
      if (window > 0 && next.probe[i] == 0) one = CandidateSignals{NAN, NAN, NAN, NAN, NAN};
    }
    next = *controller->decide(seen);
  }
  EXPECT_EQ(next.plan, all(job, kQuant));
}

// What was never timed would otherwise look as if it took no time.
TEST(Guard, WhatIsNotKnownIsNotChosen) {
  const double none = std::nan("");
  for (const char* unknown : {"loss", "encode", "decode"}) {
    SimulatedTraining job = slow_job(unknown[0] == 'l' ? "" : "floor=exact");
    job.density = unknown[0] == 'l' ? 1 : 0.02;
    auto controller = std::move(*create_controller(job.setup));
    Decision next;
    next.plan = all(job, kDense);
    for (int window = 0; window < 8; ++window) {
      Observation seen = job.window(next.plan, 100, 0);
      for (CandidateSignals& one : seen.candidates) {
        if (unknown[0] == 'l') one.error = one.kept = none;
        if (unknown[0] == 'e') one.encode_s = none;
        if (unknown[0] == 'd') one.decode_s = none;
      }
      next = *controller->decide(seen);
      EXPECT_EQ(next.plan, all(job, kDense)) << unknown << " in window " << window;
    }
  }
}

}  // namespace
}  // namespace addend::control
