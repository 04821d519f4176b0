// SPDX-License-Identifier: Apache-2.0
// What quant does to one block of a gradient. A block is a power of two of at least kLeastBlock
// elements, in a float buffer of its own. All arithmetic is defined over sixteen running lanes
// (element i belongs to lane i % 16), so that scalar and SIMD code of any width write the same
// bytes. reference.h is the specification, encode_kernels.cc and decode_kernels.cc are the fast
// version.
#pragma once

#include <cstdint>

#include "wire/narrow.h"

namespace addend::quant {

inline constexpr uint32_t kLanes = 16;
inline constexpr uint32_t kLeastBlock = 64;

/// How a block's rotated elements become levels.
struct Quantiser {
  float scale = 0;               ///< element -> table units, before the offset
  float middle = 0;              ///< g / 2: where zero lies in the table
  float top = 0;                 ///< g
  uint32_t cells = 0;            ///< g + 1: the tables are looked up by the integer part, 0 .. g
  const float* lower = nullptr;  ///< per cell: the level at or below it
  const float* gap = nullptr;    ///< per cell: distance to the next level
  const float* index = nullptr;  ///< per cell: number of the lower level
  bool uniform = false;          ///< levels are 0, 1, ... g: tables say what a cell already is
  /// Rounding thresholds in [0, 1), kThresholds of them; element i takes number i % kThresholds.
  const float* thresholds = nullptr;
  /// As many floats as are rounded, or with `next_half` half as many, fetched meanwhile because
  /// they are read next; or null.
  const float* next = nullptr;
  bool next_half = false;
};

/// Thresholds that a block cycles through.
inline constexpr uint64_t kThresholds = 1024;

/// Tables of a Quantiser are padded to this many cells, so that a lookup may load whole vectors.
inline constexpr uint32_t kTableCells = 256;

/// Integers out of floats of 0 .. 255 by addition, because conversions cost several operations in
/// vector code. A whole number plus kToByte has it in the low byte of its bits. Any number plus
/// kToCell has its integer part in the byte above bit kCellShift, after rounding to 2^-14: an
/// element less than 2^-15 below a level counts as on it, a bias far below that of float
/// arithmetic.
inline constexpr float kToByte = 12582912.0f;
inline constexpr float kToCell = 768.0f;
inline constexpr int kCellShift = 14;

/// Sum of squares, in sixteen running sums that are then added pairwise. REQUIRES: n a multiple
/// of 16.
float energy(const float* x, uint64_t n);

/// sum = x + owed, where an owed -0.0 counts as +0.0; returns its energy. `past_caches`: sum is not
/// read soon, and may be written past the caches. REQUIRES: as energy; sum overlaps neither.
float add_owed(const float* x, const float* owed, uint64_t n, float* sum, bool past_caches);

/// The rotation: negates where bit i of `signs` is set, then the Walsh-Hadamard transform, not
/// normalised. x and y may be the same. n / 2 floats from `next` on are fetched meanwhile, if it is
/// not null. REQUIRES: n a power of two >= kLeastBlock.
void rotate(const float* x, const uint64_t* signs, uint64_t n, float* y,
            const float* next = nullptr);

/// Its inverse but for a factor n: the transform in place on x, then y = x, negated where bit i is
/// set. x is used up, and is not y. `past_caches` as above.
void unrotate(float* x, const uint64_t* signs, uint64_t n, float* y, bool past_caches = false);

/// What this thread wrote past the caches is there for others.
void flush();

/// Rounds every element to a level, up or down without bias. Writes the levels' values, one a byte.
void quantise_levels(const Quantiser& quantiser, const float* x, uint64_t n, uint8_t* levels);

/// The same, but writes the levels' numbers in a table of at most 16, two a byte, the even element
/// in the low nibble.
void quantise_indices(const Quantiser& quantiser, const float* x, uint64_t n, uint8_t* packed);

/// The levels that such numbers stand for, one a byte. REQUIRES: n a multiple of kLeastBlock.
void look_up(const uint8_t levels[16], const uint8_t* packed, uint64_t n, uint8_t* out);

/// x[i] = sums[i] * factor + offset.
void dequantise(const uint8_t* sums, uint64_t n, float factor, float offset, float* x);
void dequantise(const uint16_t* sums, uint64_t n, float factor, float offset, float* x);
void dequantise(const uint32_t* sums, uint64_t n, float factor, float offset, float* x);
/// The same of twice what `n` lanes of a group of narrow sums stand for, from its lane `first` on;
/// one value a byte. REQUIRES: n a multiple of 16.
void dequantise(const narrow::Group& group, uint32_t first, const uint8_t* values, uint64_t n,
                float factor, float offset, float* x);

/// x[i] -= levels[i] * factor + offset; 0 where that is not finite.
void subtract(const uint8_t* levels, uint64_t n, float factor, float offset, float* x);

}  // namespace addend::quant
