// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "control/simulated_training.h"

namespace addend::control {
namespace {

// Candidates are dense and the ladder; `kept` are the gains of its rungs.
SimulatedTraining job_of(const char* options, std::vector<double> kept) {
  SimulatedTraining job(options, 2);
  job.setup.candidates.resize(1);
  for (const double factor : factors(job.setup.options))
    job.setup.candidates.push_back({"topk", Loss::kBiased, factor, 1, 40, 2});
  const std::size_t count = job.setup.candidates.size();
  job.error.assign(count, 0);
  job.seconds_per_element.assign(count, 0);
  job.excess.assign(count, 1);
  job.kept = {1};
  job.kept.insert(job.kept.end(), kept.begin(), kept.end());
  job.gbit = 1;
  return job;
}

double factor(const SimulatedTraining& job, const Decision& decision) {
  return job.setup.candidates[decision.plan[0]].factor;
}

TEST(Gravac, TheLaddersAreThePapers) {
  const auto of = [](const char* text) { return factors(*Options::parse(text)); };
  EXPECT_EQ(of("scaling=exponential,least=10,most=1000"),
            (std::vector<double>{10, 20, 40, 160, 1000}));
  EXPECT_EQ(of("scaling=geometric,least=10,most=2000"),
            (std::vector<double>{10, 20, 40, 80, 160, 320, 640, 1280, 2000}));
  EXPECT_EQ(of("least=5,most=5"), (std::vector<double>{5}));
}

TEST(Gravac, TheFirstWindowSendsTheLeastFactorAndEachWindowTriesTheNext) {
  SimulatedTraining job = job_of("policy=gravac,window=4,omega=0", {0.99, 0.98, 0.97, 0.96, 0.95});
  ControlledRun run(job);
  for (const double expected : {10.0, 20.0, 40.0, 160.0, 1000.0, 1000.0}) {
    EXPECT_EQ(factor(job, run.go(1)), expected == 10 ? 10 : expected);
    run.go(3);
  }
}

TEST(Gravac, WindowsAreOfStepsHoweverManyADecisionHolds) {
  SimulatedTraining job =
      job_of("policy=gravac,window=10,every=5,omega=0", {0.99, 0.98, 0.97, 0.96, 0.95});
  ControlledRun run(job);
  EXPECT_EQ(run.go(1).steps, 5u);  // the first is of one step
  for (const double expected : {10.0, 20.0, 20.0, 40.0, 40.0, 160.0})
    EXPECT_EQ(factor(job, run.go(1)), expected);
  EXPECT_EQ(run.next.window, 6u);
}

TEST(Gravac, BelowEpsilonTheFloorTravelsAndBelowThatEverything) {
  SimulatedTraining job =
      job_of("policy=gravac,window=4,epsilon=0.7,omega=0", {0.8, 0.5, 0.4, 0.3, 0.2});
  ControlledRun run(job);
  run.go(4);
  for (int step = 0; step < 12; ++step)
    EXPECT_EQ(factor(job, run.go(1)), 10) << step;
  std::fill(job.kept.begin() + 1, job.kept.end(), 0.1);
  run.go(200);
  EXPECT_EQ(run.next.plan, all(job, kDense));
  EXPECT_EQ(run.next.why[0], Reason::kFloor);
  EXPECT_EQ(run.next.phi, 1);
}

// Without the floor's rise to 20, a candidate below epsilon would fall back to 10.
TEST(Gravac, TheFloorRisesToWhatWasMeasuredAndNoFurther) {
  SimulatedTraining job =
      job_of("policy=gravac,window=4,epsilon=0.7,omega=0.02", {0.9, 0.89, 0.3, 0.3, 0.3});
  // The two factors make such different progress that the search goes on.
  ControlledRun run(job);
  run.go(20);
  EXPECT_EQ(factor(job, run.next), 20);
}

TEST(Gravac, OfTwoThatMakeEqualProgressTheLowerFactorIsKeptForGood) {
  SimulatedTraining job =
      job_of("policy=gravac,window=10,omega=0.05", {0.99, 0.99, 0.99, 0.99, 0.99});
  job.backward_s = 10;  // sums hide behind it, so nothing is gained by a higher factor
  ControlledRun run(job);
  run.go(200);
  EXPECT_EQ(factor(job, run.next), 10);
}

// The paper's listing would take the second best, which here is the higher one.
TEST(Gravac, TheLowerOfTwoIsKeptEvenIfItIsTheBetter) {
  SimulatedTraining job = job_of("policy=gravac,window=10,omega=0.05", {0.99, 0.97, 0.5, 0.5, 0.5});
  job.backward_s = 10;
  ControlledRun run(job);
  run.go(200);
  EXPECT_EQ(factor(job, run.next), 10);
}

// Neither is it the mean of 0.9 and 0.8: a step with little energy says little.
TEST(Gravac, BothEnergiesAreSmoothedAndThenDivided) {
  SimulatedTraining job = job_of("policy=gravac,window=100", {0.9, 0.9, 0.9, 0.9, 0.9});
  job.setup.world = 50;  // so the newest step weighs a half
  ControlledRun run(job);
  EXPECT_DOUBLE_EQ(run.go(1).phi, 0.9);
  job.energy = 9;
  job.kept[1] = 0.8;
  EXPECT_DOUBLE_EQ(run.go(1).phi, 0.81);
}

// Of 1 + 99 that are there 0.9 + 9.9 are kept, wherever the 99 come from.
TEST(Gravac, WhatResidualsHoldWeighsInBucketsAndInRanks) {
  SimulatedTraining job = job_of("policy=gravac,epsilon=0.1", {0.9, 0.9, 0.9, 0.9, 0.9});
  Observation large = job.window(all(job, kDense), 1, 0);
  const std::size_t candidates = job.setup.candidates.size();
  large.buckets[1].whole_energy = 99;  // of its gradient it is 1, as the other's is
  large.candidates[candidates + 1].kept = 0.1;
  EXPECT_DOUBLE_EQ((*create_controller(job.setup))->decide(large)->phi, 0.108);

  std::vector<Observation> ranks(2, job.window(all(job, kDense), 1, 0));
  for (std::size_t b = 0; b < 2; ++b) {
    ranks[1].buckets[b].whole_energy = 99;
    ranks[1].candidates[b * candidates + 1].kept = 0.1;
  }
  const Observation both = reduce(ranks);
  EXPECT_EQ(both.buckets[0].whole_energy, 50);
  EXPECT_DOUBLE_EQ(both.candidates[1].kept, 0.108);
  EXPECT_DOUBLE_EQ((*create_controller(job.setup))->decide(both)->phi, 0.108);
}

TEST(Gravac, TheNewestStepWeighsAHundredthForEachRankWithinLimits) {
  for (const auto& [world, weight] : {std::pair{1u, 0.05}, {4u, 0.05}, {20u, 0.2}, {100u, 0.5}}) {
    SimulatedTraining job = job_of("policy=gravac,window=100", {0.9, 0.9, 0.9, 0.9, 0.9});
    job.setup.world = world;
    ControlledRun run(job);
    run.go(1);
    job.kept[1] = 0.8;
    EXPECT_DOUBLE_EQ(run.go(1).phi, 0.9 - weight * 0.1) << world;
  }
}

// At last the highest factor makes the progress that the one below made long ago.
TEST(Gravac, ProgressOfTenWindowsAgoEndsNoSearch) {
  SimulatedTraining job =
      job_of("policy=gravac,window=4,epsilon=0.1", {0.99, 0.99, 0.99, 0.99, 0.99});
  ControlledRun run(job);
  ASSERT_EQ(factor(job, run.go(80)), 1000) << "each makes more progress than those below";
  job.kept[5] *= job.step(all(job, 5)) / job.step(all(job, 4));
  run.go(800);
  EXPECT_NEAR(run.next.phi, job.kept[5], 1e-6);
  EXPECT_EQ(factor(job, run.next), 1000);
}

TEST(Gravac, AFactorWithoutACandidateIsRefusedByName) {
  SimulatedTraining job = job_of("policy=gravac", {0.9, 0.9, 0.9, 0.9, 0.9});
  job.setup.candidates.pop_back();
  const auto made = create_controller(job.setup);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("1000"), std::string::npos) << made.error().message;
}

}  // namespace
}  // namespace addend::control
