// SPDX-License-Identifier: Apache-2.0
// The index in two levels, for gradients whose non-zeros come in blocks (rows of an embedding
// table):
//
//   round 0  live bits     one a block: some worker has a non-zero there
//            partial bits  one a block: some worker has it live but not full
//   round 1  element bits  only of blocks that are partial; a block that is live and nowhere
//   partial is full
//
// Both rounds are ORs. docs/formats/exact.md, "Two-level index".
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "addend/result.h"
#include "base/buffer.h"

namespace addend::exact {

class TwoLevelIndex {
 public:
  /// Cuts `count` elements into blocks of `block` (the last may be shorter) and marks them from a
  /// local bitmap.
  Status set_blocks(const uint64_t* bitmap, uint64_t count, uint64_t block);
  Plane live_plane();
  Plane partial_plane();

  /// Collects the element bits of partial blocks, once the block planes are folded; an empty plane
  /// if no block is partial.
  Status set_elements(const uint64_t* bitmap);
  Plane element_plane();

  /// Writes the union bitmap (words_for(count) words), once the element plane is folded.
  void write_union(uint64_t* bitmap) const;

  uint64_t live_blocks() const { return live_blocks_; }
  uint64_t memory_bytes() const;

 private:
  template <typename Visit>
  void for_each_live(Visit&& visit) const;

  uint64_t count_ = 0;
  uint64_t block_ = 1;
  uint64_t blocks_ = 0;
  uint64_t live_blocks_ = 0;
  uint64_t element_bits_ = 0;
  Buffer live_;      // bitmap over blocks
  Buffer partial_;   // bitmap over blocks
  Buffer elements_;  // bitmap over the elements of partial blocks, in order, without gaps
};

}  // namespace addend::exact
