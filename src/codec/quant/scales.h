// SPDX-License-Identifier: Apache-2.0
// The numbers of one block that follow from what workers share: its factors, its randomness. Plain
// functions that a CPU and a device run alike, so that both come to the same bits.
#pragma once

#include <cstdint>

#include "codec/fingerprint.h"
#include "codec/quant/block.h"
#include "wire/half.h"
#include "wire/hash.h"

namespace addend::quant {

/// A norm lane that says: not finite here. Every lane from kFirstBroken on is one: a float's bits
/// compare like its value.
inline constexpr uint32_t kBroken = 0xFFFFFFFF;
inline constexpr uint32_t kFirstBroken = 0x7F800000;
/// Energies in this range were summed without overflow or loss; others are summed again in double.
inline constexpr float kLeastEnergy = 0x1p-90f;
inline constexpr float kMostEnergy = 0x1p100f;
/// Running sums in float lose small terms when they grow long.
inline constexpr uint64_t kMostFloatSum = 16384;
/// The prescale that keeps any rotation of finite elements in float's range.
inline constexpr float kFarDown = 0x1p-64f;
/// One live block in so many is sampled for the report, and so many elements of it at the most (a
/// multiple of kThresholds, so that a stretch meets the thresholds it was rounded with).
inline constexpr uint64_t kSampleEvery = 64;
inline constexpr uint64_t kSampleLength = 2048;
static_assert(kSampleLength % kThresholds == 0);

/// The power of two that brings a block's norm near 1 before rotation, or 1 where nothing can
/// overflow: norms outside 2^+-50 are scaled, since a rotation sums up to 2^14 elements.
ADDEND_HOST_DEVICE inline float prescale_of(float norm) {
  constexpr int kPlainExponent = 50, kMost = 126;
  const uint32_t bits = addend_f32_bits(norm);
  if (bits == 0) return 1;
  // Subnormal norms are below every other, and take the largest prescale.
  const int exponent = static_cast<int>(bits >> 23) - 127;
  if (exponent >= -kPlainExponent && exponent <= kPlainExponent) return 1;
  const int power = exponent < -kMost ? kMost : exponent > kMost ? -kMost : -exponent;
  return addend_f32_from_bits(static_cast<uint32_t>(power + 127) << 23);
}

/// A level table as far as its scale goes. Unnormalised coordinates of a rotated block have a
/// standard deviation of its norm, so the table's half range is t * norm; without rotation the norm
/// is the largest magnitude.
struct Grid {
  double half_range = 0;  ///< t
  uint32_t granularity = 0;
  bool rotates = true;
};

/// x -> x * factor + offset.
struct Affine {
  float factor = 0;
  float offset = 0;
};

ADDEND_HOST_DEVICE inline double grid_range(const Grid& grid, float norm) {
  return (grid.rotates ? grid.half_range : 1) * static_cast<double>(norm);
}

/// Elements to table units, before the offset. `norm` is in the units of the elements.
ADDEND_HOST_DEVICE inline float scale_to_table(const Grid& grid, float norm) {
  return static_cast<float>(static_cast<double>(grid.granularity) / (2 * grid_range(grid, norm)));
}

/// A worker's own levels to what they stand for, in the units of `norm`.
ADDEND_HOST_DEVICE inline Affine level_values(const Grid& grid, float norm) {
  const double range = grid_range(grid, norm);
  return {static_cast<float>(2 * range / grid.granularity), static_cast<float>(-range)};
}

/// What sums are decoded with: the mean of the contributors stands for every worker, so a sum over
/// fewer is an unbiased sum over all. The layout's scale goes where factors are applied anyway:
/// into the table's, or, for a block with a prescale, whose factors are out of harm's way, into
/// `back`, the one that takes the prescale back.
struct SumScale {
  uint32_t world = 1;
  double contributors = 1;
  double scale = 1;
};
struct SumValues {
  Affine levels;
  double back = 1;
};
ADDEND_HOST_DEVICE inline SumValues sum_values(const Grid& grid, float norm, uint32_t size,
                                               const SumScale& sum) {
  const double prescale = static_cast<double>(prescale_of(norm));
  const double near = static_cast<double>(norm) * prescale;
  const double range = grid.rotates ? grid.half_range * near / size : near;
  const double scale = prescale == 1 ? sum.scale : 1;
  const double unit = 2 * range / grid.granularity * sum.world;
  return {{static_cast<float>(unit / sum.contributors * scale),
           static_cast<float>(-range * sum.world * scale)},
          prescale == 1 ? 1 : sum.scale / prescale};
}

/// Word w of a block's signs is number w of the stream that this names.
ADDEND_HOST_DEVICE inline uint64_t sign_stream(uint64_t seed, uint64_t owner, uint64_t epoch,
                                               uint64_t number) {
  return Fingerprint().add(seed).add(owner).add(epoch).add(number).value();
}

}  // namespace addend::quant
