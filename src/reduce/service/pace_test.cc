// SPDX-License-Identifier: Apache-2.0
#include "reduce/service/pace.h"

#include "gtest/gtest.h"

namespace addend::service_client {
namespace {

TEST(Pace, OpensByOneForEachResultAndStopsAtTheSlots) {
  Pace pace(100);
  EXPECT_EQ(pace.window(), 64u);
  pace.progressed();
  EXPECT_EQ(pace.window(), 65u);
  for (int i = 0; i < 1000; ++i)
    pace.progressed();
  EXPECT_EQ(pace.window(), 100u);
  EXPECT_EQ(Pace(4).window(), 4u);
}

TEST(Pace, HalvesOnceARoundTripAndThenGrowsByOneAWindow) {
  Pace pace(512);
  pace.measured(1000);
  pace.lost(10'000);
  EXPECT_EQ(pace.window(), 32u);
  pace.lost(10'999);
  EXPECT_EQ(pace.window(), 32u);
  pace.lost(11'000);
  EXPECT_EQ(pace.window(), 16u);
  for (int i = 0; i < 17; ++i)
    pace.progressed();
  EXPECT_EQ(pace.window(), 17u);
  for (uint64_t i = 0; i < 10; ++i)
    pace.lost(1'000'000 * (i + 1));
  EXPECT_EQ(pace.window(), 8u);
}

TEST(Pace, WaitsLongerEachTimeItWaitsInVain) {
  Pace pace(512);
  EXPECT_EQ(pace.timeout_ns(), 20'000'000u);
  pace.measured(200'000);
  const uint64_t base = pace.timeout_ns();
  EXPECT_EQ(base, 1'000'000u);  // the least
  pace.timed_out();
  EXPECT_EQ(pace.timeout_ns(), 2 * base);
  for (int i = 0; i < 100; ++i)
    pace.timed_out();
  EXPECT_EQ(pace.timeout_ns(), 250'000'000u);
  pace.progressed();
  EXPECT_EQ(pace.timeout_ns(), base);
}

TEST(Pace, FollowsTheRoundTrip) {
  Pace pace(512);
  for (int i = 0; i < 200; ++i)
    pace.measured(10'000'000);
  EXPECT_NEAR(static_cast<double>(pace.round_trip_ns()), 1e7, 1e5);
  EXPECT_LT(pace.timeout_ns(), 25'000'000u);
  for (int i = 0; i < 200; ++i)
    pace.measured(i % 2 == 0 ? 5'000'000 : 15'000'000);
  EXPECT_GT(pace.timeout_ns(), 30'000'000u);
}

}  // namespace
}  // namespace addend::service_client
