// SPDX-License-Identifier: Apache-2.0
// Recorded gradients, one file a worker.
#pragma once

#include <string>
#include <vector>

#include "addend/file.h"
#include "addend/result.h"

namespace addend::cli {

/// Reads .npy files. kMismatch, with both names, where one has another type or shape than the
/// first.
Result<std::vector<NpyArray>> read_gradients(const std::vector<std::string>& files);

}  // namespace addend::cli
