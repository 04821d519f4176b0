// SPDX-License-Identifier: Apache-2.0
// The state machine against a trivial reference on random traffic: frames of any worker in any
// order, many turns early or late, again and again, under every policy.
#include "gtest/gtest.h"
#include "tests/support/random_job.h"

namespace addend::testing_support {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  uint32_t operator()(uint32_t range) {
    return addend_reduce32(static_cast<uint32_t>(addend_random(seed_, next_++) >> 32), range);
  }

 private:
  uint64_t seed_, next_ = 0;
};

TEST(Model, EveryAnswerIsTheReferences) {
  uint64_t complete = 0, partial = 0, answered = 0, stale = 0, late = 0, duplicate = 0;
  uint64_t relayed = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    SlotsAgainstReference model{Random(seed)};
    for (int event = 0; event < 300; ++event)
      ASSERT_TRUE(model.step()) << "seed " << seed << " event " << event;
    const aggregate::Counters counters = model.machine().counters();
    complete += counters.complete;
    if (model.relays()) relayed += counters.complete;
    partial += counters.partial;
    answered += counters.answered;
    stale += counters.refused[ADDEND_REFUSAL_TURN];
    late += counters.refused[ADDEND_REFUSAL_LATE];
    duplicate += counters.refused[ADDEND_REFUSAL_DUPLICATE];
  }
  // The traffic really visits what it is meant to.
  EXPECT_GT(complete, 50000u);
  EXPECT_GT(relayed, 5000u);
  EXPECT_GT(partial, 1000u);
  EXPECT_GT(answered, 10000u);
  EXPECT_GT(stale, 100000u);
  EXPECT_GT(late, 100u);
  EXPECT_GT(duplicate, 10000u);
}

}  // namespace
}  // namespace addend::testing_support
