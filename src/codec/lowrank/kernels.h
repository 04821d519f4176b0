// SPDX-License-Identifier: Apache-2.0
// The three passes over a matrix, a strip of columns at a time. Scalar reference and Highway
// version write the same bits: each says in which order it adds, and nothing is fused.
#pragma once

#include <cstdint>

namespace addend::lowrank {

/// Columns of a strip: those of a factor stay in the first caches while the rows go by.
inline constexpr uint64_t kStrip = 2048;
/// Rows that are added to a factor at once.
inline constexpr uint64_t kRows = 4;

/// A row's part of a strip: its elements are gradient[j] + residual[j].
struct Row {
  const float* gradient = nullptr;
  const float* residual = nullptr;
};

/// `rank` columns of a factor, whose elements in the strip are at data + k * stride.
template <typename T>
struct Factor {
  T* data = nullptr;
  uint64_t stride = 0;
  uint64_t rank = 0;
};

/// products[k] = row times column k. Element j is added to partial sum j mod 16, and those are
/// added in halves: s to s + 8, then 4, 2, 1.
void multiply_row(const Row& row, uint64_t count, const Factor<const float>& columns,
                  float* products);

/// Column k += weights[r * rank + k] times row r, in the order of rows. REQUIRES: at most kRows.
void add_rows(const Row* rows, uint64_t row_count, uint64_t count, const float* weights,
              const Factor<float>& columns);

/// What a row becomes: sums and residual over the columns in their order, beginning with the first
/// product. A residual that is not finite becomes 0. `result` may be row.gradient, and `residual`
/// row.residual.
struct Split {
  const float* weights = nullptr;      ///< of the columns, for the residual
  const float* sum_weights = nullptr;  ///< and for the result
  Factor<const float> own, sum;
  float* residual = nullptr;
  float* result = nullptr;
};
void split_row(const Row& row, uint64_t count, const Split& split);

}  // namespace addend::lowrank
