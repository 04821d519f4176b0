// SPDX-License-Identifier: Apache-2.0
// Sums on their way back in few bits: docs/formats/planes.md, "Narrow sums". Adders write them,
// codecs read them.
#pragma once

#include <cstdint>

#include "addend/wire.h"

namespace addend::narrow {

inline constexpr uint32_t kGroupLanes = ADDEND_NARROW_GROUP_LANES;
/// 2^16 over the golden ratio: multiples of it, mod 2^16, are spread as evenly as can be.
inline constexpr uint32_t kSpread = 40503;

/// What the lanes of a group have in common.
struct Group {
  uint32_t base = 0;  // u16
  uint32_t step = 1;  // u16, not 0
  uint32_t seed = 0;  // u8
};

inline Group read_group(const uint8_t* at) {
  const auto field = [&](int i) { return static_cast<uint32_t>(at[2 * i] | at[2 * i + 1] << 8); };
  return {field(0), field(1), at[4]};
}
inline void write_group(const Group& group, uint8_t* at) {
  const uint32_t fields[] = {group.base, group.step, group.seed};
  for (int i = 0; i < ADDEND_NARROW_HEADER_BYTES; ++i)
    at[i] = static_cast<uint8_t>(fields[i / 2] >> (i % 2 * 8));
}

/// Where the group with this number stands among the sums of a plane.
inline uint64_t group_at(uint32_t bits, uint64_t number) {
  return number * (ADDEND_NARROW_HEADER_BYTES + uint64_t{kGroupLanes} * bits / 8);
}

/// 0 <= dither < step, spread evenly over the lanes; the seed, which depends on the sums, shifts
/// it. What it adds before rounding is taken off again: the error is the same for every sum.
inline uint32_t dither(const Group& group, uint32_t lane) {
  return ((lane * kSpread + (group.seed << 8)) & 0xFFFF) * group.step >> 16;
}

/// REQUIRES: sum >= base.
inline uint32_t narrowed(const Group& group, uint32_t lane, uint32_t sum) {
  return (sum - group.base + dither(group, lane)) / group.step;
}

/// Twice the sum, or an estimate of that without bias where step > 1: the middle of a step may lie
/// between two integers.
inline int32_t widened_twice(const Group& group, uint32_t lane, uint32_t value) {
  return static_cast<int32_t>(2 * (group.base + group.step * value - dither(group, lane)) +
                              group.step - 1);
}

}  // namespace addend::narrow
