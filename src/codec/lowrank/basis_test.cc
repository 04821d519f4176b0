// SPDX-License-Identifier: Apache-2.0
#include "codec/lowrank/basis.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "wire/hash.h"

namespace addend::lowrank {
namespace {

float uniform(uint64_t seed, uint64_t i) {
  return static_cast<float>(static_cast<double>(addend_random(seed, i) >> 11) * 0x1p-52 - 1);
}

std::vector<float> random_columns(uint64_t length, uint64_t rank, float scale) {
  std::vector<float> data(length * rank);
  for (uint64_t i = 0; i < data.size(); ++i)
    data[i] = scale * uniform(3, i);
  return data;
}

double product(const Columns& columns, uint64_t a, uint64_t b) {
  double sum = 0;
  for (uint64_t i = 0; i < columns.length; ++i) {
    sum += static_cast<double>(columns.column(a)[i]) * static_cast<double>(columns.column(b)[i]);
  }
  return sum;
}

TEST(Basis, ColumnsBecomeOrthonormalWhateverTheirSize) {
  for (const uint64_t length : {9, 10, 257, 5000}) {
    for (const float scale : {1.0f, 1e-30f, 1e30f}) {
      std::vector<float> data = random_columns(length, 8, scale);
      for (uint64_t i = 0; i < length; ++i)  // nearly the same as the first
        data[3 * length + i] = data[i] + 1e-4f * data[3 * length + i];
      const Columns columns{data.data(), length, 8};
      ASSERT_TRUE(orthonormalise(columns));
      for (uint64_t a = 0; a < 8; ++a) {
        for (uint64_t b = 0; b <= a; ++b)
          EXPECT_NEAR(product(columns, a, b), a == b ? 1 : 0, 1e-6) << length << " " << scale;
      }
    }
  }
}

TEST(Basis, TheFirstColumnsSpanIsKept) {
  std::vector<float> data = random_columns(100, 2, 1);
  const std::vector<float> before = data;
  const Columns columns{data.data(), 100, 2};
  ASSERT_TRUE(orthonormalise(columns));
  std::vector<float> second(before.begin() + 100, before.end());
  Columns old{second.data(), 100, 1};
  double first_part = 0, second_part = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    first_part += static_cast<double>(columns.column(0)[i]) * static_cast<double>(second[i]);
    second_part += static_cast<double>(columns.column(1)[i]) * static_cast<double>(second[i]);
  }
  EXPECT_NEAR(first_part * first_part + second_part * second_part, product(old, 0, 0), 1e-4);
  EXPECT_GT(second_part, 0);
}

TEST(Basis, AColumnThatDependsOnEarlierOnesBecomesZero) {
  std::vector<float> data = random_columns(64, 3, 1);
  for (uint64_t i = 0; i < 64; ++i)
    data[128 + i] = 2 * data[i] - 3 * data[64 + i];
  const Columns columns{data.data(), 64, 3};
  ASSERT_TRUE(orthonormalise(columns));
  EXPECT_EQ(product(columns, 2, 2), 0);
  ASSERT_TRUE(complete(columns, 7));
  EXPECT_NEAR(product(columns, 2, 2), 1, 1e-6) << "drawn";
  EXPECT_NEAR(product(columns, 2, 0), 0, 1e-6);
}

TEST(Basis, AllZeroIsDrawnFromItsStream) {
  std::vector<float> a(300, 0.0f), b(300, 0.0f), c(300, 0.0f);
  ASSERT_TRUE(complete({a.data(), 100, 3}, 1));
  ASSERT_TRUE(complete({b.data(), 100, 3}, 1));
  ASSERT_TRUE(complete({c.data(), 100, 3}, 2));
  EXPECT_EQ(a, b);
  EXPECT_NE(a, c);
  EXPECT_NEAR(product({a.data(), 100, 3}, 1, 1), 1, 1e-6);
}

TEST(Basis, WhatIsNotFiniteIsRefusedAndLeftAsItWas) {
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
    for (const uint64_t where : {0, 63, 64, 191}) {
      std::vector<float> data = random_columns(64, 3, 1);
      data[where] = bad;
      const std::vector<float> before = data;
      EXPECT_FALSE(orthonormalise({data.data(), 64, 3}));
      data[where] = 0;
      std::vector<float> expected = before;
      expected[where] = 0;
      EXPECT_EQ(data, expected);
    }
  }
  std::vector<float> large(64, 3e38f);
  EXPECT_TRUE(orthonormalise({large.data(), 64, 1})) << "finite, though its square is not an f32";
}

}  // namespace
}  // namespace addend::lowrank
