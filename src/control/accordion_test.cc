// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "control/simulated_training.h"

namespace addend::control {
namespace {

SimulatedTraining job() { return SimulatedTraining("policy=accordion,window=5,least=10,most=40"); }

TEST(Accordion, HasTwoFactorsWhateverLiesBetween) {
  EXPECT_EQ(factors(*Options::parse("policy=accordion,least=10,most=1000")),
            (std::vector<double>{10, 1000}));
  EXPECT_FALSE(create_controller(SimulatedTraining("policy=accordion,most=1000").setup));
}

TEST(Accordion, TakesTheHigherFactorOnceTwoWindowsHaveEqualNorms) {
  SimulatedTraining training = job();
  ControlledRun run(training);
  EXPECT_EQ(run.go(1).plan, all(training, kTop10));  // the first look
  EXPECT_EQ(run.next.steps, 5u);
  EXPECT_EQ(run.go(1).plan, all(training, kTop10));  // the first window
  EXPECT_EQ(run.go(1).plan, all(training, kTop40));
  EXPECT_EQ(run.go(5).plan, all(training, kTop40));
}

TEST(Accordion, TakesTheLowerFactorWhenNormsChangeByHalf) {
  for (const auto& [factor, expected] :
       {std::pair{0.49, kTop10}, {1.51, kTop10}, {0.51, kTop40}, {1.49, kTop40}}) {
    SimulatedTraining training = job();
    ControlledRun run(training);
    run.go(4);
    training.energy *= factor * factor;
    EXPECT_EQ(run.go(1).plan, all(training, expected)) << factor;
    EXPECT_EQ(run.go(1).plan, all(training, kTop40)) << factor;
  }
}

TEST(Accordion, ABucketWithoutGradientsIsNotCritical) {
  SimulatedTraining training = job();
  training.energy = 0;
  ControlledRun run(training);
  run.go(2);
  EXPECT_EQ(run.go(1).plan, all(training, kTop40));
  training.energy = 1;
  EXPECT_EQ(run.go(1).plan, all(training, kTop10));
}

TEST(Accordion, TakesTheLowerFactorWhenTheLearningRateFalls) {
  for (const double growth : {1.0, 4.0}) {  // norms of that window count in the next
    SimulatedTraining training = job();
    ControlledRun run(training);
    run.go(4);
    training.learning_rate /= 1.1;
    training.energy *= growth;
    EXPECT_EQ(run.go(1).plan, all(training, kTop10)) << growth;
    EXPECT_EQ(run.next.why[0], Reason::kRate) << growth;
    EXPECT_EQ(run.go(1).plan, all(training, kTop40)) << growth;
    training.learning_rate *= 1.1;
    EXPECT_EQ(run.go(1).plan, all(training, kTop40)) << growth;
  }
}

}  // namespace
}  // namespace addend::control
