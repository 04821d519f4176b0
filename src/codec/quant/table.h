// SPDX-License-Identifier: Apache-2.0
// Level tables of the quantised codec and the planner that picks one. A rotated coordinate x (close
// to normal; unit variance here) is clipped to [-t, t] and rounded without bias to one of 2^bits
// points -t + 2t * levels[k] / g. The levels are integers, so the sum over workers is a sum of
// integers: that is what may be added while compressed (THC, arXiv 2302.08545).
//
// All workers must hold the same table, and nothing agrees on it at run time: every figure here is
// made of additions, multiplications, divisions and square roots, which IEEE doubles fix to the
// last bit, and never of libm's exp or erfc, which differ between machines. (Build with
// -ffp-contract=off, as everywhere.)
#pragma once

#include <cstdint>
#include <vector>

#include "addend/result.h"

namespace addend::quant {

inline constexpr uint32_t kMaxBits = 8;
inline constexpr uint32_t kMaxWorld = 1u << 20;
/// Tables are not computed for finer grids: the error stops falling at a few times 2^bits.
inline constexpr uint32_t kMaxGranularity = 65535;

/// The errors are expected squares per coordinate of unit variance.
struct Table {
  uint32_t bits = 0;
  uint32_t granularity = 0;      ///< g, the largest level
  double clipped = 0;            ///< p, expected fraction of clipped coordinates
  double half_range = 0;         ///< t, in standard deviations: a normal exceeds it with chance p/2
  std::vector<uint32_t> levels;  ///< 2^bits values, strictly increasing from 0 to g
  double rounding_error = 0;     ///< V: variance of one worker's rounding
  double clipping_error = 0;     ///< C: energy that clipping removes; workers that agree share it
};

/// The x that a standard normal stays below with this probability, to about 1e-12.
/// REQUIRES: 0 < probability < 1.
double normal_quantile(double probability);

/// The levels of least V among all tables of (bits, g, p). bits in 1..8, g in
/// 2^bits-1..kMaxGranularity, p in [1e-300, 1). Of equal tables (mirror images are) always the same
/// one. O(2^bits * g log g) time.
Result<Table> optimal_table(uint32_t bits, uint32_t granularity, double clipped);

/// Levels k -> k, g = 2^bits-1.
Result<Table> uniform_table(uint32_t bits, double clipped);

/// The table that THC ships as its default: bits 4, g 30, p 1/32. Not quite the optimum.
Table published_table();

/// A table of the given levels (a power of two of them, strictly increasing from 0), with its
/// errors.
Result<Table> table_of_levels(std::vector<uint32_t> levels, double clipped);

/// What the sums over workers travel in.
enum class Lane : uint8_t { kU8, kU16, kI32 };

/// Largest sum that a lane holds.
uint64_t lane_limit(Lane lane);

/// The narrowest lane that holds world * granularity, so that no sum over at most `world` workers
/// overflows.
Result<Lane> narrowest_lane(uint32_t granularity, uint32_t world);

/// What the planner minimises is this weight times V, plus C: the error of the mean of `world`
/// workers whose gradients agree; with correlated rounding, a mixture of gradients that agree and
/// gradients that do not.
double rounding_weight(uint32_t world, bool correlated);

struct TableChoice {
  Table table;
  Lane lane = Lane::kU8;
};

/// The table for `world` workers: the lane is the narrowest with room for 2^bits levels, and (g, p)
/// minimise rounding_weight * V + C among the g (at most 255) that cannot overflow that lane.
/// bits in 1..8, world in 1..kMaxWorld. Milliseconds (tens at 8 bits) on the first call with these
/// arguments, then a copy from a cache. Thread-safe.
Result<TableChoice> choose_table(uint32_t bits, uint32_t world, bool correlated);

/// The same for sums up to `limit` (at most that of a 16-bit lane, which is the choice's) instead
/// of a lane's.
Result<TableChoice> choose_table_within(uint32_t bits, uint32_t world, bool correlated,
                                        uint64_t limit);

}  // namespace addend::quant
