// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/sketch_homes.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "addend/simd.h"
#include "wire/hash.h"

namespace addend::exact {
namespace {

class SketchHomesOnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(force_simd_target(GetParam())); }
  void TearDown() override { ASSERT_TRUE(force_simd_target("")); }
};

template <typename CellId, uint32_t kHashes>
void expect_homes(const SketchShape& shape, uint64_t keys) {
  std::vector<uint64_t> positions(keys), chunks(keys);
  std::vector<Homes<CellId, kHashes>> homes(keys);
  for (uint64_t i = 0; i < keys; ++i)
    positions[i] = addend_random(keys, i) >> (i % 64);
  find_homes(shape, positions.data(), keys, chunks.data(), homes.data());
  for (uint64_t i = 0; i < keys; ++i) {
    const uint64_t hash = addend_sketch_hash(shape.seed, positions[i] / shape.lanes);
    EXPECT_EQ(chunks[i], addend_sketch_chunk(hash, shape.chunks)) << positions[i];
    const auto expected = homes_of<CellId, kHashes>(shape, hash, positions[i]);
    for (uint32_t j = 0; j < kHashes; ++j) {
      EXPECT_EQ(homes[i].cell[j], expected.cell[j]) << positions[i] << ", hash " << j;
      EXPECT_LT(homes[i].cell[j], shape.chunk_cells()) << positions[i] << ", hash " << j;
    }
  }
}

TEST_P(SketchHomesOnTarget, AreThoseOfTheFormat) {
  for (const uint64_t keys : {0, 1, 7, 8, 100, 1001}) {
    for (const uint32_t lanes : {1u, 8u, 1024u}) {
      const uint64_t seed = keys + lanes;
      expect_homes<uint16_t, 3>({seed, 3, lanes, 5, 65535 / 3 / lanes, 1, 1}, keys);
      expect_homes<uint16_t, 3>({seed, 3, lanes, 1, 1, 1, 1}, keys);
      expect_homes<uint16_t, 4>({~seed, 4, lanes, 70000, 65535 / 4 / lanes, 1, 1}, keys);
      expect_homes<uint32_t, 3>({seed, 3, lanes, 5, 100000, 1, 1}, keys);
      expect_homes<uint16_t, 8>({seed, 8, lanes, 3, 2, 1, 2}, keys);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SketchHomesOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace addend::exact
