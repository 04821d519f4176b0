// SPDX-License-Identifier: Apache-2.0
// Gradients for tests of quant, and how far a decoded sum may be from the true one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "addend/codec.h"
#include "gtest/gtest.h"
#include "tests/support/gradients.h"
#include "tests/support/quant_workers.h"

namespace addend::testing_support {

/// A layout for tests of quant.
inline Layout quant_layout(uint32_t world, uint64_t count, DType dtype = DType::kF32) {
  Layout layout;
  layout.dtype = dtype;
  layout.count = count;
  layout.world = world;
  layout.seed = 11;
  return layout;
}

/// value(worker, i) for every element.
template <typename Value>
Gradients gradients_of(const Layout& layout, Value&& value) {
  Gradients gradients(layout.world,
                      std::vector<uint8_t>(layout.count * dtype_bytes(layout.dtype) + 1));
  for (uint32_t w = 0; w < layout.world; ++w) {
    for (uint64_t i = 0; i < layout.count; ++i)
      write(layout.dtype, gradients[w], i, static_cast<float>(value(w, i)));
  }
  return gradients;
}

/// Normal numbers, independent over workers.
inline Gradients gaussian(const Layout& layout, uint64_t seed, double scale = 1) {
  return gradients_of(layout,
                      [&](uint32_t w, uint64_t i) { return scale * normal(seed + 100 * w, i); });
}

/// Adds weight * gradient to total.
inline void accumulate(const Layout& layout, const std::vector<uint8_t>& gradient, double weight,
                       std::vector<double>& total) {
  for (uint64_t i = 0; i < layout.count; ++i)
    total[i] += weight * static_cast<double>(read(layout.dtype, gradient, i));
}

inline double norm(const std::vector<double>& x) {
  double energy = 0;
  for (const double value : x)
    energy += value * value;
  return std::sqrt(energy);
}

struct Distance {
  double error = 0;    // norm of (sum of decoded - sum of gradients)
  double largest = 0;  // sqrt(world) times the largest norm of a worker
};

inline Distance distance(const Layout& layout, const Gradients& before,
                         const std::vector<uint8_t>& after, uint64_t begin, uint64_t end) {
  Distance d;
  std::vector<double> energies(layout.world, 0.0);
  double error = 0;
  for (uint64_t i = begin; i < end; ++i) {
    double sum = 0;
    for (uint32_t w = 0; w < layout.world; ++w) {
      const auto x = static_cast<double>(read(layout.dtype, before[w], i));
      sum += x;
      energies[w] += x * x;
    }
    error += std::pow(static_cast<double>(read(layout.dtype, after, i)) - sum, 2);
  }
  for (const double energy : energies)
    d.largest = std::max(d.largest, std::sqrt(layout.world * energy));
  d.error = std::sqrt(error);
  return d;
}

// The error of 4 bits is about 0.14 of the norm for one worker (spec of the published scheme: the
// square is 0.0203), and less for more. Few elements fluctuate: this is far outside.
inline constexpr double kPlausible = 0.35;

/// Block by block; and all workers hold the same bits.
inline void expect_close(const Layout& layout, const Gradients& before, const Gradients& after,
                         const std::string& what, double bound = kPlausible) {
  for (uint64_t begin = 0; begin < layout.count; begin += 2048) {
    const uint64_t end = std::min<uint64_t>(begin + 2048, layout.count);
    const Distance d = distance(layout, before, after[0], begin, end);
    EXPECT_LE(d.error, bound * d.largest) << what << " block " << begin / 2048;
  }
  for (uint32_t w = 1; w < layout.world; ++w)
    EXPECT_EQ(after[w], after[0]) << what << ": worker " << w << " has other bits";
}

}  // namespace addend::testing_support
