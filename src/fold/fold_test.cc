// SPDX-License-Identifier: Apache-2.0
#include "addend/fold.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "addend/simd.h"
#include "fold/reference.h"
#include "gtest/gtest.h"
#include "wire/hash.h"
#include "wire/narrow.h"

namespace addend {
namespace {

constexpr uint64_t kLengths[] = {0, 1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 127, 1009, 4096, 4099};

std::vector<uint8_t> random_bytes(uint64_t seed, uint64_t size) {
  std::vector<uint8_t> bytes(size);
  for (uint64_t i = 0; i < size; ++i)
    bytes[i] = static_cast<uint8_t>(addend_random(seed, i) >> 11);
  return bytes;
}

// NaN payloads are outside the format, so any NaN equals any other.
template <typename Widen>
bool same_half(uint16_t a, uint16_t b, Widen widen) {
  return a == b || (std::isnan(widen(a)) && std::isnan(widen(b)));
}

bool same_lane(Op op, const uint8_t* a, const uint8_t* b, uint64_t lane) {
  const uint64_t width = op_bytes(op, 1);
  if (std::memcmp(a + lane * width, b + lane * width, width) == 0) return true;
  uint16_t x = 0, y = 0;
  std::memcpy(&x, a + lane * width, 2);
  std::memcpy(&y, b + lane * width, 2);
  if (op == Op::kSumBf16) return same_half(x, y, addend_f32_from_bf16);
  if (op == Op::kSumF16) return same_half(x, y, addend_f32_from_f16);
  float f = 0, g = 0;
  if (op != Op::kSumF32) return false;
  std::memcpy(&f, a + lane * width, 4);
  std::memcpy(&g, b + lane * width, 4);
  return std::isnan(f) && std::isnan(g);
}

class FoldOnTarget : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(force_simd_target(GetParam()));
    ASSERT_EQ(simd_target(), GetParam());
  }
  void TearDown() override { ASSERT_TRUE(force_simd_target("")); }
};

TEST_P(FoldOnTarget, EqualsTheReferenceOnEveryBitPatternAndLength) {
  for (std::size_t code = 0; code < kOpCount; ++code) {
    const Op op = static_cast<Op>(code);
    if (is_table_sum(op)) continue;
    for (const uint64_t lanes : kLengths) {
      const uint64_t bytes = op_bytes(op, lanes);
      const std::vector<uint8_t> start = random_bytes(code, bytes + 16);
      const std::vector<uint8_t> in = random_bytes(code + 100, bytes + 16);
      std::vector<uint8_t> expected = start, actual = start;
      reference::fold(op, expected.data(), in.data(), lanes);
      fold(op, actual.data(), in.data(), lanes);
      for (uint64_t i = 0; i < lanes; ++i) {
        ASSERT_TRUE(same_lane(op, actual.data(), expected.data(), i))
            << op_name(op) << " lane " << i << " of " << lanes;
      }
      ASSERT_EQ(0, std::memcmp(actual.data() + bytes, start.data() + bytes, 16))
          << op_name(op) << " wrote past its end";
    }
  }
}

TEST_P(FoldOnTarget, SumsEveryPairOfHalvesOfOneBinadeLikeTheReference) {
  for (const Op op : {Op::kSumBf16, Op::kSumF16}) {
    std::vector<uint16_t> all(65536), step(65536), expected;
    for (uint32_t shift = 1; shift < 65536; shift = shift * 3 + 1) {
      for (uint32_t i = 0; i < 65536; ++i) {
        all[i] = static_cast<uint16_t>(i);
        step[i] = static_cast<uint16_t>(i + shift);
      }
      expected = all;
      reference::fold(op, expected.data(), step.data(), all.size());
      fold(op, all.data(), step.data(), all.size());
      for (uint32_t i = 0; i < 65536; ++i) {
        ASSERT_TRUE(same_lane(op, reinterpret_cast<uint8_t*>(all.data()),
                              reinterpret_cast<uint8_t*>(expected.data()), i))
            << op_name(op) << " " << i << " + " << step[i];
      }
    }
  }
}

TEST_P(FoldOnTarget, TableSumEqualsAddingLookedUpLevels) {
  for (const uint64_t lanes : kLengths) {
    const std::vector<uint8_t> indices = random_bytes(lanes + 3, (lanes + 1) / 2);
    uint8_t table8[16];
    uint16_t table16[16];
    for (int e = 0; e < 16; ++e) {
      table8[e] = static_cast<uint8_t>(e * 2 + (e > 7));
      table16[e] = static_cast<uint16_t>(e * 300 + 7);
    }
    std::vector<uint8_t> sums8(lanes + 8, 5);
    std::vector<uint16_t> sums16(lanes + 8, 70);
    fold_table(Op::kTableSumU8, sums8.data(), indices.data(), table8, lanes);
    fold_table(Op::kTableSumU16, sums16.data(), indices.data(), table16, lanes);
    for (uint64_t i = 0; i < lanes; ++i) {
      const unsigned index = (indices[i / 2] >> (i % 2 * 4)) & 15u;
      ASSERT_EQ(sums8[i], 5u + table8[index]) << i;
      ASSERT_EQ(sums16[i], 70u + table16[index]) << i;
    }
    for (uint64_t i = lanes; i < lanes + 8; ++i) {
      ASSERT_EQ(sums8[i], 5u);
      ASSERT_EQ(sums16[i], 70u);
    }
  }
}

TEST_P(FoldOnTarget, ManySourcesAtOnceEqualOneAfterTheOther) {
  for (const uint64_t lanes : kLengths) {
    for (const std::size_t sources : {0, 1, 3, 8}) {
      for (const Op op : {Op::kTableSumU8, Op::kTableSumU16}) {
        std::vector<std::vector<uint8_t>> indices;
        std::vector<const uint8_t*> pointers;
        for (std::size_t s = 0; s < sources; ++s)
          indices.push_back(random_bytes(s + lanes, lanes / 2 + 1));
        for (const auto& one : indices)
          pointers.push_back(one.data());
        const std::vector<uint8_t> table = random_bytes(5, 32);
        std::vector<uint8_t> together = random_bytes(6, 2 * lanes + 8), one_by_one = together;
        fold_tables(op, together.data(), pointers.data(), sources, table.data(), lanes);
        for (const uint8_t* source : pointers) {
          reference::fold_table(op, one_by_one.data(), source, table.data(), lanes);
        }
        ASSERT_EQ(together, one_by_one)
            << op_name(op) << " lanes " << lanes << " sources " << sources;
      }
    }
  }
}

TEST_P(FoldOnTarget, IntegerFoldsCommuteAndAssociate) {
  for (const Op op : {Op::kSumI32, Op::kSumI64, Op::kSumU8, Op::kSumU16, Op::kOrU64, Op::kMaxU32}) {
    const uint64_t lanes = 777, bytes = op_bytes(op, lanes);
    const auto a = random_bytes(1, bytes), b = random_bytes(2, bytes), c = random_bytes(3, bytes);
    auto left = a, right = c, bc = b;
    fold(op, left.data(), b.data(), lanes);
    fold(op, left.data(), c.data(), lanes);
    fold(op, bc.data(), c.data(), lanes);
    right = bc;
    fold(op, right.data(), a.data(), lanes);
    EXPECT_EQ(left, right) << op_name(op);
  }
}

// What a worker's lane of a narrow sum stands for.
uint32_t level_of(Op op, const uint8_t* lanes, const uint8_t* table, uint64_t i) {
  const uint32_t bits = addend_op_index_bits(static_cast<addend_op>(op));
  uint32_t value = 0;
  for (uint32_t bit = 0; bit < bits; ++bit)
    value |= (lanes[(i * bits + bit) / 8] >> ((i * bits + bit) % 8) & 1u) << bit;
  return bits == 8 ? value : table[value];
}

TEST_P(FoldOnTarget, NarrowSumsAreTheReferencesOfSumsInSixteenBits) {
  constexpr std::size_t kSources = 19;  // more than are added at once
  for (std::size_t code = ADDEND_OP_NARROW_SUM_1_4; code < kOpCount; ++code) {
    const Op op = static_cast<Op>(code);
    const uint32_t bits = addend_op_narrow_bits(static_cast<addend_op>(op));
    for (const uint64_t lanes : {1u, 7u, 64u, 511u, 512u, 513u, 1024u, 5000u}) {
      const auto table = random_bytes(3 * code, 16);
      std::vector<std::vector<uint8_t>> sources;
      std::vector<const uint8_t*> pointers;
      for (std::size_t s = 0; s < kSources; ++s) {
        sources.push_back(random_bytes(100 * code + s, op_bytes(op, lanes)));
        pointers.push_back(sources.back().data());
      }
      std::vector<uint8_t> expected(op_sum_bytes(op, lanes) + 1, 0xEE), actual = expected;
      for (uint64_t begin = 0; begin < lanes; begin += narrow::kGroupLanes) {
        const uint64_t count = std::min<uint64_t>(narrow::kGroupLanes, lanes - begin);
        std::vector<uint16_t> sums(count);
        for (uint64_t i = 0; i < count; ++i) {
          for (const uint8_t* source : pointers)
            sums[i] =
                static_cast<uint16_t>(sums[i] + level_of(op, source, table.data(), begin + i));
        }
        reference::narrow_group(sums.data(), count, bits,
                                expected.data() + op_sum_bytes(op, begin));
      }
      fold_tables(op, actual.data(), pointers.data(), kSources, table.data(), lanes);
      ASSERT_EQ(actual, expected) << op_name(op) << " " << lanes << " lanes";
      // One worker at a time, in another order, as an aggregator does.
      std::vector<uint16_t> grown(lanes, 0);
      for (std::size_t s = kSources; s-- > 0;)
        fold_table(op, grown.data(), pointers[s], table.data(), lanes);
      actual.assign(actual.size(), 0xEE);
      narrow_sums(op, grown.data(), lanes, actual.data());
      ASSERT_EQ(actual, expected) << op_name(op) << " " << lanes << " lanes";
    }
  }
}

// Up to the largest steps, where a quotient by multiplication could go wrong first.
TEST_P(FoldOnTarget, NarrowedGroupsOfAnyRangeAreTheReferences) {
  constexpr std::size_t kSources = 257;  // of levels up to 255: all sums that 16 bits hold
  std::vector<uint16_t> sums(narrow::kGroupLanes);
  std::vector<std::vector<uint8_t>> levels(kSources, std::vector<uint8_t>(sums.size()));
  std::vector<const uint8_t*> sources;
  for (const auto& source : levels)
    sources.push_back(source.data());
  for (uint64_t draw = 0; draw < 68; ++draw) {
    const uint64_t range = draw == 0 ? 65535 : addend_random(1, draw) >> (48 + draw % 17);
    const uint64_t base = addend_random(2, draw) % (65536 - range);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] = static_cast<uint16_t>(base + addend_random(draw, i) % (range + 1));
      for (std::size_t s = 0; s < kSources; ++s)
        levels[s][i] = static_cast<uint8_t>(
            std::clamp<int64_t>(int64_t{sums[i]} - 255 * static_cast<int64_t>(s), 0, 255));
    }
    for (const Op op : {Op::kNarrowSum84, Op::kNarrowSum88}) {
      std::vector<uint8_t> expected(op_sum_bytes(op, sums.size())), actual(expected.size());
      reference::narrow_group(sums.data(), sums.size(), op == Op::kNarrowSum84 ? 4 : 8,
                              expected.data());
      fold_tables(op, actual.data(), sources.data(), kSources, nullptr, sums.size());
      ASSERT_EQ(actual, expected) << op_name(op) << " range " << range;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FoldOnTarget, testing::ValuesIn(simd_targets()),
                         [](const auto& suite) { return suite.param; });

int32_t widened_twice(const std::vector<uint8_t>& group, uint32_t bits, uint32_t lane) {
  const uint8_t* values = group.data() + ADDEND_NARROW_HEADER_BYTES;
  return narrow::widened_twice(narrow::read_group(group.data()), lane,
                               bits == 8 ? values[lane] : values[lane / 2] >> (lane % 2 * 4) & 15u);
}

TEST(NarrowSums, AreExactWhereTheyFitAndNeverFurtherOffThanHalfAStep) {
  for (const uint32_t bits : {4u, 8u}) {
    for (const uint32_t range : {0u, 1u, 15u, 16u, 100u, 255u, 256u, 4000u, 65535u}) {
      std::vector<uint16_t> sums(300);
      for (uint32_t i = 0; i < sums.size(); ++i)
        sums[i] =
            static_cast<uint16_t>((65535 - range) / 2 + addend_random(range, i) % (range + 1));
      sums[17] = static_cast<uint16_t>((65535 - range) / 2);
      sums[18] = static_cast<uint16_t>(sums[17] + range);
      std::vector<uint8_t> group(ADDEND_NARROW_HEADER_BYTES + sums.size());
      reference::narrow_group(sums.data(), sums.size(), bits, group.data());
      const auto step = static_cast<int32_t>(narrow::read_group(group.data()).step);
      EXPECT_EQ(step == 1, range < (1u << bits)) << range;
      EXPECT_LE(step, static_cast<int32_t>(range / ((1u << bits) - 1) + 1)) << range;
      for (uint32_t i = 0; i < sums.size(); ++i)
        ASSERT_LE(std::abs(widened_twice(group, bits, i) - 2 * sums[i]), step - 1) << range;
    }
  }
}

// Each sum by itself, whatever it is: the mean error of many groups is within 4 deviations of 0.
TEST(NarrowSums, HaveNoBias) {
  constexpr int kGroups = 4000;
  std::vector<double> error(64);
  std::vector<uint16_t> sums(narrow::kGroupLanes);
  std::vector<uint8_t> group(ADDEND_NARROW_HEADER_BYTES + sums.size());
  double step = 0;
  for (uint64_t draw = 0; draw < kGroups; ++draw) {
    for (uint32_t i = 0; i < sums.size(); ++i)
      sums[i] = static_cast<uint16_t>(i < error.size() ? 1000 + i : addend_random(draw, i) % 2000);
    sums[100] = 0;
    sums[101] = 1999;
    reference::narrow_group(sums.data(), sums.size(), 4, group.data());
    step = narrow::read_group(group.data()).step;
    for (uint32_t i = 0; i < error.size(); ++i)
      error[i] += widened_twice(group, 4, i) / 2.0 - sums[i];
  }
  for (uint32_t i = 0; i < error.size(); ++i)
    EXPECT_LT(std::abs(error[i] / kGroups), 4 * step / std::sqrt(12.0 * kGroups)) << i;
}

TEST(Fold, RefusesPlanesThatDiffer) {
  uint64_t x[2] = {1, 2}, y[2] = {3, 4};
  Plane a{Op::kOrU64, 2, x, nullptr, nullptr};
  EXPECT_EQ(fold(a, Plane{Op::kOrU64, 1, y, nullptr, nullptr}).error().code, Errc::kMismatch);
  EXPECT_EQ(fold(a, Plane{Op::kSumI64, 2, y, nullptr, nullptr}).error().code, Errc::kMismatch);
  EXPECT_EQ(x[0], 1u);
  ASSERT_TRUE(fold(a, Plane{Op::kOrU64, 2, y, nullptr, nullptr}));
  EXPECT_EQ(x[0], 3u);
}

TEST(Fold, HalfSumsRoundOncePerAddition) {
  // 256 + 1 is not a bf16: it stays 256 however often 1 is added, as a chain of MPI or NCCL
  // additions would leave it.
  uint16_t acc = addend_bf16_from_f32(256.0f);
  const uint16_t one = addend_bf16_from_f32(1.0f);
  for (int i = 0; i < 8; ++i)
    fold(Op::kSumBf16, &acc, &one, 1);
  EXPECT_EQ(addend_f32_from_bf16(acc), 256.0f);
}

}  // namespace
}  // namespace addend
