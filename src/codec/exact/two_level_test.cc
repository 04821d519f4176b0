// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/two_level.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "base/bits.h"
#include "wire/hash.h"

namespace addend::exact {
namespace {

using Bitmap = std::vector<uint64_t>;

// Blocks that are empty, full or partly set, at random but the same for a seed.
Bitmap blocky(uint64_t seed, uint64_t count, uint64_t block) {
  Bitmap bitmap(words_for(count));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t kind = addend_random(seed, i / block) % 4;
    const bool set = kind == 1 || (kind == 2 && addend_random(seed + 1, i) % 3 == 0);
    if (set) set_bit(bitmap.data(), i);
  }
  return bitmap;
}

void or_planes(const Plane& to, const Plane& from) {
  ASSERT_EQ(to.op, Op::kOrU64);
  ASSERT_EQ(to.lanes, from.lanes);
  for (uint64_t i = 0; i < to.lanes; ++i)
    static_cast<uint64_t*>(to.data)[i] |= static_cast<const uint64_t*>(from.data)[i];
}

// Folds all workers' planes into each of them.
void all_reduce(std::vector<TwoLevelIndex>& workers, Plane (TwoLevelIndex::*plane)()) {
  for (std::size_t w = 1; w < workers.size(); ++w)
    or_planes((workers[0].*plane)(), (workers[w].*plane)());
  for (std::size_t w = 1; w < workers.size(); ++w)
    or_planes((workers[w].*plane)(), (workers[0].*plane)());
}

void expect_union(const std::vector<Bitmap>& bitmaps, uint64_t count, uint64_t block) {
  Bitmap expected(words_for(count));
  for (const Bitmap& bitmap : bitmaps) {
    for (std::size_t w = 0; w < expected.size(); ++w)
      expected[w] |= bitmap[w];
  }
  std::vector<TwoLevelIndex> workers(bitmaps.size());
  for (std::size_t w = 0; w < workers.size(); ++w)
    ASSERT_TRUE(workers[w].set_blocks(bitmaps[w].data(), count, block));
  all_reduce(workers, &TwoLevelIndex::live_plane);
  all_reduce(workers, &TwoLevelIndex::partial_plane);
  for (std::size_t w = 0; w < workers.size(); ++w)
    ASSERT_TRUE(workers[w].set_elements(bitmaps[w].data()));
  all_reduce(workers, &TwoLevelIndex::element_plane);
  for (TwoLevelIndex& worker : workers) {
    Bitmap written(words_for(count) + 1, 0x5555);
    worker.write_union(written.data());
    ASSERT_EQ(written.back(), 0x5555u) << "wrote past the bitmap";
    written.pop_back();
    ASSERT_EQ(written, expected) << count << " elements in blocks of " << block;
  }
}

TEST(TwoLevelIndex, GivesTheUnionForEveryBlockSize) {
  for (uint64_t block = 1; block <= 200; ++block) {
    for (const uint64_t count : {uint64_t{1}, uint64_t{63}, uint64_t{64}, uint64_t{65}, 5 * block,
                                 5 * block + 1, 3 * block - 1 + block / 2, uint64_t{1009}}) {
      if (count == 0) continue;
      expect_union({blocky(block, count, block), blocky(block + 500, count, block),
                    blocky(block + 900, count, block)},
                   count, block);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TwoLevelIndex, GivesTheUnionWhenWorkersAreEmptyOrFull) {
  for (const uint64_t count : {1, 64, 100, 640, 1000}) {
    const Bitmap none(words_for(count));
    Bitmap all(words_for(count), ~uint64_t{0});
    if (count % 64 != 0) all.back() = low_mask(count % 64);
    for (const uint64_t block : {1, 7, 64, 100, 5000}) {
      expect_union({none}, count, block);
      expect_union({all}, count, block);
      expect_union({none, all}, count, block);
      expect_union({blocky(1, count, 10), all, none}, count, block);
    }
  }
}

TEST(TwoLevelIndex, SendsNoElementBitsWhenLiveBlocksAreFull) {
  const uint64_t count = 64 * 30 + 5;
  Bitmap rows(words_for(count));
  for (const uint64_t row : {3, 4, 17})
    rows[row] = ~uint64_t{0};
  rows[30] = low_mask(5);  // the short last block, full as well
  TwoLevelIndex index;
  ASSERT_TRUE(index.set_blocks(rows.data(), count, 64));
  EXPECT_EQ(index.live_plane().lanes, 1u);
  EXPECT_EQ(popcount({static_cast<uint64_t*>(index.partial_plane().data), 1}), 0u);
  ASSERT_TRUE(index.set_elements(rows.data()));
  EXPECT_EQ(index.live_blocks(), 4u);
  EXPECT_EQ(index.element_plane().lanes, 0u);
}

TEST(TwoLevelIndex, SendsBitsOfPartialBlocksOnly) {
  const uint64_t count = 100 * 50;
  Bitmap bitmap(words_for(count));
  for (uint64_t i = 100; i < 200; ++i)
    set_bit(bitmap.data(), i);
  set_bit(bitmap.data(), 4999);
  TwoLevelIndex index;
  ASSERT_TRUE(index.set_blocks(bitmap.data(), count, 100));
  ASSERT_TRUE(index.set_elements(bitmap.data()));
  EXPECT_EQ(index.live_blocks(), 2u);
  const Plane elements = index.element_plane();
  ASSERT_EQ(elements.lanes, 2u);
  const auto* words = static_cast<const uint64_t*>(elements.data);
  EXPECT_EQ(words[0], 0u);
  EXPECT_EQ(words[1], uint64_t{1} << 35);
}

// A peer that breaks the rules must not make anyone write outside the bitmap.
TEST(TwoLevelIndex, StaysInsideTheBitmapWhateverThePlanesHold) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const uint64_t count = 1 + addend_random(seed, 0) % 700;
    const uint64_t block = 1 + addend_random(seed, 1) % 200;
    const Bitmap local = blocky(seed, count, block);
    TwoLevelIndex index;
    ASSERT_TRUE(index.set_blocks(local.data(), count, block));
    uint64_t next = 2;
    const auto scramble = [&](const Plane& plane) {
      for (uint64_t i = 0; i < plane.lanes; ++i)
        static_cast<uint64_t*>(plane.data)[i] = addend_random(seed, next++);
    };
    scramble(index.live_plane());
    scramble(index.partial_plane());
    ASSERT_TRUE(index.set_elements(local.data()));
    ASSERT_LE(index.element_plane().lanes, words_for(count));
    scramble(index.element_plane());
    Bitmap written(words_for(count) + 1, 0x5555);
    index.write_union(written.data());
    ASSERT_EQ(written.back(), 0x5555u);
    if (count % 64 != 0) {
      ASSERT_EQ(written[count / 64] & ~low_mask(count % 64), 0u) << "seed " << seed;
    }
  }
}

TEST(TwoLevelIndex, KeepsItsMemory) {
  TwoLevelIndex index;
  uint64_t bytes = 0;
  for (int step = 0; step < 4; ++step) {
    const Bitmap bitmap = blocky(7, 5000, 50);
    ASSERT_TRUE(index.set_blocks(bitmap.data(), 5000, 50));
    ASSERT_TRUE(index.set_elements(bitmap.data()));
    if (step == 0) bytes = index.memory_bytes();
    EXPECT_EQ(index.memory_bytes(), bytes);
  }
}

}  // namespace
}  // namespace addend::exact
