// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/thresholds.h"

#include "wire/hash.h"

namespace addend::quant {

Status Thresholds::set(const Draw& draw) {
  ADDEND_TRY(table_.reserve(2 * kThresholds * 4));
  seed_ = draw.seed;
  const uint64_t shared = addend_random(draw.seed, 0);
  const uint64_t own = addend_random(addend_random(draw.seed, 1), draw.worker);
  auto* table = table_.as<float>();
  for (uint64_t i = 0; i < kThresholds; ++i) {
    // 24 bits: what a float in [0, 1) can hold.
    double threshold = static_cast<double>(addend_random(own, i) >> 40) * 0x1p-24;
    if (draw.correlated) {
      const uint64_t shift =
          addend_reduce32(static_cast<uint32_t>(addend_random(shared, i) >> 32), draw.world);
      const uint64_t stratum = (draw.worker + shift) % draw.world;
      threshold = (static_cast<double>(stratum) + threshold) / draw.world;
    }
    // Rounding to float may give 1, at which nothing would ever be rounded up: keep below.
    const auto rounded = static_cast<float>(threshold);
    table[i] = table[i + kThresholds] = rounded < 1 ? rounded : 0x1.fffffep-1f;
  }
  return {};
}

// A place that is a multiple of sixteen elements, so that loads stay aligned.
const float* Thresholds::of_block(uint64_t name) const {
  const uint64_t place =
      addend_random(addend_random(seed_, 2), name) % (kThresholds / kLanes) * kLanes;
  return table_.as<float>() + place;
}

}  // namespace addend::quant
