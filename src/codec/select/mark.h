// SPDX-License-Identifier: Apache-2.0
// The passes of a selection that need no histogram. Scalar reference and Highway version write the
// same bytes, NaN payloads aside.
#pragma once

#include <cstdint>

#include "codec/select/histogram.h"

namespace addend::select {

/// sums[i] = gradient[i] + residual[i], an f32. Returns whether all are finite. REQUIRES: a
/// residual; sums overlaps neither.
bool add_owed(const Addends& addends, uint64_t count, float* sums);

/// Sets bit i of `bitmap` for each i of begin .. end where the bits of elements[i] without its sign
/// are at least `least`. Returns how many are. REQUIRES: the bits of that range are clear.
uint64_t mark(const float* elements, uint64_t begin, uint64_t end, uint32_t least,
              uint64_t* bitmap);

}  // namespace addend::select
