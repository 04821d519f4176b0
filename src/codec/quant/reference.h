// SPDX-License-Identifier: Apache-2.0
// The specification of block.h, one element at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "codec/quant/block.h"
#include "wire/half.h"
#include "wire/hash.h"

namespace addend::quant::reference {

/// Sixteen 32-bit xorshift generators, one a lane (Marsaglia 2003). Starting points come from the
/// seed alone, so a block can be encoded again bit for bit.
struct Random {
  uint32_t state[kLanes];

  explicit Random(uint64_t seed) {
    for (uint32_t l = 0; l < kLanes; ++l)
      state[l] = static_cast<uint32_t>(addend_random(seed, l)) | 1u;
  }
  void step() {
    for (uint32_t& x : state) {
      x ^= x << 13;
      x ^= x >> 17;
      x ^= x << 5;
    }
  }
};

/// The rounding threshold of one element, in [0, 1): uniform for each worker by itself; correlated,
/// the thresholds of all workers fall into the world's strata, one each (a shared cyclic shift).
inline float threshold(const Quantiser& q, uint32_t shared, uint32_t private16) {
  if (!q.correlated) return static_cast<float>(private16) * 0x1p-16f;
  uint32_t stratum = q.worker + ((shared & 0xFFFF) * q.world >> 16);
  stratum -= stratum >= q.world ? q.world : 0;
  const float unit = 0x1p-16f / static_cast<float>(q.world);
  return static_cast<float>(static_cast<int32_t>(stratum << 16 | private16)) * unit;
}

inline float energy(const float* x, uint64_t n) {
  float sums[kLanes] = {};
  for (uint64_t i = 0; i < n; ++i)
    sums[i % kLanes] += x[i] * x[i];
  for (uint32_t half = kLanes / 2; half > 0; half /= 2) {
    for (uint32_t l = 0; l < half; ++l)
      sums[l] += sums[l + half];
  }
  return sums[0];
}

inline void flip(const float* x, const uint64_t* signs, uint64_t n, float* y) {
  for (uint64_t i = 0; i < n; ++i) {
    const auto sign = static_cast<uint32_t>((signs[i / 64] >> (i % 64)) & 1) << 31;
    y[i] = addend_f32_from_bits(addend_f32_bits(x[i]) ^ sign);
  }
}

inline void hadamard(float* x, uint64_t n) {
  for (uint64_t h = 1; h < n; h *= 2) {
    for (uint64_t base = 0; base < n; base += 2 * h) {
      for (uint64_t i = base; i < base + h; ++i) {
        const float a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
  }
}

inline void rotate(const float* x, const uint64_t* signs, uint64_t n, float* y) {
  flip(x, signs, n, y);
  hadamard(y, n);
}

inline void unrotate(float* x, const uint64_t* signs, uint64_t n, float* y) {
  hadamard(x, n);
  flip(x, signs, n, y);
}

/// A shared draw serves four rows of sixteen elements: errors of different elements may go
/// together, those of different workers may not. A private draw serves two, its low half the first.
template <bool kIndices>
inline void quantise(const Quantiser& q, const float* x, uint64_t n, uint8_t* out) {
  Random shared(q.shared_seed), own(q.private_seed);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t row = i / kLanes, lane = i % kLanes;
    if (lane == 0 && row % 4 == 0) shared.step();
    if (lane == 0 && row % 2 == 0) own.step();
    const float u = threshold(q, shared.state[lane], (own.state[lane] >> (row % 2 * 16)) & 0xFFFF);
    const float y = std::min(std::max(x[i] * q.scale + q.middle, 0.0f), q.top);
    const auto cell = static_cast<int32_t>(y);
    const bool up = y - q.lower[cell] > u * q.gap[cell];
    const float value =
        kIndices ? q.index[cell] + (up ? 1.0f : 0.0f) : q.lower[cell] + (up ? q.gap[cell] : 0.0f);
    out[i] = static_cast<uint8_t>(static_cast<int32_t>(value));
  }
}

template <typename T>
void dequantise(const T* sums, uint64_t n, float factor, float offset, float* x) {
  for (uint64_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(static_cast<int32_t>(sums[i])) * factor + offset;
}

}  // namespace addend::quant::reference
