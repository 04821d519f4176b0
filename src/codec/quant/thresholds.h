// SPDX-License-Identifier: Apache-2.0
// Where elements are rounded up: thresholds drawn once a step, through which every block cycles
// from a place of its own. Errors of different elements may go together, those of different workers
// may not: with correlated rounding the thresholds of all workers at one place fall into the strata
// [0, 1/n), [1/n, 2/n), ... one each, by a shared cyclic shift, so that what one worker rounds up
// another rounds down. Each worker's threshold by itself is uniform: rounding stays unbiased,
// whoever is missing.
#pragma once

#include <cstdint>

#include "addend/result.h"
#include "base/buffer.h"
#include "codec/quant/block.h"
#include "wire/hash.h"

namespace addend::quant {

/// What a step's thresholds are drawn from. Plain functions, for devices too.
struct ThresholdDraw {
  uint64_t seed = 0;  ///< the same on all workers, another one each step
  uint32_t world = 1;
  uint32_t worker = 0;
  bool correlated = true;
};

/// Threshold i of a worker, of kThresholds.
ADDEND_HOST_DEVICE inline float draw_threshold(const ThresholdDraw& draw, uint64_t i) {
  const uint64_t own = addend_random(addend_random(draw.seed, 1), draw.worker);
  // 24 bits: what a float in [0, 1) can hold.
  double threshold = static_cast<double>(addend_random(own, i) >> 40) * 0x1p-24;
  if (draw.correlated) {
    const uint64_t shared = addend_random(draw.seed, 0);
    const uint64_t shift =
        addend_reduce32(static_cast<uint32_t>(addend_random(shared, i) >> 32), draw.world);
    const uint64_t stratum = (draw.worker + shift) % draw.world;
    threshold = (static_cast<double>(stratum) + threshold) / draw.world;
  }
  // Rounding to float may give 1, at which nothing would ever be rounded up: keep below.
  const auto rounded = static_cast<float>(threshold);
  return rounded < 1 ? rounded : 0x1.fffffep-1f;
}

/// Where the block that `name` names starts: a multiple of sixteen, so that loads stay aligned.
ADDEND_HOST_DEVICE inline uint64_t threshold_place(uint64_t seed, uint64_t name) {
  return addend_random(addend_random(seed, 2), name) % (kThresholds / kLanes) * kLanes;
}

class Thresholds {
 public:
  Status set(const ThresholdDraw& draw);

  /// kThresholds thresholds for the block that `name` names.
  const float* of_block(uint64_t name) const {
    return table_.as<float>() + threshold_place(seed_, name);
  }

  uint64_t memory_bytes() const { return table_.capacity(); }

 private:
  uint64_t seed_ = 0;
  Buffer table_;  // kThresholds floats, twice
};

}  // namespace addend::quant
