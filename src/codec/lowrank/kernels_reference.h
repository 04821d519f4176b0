// SPDX-License-Identifier: Apache-2.0
// The passes of lowrank one element at a time: their specification.
#pragma once

#include <cmath>

#include "codec/lowrank/kernels.h"

namespace addend::lowrank::reference {

inline constexpr uint64_t kPartialSums = 16;

inline void multiply_row(const Row& row, uint64_t count, const Factor<const float>& columns,
                         float* products) {
  for (uint64_t k = 0; k < columns.rank; ++k) {
    float sums[kPartialSums] = {};
    for (uint64_t j = 0; j < count; ++j) {
      const float element = row.gradient[j] + row.residual[j];
      sums[j % kPartialSums] += element * columns.data[k * columns.stride + j];
    }
    for (uint64_t half = kPartialSums / 2; half > 0; half /= 2) {
      for (uint64_t s = 0; s < half; ++s)
        sums[s] += sums[s + half];
    }
    products[k] = sums[0];
  }
}

/// From element `begin` on.
inline void add_rows(const Row* rows, uint64_t row_count, uint64_t begin, uint64_t count,
                     const float* weights, const Factor<float>& columns) {
  for (uint64_t k = 0; k < columns.rank; ++k) {
    for (uint64_t j = begin; j < count; ++j) {
      for (uint64_t r = 0; r < row_count; ++r) {
        const float element = rows[r].gradient[j] + rows[r].residual[j];
        columns.data[k * columns.stride + j] += element * weights[r * columns.rank + k];
      }
    }
  }
}

/// From element `begin` on.
inline void split_row(const Row& row, uint64_t begin, uint64_t count, const Split& split) {
  const uint64_t rank = split.own.rank;
  for (uint64_t j = begin; j < count; ++j) {
    float own = split.own.data[j] * split.weights[0];
    float sum = split.sum.data[j] * split.sum_weights[0];
    for (uint64_t k = 1; k < rank; ++k) {
      own += split.own.data[k * split.own.stride + j] * split.weights[k];
      sum += split.sum.data[k * split.sum.stride + j] * split.sum_weights[k];
    }
    const float kept = row.gradient[j] + row.residual[j] - own;
    split.residual[j] = std::isfinite(kept) ? kept : 0;
    split.result[j] = sum;
  }
}

}  // namespace addend::lowrank::reference
