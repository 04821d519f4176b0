// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/seen_unions.h"

#include <gtest/gtest.h>

namespace addend::exact {
namespace {

SeenUnions seen(std::initializer_list<uint64_t> sizes, int times = 1) {
  SeenUnions unions;
  for (int i = 0; i < times; ++i) {
    for (const uint64_t size : sizes)
      unions.add(size);
  }
  return unions;
}

TEST(SeenUnionsCapacity, IsTheUnionIfItStaysTheSame) {
  EXPECT_EQ(seen({1000}, 8).capacity(), 1000u);
  EXPECT_EQ(seen({1000}, 500).capacity(), 1000u);
  EXPECT_EQ(seen({0}, 40).capacity(), 0u);
}

TEST(SeenUnionsCapacity, LeavesAnEighthWhileLittleIsKnown) {
  EXPECT_EQ(seen({800}).capacity(), 900u);
  EXPECT_EQ(seen({800, 1600, 400}).capacity(), 1800u);
  EXPECT_EQ(seen({800}, 7).capacity(), 900u);
}

TEST(SeenUnionsCapacity, GrowsWithTheVariation) {
  EXPECT_EQ(seen({900, 1000, 1100}, 11).capacity(), 1150u);
  EXPECT_EQ(seen({800, 1000, 1200}, 11).capacity(), 1300u);
}

TEST(SeenUnionsCapacity, IsNotMadeByOneOddUnion) {
  SeenUnions unions = seen({1000}, 20);
  unions.add(50000);
  EXPECT_EQ(unions.capacity(), 1000u);
  unions.add(50000);
  EXPECT_GE(unions.capacity(), 50000u) << "two of them are no accident";
}

TEST(SeenUnionsCapacity, ForgetsWhatIsLongAgo) {
  SeenUnions unions = seen({50000}, 40);
  for (uint64_t i = 0; i < SeenUnions::kRemembered; ++i)
    unions.add(1000);
  EXPECT_EQ(unions.capacity(), 1000u);
}

TEST(SeenUnionsExpected, IsTheMeanOfTheRecentOnes) {
  EXPECT_EQ(seen({1000}).expected(), 1000u);
  EXPECT_EQ(seen({1000, 2000, 6000}).expected(), 3000u);
  EXPECT_EQ(seen({0, 5000}, 20).expected(), 2500u);
  SeenUnions unions = seen({50000}, 40);
  for (uint64_t i = 0; i < SeenUnions::kRecent; ++i)
    unions.add(1000);
  EXPECT_EQ(unions.expected(), 1000u);
  unions.add(9000);
  EXPECT_EQ(unions.expected(), 2000u);
}

TEST(SeenUnionsExpected, KnowsNothingOfWhatWasCleared) {
  SeenUnions unions = seen({50000}, 40);
  unions.clear();
  EXPECT_FALSE(unions.any());
  unions.add(800);
  EXPECT_EQ(unions.expected(), 800u);
  EXPECT_EQ(unions.capacity(), 900u);
}

}  // namespace
}  // namespace addend::exact
