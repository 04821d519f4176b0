// SPDX-License-Identifier: Apache-2.0
// reference.h on a device.
#pragma once

#include <cstdint>

#include "addend/plane.h"

namespace addend {

struct FoldKernels {
  static constexpr const char* kPart = "fold";
  static constexpr uint32_t kVersion = 1;
  static constexpr uint32_t kMaxSources = 8;

  int (*fold)(Op op, void* acc, const void* in, uint64_t lanes, void* stream);
  /// At most kMaxSources indices; `table` is host memory.
  int (*fold_tables)(Op op, void* acc, const uint8_t* const* indices, uint32_t sources,
                     const void* table, uint64_t lanes, void* stream);
};

}  // namespace addend
