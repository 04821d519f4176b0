// SPDX-License-Identifier: Apache-2.0
#include "base/float_environment.h"

#include <cfenv>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/support/flushed.h"

namespace addend {
namespace {

using testing_support::Flushed;

// Volatile: the compiler would work them out beforehand.
volatile float smallest = 1e-45f, three = 3.0f, one = 1.0f;

// 3 if subnormals are kept, as bits: a comparison would flush too.
uint32_t smallest_times_three() {
  const volatile float product = smallest * three;
  const float value = product;
  uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  return bits;
}

TEST(FloatEnvironment, KeepsSubnormalsAndGivesTheCallersSettingsBack) {
  if (!Flushed::kKnown) GTEST_SKIP() << "no way is known to flush subnormals on this machine";
  const Flushed caller;
  EXPECT_EQ(smallest_times_three(), 0u) << "the caller flushes";
  {
    const FloatEnvironment ours;
    EXPECT_EQ(smallest_times_three(), 3u);
    { const FloatEnvironment again; }
    EXPECT_EQ(smallest_times_three(), 3u);
  }
  EXPECT_EQ(smallest_times_three(), 0u);
}

TEST(FloatEnvironment, RoundsToNearest) {
  const volatile float nearest = one / three;
  ASSERT_EQ(std::fesetround(FE_DOWNWARD), 0);
  const volatile float down = one / three;
  volatile float ours = 0;
  {
    const FloatEnvironment environment;
    ours = one / three;
  }
  const int after = std::fegetround();
  ASSERT_EQ(std::fesetround(FE_TONEAREST), 0);
  EXPECT_LT(down, nearest);
  EXPECT_EQ(ours, nearest);
  EXPECT_EQ(after, FE_DOWNWARD);
}

}  // namespace
}  // namespace addend
