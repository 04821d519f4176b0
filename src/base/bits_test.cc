// SPDX-License-Identifier: Apache-2.0
#include "base/bits.h"

#include <vector>

#include "gtest/gtest.h"

namespace addend {
namespace {

TEST(Bits, RangesReadAndWriteEveryAlignment) {
  for (uint64_t begin = 0; begin < 130; ++begin) {
    for (uint64_t bits = 1; bits <= 64; ++bits) {
      std::vector<uint64_t> words(words_for(begin + bits), 0);
      const uint64_t value = 0x9E3779B97F4A7C15ull & low_mask(bits);
      or_bits(words.data(), begin, bits, value);
      ASSERT_EQ(read_bits(words.data(), begin, bits), value) << begin << " " << bits;
      ASSERT_EQ(popcount(words), static_cast<uint64_t>(std::popcount(value)));
    }
  }
}

TEST(Bits, PopcountOfARangeCountsOnlyTheRange) {
  const std::vector<uint64_t> words(4, ~uint64_t{0});
  for (uint64_t begin = 0; begin < 256; begin += 7) {
    for (uint64_t end = begin; end <= 256; end += 5) {
      ASSERT_EQ(popcount_range(words.data(), begin, end), end - begin);
    }
  }
}

TEST(Bits, CeilLog2) {
  EXPECT_EQ(ceil_log2(1), 0u);
  EXPECT_EQ(ceil_log2(2), 1u);
  EXPECT_EQ(ceil_log2(3), 2u);
  EXPECT_EQ(ceil_log2(257), 9u);
}

TEST(Bits, VisitsSetBitsInOrder) {
  std::vector<uint64_t> seen;
  for_each_bit(0x8000000000000005ull, 64, [&](uint64_t i) { seen.push_back(i); });
  EXPECT_EQ(seen, (std::vector<uint64_t>{64, 66, 127}));
}

}  // namespace
}  // namespace addend
