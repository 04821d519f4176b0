// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "addend/simd.h"
#include "codec/quant/coding.h"
#include "codec/quant/reference.h"
#include "codec/quant/thresholds.h"
#include "tests/support/gradients.h"

namespace addend::quant {
namespace {

using testing_support::normal;

constexpr uint64_t kSizes[] = {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

class BlockOnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(force_simd_target(GetParam()));
    ASSERT_EQ(simd_target(), GetParam());
  }
  void TearDown() override { ASSERT_TRUE(force_simd_target("")); }
};

std::vector<uint64_t> signs_of(uint64_t n, uint64_t seed) {
  std::vector<uint64_t> signs(n / 64);
  for (uint64_t w = 0; w < signs.size(); ++w)
    signs[w] = addend_random(seed, w);
  return signs;
}

// Plain, heavy-tailed, huge, denormal, and with zeros of both signs.
std::vector<std::vector<float>> inputs(uint64_t n) {
  std::vector<std::vector<float>> all(5, std::vector<float>(n));
  for (uint64_t i = 0; i < n; ++i) {
    const double x = normal(n, i);
    all[0][i] = static_cast<float>(x);
    all[1][i] = static_cast<float>(x * std::exp(8 * normal(n + 1, i)));
    all[2][i] = static_cast<float>(x * 1e30);
    all[3][i] = static_cast<float>(x * 1e-42);
    all[4][i] = i % 3 == 0 ? 0.0f : i % 3 == 1 ? -0.0f : static_cast<float>(x);
  }
  return all;
}

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

TEST_P(BlockOnTarget, EnergyIsTheReferences) {
  for (const uint64_t n : {uint64_t{16}, uint64_t{48}, uint64_t{2032}, uint64_t{16384}}) {
    for (const std::vector<float>& x : inputs(n)) {
      const float expected = reference::energy(x.data(), n), actual = energy(x.data(), n);
      ASSERT_EQ(addend_f32_bits(actual), addend_f32_bits(expected)) << n;
    }
  }
}

// Past the caches or not, wherever the sums lie.
TEST_P(BlockOnTarget, WhatIsOwedIsAddedAsTheReferenceDoes) {
  constexpr uint64_t kN = 2048;
  const std::vector<std::vector<float>> all = inputs(kN);
  std::vector<float> expected(kN), room(kN + 32);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::vector<float>&x = all[i], &owed = all[(i + 1) % all.size()];
    const float energy = reference::add_owed(x.data(), owed.data(), kN, expected.data());
    for (const uint64_t at : {0u, 1u, 16u}) {
      for (const bool past : {false, true}) {
        const float actual = add_owed(x.data(), owed.data(), kN, room.data() + at, past);
        flush();
        ASSERT_EQ(addend_f32_bits(actual), addend_f32_bits(energy)) << i;
        ASSERT_EQ(std::memcmp(room.data() + at, expected.data(), kN * 4), 0) << i << " at " << at;
      }
    }
  }
}

TEST_P(BlockOnTarget, RotationsAreTheReferencesInPlaceOrNot) {
  for (const uint64_t n : kSizes) {
    const std::vector<uint64_t> signs = signs_of(n, n);
    for (const std::vector<float>& x : inputs(n)) {
      std::vector<float> expected(n), actual(n), in_place = x;
      reference::rotate(x.data(), signs.data(), n, expected.data());
      rotate(x.data(), signs.data(), n, actual.data());
      rotate(in_place.data(), signs.data(), n, in_place.data());
      ASSERT_TRUE(same_bytes(actual, expected)) << n;
      ASSERT_TRUE(same_bytes(in_place, expected)) << n;
      std::vector<float> used = x, used_too = x;
      reference::unrotate(used.data(), signs.data(), n, expected.data());
      unrotate(used_too.data(), signs.data(), n, actual.data());
      ASSERT_TRUE(same_bytes(actual, expected)) << n;
      for (const uint64_t at : {0u, 1u, 16u}) {
        std::vector<float> room(n + 16);
        used_too = x;
        unrotate(used_too.data(), signs.data(), n, room.data() + at, true);
        flush();
        ASSERT_EQ(std::memcmp(room.data() + at, expected.data(), n * 4), 0) << n << " at " << at;
      }
    }
  }
}

// A table, and thresholds of some worker.
struct Setting {
  Setting(uint32_t bits, uint32_t granularity, bool correlated) {
    Options options;
    options.granularity = granularity;
    options.clipped = 0.01;
    coding = *Coding::make(bits, options, 1);
    EXPECT_TRUE(thresholds.set({17, 5, 3, correlated}));
  }
  Quantiser quantiser(float scale, uint64_t block = 1) const {
    const auto g = static_cast<float>(coding.table.granularity);
    return {scale,
            g / 2,
            g,
            coding.table.granularity + 1,
            coding.lower.data(),
            coding.gap.data(),
            coding.index.data(),
            coding.table.levels.size() == coding.table.granularity + 1,
            thresholds.of_block(block)};
  }
  Coding coding;
  Thresholds thresholds;
};

constexpr std::pair<uint32_t, uint32_t> kTables[] = {
    {1, 1},  {1, 2},  {2, 3},  {2, 11}, {3, 9},   {4, 15},  {4, 30},  {4, 31}, {4, 32},
    {4, 63}, {4, 64}, {5, 31}, {5, 63}, {6, 100}, {7, 127}, {8, 255}, {4, 255}};

// Normal numbers that reach beyond the table, some exactly on levels and between cells, some far
// outside.
std::vector<float> table_input(const Table& table, uint64_t n) {
  std::vector<float> x(n);
  const auto g = static_cast<float>(table.granularity);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t draw = addend_random(n + table.granularity, i);
    x[i] = static_cast<float>(normal(7, i)) * g / 4;
    if (draw % 5 == 0) x[i] = static_cast<float>(table.levels[draw / 8 % table.levels.size()]);
    if (draw % 5 == 1) x[i] = static_cast<float>(draw / 8 % (table.granularity + 1));
    if (draw % 5 < 2) x[i] -= g / 2;
    if (draw % 5 == 2) x[i] = std::nextafter(x[i], draw % 2 == 0 ? HUGE_VALF : -HUGE_VALF);
    if (draw % 64 == 3) x[i] = draw % 128 < 64 ? 3e38f : -3e38f;
    if (draw % 64 == 4) x[i] = draw % 128 < 64 ? HUGE_VALF : -HUGE_VALF;
    if (draw % 64 == 5) x[i] = 1e-42f;
  }
  return x;
}

// Two indices a byte, and nothing written behind the last.
void check_indices(const Table& table, const Quantiser& q, const std::vector<float>& x,
                   const std::vector<uint8_t>& levels) {
  const uint64_t n = x.size();
  std::vector<uint8_t> expected(n / 2 + 1, 0xEE), packed(n / 2 + 1, 0xEE);
  reference::quantise<true>(q, x.data(), n, expected.data());
  quantise_indices(q, x.data(), n, packed.data());
  ASSERT_EQ(packed, expected) << table.bits << " bits, g " << table.granularity << ", n " << n;
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t index = i % 2 == 0 ? packed[i / 2] & 15u : packed[i / 2] >> 4u;
    ASSERT_LT(index, table.levels.size());
    ASSERT_EQ(levels[i], table.levels[index]);
  }
  uint8_t of_index[16] = {};
  std::copy(table.levels.begin(), table.levels.end(), of_index);
  std::vector<uint8_t> found(n + 1, 0xEE), slowly(n + 1, 0xEE);
  look_up(of_index, packed.data(), n, found.data());
  reference::look_up(of_index, packed.data(), n, slowly.data());
  ASSERT_EQ(found, slowly) << n;
  ASSERT_TRUE(std::equal(levels.begin(), levels.end(), found.begin())) << n;
}

TEST_P(BlockOnTarget, QuantisedLevelsAndIndicesAreTheReferencesAndBelongTogether) {
  for (const auto& [bits, granularity] : kTables) {
    for (const bool correlated : {false, true}) {
      const Setting setting(bits, granularity, correlated);
      for (const uint64_t n : kSizes) {
        const std::vector<float> x = table_input(setting.coding.table, n);
        std::vector<uint8_t> expected(n), levels(n);
        for (const float scale : {1.0f, 0.73f, 4.0f}) {
          const Quantiser q = setting.quantiser(scale, n);
          reference::quantise<false>(q, x.data(), n, expected.data());
          quantise_levels(q, x.data(), n, levels.data());
          ASSERT_EQ(levels, expected) << bits << " bits, g " << granularity << ", n " << n;
          if (bits <= 4) check_indices(setting.coding.table, q, x, levels);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(BlockOnTarget, DequantisedNarrowSumsAreTheReferencesWhateverTheHeaderSays) {
  for (const uint32_t step : {0u, 1u, 2u, 257u, 4369u, 40503u, 65535u}) {
    for (const uint32_t first : {0u, 64u, 448u}) {
      const narrow::Group group{65535 / (step % 3 + 1), step, 201};
      std::vector<uint8_t> values(512 - first);
      for (uint64_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<uint8_t>(addend_random(step, i));
      std::vector<float> expected(values.size()), actual(values.size());
      for (const auto& [factor, offset] : {std::pair{1.0f, 0.0f}, std::pair{0.0371f, -4.5f}}) {
        reference::dequantise(group, first, values.data(), values.size(), factor, offset,
                              expected.data());
        dequantise(group, first, values.data(), values.size(), factor, offset, actual.data());
        ASSERT_TRUE(same_bytes(actual, expected)) << step << " from " << first;
      }
    }
  }
}

TEST_P(BlockOnTarget, SubtractedLevelsLeaveWhatTheReferenceDoes) {
  for (const std::vector<float>& x : inputs(2048)) {
    std::vector<uint8_t> levels(x.size());
    for (uint64_t i = 0; i < levels.size(); ++i)
      levels[i] = static_cast<uint8_t>(addend_random(5, i));
    for (const float factor : {0.0371f, 1e36f, 1e38f}) {
      std::vector<float> expected = x, actual = x;
      expected[7] = actual[7] = HUGE_VALF;
      expected[8] = actual[8] = NAN;
      reference::subtract(levels.data(), x.size(), factor, -4.5f, expected.data());
      subtract(levels.data(), x.size(), factor, -4.5f, actual.data());
      ASSERT_TRUE(same_bytes(actual, expected)) << factor;
      ASSERT_EQ(actual[7], 0);
      ASSERT_EQ(actual[8], 0);
    }
  }
}

template <typename T>
void check_dequantise(uint64_t mask) {
  for (const uint64_t n : kSizes) {
    std::vector<T> sums(n);
    for (uint64_t i = 0; i < n; ++i)
      sums[i] = static_cast<T>(addend_random(n, i) & mask);
    std::vector<float> expected(n), actual(n);
    reference::dequantise(sums.data(), n, 0.0371f, -4.5f, expected.data());
    dequantise(sums.data(), n, 0.0371f, -4.5f, actual.data());
    ASSERT_TRUE(same_bytes(actual, expected)) << n << " lanes of " << sizeof(T) << " bytes";
  }
}

TEST_P(BlockOnTarget, DequantisedSumsAreTheReferences) {
  check_dequantise<uint8_t>(0xFF);
  check_dequantise<uint16_t>(0xFFFF);
  check_dequantise<uint32_t>(0x7FFFFFFF);
  check_dequantise<uint32_t>(0xFFFFFFFF);
}

INSTANTIATE_TEST_SUITE_P(All, BlockOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& suite) { return suite.param; });

// Each stage rounds once: log2(n) roundings of at most half an ulp of the norm, there and back.
TEST(Rotation, IsUndoneButForAFactorAndKeepsTheNorm) {
  for (const uint64_t n : kSizes) {
    const std::vector<uint64_t> signs = signs_of(n, 3);
    std::vector<float> x(n), y(n), back(n);
    double before = 0, after = 0, error = 0;
    for (uint64_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(std::pow(normal(n, i), 3));
      before += std::pow(static_cast<double>(x[i]), 2);
    }
    rotate(x.data(), signs.data(), n, y.data());
    for (const float value : y)
      after += std::pow(static_cast<double>(value), 2);
    unrotate(y.data(), signs.data(), n, back.data());
    const auto size = static_cast<double>(n);
    for (uint64_t i = 0; i < n; ++i)
      error += std::pow(static_cast<double>(back[i]) / size - static_cast<double>(x[i]), 2);
    const double bound = 2 * std::log2(size) * 0x1p-24;
    EXPECT_NEAR(std::sqrt(after / size / before), 1, bound) << n;
    EXPECT_LE(std::sqrt(error / before), bound) << n;
  }
}

TEST(Rotation, SpreadsOneElementEvenlyWhateverTheSigns) {
  const std::vector<uint64_t> signs = signs_of(1024, 9);
  for (const uint64_t at : {0u, 1u, 511u, 1023u}) {
    std::vector<float> x(1024, 0.0f);
    x[at] = 5;
    rotate(x.data(), signs.data(), 1024, x.data());
    for (const float value : x)
      ASSERT_EQ(std::fabs(value), 5.0f);
  }
}

TEST(Quantise, LeavesElementsOnLevelsThereAndClipsTheRest) {
  for (const auto& [bits, granularity] : kTables) {
    const Setting setting(bits, granularity, true);
    const auto g = static_cast<float>(granularity);
    std::vector<uint8_t> levels(64);
    for (const uint32_t level : setting.coding.table.levels) {
      const std::vector<float> x(64, static_cast<float>(level) - g / 2);
      quantise_levels(setting.quantiser(1), x.data(), 64, levels.data());
      ASSERT_EQ(levels, std::vector<uint8_t>(64, static_cast<uint8_t>(level)));
    }
    for (const float far : {g, 1e30f, HUGE_VALF}) {
      quantise_levels(setting.quantiser(1), std::vector<float>(64, far).data(), 64, levels.data());
      ASSERT_EQ(levels, std::vector<uint8_t>(64, static_cast<uint8_t>(granularity)));
      quantise_levels(setting.quantiser(1), std::vector<float>(64, -far).data(), 64, levels.data());
      ASSERT_EQ(levels, std::vector<uint8_t>(64, 0));
    }
  }
}

// With every threshold once, the mean level is the clipped element, to one threshold's share of a
// gap (and to the 2^-15 within which an element counts as on a level).
TEST(Quantise, IsTheClippedElementOnAverage) {
  std::vector<float> even(kThresholds);
  for (uint64_t i = 0; i < kThresholds; ++i)
    even[i] = static_cast<float>(i) / kThresholds;
  for (const auto& [bits, granularity] : kTables) {
    const Setting setting(bits, granularity, true);
    const double g = granularity;
    for (int k = -20; k <= 120; ++k) {
      const double y = g * k / 100 + 0.003;
      const std::vector<float> x(kThresholds, static_cast<float>(y - g / 2));
      Quantiser q = setting.quantiser(1);
      q.thresholds = even.data();
      std::vector<uint8_t> levels(kThresholds);
      quantise_levels(q, x.data(), kThresholds, levels.data());
      double mean = 0;
      for (const uint8_t level : levels)
        mean += static_cast<double>(level) / kThresholds;
      ASSERT_NEAR(mean, std::clamp(y, 0.0, g), g / kThresholds + 1e-4) << bits << " " << g;
    }
  }
}

// The thresholds of all workers at one place, sorted, lie one in each stratum; and each worker's
// are uniform: the largest gap to a uniform distribution of n draws exceeds 1.95 / sqrt(n)
// with a chance of 1e-3 (Kolmogorov), here over ten workers of a fixed seed.
TEST(Thresholds, FallOneIntoEachStratumAndAreUniformForEachWorker) {
  constexpr uint32_t kWorld = 10;
  std::vector<Thresholds> all(kWorld);
  for (uint32_t w = 0; w < kWorld; ++w)
    ASSERT_TRUE(all[w].set({5, kWorld, w, true}));
  for (uint64_t i = 0; i < kThresholds; ++i) {
    std::vector<float> column;
    for (const Thresholds& thresholds : all)
      column.push_back(thresholds.of_block(3)[i]);
    std::sort(column.begin(), column.end());
    for (uint32_t k = 0; k < kWorld; ++k) {
      ASSERT_GE(column[k], static_cast<float>(k) / kWorld - 1e-6f);
      ASSERT_LT(column[k], static_cast<float>(k + 1) / kWorld + 1e-6f);
      ASSERT_LT(column[k], 1.0f);
    }
  }
  for (const Thresholds& thresholds : all) {
    std::vector<float> sorted(thresholds.of_block(0), thresholds.of_block(0) + kThresholds);
    std::sort(sorted.begin(), sorted.end());
    for (uint64_t i = 0; i < kThresholds; ++i)
      ASSERT_NEAR(sorted[i], (static_cast<float>(i) + 0.5f) / kThresholds,
                  1.95f / std::sqrt(static_cast<float>(kThresholds)));
  }
}

}  // namespace
}  // namespace addend::quant
