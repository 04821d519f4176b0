// SPDX-License-Identifier: Apache-2.0
#include "codec/index/two_level.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/bits.h"
#include "base/chunks.h"
#include "codec/index/ahead.h"
#include "codec/index/kernels.h"

namespace addend::index {
namespace {

// Kernels get partial blocks in pieces of this many elements, whose bits lie on the stack: large
// enough to make a kernel's call cheap, and no memory depends on how the gradient falls into runs.
constexpr uint64_t kPieceElements = 4096;
using PieceBits = std::array<uint64_t, kPieceElements / 64>;

// Longer than other chunks: the scan reads at several places of one at once.
constexpr uint64_t kScanElements = 4 * kChunkElements;

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

// Live blocks of a word of the block bitmaps, without bits past the end.
uint64_t TwoLevelIndex::live_of(uint64_t word) const {
  return live_.as<uint64_t>()[word] & low_mask(std::min<uint64_t>(64, blocks_ - word * 64));
}

// How many elements these blocks of a word have: the last of all may be shorter.
uint64_t TwoLevelIndex::elements_of(uint64_t word, uint64_t blocks) const {
  const uint64_t all = static_cast<uint64_t>(std::popcount(blocks)) * block_;
  const uint64_t last = blocks_ - 1;
  const bool has_last = word == last / 64 && (blocks >> last % 64 & 1) != 0;
  return has_last ? all - (blocks_ * block_ - count_) : all;
}

// A partial bit without its live bit cannot come from an honest peer and is ignored. Runs end at
// word boundaries of the block bitmaps.
template <typename Visit>
void TwoLevelIndex::for_each_run(const Chunk& chunk, Visit&& visit) const {
  uint64_t bit = chunk.bit;
  for (uint64_t w = chunk.first; w < chunk.end; ++w) {
    const uint64_t partial = partial_.as<uint64_t>()[w];
    for (uint64_t left = live_of(w); left != 0;) {
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

// The same, for who reads or writes the gradient there.
template <typename Visit>
void TwoLevelIndex::for_each_run_of(const Chunk& chunk, const void* gradient,
                                    const Visit& visit) const {
  Ahead<Run, Visit> ahead(visit);
  for_each_run(chunk, [&](const Run& run) {
    ahead.add(run, at(gradient, run.begin, width_), run.length * width_);
  });
  ahead.flush();
}

template <typename Visit>
void TwoLevelIndex::for_each_piece_of(const Run& run, Visit&& visit) const {
  for (uint64_t i = 0; i < run.length; i += kPieceElements)
    visit(Piece{run.begin + i, std::min(kPieceElements, run.length - i), run.bit + i});
}

template <typename Body>
void TwoLevelIndex::for_each(const Body& body) {
  for_each_chunk(chunks_.size(), [&](uint64_t c, uint32_t) { body(chunks_[c]); });
}

uint64_t TwoLevelIndex::end_of(const Chunk& chunk) const {
  return std::min(chunk.end * 64 * block_, count_);
}

Status TwoLevelIndex::set_blocks(uint32_t width, const Elements& of, uint64_t count,
                                 uint64_t block) {
  width_ = width;
  count_ = count;
  block_ = block;
  blocks_ = ceil_div(count, block);
  const uint64_t words = words_for(blocks_);
  for (Buffer* buffer : {&live_, &partial_, &local_live_})
    ADDEND_TRY(buffer->reserve(words * 8));
  const uint64_t length = std::max<uint64_t>(1, kScanElements / (64 * block));
  chunks_.clear();
  for (uint64_t first = 0; first < words; first += length)
    chunks_.push_back({first, std::min(first + length, words)});
  for_each([&](Chunk& chunk) {
    const uint64_t begin = begin_of(chunk), elements = end_of(chunk) - begin;
    auto* live = live_.as<uint64_t>() + chunk.first;
    auto* partial = partial_.as<uint64_t>() + chunk.first;
    chunk.found =
        of.bitmap != nullptr
            ? scan_blocks(of.bitmap + begin / 64, elements, block, live, partial)
            : scan_blocks(width, at(of.gradient, begin, width), elements, block, live, partial);
  });
  local_ = {};
  for (const Chunk& chunk : chunks_) {
    local_.nonzeros += chunk.found.nonzeros;
    local_.negative_zeros = local_.negative_zeros || chunk.found.negative_zeros;
  }
  std::memcpy(local_live_.as<void>(), live_.as<void>(), words * 8);
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

Status TwoLevelIndex::set_elements(const Elements& of) {
  element_bits_ = live_blocks_ = 0;
  for (Chunk& chunk : chunks_) {
    chunk.bit = element_bits_;
    for (uint64_t w = chunk.first; w < chunk.end; ++w) {
      const uint64_t live = live_of(w);
      live_blocks_ += static_cast<uint64_t>(std::popcount(live));
      element_bits_ += elements_of(w, live & partial_.as<uint64_t>()[w]);
    }
    chunk.bits = element_bits_ - chunk.bit;
  }
  if (element_bits_ == 0) return {};
  const uint64_t bytes = words_for(element_bits_) * 8;
  ADDEND_TRY(elements_.reserve(bytes));
  ADDEND_TRY(local_elements_.reserve(bytes));
  std::memset(elements_.as<void>(), 0, bytes);
  for_each([&](const Chunk& chunk) {
    if (of.bitmap != nullptr && block_ == 64) return copy_words(chunk, of.bitmap);
    for_each_run(chunk, [&](const Run& run) {
      if (!run.is_partial) return;
      for_each_piece_of(run, [&](const Piece& piece) {
        PieceBits words;
        if (of.bitmap == nullptr) {
          scan(width_, at(of.gradient, piece.begin, width_), piece.length, words.data(), nullptr,
               0);
        }
        for (uint64_t i = 0; of.bitmap != nullptr && i < piece.length; i += 64) {
          words[i / 64] =
              read_bits(of.bitmap, piece.begin + i, std::min<uint64_t>(64, piece.length - i));
        }
        write_elements(chunk, piece, words.data());
      });
    });
  });
  std::memcpy(local_elements_.as<void>(), elements_.as<void>(), bytes);
  return {};
}

// Blocks of 64 elements are words of both bitmaps.
void TwoLevelIndex::copy_words(const Chunk& chunk, const uint64_t* bitmap) {
  uint64_t* to = elements_.as<uint64_t>() + chunk.bit / 64;
  for (uint64_t w = chunk.first; w < chunk.end; ++w) {
    for_each_bit(live_of(w) & partial_.as<uint64_t>()[w], w * 64,
                 [&](uint64_t block) { *to++ = bitmap[block]; });
  }
}

// Bits of two chunks may share a word: the first and the last of a chunk are written atomically.
void TwoLevelIndex::write_elements(const Chunk& chunk, const Piece& piece, const uint64_t* words) {
  auto* elements = elements_.as<uint64_t>();
  const uint64_t first = chunk.bit / 64, last = (chunk.bit + chunk.bits - 1) / 64;
  for (uint64_t i = 0; i < piece.length; i += 64) {
    const uint64_t bit = piece.bit + i, bits = std::min<uint64_t>(64, piece.length - i);
    const uint64_t w = bit / 64;
    if (w != first && w + 1 < last) {
      or_bits(elements, bit, bits, words[i / 64]);
      continue;
    }
    uint64_t pair[2] = {};
    or_bits(pair, bit % 64, bits, words[i / 64]);
    for (uint64_t k = 0; k < 2; ++k) {
      if (pair[k] != 0)
        std::atomic_ref(elements[w + k]).fetch_or(pair[k], std::memory_order_relaxed);
    }
  }
}

uint64_t TwoLevelIndex::count_union() {
  auto* elements = elements_.as<uint64_t>();
  if (element_bits_ % 64 != 0)
    elements[words_for(element_bits_) - 1] &= low_mask(element_bits_ % 64);
  for_each([&](Chunk& chunk) {
    chunk.size = popcount_range(elements, chunk.bit, chunk.bit + chunk.bits);
    for (uint64_t w = chunk.first; w < chunk.end; ++w)
      chunk.size += elements_of(w, live_of(w) & ~partial_.as<uint64_t>()[w]);
  });
  uint64_t total = 0;
  for (Chunk& chunk : chunks_) {
    chunk.rank = total;
    total += chunk.size;
  }
  return total;
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

void TwoLevelIndex::write_union(uint64_t* bitmap) {
  const auto* elements = elements_.as<uint64_t>();
  for_each([&](const Chunk& chunk) {
    const uint64_t begin = begin_of(chunk);
    std::fill(bitmap + begin / 64, bitmap + words_for(end_of(chunk)), 0);
    if (block_ == 64) {
      const uint64_t* from = elements + chunk.bit / 64;
      for (uint64_t w = chunk.first; w < chunk.end; ++w) {
        const uint64_t partial = partial_.as<uint64_t>()[w];
        for_each_bit(live_of(w), w * 64, [&](uint64_t block) {
          const bool whole = (partial >> block % 64 & 1) == 0;
          bitmap[block] = whole ? low_mask(std::min<uint64_t>(64, count_ - block * 64)) : *from++;
        });
      }
      return;
    }
    for_each_run(chunk, [&](const Run& run) {
      for_each_piece(run.begin, run.begin + run.length, [&](uint64_t i, uint64_t bits) {
        const uint64_t source = run.bit + (i - run.begin);
        or_bits(bitmap, i, bits,
                run.is_partial ? read_bits(elements, source, bits) : low_mask(bits));
      });
    });
  });
}

void TwoLevelIndex::pack_values(const void* gradient, void* values) const {
  for_each_chunk(chunks_.size(),
                 [&](uint64_t c, uint32_t) { pack_chunk(chunks_[c], gradient, values); });
}

void TwoLevelIndex::pack_chunk(const Chunk& chunk, const void* gradient, void* values) const {
  uint64_t rank = chunk.rank;
  const uint64_t end = chunk.rank + chunk.size;
  for_each_run_of(chunk, gradient, [&](const Run& run) {
    if (!run.is_partial) {
      std::memcpy(at(values, rank, width_), at(gradient, run.begin, width_), run.length * width_);
      rank += run.length;
      return;
    }
    for_each_piece_of(run, [&](const Piece& piece) {
      PieceBits words;
      read_elements(piece, words.data());
      rank += pack(width_, at(gradient, piece.begin, width_), piece.length, words.data(),
                   at(values, rank, width_), end - rank);
    });
  });
}

void TwoLevelIndex::unpack_values(const void* values, Outside outside, void* gradient) const {
  for_each_chunk(chunks_.size(), [&](uint64_t c, uint32_t) {
    unpack_chunk(chunks_[c], values, outside, gradient);
  });
}

void TwoLevelIndex::unpack_chunk(const Chunk& chunk, const void* values, Outside outside,
                                 void* gradient) const {
  uint64_t rank = chunk.rank, written = begin_of(chunk);
  const auto clear_up_to = [&](uint64_t end) {
    if (outside == Outside::kAnything)
      std::memset(at(gradient, written, width_), 0, (end - written) * width_);
  };
  for_each_run(chunk, [&](const Run& run) {
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
  clear_up_to(end_of(chunk));
}

uint64_t TwoLevelIndex::memory_bytes() const {
  uint64_t total = chunks_.capacity() * sizeof(Chunk);
  for (const Buffer* buffer : {&live_, &partial_, &elements_, &local_live_, &local_elements_})
    total += buffer->capacity();
  return total;
}

}  // namespace addend::index
