// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "addend/plane.h"
#include "addend/result.h"

namespace addend {

/// What reducers say that read planes where they are.
inline Status check_host_memory(const Round& round) {
  if (round.execution.device == Execution::Device::kCpu) return {};
  return make_error(Errc::kUnsupported,
                    "this reducer takes planes of the host, and these are a device's: put a staged "
                    "reducer around it");
}

}  // namespace addend
