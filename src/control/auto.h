// SPDX-License-Identifier: Apache-2.0
// policy=auto: the plan that makes most progress per second, samples/s x phi, within guard rails.
#pragma once

#include <memory>

#include "addend/control.h"

namespace addend::control {

std::unique_ptr<Controller> create_auto(const Setup& setup);

}  // namespace addend::control
