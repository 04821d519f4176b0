// SPDX-License-Identifier: Apache-2.0
#include "codec/rows/union.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace addend {
namespace {

using Parts = std::vector<std::vector<int64_t>>;

void expect_union(const Parts& parts) {
  static RowUnion merged;  // one for all: nothing of the last union is left in the next
  const std::vector<std::span<const int64_t>> spans(parts.begin(), parts.end());
  merged.merge(spans);
  std::vector<int64_t> all;
  for (const auto& part : parts)
    all.insert(all.end(), part.begin(), part.end());
  std::vector<int64_t> expected = all;
  std::sort(expected.begin(), expected.end());
  expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
  ASSERT_EQ(std::vector<int64_t>(merged.rows().begin(), merged.rows().end()), expected);
  ASSERT_EQ(merged.places().size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(merged.rows()[merged.places()[i]], all[i]);
}

TEST(Rows, NothingGivesNothing) {
  expect_union({});
  expect_union({{}, {}});
}

TEST(Rows, AnyOrderAndDuplicates) {
  expect_union({{5, 1, 5}, {}, {1, 9}});
  expect_union({{7}});
  expect_union({{3, 3, 3}, {3}});
}

TEST(Rows, ExtremeNumbers) {
  constexpr int64_t kLow = INT64_MIN, kHigh = INT64_MAX;
  expect_union({{kHigh, 0, kLow}, {-1, 1, kHigh}});
}

TEST(Rows, RandomPartsOfEveryScale) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t span = int64_t{1} << (random() % 62);
    Parts parts(1 + random() % 5);
    for (auto& part : parts) {
      part.resize(random() % 200);
      for (int64_t& row : part)
        row = static_cast<int64_t>(random() % uint64_t(span)) - span / 3;
    }
    SCOPED_TRACE(trial);
    expect_union(parts);
  }
}

TEST(Rows, SumsInOrder) {
  std::mt19937_64 random(12);
  const uint64_t lanes = 7;
  const Parts parts = {{30, 10, 30}, {}, {20, 30}, {10}};
  const std::vector<uint64_t> places = {2, 0, 2, 1, 2};  // of all but the last part
  RowUnion merged;
  const std::vector<std::span<const int64_t>> spans(parts.begin(), parts.end());
  ASSERT_EQ(merged.merge(spans), 3u);
  std::vector<float> values(places.size() * lanes), total(3 * lanes, 99.0f);
  for (float& value : values)
    value = static_cast<float>(random() % 1000) * 1e-3f;
  std::vector<float> expected(total.size(), 0.0f);
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (uint64_t lane = 0; lane < lanes; ++lane) {
      expected[places[i] * lanes + lane] += values[i * lanes + lane];
    }
  }
  const void* of_parts[] = {values.data(), nullptr, values.data() + 3 * lanes, nullptr};
  merged.sum(RowElement::kF32, lanes, of_parts, total.data());
  EXPECT_EQ(total, expected);
}

}  // namespace
}  // namespace addend
