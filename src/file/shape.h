// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "wire/add_file.h"

namespace addend::file {

/// NumPy's own limit; one limit for both formats, so that what was read can be written.
inline constexpr std::size_t kMaxDims = ADDEND_ADD_FILE_MAX_DIMS;

/// The product of the dimensions; nothing if it does not fit 64 bits.
inline std::optional<uint64_t> element_count(std::span<const uint64_t> shape) {
  uint64_t product = 1;
  bool overflow = false;
  for (const uint64_t dim : shape) {
    if (dim == 0) return 0;
    overflow |= product > std::numeric_limits<uint64_t>::max() / dim;
    product *= dim;
  }
  if (overflow) return std::nullopt;
  return product;
}

}  // namespace addend::file
