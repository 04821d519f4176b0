// SPDX-License-Identifier: Apache-2.0
// Sums of sparse tensors whose rows were gathered from all ranks.
#pragma once

#include <cstdint>
#include <span>

#include "addend/plane.h"

namespace addend {

/// The union of row numbers in ascending order, and for every row given, part after part, its place
/// there. Rows may come in any order and more than once. `merged` and `places` have room for as
/// many as are given. Returns how many are different.
uint64_t merge_rows(std::span<const std::span<const int64_t>> parts, int64_t* merged,
                    uint64_t* places);

/// total[places[i]] (op)= values[i], for rows of `lanes` lanes each, in order. REQUIRES: `op` is a
/// sum, but not a table sum; natural alignment.
void add_rows(Op op, uint64_t lanes, std::span<const uint64_t> places, const void* values,
              void* total);

}  // namespace addend
