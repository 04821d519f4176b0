// SPDX-License-Identifier: Apache-2.0
// Judges a sum of gradients against a double-precision reference.
#pragma once

#include <cstdint>
#include <span>

#include "addend/plane.h"

namespace addend::workload {

/// What a comparison found. Errors count only where reference and result are finite.
struct SumCheck {
  uint64_t elements = 0;
  uint64_t union_nonzeros = 0;  ///< positions where some input is not zero
  /// Elements farther from the reference than any order of float additions may land: (world - 1) *
  /// epsilon * sum of magnitudes, which is zero where all inputs are zero. NaN must meet NaN, an
  /// infinity the same infinity.
  uint64_t wrong = 0;
  uint64_t first_wrong = 0;    ///< index, if wrong > 0
  uint64_t rounded_again = 0;  ///< right, but not the true sum rounded once
  double max_abs_error = 0;
  double error_square = 0;  ///< sums of squares over all elements
  double reference_square = 0;

  /// Every element is the true sum, rounded once to the gradient's type.
  bool rounded_once() const { return wrong == 0 && rounded_again == 0; }
  double relative_l2() const;
  /// Joins what was found in another range or on another worker.
  void merge(const SumCheck& other);
};

/// Compares sum[i] with the reference over inputs[0][i], inputs[1][i], ... for i < count.
/// `index_offset` is added to first_wrong, for callers that check piece by piece.
SumCheck check_sum(DType dtype, std::span<const void* const> inputs, const void* sum,
                   uint64_t count, uint64_t index_offset = 0);

/// A hash of the elements' bits that takes -0.0 for 0.0: equal for results that are bit-identical
/// in every value.
uint64_t digest(DType dtype, const void* data, uint64_t count);

}  // namespace addend::workload
