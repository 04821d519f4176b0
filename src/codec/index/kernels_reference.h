// SPDX-License-Identifier: Apache-2.0
// The passes of kernels.h and scan_blocks.h one element at a time: what they mean, and what runs
// when the scalar target is forced.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/bits.h"
#include "codec/index/kernels.h"
#include "codec/index/scan_blocks.h"

namespace addend::index::reference {

template <typename T>
bool is_zero(T bits) {
  return static_cast<T>(bits << 1) == 0;  // the sign bit does not count
}

/// The words from `begin` on, given what the words before have found.
template <typename T>
ScanResult scan(const T* gradient, uint64_t begin, uint64_t count, uint64_t* bitmap, T* kept,
                uint64_t kept_capacity, ScanResult found) {
  for (uint64_t base = begin; base < count; base += 64) {
    uint64_t word = 0;
    const uint64_t end = std::min<uint64_t>(base + 64, count);
    const bool keep = found.kept == found.nonzeros && found.kept + 64 <= kept_capacity;
    for (uint64_t i = base; i < end; ++i) {
      if (is_zero(gradient[i])) {
        found.negative_zeros |= gradient[i] != 0;
        continue;
      }
      word |= uint64_t{1} << (i - base);
      if (keep) kept[found.kept++] = gradient[i];
      ++found.nonzeros;
    }
    bitmap[base / 64] = word;
  }
  return found;
}

template <typename T>
BlockScan scan_blocks(const T* gradient, uint64_t count, uint64_t block, uint64_t* live,
                      uint64_t* partial) {
  BlockScan found;
  const uint64_t blocks = ceil_div(count, block);
  std::fill_n(live, words_for(blocks), 0);
  std::fill_n(partial, words_for(blocks), 0);
  for (uint64_t b = 0; b < blocks; ++b) {
    const uint64_t begin = b * block, end = std::min(begin + block, count);
    uint64_t nonzeros = 0;
    bool signs = false;
    for (uint64_t i = begin; i < end; ++i) {
      nonzeros += is_zero(gradient[i]) ? 0 : 1;
      signs |= is_zero(gradient[i]) && gradient[i] != 0;
    }
    found.nonzeros += nonzeros;
    if (nonzeros == 0) {
      found.negative_zeros |= signs;
      continue;
    }
    set_bit(live, b);
    if (nonzeros < end - begin) set_bit(partial, b);
  }
  return found;
}

template <typename T>
uint64_t pack(const T* gradient, uint64_t begin, uint64_t count, const uint64_t* selection,
              T* packed, uint64_t rank) {
  for (uint64_t base = begin; base < count; base += 64) {
    for_each_bit(selection[base / 64], base, [&](uint64_t i) { packed[rank++] = gradient[i]; });
  }
  return rank;
}

/// What was written and read before.
struct Placed {
  uint64_t rank = 0;
  uint64_t taken = 0;
};

template <typename T>
uint64_t place(const T* kept, const uint64_t* bitmap, uint64_t begin, uint64_t words,
               const uint64_t* selection, T* packed, Placed placed) {
  for (uint64_t w = begin; w < words; ++w) {
    for_each_bit(selection[w], 0, [&](uint64_t bit) {
      packed[placed.rank++] = (bitmap[w] >> bit) & 1 ? kept[placed.taken++] : T{0};
    });
  }
  return placed.rank;
}

template <typename T>
void unpack(const T* packed, const uint64_t* selection, uint64_t begin, uint64_t count, T* gradient,
            uint64_t rank) {
  for (uint64_t i = begin; i < count; ++i) {
    gradient[i] = test_bit(selection, i) ? packed[rank++] : T{0};
  }
}

template <typename T>
void unpack_into_zeros(const T* packed, const uint64_t* selection, uint64_t begin, uint64_t count,
                       T* gradient, uint64_t rank) {
  for (uint64_t base = begin; base < count; base += 64) {
    for_each_bit(selection[base / 64], base, [&](uint64_t i) { gradient[i] = packed[rank++]; });
  }
}

}  // namespace addend::index::reference
