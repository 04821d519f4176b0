// SPDX-License-Identifier: Apache-2.0
// For each of 256 patterns of eight lanes, the permutation that closes the gaps (compress) or opens
// them (expand).
#pragma once

#include <cstdint>

namespace addend::index {

struct CompactTable {
  uint8_t compress_lanes[256][8];  ///< result lane r takes the r-th selected lane (then 0)
  uint8_t expand_lanes[256]
                      [8];  ///< result lane l takes the element of l's rank (0 where not selected)
  uint8_t compress_bytes[256][16];  ///< the same as byte shuffles of 16-bit lanes (0x80: zero)
  uint8_t expand_bytes[256][16];
  uint8_t bits[256];  ///< the pattern itself, to load a mask from

  constexpr CompactTable()
      : compress_lanes{}, expand_lanes{}, compress_bytes{}, expand_bytes{}, bits{} {
    for (int pattern = 0; pattern < 256; ++pattern) {
      bits[pattern] = static_cast<uint8_t>(pattern);
      for (int byte = 0; byte < 16; ++byte) {
        compress_bytes[pattern][byte] = 0x80;
        expand_bytes[pattern][byte] = 0x80;
      }
      int rank = 0;
      for (int lane = 0; lane < 8; ++lane) {
        if (((pattern >> lane) & 1) == 0) continue;
        link(pattern, lane, rank);
        ++rank;
      }
    }
  }

 private:
  constexpr void link(int pattern, int lane, int rank) {
    compress_lanes[pattern][rank] = static_cast<uint8_t>(lane);
    expand_lanes[pattern][lane] = static_cast<uint8_t>(rank);
    for (int byte = 0; byte < 2; ++byte) {
      compress_bytes[pattern][2 * rank + byte] = static_cast<uint8_t>(2 * lane + byte);
      expand_bytes[pattern][2 * lane + byte] = static_cast<uint8_t>(2 * rank + byte);
    }
  }
};

inline constexpr CompactTable kCompact;

}  // namespace addend::index
