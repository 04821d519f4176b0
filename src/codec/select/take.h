// SPDX-License-Identifier: Apache-2.0
// The pass that takes elements out of a gradient: it reads gradient and residual once, and writes
// what stays, the positions and the elements taken. Scalar reference and Highway version write the
// same bytes, NaN payloads aside.
#pragma once

#include <cstdint>

#include "codec/select/histogram.h"

namespace addend::select {

/// Where a pass writes. Positions count from the first element of gradient and residual.
struct Taking {
  uint64_t begin = 0, end = 0;
  float* left = nullptr;       ///< e = gradient + residual, an f32; 0 where it is taken
  uint64_t* bitmap = nullptr;  ///< bit i: element i is taken
  float* values = nullptr;     ///< the e that are taken, in order; room for kSpare more
  bool stream = false;         ///< what is left goes past the caches
  uint16_t* places = nullptr;  ///< of take_large: where they were, after begin; room likewise
};
inline constexpr uint64_t kSpare = 2;

/// Takes elements whose bits without the sign are at least `least`, and sets their bits. Returns
/// how many. REQUIRES: a residual; the bits of the range are clear; least >= 1; `left` overlaps
/// neither gradient nor residual; the range is no longer than 2^16.
uint64_t take_large(const Addends& addends, uint32_t least, const Taking& to);

/// Takes those whose bits are set; `finite`: whether all elements are. Returns how many. REQUIRES:
/// as above, but for the bits.
uint64_t take_marked(const Addends& addends, const Taking& to, bool* finite);

}  // namespace addend::select
