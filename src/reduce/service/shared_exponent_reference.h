// SPDX-License-Identifier: Apache-2.0
// What floats as integers mean, one lane at a time: the specification of the kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/bits.h"
#include "reduce/service/shared_exponent.h"
#include "wire/element.h"

namespace addend::service_client::reference {

/// Factors between lanes and their multiples. Each is a power of two; two of them, because their
/// product may be beyond a float.
struct Scale {
  float up[2], down[2];
};

/// 2^exponent. REQUIRES: -126 <= exponent <= 127.
inline float power_of_two(int exponent) {
  return addend_f32_from_bits(static_cast<uint32_t>(exponent + 127) << 23);
}

/// Bits by which a sum of `world` multiples may be longer than one of them. With 24 bits or more
/// the multiple of the largest float below 2^bits stays below it. With fewer it is rounded up to
/// 2^bits, and `world` times that has to fit as well.
inline int room_for(uint32_t world) {
  return static_cast<int>(ceil_log2(world > 128 ? world + 1 : world));
}

/// A lane of a block with this exponent is below 2^(exponent - 126). As a multiple of the quantum
/// it has at most `bits` bits, so that the sum of `world` of them fits 31 bits and a sign.
inline Scale scale_of(uint32_t exponent, uint32_t world) {
  const int bits = 31 - room_for(world);
  const int quantum = static_cast<int>(exponent) - 126 - bits;
  const int up = std::min(-quantum, 127), down = std::max(quantum, -126);
  return {{power_of_two(up), power_of_two(-quantum - up)},
          {power_of_two(down), power_of_two(quantum - down)}};
}

inline uint32_t exponent_of(float value) { return addend_f32_bits(value) >> 23 & 0xFF; }

/// Products are exact, unless the result is far below 1/2 and becomes 0 in any case.
inline int32_t to_quanta(float value, const Scale& scale) {
  return static_cast<int32_t>(std::nearbyint(value * scale.up[0] * scale.up[1]));
}

/// One rounding, in the conversion: products are exact, also among subnormals, because a sum is a
/// multiple of the quantum and of 2^-149.
inline float from_quanta(int32_t quanta, const Scale& scale) {
  return static_cast<float>(quanta) * scale.down[0] * scale.down[1];
}

}  // namespace addend::service_client::reference
