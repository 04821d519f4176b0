// SPDX-License-Identifier: Apache-2.0
// How a gradient is cut into blocks. A layout with segments promises that a segment's bytes and
// results do not depend on where it travels, so its blocks do not reach into its neighbours, and
// whatever is random about a block hangs on the segment's id and the block's number in it.
#pragma once

#include <cstdint>
#include <vector>

#include "addend/codec.h"

namespace addend::quant {

/// A contiguous part of the gradient with one scale.
struct Block {
  uint64_t begin = 0;     ///< first element of the gradient
  uint64_t place = 0;     ///< first element of its residual, which has padding too
  uint32_t elements = 0;  ///< of the gradient
  uint32_t size = 0;      ///< after padding; as many lanes travel
  uint64_t owner = 0;     ///< id of its segment; the bucket where there are none
  uint64_t number = 0;    ///< within its owner
};

/// Blocks of a segment, as a range of the layout's blocks.
struct BlockRange {
  uint64_t first = 0;
  uint64_t count = 0;
};

class Blocks {
 public:
  /// Cuts into blocks of `block` elements (0: a segment is one block), in place of those that there
  /// were. Without segments the last
  /// block is padded to a power of two; with them the end of a segment is cut into falling powers
  /// of two, so that fewer than kLeastBlock elements are padding.
  void cut(const Layout& layout, uint64_t block);

  uint64_t size() const { return blocks_.size(); }
  const Block& operator[](uint64_t b) const { return blocks_[b]; }
  auto begin() const { return blocks_.begin(); }
  auto end() const { return blocks_.end(); }

  /// A layout without segments is one.
  uint64_t segments() const { return segments_.size(); }
  BlockRange segment(uint64_t s) const { return segments_[s]; }

  uint32_t largest() const { return largest_; }
  /// Elements with all padding.
  uint64_t padded() const { return padded_; }
  uint64_t memory_bytes() const;

 private:
  void add(uint64_t begin, uint64_t elements, const Segment& owner, uint64_t number);

  std::vector<Block> blocks_;
  std::vector<BlockRange> segments_;
  uint32_t largest_ = 0;
  uint64_t padded_ = 0;
};

}  // namespace addend::quant
