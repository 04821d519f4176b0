// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/random.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace addend::workload {
namespace {

constexpr uint64_t kDraws = 200'000;

TEST(Random, MixIsSplitmix64) {
  // The first outputs of the published generator for seed 0.
  EXPECT_EQ(mix(kGolden), 0xe220a8397b1dcdafu);
  EXPECT_EQ(mix(2 * kGolden), 0x6e789e6aa1b965f4u);
}

TEST(Random, StreamsOfDifferentNamesDiffer) {
  EXPECT_EQ(Stream({1, 2}).bits(7), Stream({1, 2}).bits(7));
  EXPECT_NE(Stream({1, 2}).bits(7), Stream({2, 1}).bits(7));
  EXPECT_NE(Stream({1}).bits(0), Stream({1, 0}).bits(0));
}

TEST(Random, NormalHasItsMoments) {
  const Stream stream({42});
  double sum = 0;
  double square = 0;
  double fourth = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double x = to_normal(stream.bits(i));
    sum += x;
    square += x * x;
    fourth += x * x * x * x;
  }
  // Six deviations of each estimate: fails by chance less than once in 10^8 seeds.
  const double n = static_cast<double>(kDraws);
  EXPECT_NEAR(sum / n, 0, 6 / std::sqrt(n));
  EXPECT_NEAR(square / n, 1, 6 * std::sqrt(2 / n));
  EXPECT_NEAR(fourth / n, 3, 0.04 + 6 * std::sqrt(96 / n));
}

TEST(Random, PortablePowersAgreeWithTheLibrary) {
  for (double x = -60; x < 60; x += 0.37) {
    EXPECT_NEAR(portable_exp2(x) / std::exp2(x), 1, 1e-12);
    EXPECT_NEAR(portable_log2(std::exp2(x)), x, 1e-11);
  }
}

TEST(Random, ZipfFollowsThePowerLaw) {
  for (double exponent : {0.6, 1.0, 1.3}) {
    const ZipfSampler sampler(1000, exponent);
    const Stream stream({7});
    std::vector<double> seen(1000);
    for (uint64_t i = 0; i < kDraws; ++i)
      seen[sampler.rank(stream.bits(i))] += 1;
    const auto weight = [&](double first, double last) {  // of ranks first .. last - 1
      const double power = 1 - exponent;
      if (exponent == 1.0) return std::log((last + 1) / (first + 1)) / std::log(1001.0);
      return (std::pow(last + 1, power) - std::pow(first + 1, power)) / (std::pow(1001, power) - 1);
    };
    const double n = static_cast<double>(kDraws);
    EXPECT_NEAR(seen[0] / n, weight(0, 1), 6 * std::sqrt(weight(0, 1) / n)) << exponent;
    double tail = 0;
    for (std::size_t r = 500; r < 1000; ++r)
      tail += seen[r];
    EXPECT_NEAR(tail / n, weight(500, 1000), 6 * std::sqrt(weight(500, 1000) / n)) << exponent;
  }
}

}  // namespace
}  // namespace addend::workload
