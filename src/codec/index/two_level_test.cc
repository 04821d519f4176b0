// SPDX-License-Identifier: Apache-2.0
#include "codec/index/two_level.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "base/bits.h"
#include "base/buffer.h"
#include "wire/hash.h"

namespace addend::index {
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

// A gradient with these non-zeros; some of its zeros are -0.0.
template <typename T>
std::vector<T> gradient_of(const Bitmap& bitmap, uint64_t count) {
  constexpr T kMinusZero = static_cast<T>(T{1} << (8 * sizeof(T) - 1));
  std::vector<T> gradient(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t random = addend_random(77, i);
    gradient[i] = test_bit(bitmap.data(), i) ? static_cast<T>(random | 1)
                  : random % 8 == 0          ? kMinusZero
                                             : T{0};
  }
  return gradient;
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

// Values of the union out of the gradient and back into one that holds `before` outside it.
template <typename T>
void expect_round_trip(const TwoLevelIndex& index, const Bitmap& all, const std::vector<T>& from,
                       Outside outside) {
  std::vector<T> expected_values, expected(from.size()), to(from.size() + 1, T{0x55});
  for (uint64_t i = 0; i < from.size(); ++i) {
    if (test_bit(all.data(), i)) {
      expected_values.push_back(from[i]);
      expected[i] = from[i];
    } else if (outside == Outside::kZeros) {
      to[i] = 0;
    }
  }
  std::vector<T> values(expected_values.size() + Buffer::kSlack / sizeof(T));
  index.pack_values(from.data(), values.data());
  ASSERT_TRUE(std::equal(expected_values.begin(), expected_values.end(), values.begin()));
  index.unpack_values(values.data(), outside, to.data());
  ASSERT_EQ(to.back(), T{0x55}) << "wrote past the gradient";
  to.pop_back();
  ASSERT_EQ(to, expected);
}

template <typename T>
void expect_union_of(const std::vector<Bitmap>& bitmaps, uint64_t count, uint64_t block) {
  Bitmap expected(words_for(count));
  std::vector<std::vector<T>> gradients;
  for (const Bitmap& bitmap : bitmaps) {
    gradients.push_back(gradient_of<T>(bitmap, count));
    for (std::size_t w = 0; w < expected.size(); ++w)
      expected[w] |= bitmap[w];
  }
  std::vector<TwoLevelIndex> workers(bitmaps.size());
  for (std::size_t w = 0; w < workers.size(); ++w) {
    ASSERT_TRUE(workers[w].set_blocks(sizeof(T), {gradients[w].data()}, count, block));
    ASSERT_EQ(workers[w].local().nonzeros, popcount(bitmaps[w]));
  }
  all_reduce(workers, &TwoLevelIndex::live_plane);
  all_reduce(workers, &TwoLevelIndex::partial_plane);
  for (std::size_t w = 0; w < workers.size(); ++w)
    ASSERT_TRUE(workers[w].set_elements({gradients[w].data()}));
  all_reduce(workers, &TwoLevelIndex::element_plane);
  for (std::size_t w = 0; w < workers.size(); ++w) {
    ASSERT_EQ(workers[w].count_union(), popcount(expected));
    ASSERT_TRUE(workers[w].holds_local());
    Bitmap written(words_for(count) + 1, 0x5555);
    workers[w].write_union(written.data());
    ASSERT_EQ(written.back(), 0x5555u) << "wrote past the bitmap";
    written.pop_back();
    ASSERT_EQ(written, expected) << count << " elements in blocks of " << block;
    expect_round_trip(workers[w], expected, gradients[w], Outside::kZeros);
    expect_round_trip(workers[w], expected, gradients[w], Outside::kAnything);
  }
}

void expect_union(const std::vector<Bitmap>& bitmaps, uint64_t count, uint64_t block) {
  expect_union_of<uint32_t>(bitmaps, count, block);
  expect_union_of<uint16_t>(bitmaps, count, block);
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
  const auto gradient = gradient_of<uint32_t>(rows, count);
  TwoLevelIndex index;
  ASSERT_TRUE(index.set_blocks(4, {gradient.data()}, count, 64));
  EXPECT_EQ(index.live_plane().lanes, 1u);
  EXPECT_EQ(popcount({static_cast<uint64_t*>(index.partial_plane().data), 1}), 0u);
  ASSERT_TRUE(index.set_elements({gradient.data()}));
  EXPECT_EQ(index.live_blocks(), 4u);
  EXPECT_EQ(index.element_plane().lanes, 0u);
}

TEST(TwoLevelIndex, SendsBitsOfPartialBlocksOnly) {
  const uint64_t count = 100 * 50;
  Bitmap bitmap(words_for(count));
  for (uint64_t i = 100; i < 200; ++i)
    set_bit(bitmap.data(), i);
  set_bit(bitmap.data(), 4999);
  const auto gradient = gradient_of<uint32_t>(bitmap, count);
  TwoLevelIndex index;
  ASSERT_TRUE(index.set_blocks(4, {gradient.data()}, count, 100));
  ASSERT_TRUE(index.set_elements({gradient.data()}));
  EXPECT_EQ(index.live_blocks(), 2u);
  const Plane elements = index.element_plane();
  ASSERT_EQ(elements.lanes, 2u);
  const auto* words = static_cast<const uint64_t*>(elements.data);
  EXPECT_EQ(words[0], 0u);
  EXPECT_EQ(words[1], uint64_t{1} << 35);
}

// Whoever knows the non-zeros need not have a gradient: planes and union are the same.
TEST(TwoLevelIndex, ABitmapOfNonZerosMakesTheSamePlanes) {
  const auto words = [](const Plane& plane) {
    const auto* data = static_cast<const uint64_t*>(plane.data);
    return Bitmap(data, data + plane.lanes);
  };
  for (const uint64_t block : {1, 50, 64, 128, 300}) {
    for (const uint64_t count : {1, 64, 4999, 300000}) {
      const Bitmap bitmap = blocky(3 * block, count, block);
      const auto gradient = gradient_of<uint32_t>(bitmap, count);
      TwoLevelIndex expected, found;
      ASSERT_TRUE(expected.set_blocks(4, {gradient.data()}, count, block));
      ASSERT_TRUE(found.set_blocks(4, {nullptr, bitmap.data()}, count, block));
      EXPECT_EQ(found.local().nonzeros, expected.local().nonzeros);
      ASSERT_EQ(words(found.live_plane()), words(expected.live_plane())) << block << " " << count;
      ASSERT_EQ(words(found.partial_plane()), words(expected.partial_plane())) << block;
      ASSERT_TRUE(expected.set_elements({gradient.data()}));
      ASSERT_TRUE(found.set_elements({nullptr, bitmap.data()}));
      ASSERT_EQ(words(found.element_plane()), words(expected.element_plane())) << block;
      EXPECT_EQ(found.live_blocks(), expected.live_blocks());
      EXPECT_EQ(found.count_union(), popcount(bitmap));
      Bitmap written(bitmap.size(), ~uint64_t{0});
      found.write_union(written.data());
      ASSERT_EQ(written, bitmap) << block << " " << count;
    }
  }
}

// A peer that breaks the rules must not make anyone write outside the bitmap.
TEST(TwoLevelIndex, StaysInsideTheBitmapWhateverThePlanesHold) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const uint64_t count = 1 + addend_random(seed, 0) % 700;
    const uint64_t block = 1 + addend_random(seed, 1) % 200;
    const auto gradient = gradient_of<uint16_t>(blocky(seed, count, block), count);
    TwoLevelIndex index;
    ASSERT_TRUE(index.set_blocks(2, {gradient.data()}, count, block));
    uint64_t next = 2;
    const auto scramble = [&](const Plane& plane) {
      for (uint64_t i = 0; i < plane.lanes; ++i)
        static_cast<uint64_t*>(plane.data)[i] = addend_random(seed, next++);
    };
    scramble(index.live_plane());
    scramble(index.partial_plane());
    ASSERT_TRUE(index.set_elements({gradient.data()}));
    ASSERT_LE(index.element_plane().lanes, words_for(count));
    scramble(index.element_plane());
    Bitmap written(words_for(count) + 1, 0x5555);
    index.write_union(written.data());
    ASSERT_EQ(written.back(), 0x5555u);
    if (count % 64 != 0) {
      ASSERT_EQ(written[count / 64] & ~low_mask(count % 64), 0u) << "seed " << seed;
    }
    written.pop_back();
    ASSERT_EQ(index.count_union(), popcount(written)) << "seed " << seed;
    expect_round_trip(index, written, gradient, Outside::kAnything);
  }
}

TEST(TwoLevelIndex, TakesRunsThatAreLongerThanAPiece) {
  const uint64_t count = 300 * 64 + 17;
  const Bitmap all = blocky(4, count, count);  // one kind of block: partial throughout
  ASSERT_GT(popcount(all), 0u);
  ASSERT_LT(popcount(all), count);
  for (const uint64_t block : {64, 100, 20000})
    expect_union({all, blocky(5, count, 640)}, count, block);
}

TEST(TwoLevelIndex, NoticesEveryBitOfItsOwnThatIsLost) {
  const uint64_t count = 640;
  const auto gradient = gradient_of<uint32_t>(blocky(3, count, 64), count);
  uint64_t lost = 0;
  for (const bool elements : {false, true}) {
    for (uint64_t bit = 0; bit < count; ++bit) {
      TwoLevelIndex index;
      ASSERT_TRUE(index.set_blocks(4, {gradient.data()}, count, 64));
      const auto clear = [&](const Plane& plane) {
        auto* words = static_cast<uint64_t*>(plane.data);
        if (bit >= plane.lanes * 64 || !test_bit(words, bit)) return false;
        words[bit / 64] &= ~(uint64_t{1} << bit % 64);
        return true;
      };
      bool cleared = !elements && clear(index.live_plane());
      ASSERT_TRUE(index.set_elements({gradient.data()}));
      if (elements) cleared = clear(index.element_plane());
      index.count_union();
      ASSERT_EQ(index.holds_local(), !cleared) << bit;
      lost += cleared ? 1 : 0;
    }
  }
  EXPECT_GT(lost, 64u) << "blocks and elements were there to lose";
}

TEST(TwoLevelIndex, KeepsItsMemory) {
  TwoLevelIndex index;
  uint64_t bytes = 0;
  for (int step = 0; step < 4; ++step) {
    const auto gradient = gradient_of<uint32_t>(blocky(7, 5000, 50), 5000);
    ASSERT_TRUE(index.set_blocks(4, {gradient.data()}, 5000, 50));
    ASSERT_TRUE(index.set_elements({gradient.data()}));
    if (step == 0) bytes = index.memory_bytes();
    EXPECT_EQ(index.memory_bytes(), bytes);
  }
}

}  // namespace
}  // namespace addend::index
