// SPDX-License-Identifier: Apache-2.0
// The exact codec on a device: packed, two-level and dense steps, and auto's choice between them.
#pragma once

#include <memory>

#include "addend/codec.h"

namespace addend::exact {

/// kUnsupported for what only the CPU does yet: sketches, filters, reproducible values.
Result<std::unique_ptr<Codec>> create_exact_on_device(const CodecSpec& spec, const Layout& layout);

}  // namespace addend::exact
