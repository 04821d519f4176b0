// SPDX-License-Identifier: Apache-2.0
// Sums of snapshots whose union stays within the plan's capacity decode, whatever joined later and
// whatever the seed. Positions and seeds are numbers of fixed streams, so a run always gives the
// same answer.
#include <algorithm>
#include <cstdio>
#include <vector>

#include <gtest/gtest.h>

#include "addend/fold.h"
#include "addend/snapshot.h"
#include "wire/hash.h"

namespace addend {
namespace {

using Gradient = std::vector<float>;

GradientView view(const Gradient& gradient) {
  return {gradient.data(), gradient.size(), DType::kF32};
}

// `keys` distinct positions below `count`, in the order of a stream.
std::vector<uint64_t> positions(uint64_t count, uint64_t keys, uint64_t seed) {
  std::vector<bool> taken(count);
  std::vector<uint64_t> all;
  for (uint64_t i = 0; all.size() < keys; ++i) {
    const uint64_t position = addend_random(seed, i) % count;
    if (taken[position]) continue;
    taken[position] = true;
    all.push_back(position);
  }
  return all;
}

// A gradient that is known when the plan is made and one that joins later, with no position in
// common; together they fill the plan to the last key.
struct Pair {
  Gradient known, later;

  Pair(uint64_t count, uint64_t known_keys, uint64_t later_keys, uint64_t seed)
      : known(count), later(count) {
    const auto all = positions(count, known_keys + later_keys, seed);
    for (uint64_t i = 0; i < all.size(); ++i)
      (i < known_keys ? known : later)[all[i]] = 1 + static_cast<float>(i % 1000);
  }
};

Result<Gradient> packed_and_unpacked(const Pair& pair, uint64_t capacity, uint64_t seed) {
  SnapshotOptions options;
  options.seed = seed;
  const auto known = static_cast<uint64_t>(
      std::count_if(pair.known.begin(), pair.known.end(), [](float x) { return x != 0; }));
  options.spare = static_cast<double>(capacity - known) / static_cast<double>(known);
  const GradientView set[] = {view(pair.known)};
  const auto plan = plan_snapshots(set, options);
  ADDEND_TRY(plan);
  EXPECT_EQ(plan->capacity, capacity);
  auto sum = encode_snapshot(*plan, view(pair.known));
  ADDEND_TRY(sum);
  const auto other = encode_snapshot(*plan, view(pair.later));
  ADDEND_TRY(other);
  for (std::size_t p = 0; p < sum->planes.size; ++p)
    ADDEND_TRY(fold(sum->planes.planes[p], other->planes.planes[p]));
  Gradient out(pair.known.size());
  ADDEND_TRY(decode_snapshot(*plan, *sum, out.data()));
  return out;
}

// How many of `seeds` plans fail to give the sum back.
int failures(const Pair& pair, uint64_t capacity, int seeds) {
  int failed = 0;
  for (int seed = 1; seed <= seeds; ++seed) {
    const auto out = packed_and_unpacked(pair, capacity, static_cast<uint64_t>(seed));
    bool right = out.has_value();
    for (std::size_t i = 0; right && i < out->size(); ++i)
      right = (*out)[i] == pair.known[i] + pair.later[i];
    if (!right && failed++ == 0 && !out) std::printf("  %s\n", out.error().message.c_str());
  }
  std::printf("  %lu keys: %d of %d seeds failed\n", static_cast<unsigned long>(capacity), failed,
              seeds);
  return failed;
}

TEST(SnapshotCapacity, IsThereForAnyUnionOfFewKeys) {
  EXPECT_EQ(failures(Pair(64, 1, 1, 1), 2, 5000), 0);
  EXPECT_EQ(failures(Pair(200, 5, 5, 2), 10, 5000), 0);
  EXPECT_EQ(failures(Pair(1000, 30, 70, 3), 100, 2000), 0);
  EXPECT_EQ(failures(Pair(5000, 500, 500, 4), 1000, 400), 0);
  EXPECT_EQ(failures(Pair(9000, 4000, 4000, 5), 8000, 50), 0);
}

TEST(SnapshotCapacity, IsThereForAnyUnionOfManyKeys) {
  EXPECT_EQ(failures(Pair(400000, 75000, 25000, 6), 100000, 10), 0);
  EXPECT_EQ(failures(Pair(8000000, 1500000, 500000, 7), 2000000, 2), 0);
}

}  // namespace
}  // namespace addend
