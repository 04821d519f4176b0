// SPDX-License-Identifier: Apache-2.0
// Judges a sum of gradients against a double-precision reference: exactly, or, for codecs that lose
// something on purpose, within what they may lose.
#pragma once

#include <cstdint>
#include <span>

#include "addend/plane.h"

namespace addend::workload {

/// What a codec may do to a sum.
struct Tolerance {
  bool lossy = false;  ///< otherwise nothing but what adding floats may round, and no more is read
  double nmse = 0;     ///< most squared error of the mean, relative to the gradients' mean square
  /// Where that is not bounded: most error of an element of the mean, in units of the gradients'
  /// peak. 0: not asked.
  double range = 0;
  double step = 0;     ///< least step that travels, where that is coarser than the gradient's own
  uint64_t block = 1;  ///< elements that one NaN or infinity may take with it
};

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
  double input_square = 0;  ///< of all inputs
  /// Largest norm of the inputs at one position: at least the largest magnitude of any input.
  double input_peak = 0;
  uint64_t non_finite = 0;  ///< elements whose reference is NaN or an infinity
  uint64_t hidden = 0;      ///< of those: elements that came out finite
  uint64_t spread = 0;      ///< came out NaN or infinite though the reference is well within range
  uint64_t world = 0;       ///< inputs
  double least_step = 0;    ///< between two values of the gradient's type

  /// Every element is the true sum, rounded once to the gradient's type.
  bool rounded_once() const { return wrong == 0 && rounded_again == 0; }
  double relative_l2() const;
  /// Squared error of the mean, relative to the mean squared norm of the inputs.
  double nmse() const;
  /// Elements that are wrong for a codec with this tolerance. If the error as a whole is too large,
  /// all elements that exactness would call wrong are.
  uint64_t wrong_within(const Tolerance& tolerance) const;
  /// Joins what was found in another range or on another worker.
  void merge(const SumCheck& other);
};

/// Compares sum[i] with the reference over inputs[0][i], inputs[1][i], ... for i < count.
/// `index_offset` is added to first_wrong, for callers that check piece by piece.
SumCheck check_sum(DType dtype, std::span<const void* const> inputs, const void* sum,
                   uint64_t count, uint64_t index_offset = 0);

/// Elements to check at a time, at most `count`: one piece of each of `world` workers' gradients
/// takes a megabyte in all, or less.
uint64_t check_piece(DType dtype, uint32_t world, uint64_t count);

/// A hash of the elements' bits that takes -0.0 for 0.0: equal for results that are bit-identical
/// in every value.
uint64_t digest(DType dtype, const void* data, uint64_t count);

}  // namespace addend::workload
