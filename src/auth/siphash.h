// SPDX-License-Identifier: Apache-2.0
// SipHash of several frames at once. One is a chain of additions and rotations that each wait for
// the one before, which leaves most of a core idle; independent ones side by side fill it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/tag.h"

namespace addend::auth {

inline constexpr std::size_t kTagsAtOnce = 8;

/// What addend_tag_finish takes, for up to kTagsAtOnce frames side by side: column i is frame i,
/// the others may hold anything.
struct TagColumns {
  alignas(64) uint64_t key[2][kTagsAtOnce];
  alignas(64) uint64_t words[ADDEND_TAG_HEADER_WORDS + 2][kTagsAtOnce];  ///< of header, then hash
};

/// tags[i] = addend_tag_finish of column i, for i < count. REQUIRES: count <= kTagsAtOnce.
void finish_tags(const TagColumns& columns, std::size_t count, uint64_t* tags) noexcept;

namespace reference {
void finish_tags(const TagColumns& columns, std::size_t count, uint64_t* tags) noexcept;
}

}  // namespace addend::auth
