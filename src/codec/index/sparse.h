// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace addend::index {

/// A gradient as its non-zeros, by whoever has found them already. It belongs to the giver, and
/// must stay unchanged for the step.
struct Sparse {
  const uint64_t* bitmap = nullptr;  ///< bit i: element i is not zero
  /// Non-zeros in order: those of every kChunkElements positions from another multiple of `stride`
  /// bytes on. There are Buffer::kSlack readable bytes past the last.
  const void* values = nullptr;
  uint64_t stride = 0;
  const uint64_t* counts = nullptr;  ///< how many there are in a chunk
};

}  // namespace addend::index
