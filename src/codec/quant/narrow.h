// SPDX-License-Identifier: Apache-2.0
// Lanes of narrow sums: indices of 1 to 3 bits on the way up, sums of 4 or 8 bits on the way back.
#pragma once

#include <cstdint>

namespace addend::quant {

/// Packs n 4-bit indices, two a byte, into `bits` (1 to 3) each, the first in the lowest bits.
/// REQUIRES: n a multiple of 64, indices below 2^bits.
void pack_indices(const uint8_t* nibbles, uint64_t n, uint32_t bits, uint8_t* out);

/// A plane of narrow sums in `bits` (4 or 8) each, from one of its lanes on.
struct NarrowSums {
  const uint8_t* sums = nullptr;
  uint32_t bits = 8;
  uint64_t lane = 0;
};

/// x[i] = sum i times factor, plus offset. REQUIRES: the lane and n are multiples of 64.
void dequantise_narrow(const NarrowSums& from, uint64_t n, float factor, float offset, float* x);

}  // namespace addend::quant
