// SPDX-License-Identifier: Apache-2.0
#include "codec/index/bloom.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "addend/simd.h"
#include "base/bits.h"
#include "wire/hash.h"

namespace addend::index {
namespace {

std::vector<uint64_t> random_positions(uint64_t seed, uint64_t keys, uint64_t count) {
  std::vector<uint64_t> bitmap(words_for(count));
  for (uint64_t i = 0; i < keys; ++i)
    set_bit(bitmap.data(), addend_random(seed, i) % count);
  return bitmap;
}

std::vector<uint64_t> filter_of(const BloomShape& shape, const std::vector<uint64_t>& bitmap) {
  std::vector<uint64_t> filter(shape.words, 0xA5A5);
  bloom_insert(shape, bitmap.data(), bitmap.size(), filter.data());
  return filter;
}

std::vector<uint64_t> found_in(const BloomShape& shape, const std::vector<uint64_t>& filter,
                               uint64_t words) {
  std::vector<uint64_t> found(words, 0xA5A5);
  bloom_find(shape, filter.data(), words, found.data());
  return found;
}

// What the format says, one position after the other.
bool holds(const BloomShape& shape, const std::vector<uint64_t>& filter, uint64_t position) {
  const uint64_t hash = addend_random(shape.seed, position / 64);
  auto state = static_cast<uint32_t>(hash);
  for (uint32_t j = 0; j < shape.hashes; ++j) {
    const uint64_t start = uint64_t{state} * (shape.words * 64) >> 32;
    if (!test_bit(filter.data(), start / 64 * 64 + (start + position) % 64)) return false;
    state = state * 0x915F77F5u + static_cast<uint32_t>(hash >> 32);
  }
  return true;
}

class BloomOnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_simd_target(GetParam())); }
  void TearDown() override { ASSERT_TRUE(force_simd_target("")); }
};

TEST_P(BloomOnTarget, FindsWhatTheFormatSays) {
  for (const uint64_t count : {1, 64, 65, 1000, 20011}) {
    for (const uint64_t keys : {0, 1, 10, 700}) {
      const auto shape = BloomShape::plan(keys / 2, count, 32, count + keys);
      const auto bitmap = random_positions(3, keys, count);
      const auto filter = filter_of(shape, bitmap);
      const auto found = found_in(shape, filter, bitmap.size());
      for (uint64_t i = 0; i < bitmap.size() * 64; ++i) {
        ASSERT_EQ(test_bit(found.data(), i), holds(shape, filter, i)) << count << " " << keys;
      }
      for (uint64_t w = 0; w < bitmap.size(); ++w)
        ASSERT_EQ(bitmap[w] & ~found[w], 0u) << count << " " << keys;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, BloomOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& tested) { return "On" + tested.param; });

TEST(Bloom, FiltersOfPartsAddUpToTheFilterOfAll) {
  const auto shape = BloomShape::plan(300, 9000, 16, 5);
  auto a = random_positions(1, 150, 9000);
  const auto b = random_positions(2, 150, 9000);
  auto sum = filter_of(shape, a);
  const auto other = filter_of(shape, b);
  for (uint64_t w = 0; w < shape.words; ++w)
    sum[w] |= other[w];
  for (uint64_t w = 0; w < a.size(); ++w)
    a[w] |= b[w];
  EXPECT_EQ(sum, filter_of(shape, a));
}

TEST(Bloom, HoldsAsManyFalsePositionsAsPlannedAlsoOfPositionsInRows) {
  constexpr uint64_t kCount = 1 << 22;
  for (const uint64_t row : {1, 16, 64}) {
    for (const uint64_t keys : {640, 6400, 64000}) {
      double found = 0, planned = 0, told = 0;
      for (uint64_t seed = 0; seed < 8; ++seed) {
        const auto shape = BloomShape::plan(keys, kCount, 32, seed);
        std::vector<uint64_t> bitmap(words_for(kCount));
        for (uint64_t i = 0; i < keys; ++i) {
          const uint64_t begin = addend_random(seed, i / row) % (kCount / row) * row;
          set_bit(bitmap.data(), begin + i % row);
        }
        const auto filter = filter_of(shape, bitmap);
        const uint64_t held = popcount(found_in(shape, filter, bitmap.size()));
        found += static_cast<double>(held - popcount(bitmap));
        told += bloom_false(shape, popcount(filter), kCount, held);
        planned += std::ldexp(static_cast<double>(kCount), -static_cast<int>(shape.hashes));
      }
      EXPECT_NEAR(found / planned, 1, row == 64 ? 0.6 : 0.35) << row << " " << keys;
      EXPECT_NEAR(told / planned, 1, 0.35) << row << " " << keys;
    }
  }
}

TEST(Bloom, TellsFalsePositionsOfAnOverfullFilter) {
  constexpr uint64_t kCount = 1 << 20;
  for (const uint64_t keys : {300, 1000, 30000, 300000}) {
    const auto shape = BloomShape::plan(100, kCount, 32, 1);
    const auto bitmap = random_positions(4, keys, kCount);
    const auto filter = filter_of(shape, bitmap);
    const uint64_t held = popcount(found_in(shape, filter, bitmap.size()));
    const auto wrong = static_cast<double>(held - popcount(bitmap));
    const double told = bloom_false(shape, popcount(filter), kCount, held);
    EXPECT_LE(told, static_cast<double>(held));
    EXPECT_GE(told, 0.7 * wrong) << keys;
  }
}

TEST(Bloom, PlansStayInBoundsForAnyNumbers) {
  for (const uint64_t keys : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40, ~uint64_t{0}}) {
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 50}) {
      const auto shape = BloomShape::plan(keys, count, 64, 0);
      EXPECT_GE(shape.words, 1u);
      EXPECT_LE(shape.words, BloomShape::kMaxWords);
      EXPECT_GE(shape.hashes, 1u);
      EXPECT_LE(shape.hashes, BloomShape::kMaxHashes);
    }
  }
}

}  // namespace
}  // namespace addend::index
