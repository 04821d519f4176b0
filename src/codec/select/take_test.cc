// SPDX-License-Identifier: Apache-2.0
#include "codec/select/take.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "addend/simd.h"
#include "base/bits.h"
#include "base/buffer.h"
#include "wire/element.h"
#include "wire/hash.h"

namespace addend::select {
namespace {

constexpr uint64_t kCount = 5003;
constexpr float kNothing = 12345;

// What a pass writes, over what was there before.
struct Written {
  explicit Written(const std::vector<uint64_t>& marked)
      : bitmap(marked), values(kCount + kSpare, kNothing), places(kCount + kSpare) {
    EXPECT_TRUE(left.reserve(kCount * 4));  // streams want whole vectors
    std::fill_n(left.as<float>(), kCount, kNothing);
  }
  Taking taking(uint64_t begin, uint64_t end, bool stream) {
    return {begin, end, left.as<float>(), bitmap.data(), values.data(), stream, places.data()};
  }
  std::vector<uint64_t> bitmap;
  std::vector<float> values;
  std::vector<uint16_t> places;
  Buffer left;
};

bool same(float a, float b) {
  return addend_f32_bits(a) == addend_f32_bits(b) || (std::isnan(a) && std::isnan(b));
}

void expect_same(const Written& found, const Written& expected, uint64_t taken,
                 const std::string& what) {
  EXPECT_EQ(found.bitmap, expected.bitmap) << what;
  for (uint64_t j = 0; j < taken; ++j)
    ASSERT_TRUE(same(found.values[j], expected.values[j])) << what << " value " << j;
  for (uint64_t i = 0; i < kCount; ++i)
    ASSERT_TRUE(same(found.left.as<float>()[i], expected.left.as<float>()[i])) << what << " " << i;
}

class Take : public testing::TestWithParam<DType> {
 protected:
  Take() : gradient_(kCount * 4), residual_(kCount), marked_(words_for(kCount), 0) {
    for (uint64_t i = 0; i < kCount; ++i) {
      const auto x = static_cast<float>(static_cast<int32_t>(addend_random(1, i))) * 0x1p-31f;
      store_float(GetParam(), gradient_.data(), i, i == 777 ? HUGE_VALF : x * x * x);
      residual_[i] = static_cast<float>(static_cast<int32_t>(addend_random(2, i))) * 0x1p-33f;
      if (addend_random(3, i) % 20 == 0) set_bit(marked_.data(), i);
    }
  }
  Addends addends() const { return {GetParam(), gradient_.data(), residual_.data()}; }

  std::vector<uint8_t> gradient_;
  std::vector<float> residual_;
  std::vector<uint64_t> marked_;
};

// Ranges that begin and end inside words of the bitmap, and thresholds from nearly all to nearly
// none.
TEST_P(Take, WritesTheSameOnEveryTarget) {
  const std::vector<uint64_t> none(words_for(kCount), 0);
  for (const auto& [begin, end] : {std::pair{uint64_t{0}, kCount}, {65, 4990}, {70, 100}}) {
    for (const float least : {1e-6f, 0.3f, 0.9f}) {
      ASSERT_TRUE(force_simd_target("scalar"));
      Written expected(none);
      const uint64_t taken =
          take_large(addends(), addend_f32_bits(least), expected.taking(begin, end, false));
      for (uint64_t i = begin; i < end; ++i) {
        const float e = load_float(GetParam(), gradient_.data(), i) + residual_[i];
        ASSERT_EQ(test_bit(expected.bitmap.data(), i), std::fabs(e) >= least);
        ASSERT_TRUE(same(expected.left.as<float>()[i], std::fabs(e) >= least ? 0.0f : e));
      }
      for (uint64_t j = 0; j < taken; ++j) {
        const uint64_t i = begin + expected.places[j];
        const float e = load_float(GetParam(), gradient_.data(), i) + residual_[i];
        ASSERT_TRUE(same(expected.values[j], e));
        ASSERT_TRUE(j == 0 || expected.places[j - 1] < expected.places[j]);
      }
      for (const std::string& target : simd_targets()) {
        ASSERT_TRUE(force_simd_target(target));
        Written found(none);
        const bool stream = least > 0.5f;
        ASSERT_EQ(take_large(addends(), addend_f32_bits(least), found.taking(begin, end, stream)),
                  taken);
        expect_same(found, expected, taken, target);
        ASSERT_TRUE(
            std::equal(found.places.begin(), found.places.begin() + taken, expected.places.begin()))
            << target;
      }
    }
  }
  ASSERT_TRUE(force_simd_target(""));
}

TEST_P(Take, TakesWhatIsMarkedAndSeesWhatIsNotFinite) {
  for (const auto& [begin, end] : {std::pair{uint64_t{0}, kCount}, {800, 4990}, {700, 776}}) {
    ASSERT_TRUE(force_simd_target("scalar"));
    Written expected(marked_);
    bool finite = false;
    const uint64_t taken = take_marked(addends(), expected.taking(begin, end, false), &finite);
    EXPECT_EQ(taken, popcount_range(marked_.data(), begin, end));
    EXPECT_EQ(finite, begin > 0);
    for (const std::string& target : simd_targets()) {
      ASSERT_TRUE(force_simd_target(target));
      Written found(marked_);
      bool seen = false;
      ASSERT_EQ(take_marked(addends(), found.taking(begin, end, true), &seen), taken);
      EXPECT_EQ(seen, finite) << target;
      expect_same(found, expected, taken, target);
    }
  }
  ASSERT_TRUE(force_simd_target(""));
}

INSTANTIATE_TEST_SUITE_P(Types, Take, testing::Values(DType::kF32, DType::kBf16, DType::kF16));

}  // namespace
}  // namespace addend::select
