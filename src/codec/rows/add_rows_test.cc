// SPDX-License-Identifier: Apache-2.0
#include "codec/rows/add_rows.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "addend/simd.h"
#include "wire/element.h"

namespace addend {
namespace {

constexpr RowElement kFloats[] = {RowElement::kF32, RowElement::kBf16, RowElement::kF16};

// Finite, of all magnitudes that bf16 and f16 have, subnormals too.
std::vector<uint8_t> floats(RowElement element, uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> made(count * row_element_bytes(element));
  for (uint64_t i = 0; i < count; ++i) {
    const double mantissa = static_cast<double>(random()) * 0x1p-63 - 1;
    store_float(static_cast<DType>(element), made.data(), i,
                static_cast<float>(std::ldexp(mantissa, static_cast<int>(random() % 36) - 24)));
  }
  return made;
}

class AddRowsOnTarget : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_simd_target(GetParam())); }
  void TearDown() override { ASSERT_TRUE(force_simd_target("")); }
};

TEST_P(AddRowsOnTarget, HasTheBitsOfTheSpecification) {
  const std::vector<uint64_t> places = {2, 0, 2, 4, 2};
  for (const RowElement element : kFloats) {
    const auto dtype = static_cast<DType>(element);
    for (const uint64_t width : {0u, 1u, 3u, 8u, 16u, 37u, 64u, 131u}) {
      const auto from = floats(element, places.size() * width, width + 1);
      auto sums = floats(element, 5 * width, width + 2), expected = sums;
      for (std::size_t row = 0; row < places.size(); ++row) {
        for (uint64_t i = 0; i < width; ++i) {
          const uint64_t at = places[row] * width + i;
          const float added = load_float(dtype, from.data(), row * width + i);
          store_float(dtype, expected.data(), at, load_float(dtype, expected.data(), at) + added);
        }
      }
      add_rows(element, width, places, from.data(), sums.data());
      EXPECT_EQ(sums, expected) << dtype_name(dtype) << " " << width;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AddRowsOnTarget, ::testing::ValuesIn(simd_targets()),
                         [](const auto& target) { return target.param; });

template <typename T>
void expect_sum(RowElement element, T a, T b, T sum) {
  const uint64_t places[] = {1, 1};
  const T from[] = {a, b};
  T to[] = {7, 0, 7};
  add_rows(element, 1, places, from, to);
  EXPECT_EQ(to[0], 7);
  EXPECT_EQ(to[1], sum);
  EXPECT_EQ(to[2], 7);
}

TEST(AddRows, IntegersWrapAndDoublesAreDoubles) {
  expect_sum<int64_t>(RowElement::kI64, INT64_MAX, 1, INT64_MIN);
  expect_sum<int32_t>(RowElement::kI32, INT32_MAX, 1, INT32_MIN);
  expect_sum<int8_t>(RowElement::kI8, 127, 1, -128);
  expect_sum<uint8_t>(RowElement::kU8, 200, 100, 44);
  expect_sum<double>(RowElement::kF64, 1, 0x1p-50, 1 + 0x1p-50);
}

}  // namespace
}  // namespace addend
