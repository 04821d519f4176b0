// SPDX-License-Identifier: Apache-2.0
#include "codec/index/scan_blocks.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "addend/simd.h"
#include "base/bits.h"
#include "codec/index/kernels_reference.h"
#include "wire/hash.h"

namespace addend::index {
namespace {

template <typename T>
constexpr T kMinusZero = static_cast<T>(T{1} << (8 * sizeof(T) - 1));

// Stretches of `row` elements that are zero, non-zero or mixed, some with -0.0 among the zeros.
template <typename T>
std::vector<T> rows(uint64_t seed, uint64_t count, uint64_t row) {
  std::vector<T> gradient(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t kind = addend_random(seed, i / row) % 8;
    const uint64_t random = addend_random(seed + 1, i);
    const bool set = kind == 1 || (kind == 2 && random % 3 == 0);
    gradient[i] = set                             ? static_cast<T>(random >> 32 | 2)
                  : kind == 3 && random % 50 == 0 ? kMinusZero<T>
                                                  : T{0};
  }
  return gradient;
}

class ScanBlocksOnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_simd_target(GetParam())); }
  void TearDown() override { ASSERT_TRUE(force_simd_target("")); }

  template <typename T>
  static void check(const std::vector<T>& gradient, uint64_t offset, uint64_t block) {
    const uint64_t count = gradient.size() - offset;
    const uint64_t words = words_for(ceil_div(count, block));
    std::vector<uint64_t> live(words), partial(words);
    const BlockScan expected =
        reference::scan_blocks(gradient.data() + offset, count, block, live.data(), partial.data());
    constexpr uint64_t kCanary = 0xA5A5;
    std::vector<uint64_t> actual_live(words + 1, kCanary), actual_partial(words + 1, kCanary);
    const BlockScan actual = scan_blocks(sizeof(T), gradient.data() + offset, count, block,
                                         actual_live.data(), actual_partial.data());
    ASSERT_EQ(actual.nonzeros, expected.nonzeros);
    ASSERT_EQ(actual.negative_zeros, expected.negative_zeros);
    live.push_back(kCanary);
    partial.push_back(kCanary);
    ASSERT_EQ(actual_live, live);
    ASSERT_EQ(actual_partial, partial);
  }

  template <typename T>
  static void check_all() {
    for (const uint64_t block : {1, 2, 7, 15, 16, 17, 31, 33, 63, 64, 65, 100, 128, 256, 5000}) {
      for (const uint64_t count : {0, 1, 15, 63, 64, 65, 129, 1000, 4099}) {
        for (const uint64_t row : {uint64_t{1}, uint64_t{10}, block}) {
          SCOPED_TRACE(std::to_string(count) + " in blocks of " + std::to_string(block) +
                       ", rows of " + std::to_string(row));
          for (const uint64_t offset : {0, 1}) {
            check(rows<T>(count + block + row, count + offset, row), offset, block);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
};

TEST_P(ScanBlocksOnTarget, EqualsTheReferenceOnFourByteElements) { check_all<uint32_t>(); }

TEST_P(ScanBlocksOnTarget, EqualsTheReferenceOnTwoByteElements) { check_all<uint16_t>(); }

TEST_P(ScanBlocksOnTarget, FindsTheOneElementThatIsNotZeroWhereverItStands) {
  for (const uint64_t block : {3, 64, 100}) {
    for (uint64_t i = 0; i < 333; ++i) {
      std::vector<uint32_t> gradient(333);
      std::vector<uint64_t> live(2), partial(2), expected(2);
      gradient[i] = 0x7FC00000u;  // NaN
      set_bit(expected.data(), i / block);
      const BlockScan found =
          scan_blocks(4, gradient.data(), 333, block, live.data(), partial.data());
      ASSERT_EQ(found.nonzeros, 1u);
      ASSERT_FALSE(found.negative_zeros);
      ASSERT_EQ(live, expected) << i;
      ASSERT_EQ(partial, expected) << i;
      gradient[i] = kMinusZero<uint32_t>;
      ASSERT_TRUE(
          scan_blocks(4, gradient.data(), 333, block, live.data(), partial.data()).negative_zeros);
      ASSERT_EQ(live, std::vector<uint64_t>(2)) << "-0.0 is zero";
    }
  }
}

// Live blocks are written as a whole, so a -0.0 matters only where nothing is.
TEST_P(ScanBlocksOnTarget, DoesNotMindANegativeZeroInALiveBlock) {
  std::vector<uint32_t> gradient(200);
  std::vector<uint64_t> live(1), partial(1);
  gradient[70] = kMinusZero<uint32_t>;
  gradient[100] = 1;
  EXPECT_FALSE(
      scan_blocks(4, gradient.data(), 200, 64, live.data(), partial.data()).negative_zeros);
  EXPECT_EQ(live[0], 2u);
  EXPECT_EQ(partial[0], 2u);
}

INSTANTIATE_TEST_SUITE_P(All, ScanBlocksOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace addend::index
