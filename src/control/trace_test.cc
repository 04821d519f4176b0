// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "control/simulated_training.h"

namespace addend::control {
namespace {

Trace recorded() {
  SimulatedTraining job("");
  ControlledRun run(job);
  run.go(10);
  job.gbit = 0.1;
  run.go(10);
  job.nonfinite = 1;
  run.go(1);
  job.nonfinite = 0;
  run.go(10);
  return run.trace;
}

TEST(Trace, ReplaysToTheSameDecisions) {
  const Trace trace = recorded();
  const auto again = replay(trace);
  ASSERT_TRUE(again);
  ASSERT_EQ(again->size(), trace.windows.size());
  for (std::size_t i = 0; i < again->size(); ++i)
    EXPECT_EQ((*again)[i], trace.windows[i].decision) << i;
}

TEST(Trace, OtherSignalsGiveOtherDecisions) {
  Trace trace = recorded();
  for (Trace::Window& window : trace.windows)
    window.observation.buckets[0].nonfinite = 1;
  const auto again = replay(trace);
  ASSERT_TRUE(again);
  EXPECT_NE(again->back(), trace.windows.back().decision);
}

TEST(Trace, SignalsSurviveTheirFlatForm) {
  const Trace trace = recorded();
  const Observation& seen = trace.windows[3].observation;
  const std::vector<double> flat = seen.values();
  const Observation back =
      Observation::from(flat, trace.setup.buckets.size(), trace.setup.candidates.size());
  EXPECT_EQ(back.buckets[2].bytes, seen.buckets[2].bytes);
  EXPECT_EQ(back.candidates.back().kept, seen.candidates.back().kept);
  EXPECT_EQ(back.values().size(), flat.size());
}

TEST(Trace, JsonHasPlansReasonsAndNullForWhatIsNotKnown) {
  const std::string text = recorded().to_json();
  EXPECT_EQ(text.find("nan"), std::string::npos);
  for (const char* part : {"\"format\":\"addend-trace\"", "\"plan\":[0,0,0,0]", "\"nonfinite\"",
                           "null", "\"predicted_s\":", "\"spec\":\"topk:density=0.05\""})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST(Trace, NamesAreQuoted) {
  Trace trace;
  trace.setup.candidates.push_back({"a\"b\\c", Loss::kNone, 1, 32, 0, 1});
  EXPECT_NE(trace.to_json().find("\"a\\\"b\\\\c\""), std::string::npos);
}

}  // namespace
}  // namespace addend::control
