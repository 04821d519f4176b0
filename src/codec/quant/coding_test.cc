// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/coding.h"

#include <numeric>

#include <gtest/gtest.h>

namespace addend::quant {
namespace {

std::vector<Coding> all_widths() {
  std::vector<Coding> codings;
  for (const uint32_t bits : kWidths)
    codings.push_back(*Coding::make(bits, Options{}, 4));
  return codings;
}

std::vector<uint32_t> bits_of(const std::vector<float>& norms, const std::vector<uint32_t>& sizes,
                              double budget) {
  std::vector<uint32_t> bits;
  for (const uint8_t width : allocate_widths(norms, sizes, all_widths(), budget))
    bits.push_back(kWidths[width]);
  return bits;
}

TEST(AllocateWidths, SpendTheBudgetAndNoMore) {
  const std::vector<float> norms = {1, 8, 2, 30, 0.1f, 5, 3, 1};
  const std::vector<uint32_t> sizes = {2048, 2048, 2048, 2048, 2048, 2048, 1024, 64};
  const double total = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  for (const double budget : {2.0, 2.5, 3.0, 4.0, 5.5, 8.0}) {
    const std::vector<uint32_t> bits = bits_of(norms, sizes, budget);
    double spent = 0;
    for (std::size_t b = 0; b < bits.size(); ++b)
      spent += bits[b] * static_cast<double>(sizes[b]);
    EXPECT_LE(spent, budget * total) << budget;
    EXPECT_GE(spent, (budget - 0.5) * total) << budget;
  }
}

TEST(AllocateWidths, GiveMoreToLargerNorms) {
  const std::vector<uint32_t> bits = bits_of({1, 100, 10, 1000}, {2048, 2048, 2048, 2048}, 4);
  EXPECT_GE(bits[3], bits[1]);
  EXPECT_GE(bits[1], bits[2]);
  EXPECT_GE(bits[2], bits[0]);
  EXPECT_GT(bits[3], bits[0]);
}

// Blocks that do not travel leave no bits to others: the budget is of those that do.
TEST(AllocateWidths, SilentBlocksCountForNothing) {
  for (const double budget : {2.5, 3.0, 4.0, 6.0}) {
    const std::vector<uint32_t> alone = bits_of({3, 1, 2, 1}, {2048, 2048, 1024, 2048}, budget);
    const std::vector<uint32_t> among =
        bits_of({0, 3, 1, 0, 2, 1, 0}, {2048, 2048, 2048, 16384, 1024, 2048, 2048}, budget);
    EXPECT_EQ(among, (std::vector<uint32_t>{2, alone[0], alone[1], 2, alone[2], alone[3], 2}))
        << budget;
  }
}

}  // namespace
}  // namespace addend::quant
