// SPDX-License-Identifier: Apache-2.0
// The C ABI's structs and their C++ counterparts. Structs carry the size that the caller was
// compiled with, and only ever grow: either side may be the older one.
#pragma once

#include <cstddef>

#include "addend/addend.h"
#include "addend/codec.h"

namespace addend {

addend_round to_c(const Round& round);
/// kInvalidArgument for an unknown operation, and for lanes without memory.
Result<Plane> to_cpp(const addend_plane& plane);
/// The same, and for more planes than a round holds.
Result<Round> to_cpp(const addend_round& round);

/// The defaults, for a caller whose struct has `size` bytes.
addend_layout default_layout(std::size_t size);

/// Takes an older caller's layout, with defaults for what it lacks, or a newer one's that has not
/// set what this library does not know.
Result<Layout> to_cpp(const addend_layout* layout);

/// Fills what the caller's struct has room for.
Status to_c(const Report& report, addend_report* out);

}  // namespace addend
