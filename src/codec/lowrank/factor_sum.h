// SPDX-License-Identifier: Apache-2.0
// How a factor travels: as f32, as bf16, or as the values of a quant codec.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "addend/codec.h"
#include "codec/fingerprint.h"
#include "codec/residual.h"

namespace addend::lowrank {

enum class Factors : uint8_t { kF32, kBf16, kQuant };

/// One factor of all matrices, summed over the workers, step after step.
class FactorSum {
 public:
  virtual ~FactorSum() = default;

  /// Starts with this worker's addend, which stays there until finish.
  virtual Status begin(uint64_t step, float* factor) = 0;
  /// As Codec::next_round.
  virtual Result<bool> next_round(Round& round) = 0;
  /// The factor becomes the sum.
  virtual Status finish() = 0;
  /// `own`, which is what this worker began with, becomes what of it is in the sum. REQUIRES: made
  /// with feedback, after finish.
  virtual Status take_losses(float* own) = 0;

  /// What workers must share beside the layout to add the next step's factors.
  virtual void add_plan(Fingerprint& print) const = 0;
  virtual uint64_t memory_bytes() const = 0;
};

/// Which factor: the matrices' parts of it, by their segments' ids, and whether losses matter.
struct FactorShape {
  std::string_view name;
  std::vector<Segment> parts;
  Feedback feedback = Feedback::kNone;
};

Result<std::unique_ptr<FactorSum>> create_factor_sum(Factors as, const Layout& layout,
                                                     const FactorShape& shape);

}  // namespace addend::lowrank
