// SPDX-License-Identifier: Apache-2.0
#include "codec/index/two_level.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/bits.h"
#include "codec/index/kernels.h"

namespace addend::index {
namespace {

// Kernels get partial blocks in pieces of this many elements, whose bits lie on the stack: large
// enough to make a kernel's call cheap, and no memory depends on how the gradient falls into runs.
constexpr uint64_t kPieceElements = 4096;
using PieceBits = std::array<uint64_t, kPieceElements / 64>;

const uint8_t* at(const void* elements, uint64_t offset, uint32_t width) {
  return static_cast<const uint8_t*>(elements) + offset * width;
}
uint8_t* at(void* elements, uint64_t offset, uint32_t width) {
  return static_cast<uint8_t*>(elements) + offset * width;
}

bool covers(const Buffer& all, const Buffer& part, uint64_t words) {
  uint64_t lost = 0;
  for (uint64_t w = 0; w < words; ++w)
    lost |= part.as<uint64_t>()[w] & ~all.as<uint64_t>()[w];
  return lost == 0;
}

}  // namespace

// Adjacent live blocks that are all partial or all full.
struct TwoLevelIndex::Run {
  uint64_t begin;  // elements
  uint64_t length;
  bool is_partial;
  uint64_t bit;  // of its first element in the element plane, if partial
};

struct TwoLevelIndex::Piece {
  uint64_t begin;
  uint64_t length;
  uint64_t bit;
};

// A partial bit without its live bit cannot come from an honest peer and is ignored. Runs end at
// word boundaries of the block bitmaps.
template <typename Visit>
void TwoLevelIndex::for_each_run(Visit&& visit) const {
  uint64_t bit = 0;
  for (uint64_t w = 0; w < words_for(blocks_); ++w) {
    const uint64_t valid = low_mask(std::min<uint64_t>(64, blocks_ - w * 64));
    const uint64_t live = live_.as<uint64_t>()[w] & valid;
    const uint64_t partial = partial_.as<uint64_t>()[w];
    for (uint64_t left = live; left != 0;) {
      const auto first = static_cast<uint64_t>(std::countr_zero(left));
      const bool is_partial = (partial >> first & 1) != 0;
      const uint64_t alike = left & (is_partial ? partial : ~partial);
      const auto blocks = static_cast<uint64_t>(std::countr_one(alike >> first));
      left &= ~low_mask(first + blocks);
      const uint64_t begin = (w * 64 + first) * block_;
      const uint64_t length = std::min(blocks * block_, count_ - begin);
      visit(Run{begin, length, is_partial, bit});
      bit += is_partial ? length : 0;
    }
  }
}

template <typename Visit>
void TwoLevelIndex::for_each_piece_of(const Run& run, Visit&& visit) const {
  for (uint64_t i = 0; i < run.length; i += kPieceElements)
    visit(Piece{run.begin + i, std::min(kPieceElements, run.length - i), run.bit + i});
}

Status TwoLevelIndex::set_blocks(uint32_t width, const void* gradient, uint64_t count,
                                 uint64_t block) {
  width_ = width;
  count_ = count;
  block_ = block;
  blocks_ = ceil_div(count, block);
  const uint64_t bytes = words_for(blocks_) * 8;
  for (Buffer* buffer : {&live_, &partial_, &local_live_})
    ADDEND_TRY(buffer->reserve(bytes));
  local_ =
      scan_blocks(width, gradient, count, block, live_.as<uint64_t>(), partial_.as<uint64_t>());
  std::memcpy(local_live_.as<void>(), live_.as<void>(), bytes);
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

Status TwoLevelIndex::set_elements(const void* gradient) {
  element_bits_ = live_blocks_ = 0;
  for_each_run([&](const Run& run) {
    live_blocks_ += ceil_div(run.length, block_);
    element_bits_ += run.is_partial ? run.length : 0;
  });
  if (element_bits_ == 0) return {};
  const uint64_t bytes = words_for(element_bits_) * 8;
  ADDEND_TRY(elements_.reserve(bytes));
  ADDEND_TRY(local_elements_.reserve(bytes));
  auto* elements = elements_.as<uint64_t>();
  std::memset(elements, 0, bytes);
  for_each_run([&](const Run& run) {
    if (!run.is_partial) return;
    for_each_piece_of(run, [&](const Piece& piece) {
      PieceBits words;
      scan(width_, at(gradient, piece.begin, width_), piece.length, words.data(), nullptr, 0);
      for (uint64_t i = 0; i < piece.length; i += 64)
        or_bits(elements, piece.bit + i, std::min<uint64_t>(64, piece.length - i), words[i / 64]);
    });
  });
  std::memcpy(local_elements_.as<void>(), elements, bytes);
  return {};
}

uint64_t TwoLevelIndex::count_union() {
  uint64_t total = 0;
  for_each_run([&](const Run& run) { total += run.is_partial ? 0 : run.length; });
  if (element_bits_ == 0) return total;
  auto* elements = elements_.as<uint64_t>();
  const uint64_t words = words_for(element_bits_);
  if (element_bits_ % 64 != 0) elements[words - 1] &= low_mask(element_bits_ % 64);
  return total + popcount({elements, words});
}

bool TwoLevelIndex::holds_local() const {
  return covers(live_, local_live_, words_for(blocks_)) &&
         covers(elements_, local_elements_, words_for(element_bits_));
}

void TwoLevelIndex::read_elements(const Piece& piece, uint64_t* words) const {
  for (uint64_t i = 0; i < piece.length; i += 64) {
    words[i / 64] = read_bits(elements_.as<uint64_t>(), piece.bit + i,
                              std::min<uint64_t>(64, piece.length - i));
  }
}

void TwoLevelIndex::write_union(uint64_t* bitmap) const {
  const auto* elements = elements_.as<uint64_t>();
  std::memset(bitmap, 0, words_for(count_) * 8);
  for_each_run([&](const Run& run) {
    for_each_piece(run.begin, run.begin + run.length, [&](uint64_t i, uint64_t bits) {
      const uint64_t source = run.bit + (i - run.begin);
      or_bits(bitmap, i, bits, run.is_partial ? read_bits(elements, source, bits) : low_mask(bits));
    });
  });
}

void TwoLevelIndex::pack_values(const void* gradient, void* values) const {
  uint64_t rank = 0;
  for_each_run([&](const Run& run) {
    if (!run.is_partial) {
      std::memcpy(at(values, rank, width_), at(gradient, run.begin, width_), run.length * width_);
      rank += run.length;
      return;
    }
    for_each_piece_of(run, [&](const Piece& piece) {
      PieceBits words;
      read_elements(piece, words.data());
      rank += pack(width_, at(gradient, piece.begin, width_), piece.length, words.data(),
                   at(values, rank, width_));
    });
  });
}

void TwoLevelIndex::unpack_values(const void* values, Outside outside, void* gradient) const {
  uint64_t rank = 0, written = 0;
  const auto clear_up_to = [&](uint64_t end) {
    if (outside == Outside::kAnything)
      std::memset(at(gradient, written, width_), 0, (end - written) * width_);
  };
  for_each_run([&](const Run& run) {
    clear_up_to(run.begin);
    written = run.begin + run.length;
    if (!run.is_partial) {
      std::memcpy(at(gradient, run.begin, width_), at(values, rank, width_), run.length * width_);
      rank += run.length;
      return;
    }
    for_each_piece_of(run, [&](const Piece& piece) {
      PieceBits words;
      read_elements(piece, words.data());
      unpack(width_, at(values, rank, width_), words.data(), piece.length,
             at(gradient, piece.begin, width_));
      rank += popcount({words.data(), words_for(piece.length)});
    });
  });
  clear_up_to(count_);
}

uint64_t TwoLevelIndex::memory_bytes() const {
  uint64_t total = 0;
  for (const Buffer* buffer : {&live_, &partial_, &elements_, &local_live_, &local_elements_})
    total += buffer->capacity();
  return total;
}

}  // namespace addend::index
