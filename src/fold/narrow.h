// SPDX-License-Identifier: Apache-2.0
// Narrow sums: added up in 16 bits, a group at a time, and sent back in fewer (narrow_sums).
#pragma once

#include <cstdint>
#include <span>

#include "addend/plane.h"

namespace addend {

/// acc += what one worker's lanes stand for. REQUIRES: a narrow sum.
void grow_narrow(Op op, uint16_t* acc, const uint8_t* in, const void* table,
                 uint64_t lanes) noexcept;

/// Writes the sums of all sources to `out`. REQUIRES: a narrow sum.
void fold_narrow(Op op, uint8_t* out, std::span<const uint8_t* const> sources, const void* table,
                 uint64_t lanes) noexcept;

}  // namespace addend
