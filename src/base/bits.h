// SPDX-License-Identifier: Apache-2.0
// Bitmaps: bit i of a bitmap is bit i%64 of word i/64. Bits past the end are zero: everything here
// keeps and relies on that.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "base/assert.h"

namespace addend {

constexpr uint64_t words_for(uint64_t bits) { return bits / 64 + (bits % 64 != 0 ? 1 : 0); }
constexpr uint64_t ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Smallest n with 2^n >= value. REQUIRES: value >= 1.
constexpr uint32_t ceil_log2(uint64_t value) {
  return static_cast<uint32_t>(std::bit_width(value - 1));
}

/// The low `bits` bits set. REQUIRES: bits <= 64.
constexpr uint64_t low_mask(uint64_t bits) {
  return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
}

inline bool test_bit(const uint64_t* words, uint64_t i) { return (words[i / 64] >> (i % 64)) & 1; }
inline void set_bit(uint64_t* words, uint64_t i) { words[i / 64] |= uint64_t{1} << (i % 64); }

inline uint64_t popcount(std::span<const uint64_t> words) {
  uint64_t total = 0;
  for (const uint64_t word : words)
    total += static_cast<uint64_t>(std::popcount(word));
  return total;
}

/// Calls visit(i) for every set bit of `word`, ascending, i counted from `base`.
template <typename Visit>
inline void for_each_bit(uint64_t word, uint64_t base, Visit&& visit) {
  for (; word != 0; word &= word - 1)
    visit(base + static_cast<uint64_t>(std::countr_zero(word)));
}

/// The `bits` bits that start at bit `begin`. REQUIRES: 1 <= bits <= 64, and the range lies inside
/// the bitmap.
inline uint64_t read_bits(const uint64_t* words, uint64_t begin, uint64_t bits) {
  const uint64_t shift = begin % 64;
  uint64_t value = words[begin / 64] >> shift;
  if (shift + bits > 64) value |= words[begin / 64 + 1] << (64 - shift);
  return value & low_mask(bits);
}

/// ORs the low `bits` bits of `value` in at bit `begin`. REQUIRES: as read_bits; higher bits of
/// value are zero.
inline void or_bits(uint64_t* words, uint64_t begin, uint64_t bits, uint64_t value) {
  ADDEND_ASSERT((value & ~low_mask(bits)) == 0);
  const uint64_t shift = begin % 64;
  words[begin / 64] |= value << shift;
  if (shift + bits > 64) words[begin / 64 + 1] |= value >> (64 - shift);
}

/// Calls visit(begin, bits, word) for the range [begin, end) in pieces of at most 64 bits.
template <typename Visit>
inline void for_each_piece(uint64_t begin, uint64_t end, Visit&& visit) {
  while (begin < end) {
    const uint64_t bits = std::min<uint64_t>(64 - begin % 64, end - begin);
    visit(begin, bits);
    begin += bits;
  }
}

inline uint64_t popcount_range(const uint64_t* words, uint64_t begin, uint64_t end) {
  uint64_t total = 0;
  for_each_piece(begin, end, [&](uint64_t at, uint64_t bits) {
    total += static_cast<uint64_t>(std::popcount(read_bits(words, at, bits)));
  });
  return total;
}

}  // namespace addend
