// SPDX-License-Identifier: Apache-2.0
#include "codec/select/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "addend/simd.h"
#include "wire/element.h"
#include "wire/hash.h"

namespace addend::select {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kBf16, DType::kF16};

double uniform(uint64_t seed, uint64_t i) {
  return (static_cast<double>(addend_random(seed, i) >> 11) + 0.5) * 0x1p-53;
}

// Shapes that gradients have: of one width, with exponential and with heavy tails.
float normal(uint64_t i) {
  return static_cast<float>(std::sqrt(-2 * std::log(uniform(1, i))) *
                            std::cos(6.283185307179586 * uniform(2, i)));
}
float laplace(uint64_t i) {
  return static_cast<float>(-std::log(uniform(3, i)) * (addend_random(4, i) % 2 == 0 ? 1 : -1));
}
float heavy(uint64_t i) {
  return normal(i) * static_cast<float>(std::pow(uniform(5, i), -0.25)) * 1e-3f;
}

std::vector<float> sample(float (*shape)(uint64_t), uint64_t count) {
  std::vector<float> x(count);
  for (uint64_t i = 0; i < count; ++i)
    x[i] = shape(i);
  return x;
}

Histogram of(const std::vector<float>& x) {
  Histogram histogram;
  count_magnitudes({DType::kF32, x.data(), nullptr}, x.size(), nullptr, histogram);
  return histogram;
}

// Every pattern of bits that a type has, and as many of f32.
std::vector<uint8_t> patterns(DType dtype, uint64_t count) {
  std::vector<uint8_t> bytes(count * 4);
  for (uint64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<uint32_t>(addend_random(9, i));
    if (dtype == DType::kF32) {
      reinterpret_cast<uint32_t*>(bytes.data())[i] = bits;
    } else {
      reinterpret_cast<uint16_t*>(bytes.data())[i] = static_cast<uint16_t>(i);
    }
  }
  return bytes;
}

bool same(float a, float b) {
  return addend_f32_bits(a) == addend_f32_bits(b) || (std::isnan(a) && std::isnan(b));
}

TEST(Histogram, CountsAndSumsAreEqualOnEveryTarget) {
  const std::vector<float> owed = sample(normal, 70001);
  for (const DType dtype : kTypes) {
    for (const uint64_t count : {0, 1, 63, 8192, 8195, 70001}) {
      const std::vector<uint8_t> gradient = patterns(dtype, count);
      for (const float* residual : {static_cast<const float*>(nullptr), owed.data()}) {
        Histogram expected;
        std::vector<float> sums(count);
        for (uint64_t i = 0; i < count; ++i) {
          sums[i] = load_float(dtype, gradient.data(), i) + (residual != nullptr ? residual[i] : 0);
          const uint32_t bits = addend_f32_bits(sums[i]) & 0x7FFFFFFF;
          ++expected[bits >> 20];
        }
        for (const std::string& target : simd_targets()) {
          ASSERT_TRUE(force_simd_target(target));
          Histogram found;
          std::vector<float> written(count);
          count_magnitudes({dtype, gradient.data(), residual}, count, written.data(), found);
          for (uint32_t bin = 0; bin < Histogram::kFirstNonFinite; ++bin)
            ASSERT_EQ(found[bin], expected[bin]) << target << " bin " << bin;
          ASSERT_EQ(found.nonfinite(), expected.nonfinite()) << "payloads of NaN may differ";
          for (uint64_t i = 0; i < count; ++i)
            ASSERT_TRUE(residual == nullptr || same(written[i], sums[i])) << target << " at " << i;
        }
        ASSERT_TRUE(force_simd_target(""));
      }
    }
  }
}

TEST(Histogram, ItsThresholdKeepsWithinOnePercentOfWhatIsAsked) {
  for (float (*shape)(uint64_t) : {normal, laplace, heavy}) {
    const std::vector<float> x = sample(shape, 1000000);
    const Histogram histogram = of(x);
    for (const double density : {0.01, 0.05, 0.1, 0.3}) {
      const float least = histogram.threshold(density);
      const auto kept = static_cast<double>(
          std::count_if(x.begin(), x.end(), [&](float v) { return std::fabs(v) >= least; }));
      EXPECT_NEAR(kept / (density * 1e6), 1, 0.01) << density;
    }
  }
}

TEST(Histogram, CutsWhereTheKeptEnd) {
  Histogram histogram;
  histogram[0] = 100;
  histogram[1000] = 5;
  histogram[1010] = 3;
  const auto at = [&](uint64_t kept) { return histogram.cut(kept); };
  EXPECT_EQ(at(1).bin, 1010u);
  EXPECT_EQ(at(3).bin, 1010u);
  EXPECT_EQ(at(3).above, 0u);
  EXPECT_EQ(at(4).bin, 1000u);
  EXPECT_EQ(at(8).bin, 1000u);
  EXPECT_EQ(at(8).above, 3u);
  EXPECT_EQ(at(9).bin, 0u);
  EXPECT_EQ(at(9).above, 8u);
  EXPECT_EQ(at(1000).bin, 0u);
  EXPECT_EQ(histogram.elements(), 108u);
}

TEST(Histogram, WhatIsNotFiniteIsAboveAllAndZerosBelow) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0, -0.0f, 1, -2, inf, -inf, std::nanf("")};
  const Histogram histogram = of(x);
  EXPECT_EQ(histogram.elements(), 7u);
  EXPECT_EQ(histogram.nonfinite(), 3u);
  EXPECT_EQ(histogram.threshold(3.0 / 7), inf);
  EXPECT_EQ(histogram.threshold(1), 0);
  EXPECT_EQ(of({0, 0}).threshold(0.5), 0);
}

}  // namespace
}  // namespace addend::select
