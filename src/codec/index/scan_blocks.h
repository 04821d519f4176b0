// SPDX-License-Identifier: Apache-2.0
// Which blocks of a gradient hold anything: one pass at the speed of memory that writes two bits a
// block and nothing else. Scalar reference and Highway version find the same.
#pragma once

#include <cstdint>

namespace addend::index {

struct BlockScan {
  uint64_t nonzeros = 0;
  bool negative_zeros = false;  ///< whether a block without a non-zero has a -0.0
};

/// Sets bit b of `live` iff block b (elements b * block and on; the last may be shorter) has a
/// non-zero (-0.0 is zero, NaN is not), and bit b of `partial` iff it has a zero as well. REQUIRES:
/// block >= 1; both bitmaps have words_for(ceil_div(count, block)) words.
BlockScan scan_blocks(uint32_t width, const void* gradient, uint64_t count, uint64_t block,
                      uint64_t* live, uint64_t* partial);

/// The same for a bitmap of non-zeros, which shows no -0.0.
BlockScan scan_blocks(const uint64_t* nonzeros, uint64_t count, uint64_t block, uint64_t* live,
                      uint64_t* partial);

}  // namespace addend::index
