// SPDX-License-Identifier: Apache-2.0
// What a codec can be asked beside the contract if its residual is in the gradient's coordinates.
#pragma once

#include "addend/result.h"

namespace addend {

class ReadableResidual {
 public:
  virtual ~ReadableResidual() = default;

  /// Adds what error feedback keeps to `to`, which has as many elements as the layout; between
  /// steps. Whoever adds it to the next gradient may do without this codec, and nothing is lost.
  virtual Status add_residual(float* to) const = 0;
};

}  // namespace addend
