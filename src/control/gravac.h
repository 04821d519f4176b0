// SPDX-License-Identifier: Apache-2.0
// policy=gravac: Algorithm 1 of GraVAC (arXiv 2305.12201), for the whole model and for all ranks at
// once. Where the paper leaves something open, docs/adaptive.md says what is done here.
#pragma once

#include "addend/control.h"

namespace addend::control {

/// kInvalidArgument if a factor of the ladder is no candidate's.
Result<std::unique_ptr<Controller>> create_gravac(const Setup& setup);

}  // namespace addend::control
