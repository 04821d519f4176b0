// SPDX-License-Identifier: Apache-2.0
#include "mesh/rows.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace addend {
namespace {

using Parts = std::vector<std::vector<int64_t>>;

struct Merged {
  std::vector<int64_t> rows;
  std::vector<uint64_t> places;
};

Merged merge(const Parts& parts) {
  std::vector<std::span<const int64_t>> spans(parts.begin(), parts.end());
  std::size_t count = 0;
  for (const auto& part : parts)
    count += part.size();
  Merged merged{std::vector<int64_t>(count), std::vector<uint64_t>(count)};
  merged.rows.resize(merge_rows(spans, merged.rows.data(), merged.places.data()));
  return merged;
}

void expect_union(const Parts& parts) {
  const Merged merged = merge(parts);
  std::vector<int64_t> all;
  for (const auto& part : parts)
    all.insert(all.end(), part.begin(), part.end());
  std::vector<int64_t> expected = all;
  std::sort(expected.begin(), expected.end());
  expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
  ASSERT_EQ(merged.rows, expected);
  for (std::size_t i = 0; i < all.size(); ++i)
    ASSERT_EQ(merged.rows[merged.places[i]], all[i]);
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
  const std::vector<uint64_t> places = {2, 0, 2, 1, 2};
  std::vector<float> values(places.size() * lanes), total(3 * lanes, 0.0f);
  for (float& value : values)
    value = static_cast<float>(random() % 1000) * 1e-3f;
  std::vector<float> expected = total;
  for (std::size_t i = 0; i < places.size(); ++i) {
    for (uint64_t lane = 0; lane < lanes; ++lane) {
      expected[places[i] * lanes + lane] += values[i * lanes + lane];
    }
  }
  add_rows(Op::kSumF32, lanes, places, values.data(), total.data());
  EXPECT_EQ(total, expected);
}

}  // namespace
}  // namespace addend
