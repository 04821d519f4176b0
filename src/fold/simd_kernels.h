// SPDX-License-Identifier: Apache-2.0
// The same operations on the best instruction set of the machine (Highway, run-time dispatch).
#pragma once

#include <cstdint>

#include "addend/plane.h"

namespace addend::simd {

void fold(Op op, void* acc, const void* in, uint64_t lanes) noexcept;
void fold_table(Op op, void* acc, const uint8_t* indices, const void* table,
                uint64_t lanes) noexcept;

}  // namespace addend::simd
