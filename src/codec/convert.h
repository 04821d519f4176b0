// SPDX-License-Identifier: Apache-2.0
// Elements times a factor, in another type or the same: how a layout's scale reaches values that
// travel as floats.
#pragma once

#include <cstdint>

#include "addend/plane.h"

namespace addend {

/// to[i] = from[i] * factor: the product as f32, then rounded once, to to_type. REQUIRES: the two
/// do not overlap, or are the same and of one type.
void convert(DType from_type, const void* from, uint64_t count, float factor, DType to_type,
             void* to);

/// The same within one type, as engines that average 16-bit gradients do it. A factor of 1 copies
/// every bit, or does nothing where `to` is `from`.
void multiply(DType dtype, const void* from, uint64_t count, float factor, void* to);

}  // namespace addend
