// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/blocks.h"

#include <algorithm>
#include <bit>

#include "codec/quant/block.h"

namespace addend::quant {
namespace {

// Elements of the next block, with `left` to go.
uint64_t next_elements(uint64_t left, uint64_t block, bool padded_tail) {
  if (block == 0) return left;
  if (left >= block) return block;
  return padded_tail || left < kLeastBlock ? left : std::bit_floor(left);
}

}  // namespace

void Blocks::cut(const Layout& layout, uint64_t block) {
  blocks_.clear();
  segments_.clear();
  largest_ = 0;
  padded_ = 0;
  const bool whole = layout.segments.empty();
  const std::vector<Segment> bucket = {{layout.bucket, layout.count}};
  uint64_t at = 0;
  for (const Segment& segment : whole ? bucket : layout.segments) {
    const uint64_t first = blocks_.size();
    for (uint64_t left = segment.count; left > 0;) {
      const uint64_t elements = next_elements(left, block, whole);
      add(at, elements, segment, blocks_.size() - first);
      at += elements;
      left -= elements;
    }
    segments_.push_back({first, blocks_.size() - first});
  }
}

void Blocks::add(uint64_t begin, uint64_t elements, const Segment& owner, uint64_t number) {
  const auto size = static_cast<uint32_t>(std::max<uint64_t>(std::bit_ceil(elements), kLeastBlock));
  blocks_.push_back({begin, padded_, static_cast<uint32_t>(elements), size, owner.id, number});
  padded_ += size;
  largest_ = std::max(largest_, size);
}

uint64_t Blocks::memory_bytes() const {
  return blocks_.capacity() * sizeof(Block) + segments_.capacity() * sizeof(BlockRange);
}

}  // namespace addend::quant
