// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/two_level.h"

#include <algorithm>
#include <cstring>

#include "base/bits.h"

namespace addend::exact {
namespace {

// Calls visit(from, to, bits) for pieces that lie in one word of the source.
template <typename Visit>
void for_each_copy(uint64_t from, uint64_t to, uint64_t length, Visit&& visit) {
  for_each_piece(from, from + length,
                 [&](uint64_t at, uint64_t bits) { visit(at, to + (at - from), bits); });
}

}  // namespace

Status TwoLevelIndex::set_blocks(const uint64_t* bitmap, uint64_t count, uint64_t block) {
  count_ = count;
  block_ = block;
  blocks_ = ceil_div(count, block);
  ADDEND_TRY(live_.reserve(words_for(blocks_) * 8));
  ADDEND_TRY(partial_.reserve(words_for(blocks_) * 8));
  auto* live = live_.as<uint64_t>();
  auto* partial = partial_.as<uint64_t>();
  std::memset(live, 0, words_for(blocks_) * 8);
  std::memset(partial, 0, words_for(blocks_) * 8);
  for (uint64_t b = 0; b < blocks_; ++b) {
    const uint64_t begin = b * block, end = std::min(begin + block, count);
    const uint64_t set = popcount_range(bitmap, begin, end);
    if (set == 0) continue;
    set_bit(live, b);
    if (set < end - begin) set_bit(partial, b);
  }
  return {};
}

Plane TwoLevelIndex::live_plane() {
  return {Op::kOrU64, words_for(blocks_), live_.as<void>(), nullptr, nullptr};
}
Plane TwoLevelIndex::partial_plane() {
  return {Op::kOrU64, words_for(blocks_), partial_.as<void>(), nullptr, nullptr};
}
Plane TwoLevelIndex::element_plane() {
  return {Op::kOrU64, words_for(element_bits_), elements_.as<void>(), nullptr, nullptr};
}

// visit(begin, length, is_partial) for every live block. A partial bit without its live bit cannot
// come from an honest peer and is ignored.
template <typename Visit>
void TwoLevelIndex::for_each_live(Visit&& visit) const {
  const auto* live = live_.as<uint64_t>();
  const auto* partial = partial_.as<uint64_t>();
  for (uint64_t w = 0; w < words_for(blocks_); ++w) {
    const uint64_t valid = low_mask(std::min<uint64_t>(64, blocks_ - w * 64));
    for_each_bit(live[w] & valid, w * 64, [&](uint64_t b) {
      const uint64_t begin = b * block_;
      visit(begin, std::min(block_, count_ - begin), test_bit(partial, b));
    });
  }
}

Status TwoLevelIndex::set_elements(const uint64_t* bitmap) {
  element_bits_ = live_blocks_ = 0;
  for_each_live([&](uint64_t, uint64_t length, bool is_partial) {
    ++live_blocks_;
    element_bits_ += is_partial ? length : 0;
  });
  ADDEND_TRY(elements_.reserve(words_for(element_bits_) * 8));
  auto* elements = elements_.as<uint64_t>();
  std::memset(elements, 0, words_for(element_bits_) * 8);
  uint64_t to = 0;
  for_each_live([&](uint64_t begin, uint64_t length, bool is_partial) {
    if (!is_partial) return;
    for_each_copy(begin, to, length, [&](uint64_t at, uint64_t into, uint64_t bits) {
      or_bits(elements, into, bits, read_bits(bitmap, at, bits));
    });
    to += length;
  });
  return {};
}

void TwoLevelIndex::write_union(uint64_t* bitmap) const {
  const auto* elements = elements_.as<uint64_t>();
  std::memset(bitmap, 0, words_for(count_) * 8);
  uint64_t from = 0;
  for_each_live([&](uint64_t begin, uint64_t length, bool is_partial) {
    for_each_piece(begin, begin + length, [&](uint64_t at, uint64_t bits) {
      const uint64_t source = from + (at - begin);
      or_bits(bitmap, at, bits, is_partial ? read_bits(elements, source, bits) : low_mask(bits));
    });
    from += is_partial ? length : 0;
  });
}

uint64_t TwoLevelIndex::memory_bytes() const {
  return live_.capacity() + partial_.capacity() + elements_.capacity();
}

}  // namespace addend::exact
