// SPDX-License-Identifier: Apache-2.0
// Rows added to where they belong.
#pragma once

#include <cstdint>
#include <span>

#include "addend/rows.h"

namespace addend {

/// Adds row i of `from` to row places[i] of `to`, in order; rows have `width` elements. Floats are
/// added as planes add them (docs/formats/planes.md), integers wrap. REQUIRES: natural alignment;
/// `from` and `to` do not overlap.
void add_rows(RowElement element, uint64_t width, std::span<const uint64_t> places,
              const void* from, void* to);

}  // namespace addend
