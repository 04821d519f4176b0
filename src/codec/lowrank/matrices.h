// SPDX-License-Identifier: Apache-2.0
// Which segments of a layout travel as factors, and where their parts lie.
#pragma once

#include <vector>

#include "addend/codec.h"

namespace addend::lowrank {

/// A segment that is a matrix of which two factors are smaller.
struct Matrix {
  uint64_t segment = 0;  ///< its number in the layout
  uint64_t rows = 0, columns = 0;
  uint64_t begin = 0;     ///< its first element in the gradient
  uint64_t residual = 0;  ///< and among the elements of all matrices
  uint64_t left = 0;      ///< where its left factor begins, rank columns of `rows` elements
  uint64_t right = 0;     ///< and its right one, rank columns of `columns` elements

  uint64_t count() const { return rows * columns; }
};

/// Elements that travel as they are.
struct Stretch {
  uint64_t begin = 0, count = 0;
};

/// Rows or columns of a matrix that one thread takes at a time. Where a matrix is cut depends on
/// its shape alone, and changes no bit of what is sent or decoded: an element of a factor is a sum
/// along a row, or down a column, and pieces have whole ones.
struct Piece {
  uint64_t matrix = 0;  ///< its number
  uint64_t begin = 0, end = 0;
};

struct Division {
  std::vector<Matrix> matrices;
  std::vector<Piece> row_pieces, column_pieces;  ///< of all matrices
  std::vector<Stretch> others;
  uint64_t matrix_elements = 0, other_elements = 0;
  uint64_t left_elements = 0, right_elements = 0;
};

Division divide(const Layout& layout, uint64_t rank);

}  // namespace addend::lowrank
