// SPDX-License-Identifier: Apache-2.0
// The C ABI's structs and their C++ counterparts. Structs carry the size that the caller was
// compiled with, and only ever grow: either side may be the older one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "addend/addend.h"
#include "addend/codec.h"

namespace addend {

addend_round to_c(const Round& round);
/// kInvalidArgument for an unknown operation, and for lanes without memory.
Result<Plane> to_cpp(const addend_plane& plane);
/// The same, and for more planes than a round holds.
Result<Round> to_cpp(const addend_round& round);

/// Gives defaults to a caller whose struct has `size` bytes: what both know is filled, the rest is
/// cleared.
template <typename Struct>
void fill(Struct* out, std::size_t size, Struct defaults) {
  if (out == nullptr || size < sizeof(uint32_t)) return;
  defaults.size = static_cast<uint32_t>(size);
  std::memset(out, 0, size);
  std::memcpy(out, &defaults, std::min(size, sizeof(defaults)));
}

/// Whether a newer caller has set what this library does not know.
template <typename Struct>
bool sets_unknown(const Struct& from) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(&from);
  return std::any_of(bytes + std::min<std::size_t>(sizeof(from), from.size), bytes + from.size,
                     [](unsigned char byte) { return byte != 0; });
}

addend_layout default_layout();

/// Takes an older caller's layout, with defaults for what it lacks, or a newer one's that has not
/// set what this library does not know.
Result<Layout> to_cpp(const addend_layout* layout);

/// Fills what the caller's struct has room for.
Status to_c(const Report& report, addend_report* out);

}  // namespace addend
