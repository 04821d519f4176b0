// SPDX-License-Identifier: Apache-2.0
#include "codec/lowrank/matrices.h"

#include <algorithm>

#include "base/bits.h"
#include "base/chunks.h"
#include "codec/lowrank/kernels.h"

namespace addend::lowrank {
namespace {

// Whether two factors of f32 are smaller than the elements. A rank as large as a side never is.
bool pays(const Segment& segment, DType dtype, uint64_t rank) {
  if (segment.rows == 0 || segment.count == 0) return false;
  const uint64_t sides = segment.rows + segment.count / segment.rows;
  return rank * sides < segment.count / (4 / dtype_bytes(dtype));
}

// Rows of a large matrix are many at a time, so that the columns of a factor that go by with them
// are seldom fetched again.
constexpr uint64_t kRowPieces = 64;
// Columns are few at a time only where there would be too few pieces: they are read row by row.
constexpr uint64_t kColumnPieces = 4, kLeastColumns = 256;

void cut(uint64_t matrix, uint64_t count, uint64_t length, std::vector<Piece>& pieces) {
  for (uint64_t begin = 0; begin < count; begin += length)
    pieces.push_back({matrix, begin, std::min(count, begin + length)});
}

void cut(uint64_t number, const Matrix& matrix, Division& all) {
  const uint64_t elements = std::max(kChunkElements, ceil_div(matrix.count(), kRowPieces));
  cut(number, matrix.rows, ceil_div(elements, matrix.columns), all.row_pieces);
  const uint64_t columns = ceil_div(matrix.columns, kColumnPieces);
  cut(number, matrix.columns, std::clamp(columns, kLeastColumns, kStrip), all.column_pieces);
}

}  // namespace

Division divide(const Layout& layout, uint64_t rank) {
  Division all;
  uint64_t begin = 0;
  for (uint64_t s = 0; s < layout.segments.size(); ++s) {
    const Segment& segment = layout.segments[s];
    if (pays(segment, layout.dtype, rank)) {
      const uint64_t columns = segment.count / segment.rows;
      all.matrices.push_back({s, segment.rows, columns, begin, all.matrix_elements,
                              all.left_elements, all.right_elements});
      all.matrix_elements += segment.count;
      all.left_elements += rank * segment.rows;
      all.right_elements += rank * columns;
      cut(all.matrices.size() - 1, all.matrices.back(), all);
    } else if (segment.count > 0) {
      all.others.push_back({begin, segment.count});
      all.other_elements += segment.count;
    }
    begin += segment.count;
  }
  return all;
}

}  // namespace addend::lowrank
