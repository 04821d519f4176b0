// SPDX-License-Identifier: Apache-2.0
// Synthetic sparse gradients with a known pattern, for measuring. Any range of any worker's
// gradient can be drawn alone, so a rank can check a sum without holding the others' gradients.
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "addend/result.h"

namespace addend::workload {

/// How the workers' non-zero positions relate.
enum class Overlap : uint8_t {
  kNone,    ///< disjoint: union density is world * density
  kRandom,  ///< independent: 1 - (1 - density)^world
  kFull,    ///< the same: density
};

enum class Values : uint8_t {
  kNormal,
  kLognormal,  ///< random sign, log of the magnitude is normal with deviation sigma
  kIntegers,   ///< -127 to 127 without 0: sums are exact in every dtype for a small world
};

/// Everything a gradient depends on besides worker and step.
struct GradientSpec {
  uint64_t count = 0;
  DType dtype = DType::kF32;
  uint32_t world = 1;
  double density = 0.05;  ///< fraction of non-zeros (of live rows) on each worker
  Overlap overlap = Overlap::kRandom;
  uint64_t row = 1;  ///< elements that are zero or non-zero together
  Values values = Values::kNormal;
  double sigma = 2.0;  ///< of kLognormal
  double scale = 1.0;
  uint64_t seed = 1;
};

/// Whose gradient of which step.
struct Draw {
  uint32_t worker = 0;
  uint64_t step = 0;
};

struct Range {
  uint64_t first = 0;
  uint64_t count = 0;
};

Status validate(const GradientSpec& spec);

/// Writes elements [range.first, range.first + range.count) of the gradient to out[0 ...).
/// REQUIRES: a valid spec, a range inside it, room for range.count elements.
void generate(const GradientSpec& spec, const Draw& draw, const Range& range, void* out);

}  // namespace addend::workload
