// SPDX-License-Identifier: Apache-2.0
// The candidates that keep 1 / factor of the elements, as policies go through them.
#pragma once

#include <vector>

#include "addend/control.h"

namespace addend::control {

/// The candidate of each of factors(setup.options). kInvalidArgument if there is none for one.
Result<std::vector<uint32_t>> ladder_of(const Setup& setup);

/// kInvalidArgument unless what was seen is of the setup's buckets and candidates.
Status check_shape(const Setup& setup, const Observation& seen);

}  // namespace addend::control
