// SPDX-License-Identifier: Apache-2.0
// Traces of a controller's decisions as files.
#pragma once

#include <string>

#include "addend/control.h"

namespace addend::cli {

/// kIo for a file that cannot be read, kMalformed, with what is wrong, for one that is no trace.
Result<control::Trace> read_trace(const std::string& path);

}  // namespace addend::cli
