// SPDX-License-Identifier: Apache-2.0
// Orthonormal columns. Every worker makes its basis of the same sums, and the bases must be the
// same bits whatever machine made them: plain scalar code in an order that the format states,
// binary64 within, no libm but the square root, which IEEE 754 defines.
#pragma once

#include <cstdint>

namespace addend::lowrank {

/// `rank` columns of `length` elements, one after the other.
struct Columns {
  float* data = nullptr;
  uint64_t length = 0;
  uint64_t rank = 0;

  float* column(uint64_t k) const { return data + k * length; }
};

/// Gram-Schmidt in the columns' order. A column in which nothing is left but the rounding of f32
/// becomes zero. False, and nothing is changed, if an element is not finite.
bool orthonormalise(const Columns& columns);

/// The same, and columns that became zero are drawn from the stream that `seed` names.
bool complete(const Columns& columns, uint64_t seed);

}  // namespace addend::lowrank
