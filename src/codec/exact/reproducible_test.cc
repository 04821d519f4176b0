// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/reproducible.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/bits.h"
#include "tests/support/exact_sum.h"
#include "wire/hash.h"

namespace addend::exact {
namespace {

using testing_support::ExactSum;
using Floats = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Worker {
  std::vector<uint64_t> bitmap;
  std::vector<uint32_t> lanes;
  ReproducibleValues values;
};

// Every worker's f32 gradient through ranges, pack, fold and unpack; the decoded sum, element-wise.
class Exchange {
 public:
  Exchange(const std::vector<Floats>& gradients, double tolerance, DType dtype = DType::kF32)
      : count_(gradients[0].size()), world_(static_cast<uint32_t>(gradients.size())) {
    std::vector<Worker> workers(world_);
    union_.resize(words_for(count_));
    lanes_.resize(ceil_div(count_, kRangeBlock) * kRangeLanes);
    for (uint32_t w = 0; w < world_; ++w)
      measure(gradients[w], workers[w]);
    for (uint32_t w = 0; w < world_; ++w) {
      EXPECT_TRUE(
          workers[w].values.set_ranges(lanes_.data(), count_, RangeRules::of(world_, tolerance)));
      EXPECT_TRUE(workers[w].values.pack(DType::kF32, gradients[w].data(), union_.data()));
      if (w == 0) continue;
      add<uint32_t>(workers[0].values.narrow_plane(), workers[w].values.narrow_plane());
      add<uint64_t>(workers[0].values.wide_plane(), workers[w].values.wide_plane());
    }
    narrow_lanes = workers[0].values.narrow_plane().lanes;
    wide_lanes = workers[0].values.wide_plane().lanes;
    escaped = workers[0].values.escaped();
    std::vector<uint64_t> packed(count_ / 2 + 1);
    workers[0].values.unpack(dtype, union_.data(), 1, packed.data());
    sums.resize(count_);
    uint64_t rank = 0;
    for (uint64_t i = 0; i < count_; ++i)
      sums[i] = test_bit(union_.data(), i) ? load_float(dtype, packed.data(), rank++) : 0.0f;
  }

  Floats sums;
  uint64_t narrow_lanes = 0, wide_lanes = 0, escaped = 0;

 private:
  void measure(const Floats& gradient, Worker& worker) {
    Floats nonzeros;
    worker.bitmap.resize(words_for(count_));
    worker.lanes.resize(lanes_.size());
    for (uint64_t i = 0; i < count_; ++i) {
      if (gradient[i] == 0) continue;
      set_bit(worker.bitmap.data(), i);
      set_bit(union_.data(), i);
      nonzeros.push_back(gradient[i]);
    }
    measure_ranges(DType::kF32, {worker.bitmap.data(), nonzeros.data(), count_},
                   worker.lanes.data());
    for (std::size_t i = 0; i < lanes_.size(); ++i)
      lanes_[i] = std::max(lanes_[i], worker.lanes[i]);
  }

  template <typename T>
  static void add(const Plane& to, const Plane& from) {
    ASSERT_EQ(to.lanes, from.lanes);
    for (uint64_t i = 0; i < to.lanes; ++i)
      static_cast<T*>(to.data)[i] += static_cast<const T*>(from.data)[i];
  }

  uint64_t count_;
  uint32_t world_;
  std::vector<uint64_t> union_;
  std::vector<uint32_t> lanes_;
};

// Non-zeros whose exponents spread over `bits` binades, other binades in every block.
std::vector<Floats> random_gradients(uint64_t seed, uint64_t count, uint32_t world, uint32_t bits) {
  std::vector<Floats> gradients(world, Floats(count));
  for (uint32_t w = 0; w < world; ++w) {
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t random = addend_random(seed + 100 * w, i);
      if (random % 4 == 0) continue;
      const auto base = static_cast<int>(addend_random(seed, i / kRangeBlock) % 100) - 50;
      const int exponent = base + static_cast<int>((random >> 8) % bits);
      const auto mantissa = static_cast<float>(0x800000 | (random >> 40 & 0x7FFFFF));
      gradients[w][i] = std::ldexp((random & 4) != 0 ? -mantissa : mantissa, exponent - 23);
    }
  }
  return gradients;
}

ExactSum exact_at(const std::vector<Floats>& gradients, uint64_t i) {
  ExactSum sum;
  for (const Floats& gradient : gradients)
    sum.add(gradient[i]);
  return sum;
}

BlockFormat format_for(const Floats& values, uint32_t world, double tolerance) {
  std::vector<uint64_t> bitmap(words_for(values.size()));
  for (uint64_t i = 0; i < values.size(); ++i)
    set_bit(bitmap.data(), i);
  uint32_t lanes[kRangeLanes];
  measure_ranges(DType::kF32, {bitmap.data(), values.data(), values.size()}, lanes);
  return block_format(lanes, RangeRules::of(world, tolerance));
}

TEST(BlockFormat, IsAsNarrowAsTheBlockAllows) {
  EXPECT_TRUE(format_for({1.0f, 1.5f, -3.25f}, 8, 0).narrow);
  EXPECT_TRUE(format_for({0x1p27f, 1.0f}, 8, 0).narrow);    // 28 bits, 3 for the world, a sign
  EXPECT_FALSE(format_for({0x1p28f, 1.0f}, 8, 0).narrow);   // one more
  EXPECT_TRUE(format_for({0x1p28f, 1.0f}, 4, 0).narrow);    // and one worker bit less
  EXPECT_TRUE(format_for({0x1p59f, 1.0f}, 8, 0).single());  // 60 bits in an i64
  EXPECT_FALSE(format_for({0x1p60f, 1.0f}, 8, 0).single());
  EXPECT_EQ(format_for({0x1p60f, 1.0f}, 8, 0).fixed.words(), 2u);
}

TEST(BlockFormat, HasAPlaceForSpecialsOnlyWhereThereAreSome) {
  const BlockFormat plain = format_for({1.0f}, 8, 0);
  EXPECT_FALSE(plain.fixed.special);
  for (const float value : {kInf, -kInf, std::nanf("")}) {
    const BlockFormat format = format_for({1.0f, value}, 8, 0);
    EXPECT_TRUE(format.fixed.special);
    EXPECT_FALSE(format.narrow);
    EXPECT_FALSE(format.single());
  }
}

TEST(BlockFormat, GetsNarrowerWithATolerance) {
  const Floats values = {1.0f, 1.1920929e-07f, 3e-20f};
  EXPECT_FALSE(format_for(values, 8, 0).single());
  EXPECT_TRUE(format_for(values, 8, 1e-12).single());
  EXPECT_TRUE(format_for(values, 8, 1e-6).narrow);
  EXPECT_EQ(format_for({1.0f, 0.5f}, 8, 1e-6).fixed.quantum,
            format_for({1.0f, 0.5f}, 8, 0).fixed.quantum)
      << "nothing to lose, nothing lost";
}

TEST(BlockFormat, OfAnEmptyBlockIsHarmless) {
  const uint32_t lanes[kRangeLanes] = {0, 0};
  const BlockFormat format = block_format(lanes, RangeRules::of(8, 0.25));
  EXPECT_TRUE(format.single());
  EXPECT_TRUE(std::isfinite(format.to_quanta));
}

TEST(ReproducibleValues, AreTheExactSumRoundedOnce) {
  for (const uint32_t bits : {1u, 5u, 30u, 60u, 75u}) {
    for (const uint64_t count : {uint64_t{1}, uint64_t{64}, kRangeBlock, 3 * kRangeBlock + 17}) {
      for (const uint32_t world : {1u, 2u, 7u}) {
        const auto gradients = random_gradients(bits + count, count, world, bits);
        for (const DType dtype : {DType::kF32, DType::kBf16}) {
          const Exchange exchange(gradients, 0, dtype);
          for (uint64_t i = 0; i < count; ++i) {
            ASSERT_EQ(exchange.sums[i], exact_at(gradients, i).round(dtype))
                << i << " of " << count << ", world " << world << ", " << bits << " binades";
          }
        }
      }
    }
  }
}

TEST(ReproducibleValues, MixNarrowWideAndEscapedBlocks) {
  std::vector<Floats> gradients(2, Floats(4 * kRangeBlock));
  for (uint64_t i = 0; i < kRangeBlock; ++i) {
    gradients[0][i] = static_cast<float>(i + 1);
    gradients[1][kRangeBlock + i] = i % 2 == 0 ? 1.0f : 0x1p40f;
    gradients[0][2 * kRangeBlock + i] = i % 2 == 0 ? 1.0f : 0x1p-100f;
  }
  gradients[1][3 * kRangeBlock + 5] = -kInf;
  const Exchange exchange(gradients, 0);
  EXPECT_EQ(exchange.narrow_lanes, kRangeBlock);
  EXPECT_EQ(exchange.escaped, kRangeBlock + 1);
  EXPECT_EQ(exchange.wide_lanes, kRangeBlock + 2 * kRangeBlock + 6);
  for (uint64_t i = 0; i < gradients[0].size(); ++i)
    ASSERT_EQ(exchange.sums[i], gradients[0][i] + gradients[1][i]);
}

TEST(ReproducibleValues, StayWithinTheTolerance) {
  for (const double tolerance : {1e-9, 1e-6, 0x1p-13, 0.003, 0.5}) {
    for (const uint32_t world : {1u, 3u, 16u}) {
      for (const uint32_t bits : {4u, 40u, 75u}) {
        const uint64_t count = 2 * kRangeBlock + 100;
        const auto gradients = random_gradients(world + bits, count, world, bits);
        const Exchange exchange(gradients, tolerance);
        std::vector<double> largest(3, 0.0);
        for (const Floats& gradient : gradients) {
          for (uint64_t i = 0; i < count; ++i) {
            double& most = largest[i / kRangeBlock];
            most = std::max(most, static_cast<double>(std::fabs(gradient[i])));
          }
        }
        for (uint64_t i = 0; i < count; ++i) {
          ExactSum error = exact_at(gradients, i);
          error.add(-exchange.sums[i]);
          // The sum is an f32 in the end: half a unit in its last place comes on top.
          const double rounding = std::fabs(static_cast<double>(exchange.sums[i])) * 0x1p-24;
          ASSERT_LE(std::fabs(error.value()), tolerance * largest[i / kRangeBlock] + rounding)
              << "element " << i << ", tolerance " << tolerance << ", world " << world;
        }
      }
    }
  }
}

// All mantissa bits set: at this tolerance every worker's value rounds up to the next power of two,
// and 256 of those are one more than an i32 holds.
TEST(ReproducibleValues, HaveRoomForValuesThatRoundUp) {
  const std::vector<Floats> gradients(256, Floats(10, 0x1.fffffep0f));
  const Exchange exchange(gradients, 0x1p-15);
  for (const float sum : exchange.sums)
    ASSERT_NEAR(sum, 512.0f, 0x1p-14f);
}

TEST(ReproducibleValues, CostNoMoreLanesWithATolerance) {
  const auto gradients = random_gradients(3, 4 * kRangeBlock, 4, 60);
  const Exchange exact(gradients, 0), rough(gradients, 1e-4);
  EXPECT_EQ(exact.narrow_lanes, 0u);
  EXPECT_EQ(rough.wide_lanes, 0u);
  EXPECT_GT(exact.escaped, 0u);
  EXPECT_EQ(rough.escaped, 0u);
}

TEST(ReproducibleValues, TakeSpecialsThroughToTheSum) {
  std::vector<Floats> gradients(3, Floats(200, 1.0f));
  gradients[0][10] = kInf;
  gradients[1][20] = std::nanf("");
  gradients[0][30] = kInf;
  gradients[2][30] = -kInf;
  for (const double tolerance : {0.0, 0.1}) {
    const Exchange exchange(gradients, tolerance);
    EXPECT_EQ(exchange.sums[10], kInf);
    EXPECT_TRUE(std::isnan(exchange.sums[20]));
    EXPECT_TRUE(std::isnan(exchange.sums[30]));
    EXPECT_EQ(exchange.sums[40], 3.0f);
  }
}

TEST(MeasureRanges, SeesTheHighestAndTheLowestBitOfEachBlock) {
  Floats values = {1.0f, 3.0f, 0x1p-149f, kInf};
  std::vector<uint64_t> bitmap(words_for(4 * kRangeBlock));
  set_bit(bitmap.data(), 0);
  set_bit(bitmap.data(), kRangeBlock - 1);
  set_bit(bitmap.data(), 2 * kRangeBlock);
  set_bit(bitmap.data(), 4 * kRangeBlock - 1);
  std::vector<uint32_t> lanes(4 * kRangeLanes);
  measure_ranges(DType::kF32, {bitmap.data(), values.data(), 4 * kRangeBlock}, lanes.data());
  EXPECT_EQ(lanes, (std::vector<uint32_t>{257, 256, 0, 0, 107, 405, 1024, 0}));
}

// Lanes as no honest peer writes them: any format will do, as long as it is one.
TEST(BlockFormat, OfCorruptedLanesIsStillAFormat) {
  const uint32_t odd[] = {
      0,    1,    106,         107,         383,         384,         405,         406,        1023,
      1024, 1025, 0x7FFFFF00u, 0x7FFFFFFFu, 0x80000000u, 0x80000001u, 0xFFFFFF00u, 0xFFFFFFFFu};
  Floats gradient(100, 1.0f);
  gradient[3] = 0x1p127f;
  gradient[4] = 0x1p-149f;
  gradient[5] = kInf;
  std::vector<uint64_t> selection = {~uint64_t{0}, low_mask(36)};
  for (const uint32_t high : odd) {
    for (const uint32_t low : odd) {
      for (const uint32_t world : {1u, 1000u, kMaxWorld}) {
        for (const double tolerance : {0.0, 1e-5, 0.5}) {
          const uint32_t lanes[kRangeLanes] = {high, low};
          const BlockFormat format = block_format(lanes, RangeRules::of(world, tolerance));
          ASSERT_GE(format.fixed.words(), 1u);
          ASSERT_LE(format.fixed.words(), kMaxFixedWords);
          ASSERT_GE(format.fixed.quantum, kLowestBit);
          ASSERT_LE(format.fixed.quantum, kHighestBit);
          ReproducibleValues values;
          ASSERT_TRUE(values.set_ranges(lanes, 100, RangeRules::of(world, tolerance)));
          ASSERT_TRUE(values.pack(DType::kF32, gradient.data(), selection.data()));
          std::vector<uint64_t> packed(50);
          values.unpack(DType::kF16, selection.data(), 1, packed.data());
        }
      }
    }
  }
}

}  // namespace
}  // namespace addend::exact
