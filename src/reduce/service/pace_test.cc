// SPDX-License-Identifier: Apache-2.0
#include "reduce/service/pace.h"

#include "gtest/gtest.h"

namespace addend::service_client {
namespace {

TEST(Pace, OpensByOneForEachResultAndStopsAtTheSlots) {
  Pace pace(100);
  EXPECT_EQ(pace.window(), 64u);
  pace.progressed(1);
  EXPECT_EQ(pace.window(), 65u);
  for (int i = 0; i < 1000; ++i)
    pace.progressed(1);
  EXPECT_EQ(pace.window(), 100u);
  EXPECT_EQ(Pace(4).window(), 4u);
}

TEST(Pace, OnlySilenceNarrowsTheWindow) {
  Pace pace(512);
  pace.silent();
  EXPECT_EQ(pace.window(), 32u);
  for (int i = 0; i < 10; ++i)
    pace.silent();
  EXPECT_EQ(pace.window(), 16u);
  pace.progressed(1);
  EXPECT_EQ(pace.window(), 17u);
  Pace narrow(4);
  narrow.silent();
  EXPECT_EQ(narrow.window(), 4u);
}

TEST(Pace, WaitsLongerForEachTry) {
  Pace pace(512);
  EXPECT_EQ(pace.timeout_ns(), 20'000'000u);
  pace.measured(10'000);
  EXPECT_EQ(pace.timeout_ns(1), 200'000u);  // the least
  EXPECT_EQ(pace.timeout_ns(2), 400'000u);
  EXPECT_EQ(pace.timeout_ns(4), 1'600'000u);
  EXPECT_EQ(pace.timeout_ns(100), 250'000'000u);
}

TEST(Pace, DoublesATimeoutThatSendsMostChunksTwice) {
  Pace pace(512);
  pace.measured(1'000'000);
  const uint64_t base = pace.timeout_ns();
  for (int i = 0; i < 64; ++i)
    pace.progressed(i % 3 == 0 ? 1 : 2);
  EXPECT_EQ(pace.timeout_ns(), 2 * base);
  for (int i = 0; i < 64; ++i)
    pace.progressed(i % 3 == 0 ? 2 : 1);  // as a lossy wire does
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
