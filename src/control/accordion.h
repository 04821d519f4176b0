// SPDX-License-Identifier: Apache-2.0
// policy=accordion: two factors, after Accordion (arXiv 2010.16248): the lower one while gradients
// change, the higher one while they do not. Here to be compared with: it looks at no time and at no
// error.
#pragma once

#include "addend/control.h"

namespace addend::control {

/// kInvalidArgument if a factor is no candidate's.
Result<std::unique_ptr<Controller>> create_accordion(const Setup& setup);

}  // namespace addend::control
