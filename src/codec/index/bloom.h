// SPDX-License-Identifier: Apache-2.0
// A Bloom filter of positions: an index that ORs and grows with the union, not with the gradient,
// for unions so sparse that most of a bitmap is zeros. What it holds is at least what was put in;
// the few positions more carry zeros.
//
//   positions 64 b ... 64 b + 63   one word of a bitmap     0 1 0 0 ... 1
//   their place by hash j          one word of the filter, from a random bit of it on, wrapping
//
// Words are hashed, not positions, so putting in is an OR a hash and word, and finding all that a
// filter holds is an AND a hash and word, for most words of 7 hashes. To random positions of
// different words that is a Bloom filter like any other. docs/formats/exact.md, "Bloom filter".
#pragma once

#include <cstdint>

namespace addend::index {

struct BloomShape {
  /// A filter has at least 1 word and hashes, and at most 2^32 bits.
  static constexpr uint64_t kMaxWords = uint64_t{1} << 26;
  static constexpr uint32_t kMaxHashes = 32;

  uint64_t seed = 0;
  uint64_t words = 1;
  uint32_t hashes = 1;

  /// The filter that costs the fewest bits for `keys` of `count` positions, if each false one among
  /// the others costs `value_bits`.
  static BloomShape plan(uint64_t keys, uint64_t count, uint32_t value_bits, uint64_t seed);
};

/// Clears the filter and puts the positions of a bitmap in.
void bloom_insert(const BloomShape& shape, const uint64_t* bitmap, uint64_t bitmap_words,
                  uint64_t* filter);

/// Sets the bits of all positions that the filter holds, and no others. Has a scalar reference and
/// a Highway version that write the same.
void bloom_find(const BloomShape& shape, const uint64_t* filter, uint64_t bitmap_words,
                uint64_t* bitmap);

/// Of `found` positions, how many are false ones as far as the filter's fill tells, that is the
/// bits of it that are set: a function of the filter alone.
double bloom_false(const BloomShape& shape, uint64_t set, uint64_t count, uint64_t found);

}  // namespace addend::index
