// SPDX-License-Identifier: Apache-2.0
// Elements times a factor: how a layout's scale reaches values that travel as floats.
#pragma once

#include <cstdint>

#include "addend/plane.h"

namespace addend {

/// to[i] = from[i] * factor: the product as f32, then rounded to dtype, as engines that average
/// 16-bit gradients do it. A factor of 1 copies, or does nothing where `to` is `from`. REQUIRES:
/// `to` is `from`, or they do not overlap.
void multiply(DType dtype, const void* from, uint64_t count, float factor, void* to);

}  // namespace addend
