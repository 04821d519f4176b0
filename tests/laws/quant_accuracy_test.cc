// SPDX-License-Identifier: Apache-2.0
// How far the quantised mean is from the true one, against the figures that the scheme is known to
// reach and those we promise. Gaussian blocks of 2^20 elements: relative errors fluctuate by well
// under 1 % between seeds, so bars are compared directly.
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

constexpr uint64_t kCount = uint64_t{1} << 20;

using Gradients = std::vector<std::vector<float>>;

// Like Lockstep, but every worker knows its number, which rounding depends on.
std::vector<float> mean_of(const std::string& spec, const Gradients& gradients, uint64_t seed = 3) {
  const auto world = static_cast<uint32_t>(gradients.size());
  Layout layout;
  layout.count = gradients[0].size();
  layout.world = world;
  layout.seed = seed;
  Lockstep workers(spec, layout);
  std::vector<Bytes> bytes;
  for (const std::vector<float>& gradient : gradients) {
    const auto* begin = reinterpret_cast<const uint8_t*>(gradient.data());
    bytes.emplace_back(begin, begin + gradient.size() * 4);
  }
  const Status status = workers.step(bytes, 1);
  EXPECT_TRUE(status) << spec;
  std::vector<float> mean(layout.count);
  for (uint64_t i = 0; i < layout.count; ++i)
    mean[i] = read(DType::kF32, bytes[0], i) / static_cast<float>(world);
  return mean;
}

// Squared error of the mean, relative to the mean squared norm of the gradients.
double error_of(const std::string& spec, const Gradients& gradients) {
  const std::vector<float> mean = mean_of(spec, gradients);
  double error = 0, energy = 0;
  for (uint64_t i = 0; i < mean.size(); ++i) {
    double sum = 0;
    for (const std::vector<float>& gradient : gradients) {
      sum += static_cast<double>(gradient[i]);
      energy += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
    }
    const double truth = sum / static_cast<double>(gradients.size());
    error += (static_cast<double>(mean[i]) - truth) * (static_cast<double>(mean[i]) - truth);
  }
  return error / (energy / static_cast<double>(gradients.size()));
}

Gradients gaussian(uint32_t world, bool identical) {
  Gradients gradients(world, std::vector<float>(kCount));
  for (uint32_t w = 0; w < world; ++w) {
    for (uint64_t i = 0; i < kCount; ++i)
      gradients[w][i] = static_cast<float>(normal(identical ? 1 : 1 + w, i));
  }
  return gradients;
}

// Energies of stretches of the gradient are log-normal with sigma 1.5, the same on all workers.
Gradients uneven(uint32_t world, uint64_t stretch) {
  Gradients gradients = gaussian(world, true);
  for (std::vector<float>& gradient : gradients) {
    for (uint64_t i = 0; i < kCount; ++i)
      gradient[i] *= static_cast<float>(std::exp(0.75 * normal(99, i / stretch)));
  }
  return gradients;
}

TEST(QuantAccuracy, FourBitsInEightBitLanesMeetTheBars) {
  const Gradients same8 = gaussian(8, true), different8 = gaussian(8, false),
                  same4 = gaussian(4, true);
  const double identical8 = error_of("quant:bits=4", same8),
               independent8 = error_of("quant:bits=4", different8);
  const double identical4 = error_of("quant:bits=4", same4);
  // The published figure of independent gradients is relative to the mean's own energy, a world-th
  // of the mean squared norm.
  std::printf(
      "quant, 4 bits: N=8 identical %.6f, independent %.6f (x8: %.6f), N=4 identical %.6f\n",
      identical8, independent8, 8 * independent8, identical4);
  EXPECT_LE(identical8, 0.0006);
  EXPECT_LE(8 * independent8, 0.0125);
  EXPECT_LE(identical4, 0.0015);
}

// The same bytes as four bits, and the error of as many bits as fit the lane.
TEST(QuantAccuracy, DefaultBitsFillTheLaneAtNoCostAndGainMuch) {
  const struct {
    uint32_t world, bits;
    double gain;
  } cases[] = {{2, 7, 25}, {4, 6, 7}, {8, 5, 2}};
  for (const auto& [world, bits, gain] : cases) {
    const Gradients gradients = gaussian(world, false);
    const double four = error_of("quant:bits=4", gradients), filled = error_of("quant", gradients);
    std::printf("N=%u independent: 4 bits %.7f, default %.7f, %.1fx less\n", world, four, filled,
                four / filled);
    EXPECT_GE(four / filled, gain) << world;
    EXPECT_EQ(filled, error_of("quant:bits=" + std::to_string(bits), gradients)) << world;
  }
}

TEST(QuantAccuracy, DefaultBitsSendTheBytesOfFourInEveryWorld) {
  for (const uint32_t world : {1u, 2u, 3u, 5u, 9u, 16u, 17u, 18u, 64u, 257u, 258u, 4369u, 4370u}) {
    Layout layout = layout_of(world, 4096);
    const auto bytes = [&](const char* text) {
      auto codec = create_codec(*CodecSpec::parse(text), layout);
      EXPECT_TRUE(codec) << world;
      const std::vector<float> gradient(layout.count, 1.5f);
      Round round;
      EXPECT_TRUE((*codec)->begin(gradient.data()));
      EXPECT_TRUE(*(*codec)->next_round(round) && *(*codec)->next_round(round));
      return round.bytes();
    };
    EXPECT_EQ(bytes("quant"), bytes("quant:bits=4")) << world;
  }
}

// What rounding the sum once more costs: next to nothing in 8 bits, about as much as 4 bits on the
// way up did in 4. Of large worlds the whole sum takes 16 bits.
TEST(QuantAccuracy, NarrowSumsAddWhatTheirBitsSay) {
  const Gradients four = gaussian(4, false), many = gaussian(20, false);
  const double up4 = error_of("quant:carrier=indices", four),
               down4 = error_of("quant:bits=4,down=4", four), up8 = error_of("quant:bits=8", four),
               down8 = error_of("quant:bits=8,down=8", four),
               up20 = error_of("quant:carrier=indices", many),
               down20 = error_of("quant:bits=4,down=8", many);
  std::printf("N=4: 4 bits %.6f, back in 4 %.6f; 8 bits %.7f, back in 8 %.7f\n", up4, down4, up8,
              down8);
  std::printf("N=20: 4 bits %.7f, back in 8 %.7f\n", up20, down20);
  EXPECT_LT(down4 - up4, 0.017 / 4);  // of the sum's own energy, a fourth of the mean squared norm
  EXPECT_LT(down8 - up8, 8e-5 / 4);
  EXPECT_LT(down20, 1.02 * up20);
}

TEST(QuantAccuracy, ThePublishedSettingGivesThePublishedErrors) {
  const std::string spec = "quant:levels=published,rounding=independent";
  const double identical = error_of(spec, gaussian(4, true)),
               independent = error_of(spec, gaussian(4, false)),
               identical8 = error_of(spec, gaussian(8, true)),
               independent8 = error_of(spec, gaussian(8, false));
  std::printf("published setting: N=4 identical %.6f, independent %.6f, N=8 %.6f, %.6f\n",
              identical, independent, identical8, independent8);
  EXPECT_NEAR(identical, 0.0105, 0.05 * 0.0105);
  EXPECT_NEAR(independent, 0.0051, 0.05 * 0.0051);
  EXPECT_LT(identical8, identical);
  EXPECT_NEAR(independent8, independent / 2, 0.05 * independent);
}

TEST(QuantAccuracy, UnevenBlockEnergiesCostAtMostATenth) {
  for (const char* spec : {"quant:bits=4", "quant:levels=published,rounding=independent"}) {
    const double even = error_of(spec, gaussian(4, true)), rough = error_of(spec, uneven(4, 256));
    std::printf("%s: gaussian %.6f, uneven %.6f\n", spec, even, rough);
    EXPECT_LE(rough, 1.1 * even) << spec;
  }
}

TEST(QuantAccuracy, WidthsPerBlockBeatOneWidthAtTheSameBudget) {
  const Gradients gradients = uneven(4, 4096);
  const double fixed = error_of("quant:bits=4", gradients),
               chosen = error_of("quant:bits=auto,budget=4.0", gradients);
  std::printf("uneven blocks, 4 bits: one width %.6f, chosen %.6f\n", fixed, chosen);
  EXPECT_LT(chosen, 0.8 * fixed);
}

TEST(QuantAccuracy, RotationTablesAndCorrelationEachHelp) {
  Gradients gradients = gaussian(8, true);
  for (std::vector<float>& gradient : gradients) {
    for (uint64_t i = 0; i < kCount; ++i)
      gradient[i] = static_cast<float>(std::pow(static_cast<double>(gradient[i]), 3));
  }
  const double full = error_of("quant:bits=4", gradients),
               independent = error_of("quant:bits=4,rounding=independent", gradients);
  const double uniform = error_of("quant:levels=uniform", gradients),
               bare = error_of("quant:levels=uniform,rotate=none", gradients);
  std::printf(
      "heavy tails: quant %.6f, independent %.6f, uniform %.6f, uniform without rotation %.6f\n",
      full, independent, uniform, bare);
  EXPECT_LT(full, 0.5 * independent);
  EXPECT_LT(full, uniform);
  EXPECT_LT(uniform, bare);
}

}  // namespace
}  // namespace addend::testing_support
