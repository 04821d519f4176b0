// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include <gtest/gtest.h>

#include "control/simulated_training.h"

namespace addend::control {
namespace {

TEST(Auto, SparseGradientsOnASlowLinkGetExact) {
  SimulatedTraining job("");
  job.gbit = 1;
  job.density = 0.01;
  ControlledRun run(job);
  EXPECT_EQ(run.go(8).plan, all(job, kExact));
  EXPECT_LT(run.next.predicted_s, run.next.predicted_dense_s / 2);
  EXPECT_EQ(run.next.phi, 1);
}

TEST(Auto, WhereSumsHideBehindBackwardEverythingStaysDense) {
  SimulatedTraining job("", 4, 1 << 14);
  job.gbit = 10;
  ControlledRun run(job);
  EXPECT_EQ(run.go(20).plan, all(job, kDense));
}

TEST(Auto, DenseGradientsOnASlowLinkAreQuantized) {
  SimulatedTraining job("");
  job.gbit = 1;
  ControlledRun run(job);
  EXPECT_EQ(run.go(8).plan, all(job, kQuant));
  EXPECT_GE(run.next.phi, 0.9);
}

TEST(Auto, TheFloorSaysWhatMayBeLost) {
  SimulatedTraining exact("floor=exact");
  exact.gbit = 1;
  EXPECT_EQ(ControlledRun(exact).go(8).plan, all(exact, kDense));
  // 0.8 of the energy is enough for fast and too little for safe.
  for (const auto& [floor, expected] : {std::pair{"floor=safe", kDense}, {"floor=fast", kTop10}}) {
    SimulatedTraining job(floor);
    job.gbit = 0.1;
    job.error[kCast] = job.error[kQuant] = 0.5;
    EXPECT_EQ(ControlledRun(job).go(8).plan, all(job, expected)) << floor;
  }
}

TEST(Auto, PlansAreEqualOnAllRanksWhateverTheirOwnSignals) {
  SimulatedTraining job("");
  job.gbit = 1;
  const Observation fast = job.window(all(job, kDense), 100, 0);
  Observation slow = fast;
  slow.step.step_s *= 3;
  slow.buckets[0].ready_s *= 3;
  slow.buckets[0].network_s *= 3;
  const Observation there[] = {fast, slow}, here[] = {slow, fast};
  const std::vector<double> one = reduce(there).values(), other = reduce(here).values();
  EXPECT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(double)), 0);
  // The slowest rank's times count; but on the wire, the one that waited for nobody.
  EXPECT_EQ(reduce(there).step.step_s, slow.step.step_s);
  EXPECT_EQ(reduce(there).buckets[0].ready_s, slow.buckets[0].ready_s);
  EXPECT_EQ(reduce(there).buckets[0].network_s, fast.buckets[0].network_s);
}

TEST(Auto, ARankThatDoesNotKnowHasNoSay) {
  SimulatedTraining job("");
  const Observation seen = job.window(all(job, kDense), 100, 0);
  Observation blind = seen;
  blind.buckets[0].energy = blind.buckets[0].network_s = std::nan("");
  const Observation both[] = {blind, seen};
  EXPECT_EQ(reduce(both).buckets[0].energy, seen.buckets[0].energy);
  EXPECT_EQ(reduce(both).buckets[0].network_s, seen.buckets[0].network_s);
}

// 10 -> 0.1 -> 10 Gbit/s: three windows after a change the plan is the one of a job that never knew
// another link.
TEST(Auto, ThreeWindowsAfterTheLinkChangedThePlanIsAFreshRuns) {
  for (const double density : {1.0, 0.3, 0.01}) {
    SimulatedTraining job("", 4, 1 << 20);
    job.density = density;
    ControlledRun run(job);
    run.go(20);
    for (const double gbit : {0.1, 10.0}) {
      SimulatedTraining other("", 4, 1 << 20);
      other.density = density;
      other.gbit = gbit;
      other.setup.bytes_per_s = gbit * 1.25e8;
      const std::vector<uint32_t> fresh = ControlledRun(other).go(20).plan;
      job.gbit = gbit;
      EXPECT_EQ(run.go(3).plan, fresh) << density << " at " << gbit;
      EXPECT_EQ(run.go(17).plan, fresh) << density << " at " << gbit << ", later";
    }
  }
}

// The model may be wrong about a machine; the job must not suffer for it.
TEST(Auto, NoJobIsMoreThanTwoPercentSlowerThanDense) {
  for (const double gbit : {0.1, 1.0, 10.0, 100.0}) {
    for (const double excess : {1.0, 3.0, 30.0, 300.0}) {
      for (const double drag_s : {0.0, 0.03, 1.0}) {
        for (const double density : {0.01, 1.0}) {
          SimulatedTraining job("floor=fast");
          job.gbit = gbit;
          job.setup.bytes_per_s = gbit * 1.25e8;
          job.density = density;
          job.drag(drag_s);
          std::fill(job.excess.begin() + kExact, job.excess.end(), excess);
          ControlledRun run(job);
          run.go(100);
          EXPECT_LE(job.seconds, 1.02 * job.dense_seconds)
              << gbit << " Gbit/s, excess " << excess << ", drag " << drag_s << ", density "
              << density;
        }
      }
    }
  }
}

TEST(Auto, WindowsLastLongEnough) {
  SimulatedTraining job("window=100,window_s=2", 1, 1 << 12);
  job.backward_s = 0.001;
  ControlledRun run(job);
  run.go(1);
  EXPECT_NEAR(run.next.steps * job.step(run.next.plan), 2, 0.05);
}

TEST(Auto, AnObservationOfOtherBucketsIsRefused) {
  SimulatedTraining job("");
  auto controller = std::move(*create_controller(job.setup));
  Observation seen = job.window(all(job, kDense), 100, 0);
  seen.buckets.pop_back();
  EXPECT_EQ(controller->decide(seen).error().code, Errc::kInvalidArgument);
}

TEST(Auto, ASetupWithoutDenseInFrontIsRefused) {
  SimulatedTraining job("");
  std::swap(job.setup.candidates[0], job.setup.candidates[3]);
  EXPECT_EQ(create_controller(job.setup).error().code, Errc::kInvalidArgument);
  job.setup.candidates.clear();
  EXPECT_EQ(create_controller(job.setup).error().code, Errc::kInvalidArgument);
}

}  // namespace
}  // namespace addend::control
