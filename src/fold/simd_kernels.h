// SPDX-License-Identifier: Apache-2.0
// The same operations on the best instruction set of the machine (Highway, run-time dispatch).
#pragma once

#include <cstddef>
#include <cstdint>

#include "addend/plane.h"

namespace addend::simd {

void fold(Op op, void* acc, const void* in, uint64_t lanes) noexcept;
void fold_tables(Op op, void* acc, const uint8_t* const* indices, std::size_t sources,
                 const void* table, uint64_t lanes) noexcept;

void add_levels(uint16_t* acc, const uint8_t* const* levels, std::size_t sources,
                uint64_t lanes) noexcept;
void narrow_group(const uint16_t* sums, uint64_t lanes, uint32_t bits, uint8_t* out) noexcept;

}  // namespace addend::simd
