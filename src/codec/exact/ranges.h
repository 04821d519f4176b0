// SPDX-License-Identifier: Apache-2.0
// Blocks of reproducible values: how the lanes of the max plane say what range of bits a block has,
// and what fixed-point format that asks for. Inline, for the host and for kernels.
// docs/formats/exact.md, "Reproducible values".
#pragma once

#include <cmath>

#include "base/bits.h"
#include "codec/exact/fixed.h"

namespace addend::exact {

/// Elements that share one format.
inline constexpr uint64_t kRangeBlock = 1024;
/// Lanes of the max plane a block has: the highest bit, and the lowest bit turned around so that
/// max finds it.
inline constexpr uint64_t kRangeLanes = 2;

/// Lane 0: highest bit + kRangeBias (0: no finite non-zero value). Lane 1: kRangeBias - lowest bit,
/// so that the maximum is the lowest bit of all workers. A non-finite value asks for the whole
/// range and says so beyond the largest possible top.
inline constexpr int kRangeBias = 256;
inline constexpr uint32_t kNonFiniteTop = 1024;

ADDEND_HOST_DEVICE inline void write_range(const BitRange& range, uint32_t* lanes) {
  const bool empty = range.top < range.low;
  lanes[0] = range.non_finite ? kNonFiniteTop
             : empty          ? 0
                              : static_cast<uint32_t>(range.top + kRangeBias);
  lanes[1] = empty ? 0 : static_cast<uint32_t>(kRangeBias - range.low);
}

ADDEND_HOST_DEVICE inline BitRange read_range(const uint32_t* lanes) {
  BitRange range;
  if (lanes[0] == 0) return range;
  // Lanes of an honest peer are inside the range of f32; a corrupted one must not make us index
  // outside it.
  const auto inside = [](int bit, int least) {
    return bit < least ? least : bit > kHighestBit ? kHighestBit : bit;
  };
  range.non_finite = lanes[0] >= kNonFiniteTop;
  range.top =
      range.non_finite ? kHighestBit : inside(static_cast<int>(lanes[0]) - kRangeBias, kLowestBit);
  const uint32_t turned = lanes[1] < kNonFiniteTop ? lanes[1] : kNonFiniteTop;
  range.low = range.non_finite ? kLowestBit : kRangeBias - static_cast<int>(turned);
  range.low = range.low < kLowestBit ? kLowestBit : range.low > range.top ? range.top : range.low;
  return range;
}

/// What all blocks of a step have in common.
struct RangeRules {
  int room = 0;           ///< bits that the sum of all workers needs beyond an addend's
  bool rounds = false;    ///< low bits may be lost
  int tolerance_bit = 0;  ///< the highest bit of the tolerance

  /// With tolerance 0 formats hold every bit of every value; otherwise bits below tolerance times
  /// the block's largest magnitude may be lost: the error of a summed element is at most that
  /// product.
  static RangeRules of(uint32_t world, double tolerance) {
    RangeRules rules;
    rules.room = static_cast<int>(ceil_log2(world));
    rules.rounds = tolerance > 0;
    if (rules.rounds) rules.tolerance_bit = static_cast<int>(std::floor(std::log2(tolerance)));
    return rules;
  }
};

/// How a block's values travel.
struct BlockFormat {
  Fixed fixed;
  /// One i32 lane a value instead of fixed.words() i64 lanes.
  bool narrow = false;
  double to_quanta = 1;   ///< 2^-quantum
  float from_quanta = 1;  ///< 2^quantum

  /// One integer holds a value: it may go into a sketch cell.
  ADDEND_HOST_DEVICE bool single() const { return fixed.words() == 1; }
};

/// The format of a block, from its (folded) lanes.
ADDEND_HOST_DEVICE inline BlockFormat block_format(const uint32_t* lanes, const RangeRules& rules) {
  BitRange range = read_range(lanes);
  if (rules.rounds && !range.non_finite && range.top >= range.low) {
    // world roundings of half a quantum each must stay below tolerance * 2^top: quantum <= 2^(top +
    // log2(tolerance) + 1 - log2(world)).
    const int allowed = range.top + rules.tolerance_bit + 1 - rules.room;
    if (allowed > range.low) {
      range.low = allowed < range.top ? allowed : range.top;
      ++range.top;  // rounding up may carry into one more bit
    }
  }
  BlockFormat format;
  format.fixed = Fixed::of(range, static_cast<uint32_t>(63 - rules.room));
  format.narrow = !range.non_finite && range.top - range.low + 1 + rules.room + 1 <= 32;
  format.to_quanta = power_of_two(-format.fixed.quantum);
  format.from_quanta = static_cast<float>(power_of_two(format.fixed.quantum));
  return format;
}

}  // namespace addend::exact
