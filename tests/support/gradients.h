// SPDX-License-Identifier: Apache-2.0
// Seeded gradients for tests, and their sums by means that share no code with the library's
// decoders.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "addend/plane.h"
#include "tests/support/lockstep.h"
#include "wire/half.h"
#include "wire/hash.h"

namespace addend::testing_support {

inline double uniform(uint64_t seed, uint64_t i) {
  return static_cast<double>(addend_random(seed, i) >> 11) * 0x1p-53;
}

/// A standard normal number (Box-Muller).
inline double normal(uint64_t seed, uint64_t i) {
  const double radius = std::sqrt(-2 * std::log(uniform(seed, 2 * i) + 0x1p-60));
  return radius * std::cos(6.283185307179586 * uniform(seed, 2 * i + 1));
}

inline float read(DType dtype, const Bytes& gradient, uint64_t i) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, gradient.data() + 4 * i, 4);
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, gradient.data() + 2 * i, 2);
  return dtype == DType::kBf16 ? addend_f32_from_bf16(half) : addend_f32_from_f16(half);
}

inline void write(DType dtype, Bytes& gradient, uint64_t i, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(gradient.data() + 4 * i, &value, 4);
    return;
  }
  const uint16_t half =
      dtype == DType::kBf16 ? addend_bf16_from_f32(value) : addend_f16_from_f32(value);
  std::memcpy(gradient.data() + 2 * i, &half, 2);
}

enum class Overlap : uint8_t { kNone, kRandom, kFull };

struct Scenario {
  DType dtype = DType::kF32;
  uint64_t count = 0;
  uint32_t world = 1;
  double density = 0;
  Overlap overlap = Overlap::kRandom;
  uint64_t seed = 1;
};

/// The layout that a scenario's codecs are made for.
inline Layout layout_of(const Scenario& s, uint32_t worker = 0) {
  Layout layout;
  layout.dtype = s.dtype;
  layout.count = s.count;
  layout.world = s.world;
  layout.worker = worker;
  layout.seed = s.seed;
  return layout;
}

/// Whether element i of worker w is non-zero. kNone gives every element to one worker at the most.
inline bool is_live(const Scenario& s, uint32_t w, uint64_t i) {
  switch (s.overlap) {
    case Overlap::kNone:
      return addend_random(s.seed + 77, i) % s.world == w && uniform(s.seed, i) < s.density;
    case Overlap::kFull:
      return uniform(s.seed, i) < s.density;
    case Overlap::kRandom:
      break;
  }
  return uniform(s.seed + 1000 * (w + 1), i) < s.density;
}

/// One gradient per worker; value(worker, i) gives the non-zeros.
template <typename Value>
std::vector<Bytes> make_gradients(const Scenario& s, Value&& value) {
  std::vector<Bytes> gradients(s.world, Bytes(s.count * dtype_bytes(s.dtype), 0));
  for (uint32_t w = 0; w < s.world; ++w) {
    for (uint64_t i = 0; i < s.count; ++i) {
      if (is_live(s, w, i)) write(s.dtype, gradients[w], i, value(w, i));
    }
  }
  return gradients;
}

/// +-1 or +-2: every partial sum of a few hundred workers is exact in every dtype, so order and
/// rounding cannot matter.
inline float small_integer(uint64_t seed, uint32_t w, uint64_t i) {
  const uint64_t draw = addend_random(seed + 31 * w, i);
  return static_cast<float>(1 + (draw & 1)) * ((draw & 2) != 0 ? -1.0f : 1.0f);
}

/// Element-wise sums in double: the reference for integers and for error bounds.
inline std::vector<double> sums(const Scenario& s, const std::vector<Bytes>& gradients) {
  std::vector<double> total(s.count, 0.0);
  for (const Bytes& gradient : gradients) {
    for (uint64_t i = 0; i < s.count; ++i)
      total[i] += static_cast<double>(read(s.dtype, gradient, i));
  }
  return total;
}

/// A layout of f32 elements, and the scenario in which all of them are live.
inline Layout layout_of(uint32_t world, uint64_t count) {
  Layout layout;
  layout.count = count;
  layout.world = world;
  layout.seed = 23;
  return layout;
}

inline Scenario scenario_of(const Layout& layout) {
  return {layout.dtype, layout.count, layout.world, 1, Overlap::kFull, layout.seed};
}

/// Standard normal gradients, another one for each worker.
inline std::vector<Bytes> standard_normal(const Layout& layout, uint64_t seed) {
  return make_gradients(scenario_of(layout), [&](uint32_t w, uint64_t i) {
    return static_cast<float>(normal(seed + 100 * w, i));
  });
}

}  // namespace addend::testing_support
