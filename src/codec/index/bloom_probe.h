// SPDX-License-Identifier: Apache-2.0
// Where a Bloom filter has the words of a bitmap; inline, for the host and for kernels.
// docs/formats/exact.md, "Bloom filter".
#pragma once

#include <cstdint>

#include "codec/index/bloom.h"
#include "wire/hash.h"

namespace addend::index {

/// The places of one word in the filter. A congruential generator whose start and increment are the
/// two halves of a hash: words that are near each other in one place are not in the next.
struct BloomProbe {
  static constexpr uint32_t kMultiplier = 0x915F77F5;
  uint32_t state, increment;

  ADDEND_HOST_DEVICE BloomProbe(uint64_t seed, uint64_t word) {
    const uint64_t hash = addend_random(seed, word);
    state = static_cast<uint32_t>(hash);
    increment = static_cast<uint32_t>(hash >> 32);
  }
  /// The bit of the filter where the word's bit 0 lies.
  ADDEND_HOST_DEVICE uint64_t bit(uint64_t filter_bits) const {
    return (uint64_t{state} * filter_bits) >> 32;
  }
  ADDEND_HOST_DEVICE void next() { state = state * kMultiplier + increment; }
};

ADDEND_HOST_DEVICE inline uint64_t rotated_left(uint64_t word, uint64_t bits) {
  return word << bits % 64 | word >> (64 - bits % 64) % 64;
}

/// What the filter holds of a word of the bitmap.
ADDEND_HOST_DEVICE inline uint64_t bloom_word(const BloomShape& shape, const uint64_t* filter,
                                              uint64_t word) {
  const uint64_t bits = shape.words * 64;
  uint64_t held = ~uint64_t{0};
  BloomProbe probe(shape.seed, word);
  for (uint32_t j = 0; j < shape.hashes && held != 0; ++j, probe.next()) {
    const uint64_t bit = probe.bit(bits);
    held &= rotated_left(filter[bit / 64], 64 - bit % 64);
  }
  return held;
}

}  // namespace addend::index
