// SPDX-License-Identifier: Apache-2.0
#include "codec/lowrank/kernels.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "addend/simd.h"
#include "codec/lowrank/kernels_reference.h"
#include "gtest/gtest.h"
#include "wire/hash.h"

namespace addend::lowrank {
namespace {

constexpr uint64_t kCounts[] = {1, 3, 15, 16, 17, 33, 100, 2047, 2048};
constexpr uint64_t kRanks[] = {1, 2, 3, 4, 5, 8, 11};

// Numbers of many magnitudes: the order of addition shows in their sums.
std::vector<float> numbers(uint64_t seed, uint64_t count) {
  std::vector<float> made(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t draw = addend_random(seed, i);
    made[i] = std::ldexp(static_cast<float>(draw >> 40) * 0x1p-23f - 1, static_cast<int>(draw % 9));
  }
  return made;
}

struct Input {
  explicit Input(uint64_t count, uint64_t rank)
      : gradient(numbers(1, kRows * count)),
        residual(numbers(2, kRows * count)),
        columns(numbers(3, rank * (count + 5))),
        others(numbers(4, rank * (count + 5))),
        weights(numbers(5, kRows * rank)),
        factor{columns.data(), count + 5, rank} {
    for (uint64_t r = 0; r < kRows; ++r)
      rows[r] = {gradient.data() + r * count, residual.data() + r * count};
  }
  std::vector<float> gradient, residual, columns, others, weights;
  Factor<float> factor;
  Row rows[kRows];
};

class LowrankOnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_simd_target(GetParam())); }
  void TearDown() override { ASSERT_TRUE(force_simd_target("")); }
};

TEST_P(LowrankOnTarget, ARowTimesColumnsHasTheReferencesBits) {
  for (const uint64_t count : kCounts) {
    for (const uint64_t rank : kRanks) {
      const Input in(count, rank);
      const Factor<const float> columns{in.columns.data(), in.factor.stride, rank};
      std::vector<float> products(rank), expected(rank);
      multiply_row(in.rows[1], count, columns, products.data());
      reference::multiply_row(in.rows[1], count, columns, expected.data());
      ASSERT_EQ(products, expected) << count << " rank " << rank;
    }
  }
}

TEST_P(LowrankOnTarget, RowsAddedToColumnsHaveTheReferencesBits) {
  for (const uint64_t count : kCounts) {
    for (const uint64_t rank : kRanks) {
      for (uint64_t rows = 1; rows <= kRows; ++rows) {
        Input in(count, rank), expected(count, rank);
        add_rows(in.rows, rows, count, in.weights.data(), in.factor);
        reference::add_rows(expected.rows, rows, 0, count, expected.weights.data(),
                            expected.factor);
        ASSERT_EQ(in.columns, expected.columns) << count << " rank " << rank << " rows " << rows;
      }
    }
  }
}

// Also where residual and result replace what they are made of.
TEST_P(LowrankOnTarget, ASplitRowHasTheReferencesBits) {
  for (const uint64_t count : kCounts) {
    for (const uint64_t rank : kRanks) {
      Input in(count, rank), other(count, rank);
      in.gradient[0] = other.gradient[0] = std::numeric_limits<float>::max();
      in.residual[0] = other.residual[0] = std::numeric_limits<float>::max();
      const auto split_of = [&](Input& from) {
        return Split{from.weights.data(),
                     from.weights.data() + rank,
                     {from.columns.data(), count + 5, rank},
                     {from.others.data(), count + 5, rank},
                     from.residual.data(),
                     from.gradient.data()};
      };
      split_row(in.rows[0], count, split_of(in));
      reference::split_row(other.rows[0], 0, count, split_of(other));
      ASSERT_EQ(in.gradient, other.gradient) << count << " rank " << rank;
      ASSERT_EQ(in.residual, other.residual) << count << " rank " << rank;
      ASSERT_EQ(in.residual[0], 0) << "not finite";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LowrankOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& suite) { return suite.param; });

}  // namespace
}  // namespace addend::lowrank
