// SPDX-License-Identifier: Apache-2.0
// The devices that codecs can run on beside the CPU (Layout::execution).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "addend/result.h"

namespace addend {

struct DeviceDescription {
  std::string name;
  uint64_t memory_bytes = 0;
  uint32_t multiprocessors = 0;
  std::string capability;  ///< compute capability: "9.0"
  std::string driver;      ///< newest CUDA that the driver does: "13.0"
  std::string runtime;     ///< CUDA that our kernels were built with
};

/// All CUDA devices of this process; never empty. kUnsupported says why there are none: no
/// libaddend_cuda.so, no driver, no device.
Result<std::vector<DeviceDescription>> cuda_devices();

}  // namespace addend
