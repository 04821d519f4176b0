// SPDX-License-Identifier: Apache-2.0
// Lanes of narrow sums: indices of 1 to 3 bits on the way up, sums of 4 or 8 bits on the way back.
#pragma once

#include <cstdint>

namespace addend::quant {

/// Packs n 4-bit indices, two a byte, into `bits` (1 to 3) each, the first in the lowest bits.
/// REQUIRES: n a multiple of 64, indices below 2^bits.
void pack_indices(const uint8_t* nibbles, uint64_t n, uint32_t bits, uint8_t* out);

/// Twice the n sums from lane `first` on, of a plane of narrow sums in `bits` (4 or 8) each, as
/// two's complement. REQUIRES: first and n multiples of 64.
void widen(const uint8_t* sums, uint32_t bits, uint64_t first, uint64_t n, uint32_t* twice);

}  // namespace addend::quant
