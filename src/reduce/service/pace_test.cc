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

TEST(Pace, OnlySilenceNarrowsTheWindow) {
  Pace pace(512);
  pace.silent();
  EXPECT_EQ(pace.window(), 32u);
  for (int i = 0; i < 10; ++i)
    pace.silent();
  EXPECT_EQ(pace.window(), 16u);
  pace.progressed();
  EXPECT_EQ(pace.window(), 17u);
  Pace narrow(4);
  narrow.silent();
  EXPECT_EQ(narrow.window(), 4u);
}

TEST(Pace, WaitsLongerEachTimeThatNothingComesBack) {
  Pace pace(512);
  EXPECT_EQ(pace.timeout_ns(), 20'000'000u);
  pace.measured(10'000, 0);
  EXPECT_EQ(pace.timeout_ns(0), 200'000u);  // the least
  EXPECT_EQ(pace.timeout_ns(1), 400'000u);
  EXPECT_EQ(pace.timeout_ns(3), 1'600'000u);
  EXPECT_EQ(pace.timeout_ns(100), 250'000'000u);
}

TEST(Pace, NeverWaitsLessThanARoundTripTakes) {
  Pace pace(512);
  for (int i = 0; i < 100; ++i)
    pace.measured(600'000'000, 0);
  EXPECT_GT(pace.timeout_ns(0), 800'000'000u);
  EXPECT_EQ(pace.timeout_ns(5), pace.timeout_ns(0));
}

TEST(Pace, WaitsForWhatWasOvertakenOnlyWhereSomethingWasSwappedOfLate) {
  Pace pace(512);
  pace.measured(2'000'000, 0);
  const auto in_order = [&pace](int chunks) {
    for (int i = 0; i < chunks; ++i)
      pace.progressed();
  };
  in_order(1023);
  EXPECT_EQ(pace.overtaken_ns(), 500'000u);
  in_order(1);
  EXPECT_EQ(pace.overtaken_ns(), 0u);
  pace.swapped();
  EXPECT_EQ(pace.overtaken_ns(), 500'000u);
}

// What waited for a stopped worker came back at its first try, too.
TEST(Pace, OneLongWaitDoesNotMakeTheNextOneLong) {
  Pace pace(512);
  for (int i = 0; i < 100; ++i)
    pace.measured(60'000'000, 0);
  for (int i = 0; i < 10; ++i)
    pace.measured(1'000'000'000, 0);
  EXPECT_EQ(pace.timeout_ns(), 250'000'000u);
}

TEST(Pace, FollowsTheRoundTrip) {
  Pace pace(512);
  pace.expect(1'000'000);
  EXPECT_EQ(pace.round_trip_ns(), 1'000'000u);
  for (int i = 0; i < 200; ++i)
    pace.measured(10'000'000, 0);
  EXPECT_NEAR(static_cast<double>(pace.round_trip_ns()), 1e7, 1e5);
  EXPECT_NEAR(static_cast<double>(pace.timeout_ns()), 1.5e7, 1e6);
  pace.expect(1'000'000);  // chunks know better
  EXPECT_GT(pace.round_trip_ns(), 9'000'000u);
  for (int i = 0; i < 200; ++i)
    pace.measured(i % 2 == 0 ? 5'000'000 : 15'000'000, 0);
  EXPECT_GT(pace.timeout_ns(), 25'000'000u);
}

TEST(Pace, WhatIsOvertakenHasAQuarterOfTheLeastRoundTrip) {
  Pace pace(512);
  pace.expect(4'000'000);
  EXPECT_EQ(pace.reorder_ns(), 1'000'000u);
  for (int i = 0; i < 4000; ++i)
    pace.measured(40'000'000, 1);  // a queue of our own making
  EXPECT_EQ(pace.reorder_ns(), 1'000'000u);
  EXPECT_TRUE(pace.is_too_soon(999'999));
  EXPECT_FALSE(pace.is_too_soon(1'000'000));
  pace.measured(10'000, 1);
  EXPECT_EQ(pace.reorder_ns(), 50'000u);
  EXPECT_FALSE(pace.is_too_soon(2'500));  // the answer, and no swap
}

TEST(Pace, TheLeastRoundTripIsThatOfFiveToTenSeconds) {
  constexpr uint64_t kSecondNs = 1'000'000'000;
  Pace pace(512);
  pace.expect(4'000'000);
  for (uint64_t s = 1; s < 10; ++s)
    pace.measured(40'000'000, s * kSecondNs);
  EXPECT_EQ(pace.least_ns(), 4'000'000u);
  pace.measured(40'000'000, 10 * kSecondNs);  // the path has become longer
  EXPECT_EQ(pace.least_ns(), 40'000'000u);
}

TEST(Pace, CopiesAreForLongPathsThatLoseAndAreNotFull) {
  Pace pace(512), near(512);
  pace.expect(4'000'000);
  near.expect(400'000);
  EXPECT_FALSE(pace.copies());
  pace.lost();
  near.lost();
  EXPECT_TRUE(pace.copies());
  EXPECT_FALSE(near.copies());
  pace.measured(16'000'000, 0);
  EXPECT_TRUE(pace.copies());
  pace.measured(16'000'000, 0);
  EXPECT_FALSE(pace.copies());  // a queue
  for (int i = 0; i < 40; ++i)
    pace.measured(4'000'000, 0);
  EXPECT_TRUE(pace.copies());
  for (int i = 0; i < 4096; ++i)
    pace.progressed();
  EXPECT_FALSE(pace.copies());
}

TEST(Pace, ACopyGoesAnEighthOfARoundTripLater) {
  Pace pace(512);
  pace.expect(4'000'000);
  EXPECT_EQ(pace.copy_ns(), 500'000u);
  EXPECT_FALSE(pace.is_of_copy(4'499'999));  // the first try's answer, late
  EXPECT_TRUE(pace.is_of_copy(4'500'000));
}

TEST(Pace, ThereIsRoomForTwoOfEverythingWhereWholeWindowsWereShortOfLate) {
  Pace pace(512);
  pace.expect(4'000'000);
  EXPECT_TRUE(pace.has_room());
  for (int i = 0; i < 20; ++i)
    pace.measured(9'000'000, 0);  // the end of a window
  for (int i = 0; i < 1000; ++i)
    pace.measured(4'000'000, 0);
  EXPECT_FALSE(pace.has_room());
  for (int i = 0; i < 2048; ++i)
    pace.measured(4'000'000, 0);
  EXPECT_TRUE(pace.has_room());
}

}  // namespace
}  // namespace addend::service_client
