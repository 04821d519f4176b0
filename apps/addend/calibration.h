// SPDX-License-Identifier: Apache-2.0
// What codecs take on this machine: measured at several sizes and densities, fitted, and kept in a
// file, so that plans for this machine can be made elsewhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "addend/plan.h"

namespace addend::cli {

struct CalibrationOptions {
  std::vector<std::string> codecs;  ///< empty: those worth comparing; dense is always there
  uint64_t largest_bytes = 64 << 20;
  uint32_t workers = 4;  ///< that sums are sized for
  uint32_t threads = 0;  ///< of a worker; 0: as a pipeline's on a machine of its own
  uint64_t seed = 1;
  std::span<const float> gradient;  ///< recorded, by which fidelity is judged; empty: drawn ones
};

/// kUnsupported, by name, for codecs whose costs do not follow from the number of elements.
Result<control::Calibration> calibrate(const CalibrationOptions& options);

/// Fits on paper: format "addend-calibration".
std::string to_json(const control::Calibration& calibration);
/// kIo for a file that cannot be read, kMalformed, with what is wrong, for one that is none.
Result<control::Calibration> read_calibration(const std::string& path);

}  // namespace addend::cli
