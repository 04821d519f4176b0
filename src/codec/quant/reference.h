// SPDX-License-Identifier: Apache-2.0
// The specification of block.h, one element at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "codec/quant/block.h"
#include "wire/half.h"
#include "wire/hash.h"

namespace addend::quant::reference {

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

inline float add_owed(const float* x, const float* owed, uint64_t n, float* sum) {
  for (uint64_t i = 0; i < n; ++i)
    sum[i] = x[i] + (0.0f + owed[i]);
  return energy(sum, n);
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

template <bool kIndices>
inline void quantise(const Quantiser& q, const float* x, uint64_t n, uint8_t* out) {
  for (uint64_t i = 0; i < n; ++i) {
    const float y = std::min(std::max(x[i] * q.scale + q.middle, 0.0f), q.top);
    const auto cell = static_cast<uint8_t>(addend_f32_bits(y + kToCell) >> kCellShift);
    const bool up = y - q.lower[cell] > q.thresholds[i % kThresholds] * q.gap[cell];
    const float value =
        kIndices ? q.index[cell] + (up ? 1.0f : 0.0f) : q.lower[cell] + (up ? q.gap[cell] : 0.0f);
    const auto byte = static_cast<uint8_t>(addend_f32_bits(value + kToByte));
    if (!kIndices) {
      out[i] = byte;
    } else if (i % 2 == 0) {
      out[i / 2] = byte;
    } else {
      out[i / 2] = static_cast<uint8_t>(out[i / 2] | byte << 4);
    }
  }
}

inline void look_up(const uint8_t levels[16], const uint8_t* packed, uint64_t n, uint8_t* out) {
  for (uint64_t i = 0; i < n; ++i)
    out[i] = levels[packed[i / 2] >> (i % 2 * 4) & 15];
}

template <typename T>
void dequantise(const T* sums, uint64_t n, float factor, float offset, float* x) {
  for (uint64_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(static_cast<int32_t>(sums[i])) * factor + offset;
}

inline void dequantise(const narrow::Group& group, uint32_t first, const uint8_t* values,
                       uint64_t n, float factor, float offset, float* x) {
  for (uint32_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(narrow::widened_twice(group, first + i, values[i])) * factor + offset;
}

inline void subtract(const uint8_t* levels, uint64_t n, float factor, float offset, float* x) {
  for (uint64_t i = 0; i < n; ++i) {
    const float left = x[i] - (static_cast<float>(levels[i]) * factor + offset);
    x[i] = std::isfinite(left) ? left : 0.0f;
  }
}

}  // namespace addend::quant::reference
