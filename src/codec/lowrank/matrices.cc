// SPDX-License-Identifier: Apache-2.0
#include "codec/lowrank/matrices.h"

namespace addend::lowrank {
namespace {

// Whether two factors of f32 are smaller than the elements. A rank as large as a side never is.
bool pays(const Segment& segment, DType dtype, uint64_t rank) {
  if (segment.rows == 0 || segment.count == 0) return false;
  const uint64_t sides = segment.rows + segment.count / segment.rows;
  return rank * sides < segment.count / (4 / dtype_bytes(dtype));
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
    } else if (segment.count > 0) {
      all.others.push_back({begin, segment.count});
      all.other_elements += segment.count;
    }
    begin += segment.count;
  }
  return all;
}

}  // namespace addend::lowrank
