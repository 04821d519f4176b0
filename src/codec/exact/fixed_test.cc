// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/fixed.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/exact_sum.h"
#include "wire/hash.h"

namespace addend::exact {
namespace {

using testing_support::ExactSum;

constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMost = std::numeric_limits<float>::max();
const float kNan = std::numeric_limits<float>::quiet_NaN();

float random_float(uint64_t seed, uint64_t i) {
  return addend_f32_from_bits(static_cast<uint32_t>(addend_random(seed, i)));
}

void expect_same(float actual, float expected) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual));
  } else {
    EXPECT_EQ(addend_f32_bits(actual), addend_f32_bits(expected)) << actual << " != " << expected;
  }
}

Fixed format_of(const std::vector<float>& values, uint32_t world) {
  BitRange range;
  for (const float value : values)
    range.include(value);
  return Fixed::holding(range, world);
}

// What the words of all values add up to, as an adder of i64 lanes would see it.
std::vector<int64_t> sum_words(const Fixed& format, const std::vector<float>& values) {
  std::vector<int64_t> sum(format.words()), words(format.words());
  for (const float value : values) {
    EXPECT_TRUE(format.holds(value)) << value;
    to_fixed(format, value, words.data());
    for (uint32_t j = 0; j < format.words(); ++j)
      sum[j] =
          static_cast<int64_t>(static_cast<uint64_t>(sum[j]) + static_cast<uint64_t>(words[j]));
  }
  return sum;
}

float sum_of(const std::vector<float>& values, DType dtype, uint32_t world = 64) {
  const Fixed format = format_of(values, world);
  return from_fixed(format, dtype, sum_words(format, values).data());
}

void expect_exact(const std::vector<float>& values, uint32_t world) {
  ExactSum exact;
  for (const float value : values)
    exact.add(value);
  const Fixed format = format_of(values, world);
  const auto sum = sum_words(format, values);
  for (const DType dtype : kTypes)
    expect_same(from_fixed(format, dtype, sum.data()), exact.round(dtype));
}

TEST(Fixed, ReturnsEveryKindOfFloatUnchanged) {
  for (uint64_t i = 0; i < 20000 && !testing::Test::HasFailure(); ++i) {
    const float value = random_float(1, i);
    if (value == 0) continue;
    for (const uint32_t world : {1u, 2u, 1000u, kMaxWorld})
      expect_same(sum_of({value}, DType::kF32, world), value);
  }
}

TEST(Fixed, HoldsTheWholeRangeInOneFormatAndReturnsEveryFloat) {
  for (const uint32_t world : {1u, 3u, 1024u, kMaxWorld}) {
    const Fixed format = format_of({0x1p-149f, kMost, kNan}, world);
    EXPECT_LE(format.words(), kMaxFixedWords);
    EXPECT_EQ(format.quantum, kLowestBit);
    std::vector<int64_t> words(format.words());
    for (uint64_t i = 0; i < 5000 && !testing::Test::HasFailure(); ++i) {
      const float value = random_float(2, i);
      EXPECT_TRUE(format.holds(value));
      to_fixed(format, value, words.data());
      if (value != 0) expect_same(from_fixed(format, DType::kF32, words.data()), value);
    }
  }
}

TEST(Fixed, SumsExactlyAndRoundsOnce) {
  for (uint64_t seed = 0; seed < 1500 && !testing::Test::HasFailure(); ++seed) {
    const uint64_t addends = 1 + addend_random(seed, 0) % 40;
    const auto spread = static_cast<uint32_t>(addend_random(seed, 1) % 255);
    const auto centre = static_cast<uint32_t>(addend_random(seed, 2) % 255);
    std::vector<float> values;
    for (uint64_t i = 0; i < addends; ++i) {
      const auto random = static_cast<uint32_t>(addend_random(seed, 3 + i));
      const uint32_t field = (centre + (random >> 23) % (spread + 1)) % 255;
      values.push_back(addend_f32_from_bits((random & 0x807FFFFFu) | field << 23));
      // Near cancellation, so that low bits decide.
      if (random % 3 == 0) values.push_back(-values[addend_random(seed, i) % values.size()]);
    }
    SCOPED_TRACE("seed " + std::to_string(seed));
    for (const uint32_t world : {80u, 1024u, kMaxWorld})
      expect_exact(values, world);
  }
}

TEST(Fixed, SumsHalvesExactly) {
  for (uint64_t seed = 0; seed < 500 && !testing::Test::HasFailure(); ++seed) {
    std::vector<float> bf16, f16;
    for (uint64_t i = 0; i < 9; ++i) {
      const auto bits = static_cast<uint16_t>(addend_random(seed, i));
      bf16.push_back(addend_f32_from_bf16(bits));
      f16.push_back(addend_f32_from_f16(bits));
    }
    expect_exact(bf16, 9);
    expect_exact(f16, 9);
  }
}

// The largest digits there are, as often as there may be workers.
TEST(Fixed, HoldsTheSumOfTheLargestWorld) {
  const Fixed format = format_of({0x1p-149f, kMost}, kMaxWorld);
  for (int exponent = -149; exponent <= 104; ++exponent) {
    for (const float sign : {1.0f, -1.0f}) {
      const float value = sign * std::ldexp(16777215.0f, exponent);
      if (!format.holds(value)) continue;
      std::vector<int64_t> words(format.words());
      to_fixed(format, value, words.data());
      for (int64_t& word : words) {
        ASSERT_LT(std::llabs(word), int64_t{1} << 43);
        word *= kMaxWorld;
      }
      expect_same(from_fixed(format, DType::kF32, words.data()),
                  static_cast<float>(static_cast<double>(value) * kMaxWorld));
    }
  }
}

TEST(Fixed, CancelsToPositiveZero) {
  for (const float value : {1.0f, kMost, 0x1p-149f, 3.1415927f})
    expect_same(sum_of({value, -value}, DType::kF32), 0.0f);
  expect_same(sum_of({kMost, 0x1p-149f, -kMost}, DType::kF32), 0x1p-149f);
  expect_same(sum_of({kMost, -0x1p-149f, -kMost}, DType::kF32), -0x1p-149f);
}

TEST(Fixed, RoundsTiesToEven) {
  struct Case {
    DType dtype;
    float one;  // of this dtype's last place is two
  };
  for (const Case& c :
       {Case{DType::kF32, 0x1p24f}, Case{DType::kBf16, 0x1p8f}, Case{DType::kF16, 0x1p11f}}) {
    for (const float sign : {1.0f, -1.0f}) {
      const float one = sign * c.one;
      expect_same(sum_of({one, sign}, c.dtype), one);
      expect_same(sum_of({one, sign, sign * 0x1p-100f}, c.dtype), one + 2 * sign);
      expect_same(sum_of({one, sign, sign * -0x1p-100f}, c.dtype), one);
      expect_same(sum_of({one, sign * 2, sign}, c.dtype), one + 4 * sign);
      expect_same(sum_of({one, sign * 2, sign, sign * -0x1p-100f}, c.dtype), one + 2 * sign);
    }
  }
}

TEST(Fixed, OverflowsToInfinityWhereTheDtypeDoes) {
  expect_same(sum_of({kMost, kMost}, DType::kF32), kInf);
  expect_same(sum_of({-kMost, -kMost}, DType::kF32), -kInf);
  expect_same(sum_of({kMost, 0x1p103f}, DType::kF32), kInf);
  expect_same(sum_of({kMost, 0x1p103f, -0x1p-149f}, DType::kF32), kMost);
  expect_same(sum_of({kMost, kMost, -kMost}, DType::kF32), kMost);
  const float bf16_most = addend_f32_from_bf16(0x7F7F);
  expect_same(sum_of({bf16_most, 0x1p119f}, DType::kBf16), kInf);
  expect_same(sum_of({bf16_most, 0x1p118f}, DType::kBf16), bf16_most);
  expect_same(sum_of({65504.0f, 16.0f}, DType::kF16), kInf);
  expect_same(sum_of({65504.0f, 15.0f}, DType::kF16), 65504.0f);
  expect_same(sum_of({-65504.0f, -65504.0f}, DType::kF16), -kInf);
}

TEST(Fixed, KeepsSubnormals) {
  expect_same(sum_of({0x1p-149f, 0x1p-149f}, DType::kF32), 0x1p-148f);
  expect_same(sum_of({0x1p-126f, -0x1p-149f}, DType::kF32), 0x1p-126f - 0x1p-149f);
  expect_same(sum_of({0x1p-133f, 0x1p-133f}, DType::kBf16), 0x1p-132f);
  expect_same(sum_of({0x1p-24f, 0x1p-24f, 0x1p-24f}, DType::kF16), 3 * 0x1p-24f);
}

TEST(Fixed, GivesNanAndInfinitiesAsAFloatSumWould) {
  for (const DType dtype : kTypes) {
    expect_same(sum_of({1.0f, kInf}, dtype), kInf);
    expect_same(sum_of({-kInf, 1.0f, -kInf}, dtype), -kInf);
    expect_same(sum_of({kInf, -kInf}, dtype), kNan);
    expect_same(sum_of({kNan, 1.0f}, dtype), kNan);
    expect_same(sum_of({kNan, kInf, -kInf}, dtype), kNan);
  }
}

TEST(Fixed, CountsSpecialsOfTheLargestWorldWithoutCarrying) {
  const std::pair<float, float> cases[] = {{kInf, kInf}, {-kInf, -kInf}, {kNan, kNan}};
  for (const auto& [value, expected] : cases) {
    const Fixed format = format_of({value, 1.0f}, kMaxWorld);
    std::vector<int64_t> words(format.words());
    to_fixed(format, value, words.data());
    for (int64_t& word : words)
      word *= kMaxWorld;
    expect_same(from_fixed(format, DType::kF32, words.data()), expected);
  }
}

TEST(Fixed, TakesNoMoreDigitsThanTheRangeNeeds) {
  EXPECT_EQ(format_of({1.0f, 0.5f}, 8).words(), 1u);
  EXPECT_EQ(format_of({1.0f}, 8).digit_bits, 60u);
  EXPECT_EQ(Fixed::holding({59, 0, false}, 8).digits, 1u);
  EXPECT_EQ(Fixed::holding({60, 0, false}, 8).digits, 2u);
  EXPECT_EQ(Fixed::holding({59, 0, true}, 8).words(), 2u);
  EXPECT_EQ(Fixed::holding({62, 0, false}, 1).digits, 1u);
  EXPECT_EQ(Fixed::holding(BitRange{}, 8).words(), 1u);
}

TEST(Fixed, KnowsWhatItHolds) {
  const Fixed format = Fixed::holding({10, -10, false}, 1);
  EXPECT_TRUE(format.holds(0.0f));
  EXPECT_TRUE(format.holds(-1024.0f));
  EXPECT_TRUE(format.holds(0x1p-10f));
  EXPECT_FALSE(format.holds(0x1p-11f));
  EXPECT_FALSE(format.holds(1.0f + 0x1p-11f));
  EXPECT_FALSE(format.holds(0x1p53f));
  EXPECT_FALSE(format.holds(kInf));
  EXPECT_FALSE(format.holds(kNan));
}

TEST(Fixed, RoundsBitsBelowTheQuantumToNearestEven) {
  const Fixed format = Fixed::holding({20, 0, false}, 2);
  const std::pair<float, float> cases[] = {{0.5f, 0},  {1.5f, 2},   {2.5f, 2},     {0.75f, 1},
                                           {0.25f, 0}, {-1.5f, -2}, {0x1p-149f, 0}};
  for (const auto& [value, expected] : cases) {
    int64_t word = 0;
    to_fixed(format, value, &word);
    EXPECT_EQ(static_cast<float>(word), expected) << value;
  }
}

TEST(RoundTo, EqualsTheReferenceOnEveryMagnitude) {
  for (uint64_t i = 0; i < 20000 && !testing::Test::HasFailure(); ++i) {
    const uint64_t magnitude = addend_random(5, 2 * i) >> (i % 64);
    const int exponent = static_cast<int>(addend_random(5, 2 * i + 1) % 300) - 215;
    ExactSum exact;
    exact.add(i % 2 == 1, magnitude, exponent);
    for (const DType dtype : kTypes) {
      const float expected = exact.round(dtype);
      const float actual = round_to(dtype, i % 2 == 1, magnitude, exponent, false);
      EXPECT_EQ(actual, expected) << magnitude << " * 2^" << exponent;
    }
  }
}

TEST(Quanta, AgreeWithOneDigit) {
  for (uint64_t i = 0; i < 5000 && !testing::Test::HasFailure(); ++i) {
    const int quantum = static_cast<int>(addend_random(6, i) % 260) - 149;
    Fixed format;
    format.quantum = quantum;
    const auto word = static_cast<int64_t>(addend_random(7, i)) >> (i % 63);
    for (const DType dtype : kTypes) {
      expect_same(from_quanta(dtype, word, quantum, std::ldexp(1.0f, quantum)),
                  from_fixed(format, dtype, &word));
    }
    const float value = random_float(8, i);
    if (!format.holds(value)) continue;
    int64_t expected = 0;
    to_fixed(format, value, &expected);
    EXPECT_EQ(to_quanta(value, std::ldexp(1.0, -quantum)), expected);
  }
}

}  // namespace
}  // namespace addend::exact
