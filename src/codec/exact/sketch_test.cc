// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/sketch.h"

#include <algorithm>
#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "base/bits.h"
#include "wire/sketch_hash.h"

namespace addend::exact {
namespace {

// A set of keys with the bitmap it stands in.
struct Keys {
  std::vector<uint64_t> positions;
  std::vector<uint64_t> bitmap;

  explicit Keys(std::vector<uint64_t> chosen) : positions(std::move(chosen)) {
    std::sort(positions.begin(), positions.end());
    positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
    bitmap.resize(positions.empty() ? 0 : positions.back() / 64 + 1);
    for (const uint64_t position : positions)
      set_bit(bitmap.data(), position);
  }
  KeySet set() const { return {bitmap.data(), bitmap.size(), positions.size()}; }
};

Keys random_keys(uint64_t seed, uint64_t count, uint64_t range) {
  std::vector<uint64_t> positions;
  for (uint64_t i = 0; i < count; ++i)
    positions.push_back(addend_random(seed, i) % range);
  return Keys(std::move(positions));
}

std::vector<int64_t> random_values(uint64_t seed, uint64_t count) {
  std::vector<int64_t> values(count);
  for (uint64_t i = 0; i < count; ++i)
    values[i] = static_cast<int64_t>(addend_random(seed, i));
  return values;
}

std::vector<uint64_t> stuck_positions(const Sketch& sketch) {
  std::vector<uint64_t> positions;
  const KeySet stuck = sketch.stuck();
  for (uint64_t w = 0; w < stuck.words && stuck.count > 0; ++w)
    for_each_bit(stuck.bitmap[w], w * 64, [&](uint64_t i) { positions.push_back(i); });
  EXPECT_EQ(positions.size(), stuck.count);
  return positions;
}

struct Peeled {
  std::vector<uint64_t> stuck;
  Status settled;
};

// Inserts, peels, compares what was recovered, and settles with the stuck keys' true values.
Peeled round_trip(const SketchShape& shape, const Keys& keys, uint64_t value_seed = 1) {
  const auto values = random_values(value_seed, keys.positions.size() * shape.words);
  std::vector<uint64_t> cells(shape.lanes_total());
  Sketch sketch;
  EXPECT_TRUE(sketch.insert(shape, keys.set(), values.data(), cells.data()));
  EXPECT_TRUE(sketch.peel(shape, keys.set(), cells.data()));
  const auto stuck = stuck_positions(sketch);
  std::vector<int64_t> stuck_values;
  std::size_t next = 0;
  for (std::size_t r = 0; r < keys.positions.size(); ++r) {
    const bool is_stuck = next < stuck.size() && stuck[next] == keys.positions[r];
    next += is_stuck ? 1 : 0;
    for (uint32_t w = 0; w < shape.words; ++w) {
      const int64_t value = values[r * shape.words + w];
      if (is_stuck) {
        stuck_values.push_back(value);
      } else if (sketch.values()[r * shape.words + w] != value) {
        ADD_FAILURE() << "key " << keys.positions[r] << " word " << w;
      }
    }
  }
  EXPECT_EQ(next, stuck.size()) << "a stuck key that was never inserted";
  return {stuck, sketch.settle(shape, stuck_values.data(), cells.data())};
}

TEST(Sketch, GivesBackWhatWasInserted) {
  for (const uint64_t count : {0, 1, 2, 10, 100, 1000, 5000, 40000}) {
    const Keys keys = random_keys(count, count, 10 * count + 64);
    const auto shape = SketchShape::plan(keys.positions.size(), 1, 1, count);
    const Peeled peeled = round_trip(shape, keys);
    EXPECT_LE(peeled.stuck.size(), count / 100 + 4) << count;
    EXPECT_TRUE(peeled.settled) << count;
  }
}

TEST(Sketch, HoldsCellsOfAnyWidth) {
  for (uint32_t words = 1; words <= 8; ++words) {
    for (const uint32_t lanes : {1u, 16u}) {
      const Keys keys = random_keys(words, 3000, 50000);
      const auto shape = SketchShape::plan(keys.positions.size(), lanes, words, words);
      EXPECT_EQ(shape.lanes_total(), shape.cells() * words);
      EXPECT_TRUE(round_trip(shape, keys).settled) << words << " words, " << lanes << " lanes";
    }
  }
}

TEST(Sketch, GivesEverythingBackFromEightHashes) {
  for (const uint64_t count : {0, 1, 10, 1000, 5000, 120000}) {
    for (const uint32_t words : {1u, 3u}) {
      const Keys keys = random_keys(count, count, 10 * count + 64);
      const auto shape = SketchShape::plan_whole(keys.positions.size(), words, count);
      const Peeled peeled = round_trip(shape, keys);
      EXPECT_TRUE(peeled.stuck.empty()) << count;
      EXPECT_TRUE(peeled.settled) << count;
    }
  }
  SketchShape wide{7, 8, 1, 1, 2000, 1, 57};  // 128000 cells: numbers of 32 bits
  const Peeled peeled = round_trip(wide, random_keys(4, 50000, 400000));
  EXPECT_TRUE(peeled.stuck.empty() && peeled.settled);
}

// The check values of docs/formats/add-file.md.
TEST(Sketch, PutsAKeyWhereTheFormatSays) {
  constexpr uint64_t kSeed = 0x041105E7B1BEB92B;
  const auto run = [](uint64_t position) {
    std::array<uint32_t, 9> all{};
    all[0] = addend_sketch_run(addend_sketch_hash(kSeed, position), 57, 100, all.data() + 1);
    return all;
  };
  EXPECT_EQ(run(0), (std::array<uint32_t, 9>{14, 33, 85, 36, 61, 23, 7, 87, 10}));
  EXPECT_EQ(run(5), (std::array<uint32_t, 9>{48, 41, 26, 44, 78, 56, 7, 77, 6}));
}

TEST(Sketch, NumbersCellsOfSmallAndLargeChunks) {
  const Keys keys = random_keys(4, 50000, 400000);
  for (const uint32_t rows : {21845u, 21846u, 30000u}) {  // 65535 cells, 65538, 90000
    SketchShape shape{7, 3, 1, 1, rows, 1};
    EXPECT_EQ(shape.chunk_cells() > 65535, rows > 21845);
    const Peeled peeled = round_trip(shape, keys);
    EXPECT_TRUE(peeled.settled) << rows;
  }
  SketchShape wide{7, 4, 1024, 1, 20, 2};  // 81920 cells by lanes
  EXPECT_TRUE(round_trip(wide, keys).settled);
}

TEST(Sketch, AddsUpTheContributionsOfManyWorkers) {
  constexpr uint32_t kWorkers = 5;
  const Keys all = random_keys(1, 8000, 100000);
  const auto shape = SketchShape::plan(all.positions.size(), 1, 1, 3);
  std::vector<uint64_t> sum(shape.lanes_total());
  std::vector<uint64_t> expected(all.positions.size());
  for (uint32_t w = 0; w < kWorkers; ++w) {
    std::vector<uint64_t> mine;
    std::vector<int64_t> values;
    for (std::size_t r = 0; r < all.positions.size(); ++r) {
      if (r % kWorkers != w && addend_random(w + 10, r) % 2 == 0) continue;
      mine.push_back(all.positions[r]);
      values.push_back(static_cast<int64_t>(addend_random(w + 20, r)));
      expected[r] += static_cast<uint64_t>(values.back());
    }
    const Keys keys(mine);
    Sketch sketch;
    ASSERT_TRUE(sketch.insert(shape, keys.set(), values.data(), sum.data()));
  }
  Sketch sketch;
  ASSERT_TRUE(sketch.peel(shape, all.set(), sum.data()));
  ASSERT_EQ(sketch.stuck().count, 0u);
  for (std::size_t r = 0; r < expected.size(); ++r)
    ASSERT_EQ(static_cast<uint64_t>(sketch.values()[r]), expected[r]) << r;
  EXPECT_TRUE(sketch.settle(shape, nullptr, sum.data()));
}

TEST(Sketch, StuckKeysDependOnKeysAndSeedAlone) {
  const Keys keys = random_keys(2, 2000, 30000);
  const SketchShape tight{11, 3, 1, 1, 760, 1};  // 1.14 cells a key: far too few
  const auto stuck = round_trip(tight, keys, 1).stuck;
  EXPECT_GT(stuck.size(), 100u);
  for (const uint64_t value_seed : {2, 3, 4})
    EXPECT_EQ(round_trip(tight, keys, value_seed).stuck, stuck);
  SketchShape wide = tight;
  wide.words = 5;
  EXPECT_EQ(round_trip(wide, keys).stuck, stuck) << "the width of cells does not matter either";
  SketchShape other = tight;
  other.seed = 12;
  EXPECT_NE(round_trip(other, keys).stuck, stuck);

  // A receiver that never inserted anything finds the same set.
  std::vector<uint64_t> zeros(tight.lanes_total());
  Sketch receiver;
  ASSERT_TRUE(receiver.peel(tight, keys.set(), zeros.data()));
  EXPECT_EQ(stuck_positions(receiver), stuck);
}

TEST(Sketch, SettlesStuckKeysExactly) {
  for (const uint32_t rows : {1u, 10u, 300u, 600u, 700u}) {
    const SketchShape shape{rows, 3, 1, 1, rows, 2};
    const Keys keys = random_keys(rows, 2000, 30000);
    const Peeled peeled = round_trip(shape, keys);
    EXPECT_GT(peeled.stuck.size(), 0u);
    EXPECT_TRUE(peeled.settled) << rows;
  }
}

// Peels `cells` and says what the all-zero check found; empty if nothing.
std::string complaint(const SketchShape& shape, const Keys& keys, std::vector<uint64_t> cells) {
  Sketch sketch;
  EXPECT_TRUE(sketch.peel(shape, keys.set(), cells.data()));
  EXPECT_EQ(sketch.stuck().count, 0u);
  const Status settled = sketch.settle(shape, nullptr, cells.data());
  if (settled) return "";
  EXPECT_EQ(settled.error().code, Errc::kUndecodable);
  return settled.error().message;
}

TEST(Sketch, NoticesLostAlteredAndRepeatedContributions) {
  const Keys keys = random_keys(8, 4000, 60000);
  const auto shape = SketchShape::plan(keys.positions.size(), 1, 1, 5);
  const auto values = random_values(3, keys.positions.size());
  std::vector<uint64_t> cells(shape.lanes_total());
  Sketch sketch;
  ASSERT_TRUE(sketch.insert(shape, keys.set(), values.data(), cells.data()));
  ASSERT_EQ(complaint(shape, keys, cells), "");
  for (uint64_t trial = 0; trial < 50; ++trial) {
    const uint64_t at = addend_random(50, trial) % cells.size();
    auto altered = cells;
    altered[at] ^= uint64_t{1} << (trial % 64);
    EXPECT_NE(complaint(shape, keys, altered).find("not zero"), std::string::npos) << trial;
    auto swapped = cells;
    std::swap(swapped[at], swapped[(at + 1) % cells.size()]);
    if (swapped != cells) {
      EXPECT_NE(complaint(shape, keys, swapped), "") << trial;
    }
  }
  // A packet of 128 cells that was lost, or added twice.
  auto lost = cells, repeated = cells;
  for (std::size_t i = 256; i < 384; ++i) {
    lost[i] = 0;
    repeated[i] *= 2;
  }
  EXPECT_NE(complaint(shape, keys, lost), "");
  EXPECT_NE(complaint(shape, keys, repeated), "");
}

TEST(Sketch, NoticesAKeyThatTheIndexLost) {
  const Keys keys = random_keys(9, 500, 9000);
  const auto shape = SketchShape::plan(keys.positions.size(), 1, 1, 5);
  const auto values = random_values(3, keys.positions.size());
  std::vector<uint64_t> cells(shape.lanes_total());
  Sketch sketch;
  ASSERT_TRUE(sketch.insert(shape, keys.set(), values.data(), cells.data()));
  auto fewer = keys.positions;
  fewer.erase(fewer.begin() + 77);
  EXPECT_NE(complaint(shape, Keys(fewer), cells), "");
}

TEST(Sketch, NoticesAWrongStuckValue) {
  const SketchShape shape{3, 3, 1, 1, 100, 1};
  const Keys keys = random_keys(2, 400, 3000);
  const auto values = random_values(3, keys.positions.size());
  std::vector<uint64_t> cells(shape.lanes_total());
  Sketch sketch;
  ASSERT_TRUE(sketch.insert(shape, keys.set(), values.data(), cells.data()));
  ASSERT_TRUE(sketch.peel(shape, keys.set(), cells.data()));
  std::vector<int64_t> wrong(sketch.stuck().count, 1);
  const Status settled = sketch.settle(shape, wrong.data(), cells.data());
  ASSERT_FALSE(settled);
  EXPECT_EQ(settled.error().code, Errc::kUndecodable);
}

TEST(Sketch, StaysExactWhenAllKeysShareALane) {
  std::vector<uint64_t> positions;
  for (uint64_t row = 0; row < 20000; ++row)
    positions.push_back(row * 1024 + 77);
  const Keys keys(positions);
  const auto shape = SketchShape::plan(keys.positions.size(), 1024, 1, 6);
  const Peeled peeled = round_trip(shape, keys);
  EXPECT_GT(peeled.stuck.size(), 15000u) << "one lane has room for a handful only";
  EXPECT_TRUE(peeled.settled);
}

TEST(Sketch, StaysExactWhenAllKeysLandInOneChunk) {
  const auto shape = SketchShape::plan(100000, 1, 1, 8);
  ASSERT_GT(shape.chunks, 3u);
  std::vector<uint64_t> positions;
  for (uint64_t i = 0; positions.size() < 60000; ++i) {
    const uint64_t hash = addend_sketch_hash(shape.seed, i);
    if (addend_sketch_chunk(hash, shape.chunks) == 0) positions.push_back(i);
  }
  const Peeled crowded = round_trip(shape, Keys(positions));
  EXPECT_GT(crowded.stuck.size(), 30000u);
  EXPECT_TRUE(crowded.settled);
  // The other chunks have keys too, which an overflowing one must not disturb.
  auto mixed = positions;
  for (uint64_t i = 0; i < 200000; i += 10)
    mixed.push_back(i);
  EXPECT_TRUE(round_trip(shape, Keys(mixed)).settled);
  positions.resize(15000);  // unbalanced, but within that chunk's cells
  const Peeled roomy = round_trip(shape, Keys(positions));
  EXPECT_LT(roomy.stuck.size(), 10u);
  EXPECT_TRUE(roomy.settled);
}

TEST(Sketch, StaysExactWhenKeysShareAllTheirCells) {
  const SketchShape shape{3, 4, 1, 1, 8, 1};
  std::vector<uint64_t> twins;
  uint32_t first[4] = {};
  for (uint64_t i = 0; twins.size() < 5; ++i) {
    uint32_t rows[4] = {};
    addend_sketch_rows(addend_sketch_hash(shape.seed, i), 4, 8, rows);
    if (twins.empty()) std::copy(rows, rows + 4, first);
    if (std::equal(rows, rows + 4, first)) twins.push_back(i);
  }
  const Peeled peeled = round_trip(shape, Keys(twins));
  EXPECT_EQ(peeled.stuck, twins);
  EXPECT_TRUE(peeled.settled);
}

TEST(Sketch, KeepsItsMemoryAcrossSteps) {
  Sketch sketch;
  const Keys keys = random_keys(5, 30000, 500000);
  const auto shape = SketchShape::plan(keys.positions.size(), 1, 1, 5);
  const auto values = random_values(3, keys.positions.size());
  uint64_t bytes = 0;
  for (int step = 0; step < 4; ++step) {
    std::vector<uint64_t> cells(shape.lanes_total());
    ASSERT_TRUE(sketch.insert(shape, keys.set(), values.data(), cells.data()));
    ASSERT_TRUE(sketch.peel(shape, keys.set(), cells.data()));
    ASSERT_TRUE(sketch.settle(shape, nullptr, cells.data()));
    if (step == 0) bytes = sketch.memory_bytes();
    EXPECT_EQ(sketch.memory_bytes(), bytes);
  }
}

TEST(SketchShape, CanHoldWhatItWasPlannedForAndNotMuchMore) {
  for (const uint64_t keys : {1, 10, 1000, 5000, 20000, 1000000}) {
    for (const uint32_t lanes : {1u, 32u, 1024u}) {
      const auto shape = SketchShape::plan(keys, lanes, 1, 0);
      EXPECT_TRUE(shape.can_hold(0));
      EXPECT_TRUE(shape.can_hold(keys)) << keys << " keys in " << lanes << " lanes";
      EXPECT_FALSE(shape.can_hold(shape.cells())) << keys;
    }
    EXPECT_FALSE(SketchShape::plan(keys, 1, 1, 0).can_hold(20 * keys + 20));
  }
}

// Workers of other versions and other programs must find the same cells: docs/formats/exact.md,
// "Sizing".
TEST(SketchShape, IsWhatTheFormatSays) {
  const auto few = SketchShape::plan(5000, 8, 2, 42);  // graphs of 625 keys: four hashes
  EXPECT_EQ(few.seed, 0x29160ED66CFA671u);
  EXPECT_EQ(few.hashes, 4u);
  EXPECT_EQ(few.chunks, 1u);
  EXPECT_EQ(few.table_rows, 285u);  // 625 (1.44 + 0.6 sqrt(0.375)) / 4, and 2
  EXPECT_EQ(few.cells(), 9120u);
  EXPECT_EQ(few.lanes_total(), 18240u);
  const auto many = SketchShape::plan(40000, 1, 1, 43);  // two chunks of 20000: three hashes
  EXPECT_EQ(many.seed, 0xE1484611BFB5C5AFu);
  EXPECT_EQ(many.hashes, 3u);
  EXPECT_EQ(many.chunks, 2u);
  EXPECT_EQ(many.table_rows, 8534u);  // 20000 x 1.28 / 3
  EXPECT_EQ(many.cells(), 51204u);
}

}  // namespace
}  // namespace addend::exact
