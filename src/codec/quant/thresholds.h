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

namespace addend::quant {

class Thresholds {
 public:
  struct Draw {
    uint64_t seed = 0;  ///< the same on all workers, another one each step
    uint32_t world = 1;
    uint32_t worker = 0;
    bool correlated = true;
  };
  Status set(const Draw& draw);

  /// kThresholds thresholds for the block that `name` names.
  const float* of_block(uint64_t name) const;

  uint64_t memory_bytes() const { return table_.capacity(); }

 private:
  uint64_t seed_ = 0;
  Buffer table_;  // kThresholds floats, twice
};

}  // namespace addend::quant
