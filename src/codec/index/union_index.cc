// SPDX-License-Identifier: Apache-2.0
#include "codec/index/union_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/chunks.h"
#include "codec/index/kernels.h"

namespace addend::index {
namespace {

// Two levels go by live blocks while the union is less than an eighth of the gradient. Beyond, one
// bitmap and the kernels that stream over all of it are faster than many short copies.
constexpr uint64_t kLiveShare = 8;

// The bits of `word` that `selection` selects, side by side, and back.
uint64_t select_bits(uint64_t word, uint64_t selection) {
  if (word == 0) return 0;
  uint64_t selected = 0, rank = 0;
  for_each_bit(selection, 0, [&](uint64_t bit) { selected |= (word >> bit & 1) << rank++; });
  return selected;
}
uint64_t spread_bits(uint64_t selected, uint64_t selection) {
  uint64_t word = 0;
  for_each_bit(selection, 0, [&](uint64_t bit) {
    word |= (selected & 1) << bit;
    selected >>= 1;
  });
  return word;
}

template <typename T>
void drop_zeros_of(const T* values, uint64_t words, uint64_t* bitmap) {
  constexpr T kMagnitude = static_cast<T>(~T{0}) >> 1;
  for (uint64_t w = 0; w < words; ++w) {
    for_each_bit(bitmap[w], 0, [&](uint64_t bit) {
      if ((*values++ & kMagnitude) == 0) bitmap[w] &= ~(uint64_t{1} << bit);
    });
  }
}

// +0.0 for the selected positions that are not this worker's own.
void clear_others(const uint64_t* own, uint64_t words, const uint64_t* selection, uint32_t width,
                  uint8_t* values) {
  for (uint64_t w = 0; w < words; ++w) {
    for_each_bit(selection[w], 0, [&](uint64_t bit) {
      if ((own[w] >> bit & 1) == 0) std::memset(values, 0, width);
      values += width;
    });
  }
}

const uint8_t* at(const void* elements, uint64_t offset, uint32_t width) {
  return static_cast<const uint8_t*>(elements) + offset * width;
}
uint8_t* at(void* elements, uint64_t offset, uint32_t width) {
  return static_cast<uint8_t*>(elements) + offset * width;
}

}  // namespace

// Calls body(chunk, its first position, its positions), by all threads there are.
template <typename Body>
void UnionIndex::for_each(const Body& body) const {
  for_each_chunk(chunks_.size(), [&](uint64_t c, uint32_t) {
    const uint64_t begin = c * kChunkElements;
    body(c, begin, std::min(kChunkElements, count_ - begin));
  });
}

// Elements that a chunk may keep, and where.
uint64_t UnionIndex::kept_room() const {
  return std::min(kChunkElements, count_) / kKeptShare + 64;
}
uint64_t UnionIndex::kept_at(uint64_t chunk) const {
  return chunk * (kept_room() * width_ + Buffer::kSlack);
}
const uint8_t* UnionIndex::kept_of(uint64_t chunk) const {
  if (given_.bitmap == nullptr) return kept_.as<uint8_t>() + kept_at(chunk);
  return static_cast<const uint8_t*>(given_.values) + chunk * given_.stride;
}

void UnionIndex::start(uint32_t width, const void* gradient, uint64_t count) {
  width_ = width;
  count_ = count;
  gradient_ = gradient;
  given_ = {};
  scanned_ = two_levels_ = plain_zeros_ = by_blocks_ = negative_zeros_ = false;
  nonzeros_ = size_ = 0;
  chunks_.assign(ceil_div(count, kChunkElements), Chunk{});
}

void UnionIndex::start(uint32_t width, const Sparse& gradient, uint64_t count) {
  start(width, nullptr, count);
  given_ = gradient;
  for (uint64_t c = 0; c < chunks_.size(); ++c)
    chunks_[c] = {.nonzeros = gradient.counts[c], .kept = true};
  count_local();
  plain_zeros_ = true;
}

void UnionIndex::write_gradient(void* to) const {
  for_each([&](uint64_t c, uint64_t begin, uint64_t length) {
    unpack(width_, kept_of(c), local() + begin / 64, length, at(to, begin, width_));
  });
}

Status UnionIndex::scan() {
  if (given_.bitmap != nullptr) return {};
  ADDEND_TRY(local_.reserve(words() * 8));
  ADDEND_TRY(kept_.reserve(kept_at(chunks_.size())));
  for_each([&](uint64_t c, uint64_t begin, uint64_t length) {
    const ScanResult found = index::scan(width_, at(gradient_, begin, width_), length,
                                         local_.as<uint64_t>() + begin / 64,
                                         kept_.as<uint8_t>() + kept_at(c), kept_room());
    chunks_[c].nonzeros = found.nonzeros;
    chunks_[c].kept = found.kept == found.nonzeros;
    chunks_[c].negative_zeros = found.negative_zeros;
  });
  count_local();
  plain_zeros_ = nonzeros_ <= count_ / kKeptShare;
  return {};
}

void UnionIndex::count_local() {
  for (Chunk& chunk : chunks_) {
    chunk.before = nonzeros_;
    nonzeros_ += chunk.nonzeros;
    negative_zeros_ = negative_zeros_ || chunk.negative_zeros;
  }
  scanned_ = true;
}

Status UnionIndex::open_bitmap(Round& round) {
  ADDEND_TRY(reserve_bitmap());
  std::memcpy(bitmap(), local(), words() * 8);
  round.add({Op::kOrU64, words(), bitmap(), nullptr, nullptr});
  return {};
}

// Bits past the end are dropped, as everyone does.
void UnionIndex::close_bitmap() {
  if (count_ % 64 != 0) bitmap()[words() - 1] &= low_mask(count_ % 64);
  count_chunks();
}

void UnionIndex::count_chunks() {
  for_each([&](uint64_t c, uint64_t begin, uint64_t length) {
    chunks_[c].size = popcount({bitmap() + begin / 64, words_for(length)});
  });
  size_ = 0;
  for (Chunk& chunk : chunks_) {
    chunk.rank = size_;
    size_ += chunk.size;
  }
}

Status UnionIndex::open_blocks(uint64_t block, Round& round) {
  two_levels_ = true;
  ADDEND_TRY(two_level_.set_blocks(width_, {gradient_, given_.bitmap}, count_, block));
  if (!scanned_) {
    nonzeros_ = two_level_.local().nonzeros;
    negative_zeros_ = two_level_.local().negative_zeros;
  }
  round.add(two_level_.live_plane());
  round.add(two_level_.partial_plane());
  return {};
}

Result<bool> UnionIndex::close_blocks(Round& round) {
  ADDEND_TRY(two_level_.set_elements({gradient_, given_.bitmap}));
  const Plane elements = two_level_.element_plane();
  if (elements.lanes == 0) {
    ADDEND_TRY(close_elements());
    return false;
  }
  round.add(elements);
  return true;
}

Status UnionIndex::close_elements() {
  size_ = two_level_.count_union();
  by_blocks_ = !scanned_ && size_ < count_ / kLiveShare;
  if (by_blocks_) return {};
  ADDEND_TRY(reserve_bitmap());
  write_bitmap();
  // Words without a non-zero may now lie in live blocks, where a -0.0 was not looked for.
  if (!scanned_ && two_level_.element_plane().lanes > 0) negative_zeros_ = true;
  return {};
}

Status UnionIndex::open_filter(const BloomShape& shape, Round& round) {
  shape_ = shape;
  plain_zeros_ = true;  // where the filter is wrong there is nothing to send
  ADDEND_TRY(reserve_bitmap());
  ADDEND_TRY(filter_.reserve(shape.words * 8));
  bloom_insert(shape, local(), words(), filter_.as<uint64_t>());
  round.add({Op::kOrU64, shape.words, filter_.as<void>(), nullptr, nullptr});
  return {};
}

double UnionIndex::close_filter() {
  bloom_find(shape_, filter_.as<uint64_t>(), words(), bitmap());
  close_bitmap();
  return bloom_false(shape_, popcount({filter_.as<uint64_t>(), shape_.words}), count_, size_);
}

Status UnionIndex::open_found(Round& round) {
  const uint64_t lanes = words_for(size_);
  ADDEND_TRY(found_.reserve(lanes * 8));
  auto* bits = found_.as<uint64_t>();
  std::memset(bits, 0, lanes * 8);
  uint64_t at = 0;
  for (uint64_t w = 0; w < words(); ++w) {
    const auto held = static_cast<uint64_t>(std::popcount(bitmap()[w]));
    if (held == 0) continue;
    or_bits(bits, at, held, select_bits(local()[w], bitmap()[w]));
    at += held;
  }
  round.add({Op::kOrU64, lanes, bits, nullptr, nullptr});
  return {};
}

void UnionIndex::close_found() {
  uint64_t at = 0;
  for (uint64_t w = 0; w < words(); ++w) {
    const auto held = static_cast<uint64_t>(std::popcount(bitmap()[w]));
    if (held == 0) continue;
    bitmap()[w] = spread_bits(read_bits(found_.as<uint64_t>(), at, held), bitmap()[w]);
    at += held;
  }
  count_chunks();
}

void UnionIndex::drop_zeros(const void* values) {
  if (width_ == 4) {
    drop_zeros_of(static_cast<const uint32_t*>(values), words(), bitmap());
  } else {
    drop_zeros_of(static_cast<const uint16_t*>(values), words(), bitmap());
  }
  count_chunks();
}

bool UnionIndex::holds_local() const {
  if (two_levels_) return two_level_.holds_local();
  uint64_t lost = 0;
  for (uint64_t w = 0; w < words(); ++w)
    lost |= local()[w] & ~bitmap_.as<uint64_t>()[w];
  return lost == 0;
}

// Its zeros do not stand, and kept values go with all of its own positions.
void UnionIndex::leave_out() {
  negative_zeros_ = true;
  plain_zeros_ = false;
  for (Chunk& chunk : chunks_)
    chunk.kept = false;
}

void UnionIndex::write_bitmap() {
  two_level_.write_union(bitmap());
  count_chunks();
}

void UnionIndex::gather_local(void* values) const {
  for_each([&](uint64_t c, uint64_t begin, uint64_t length) {
    const Chunk& chunk = chunks_[c];
    uint8_t* to = at(values, chunk.before, width_);
    if (chunk.kept) {
      std::memcpy(to, kept_of(c), chunk.nonzeros * width_);
    } else {
      pack(width_, at(gradient_, begin, width_), length, local() + begin / 64, to, chunk.nonzeros);
    }
  });
}

void UnionIndex::gather(void* values) const {
  if (by_blocks_) return two_level_.pack_values(gradient_, values);
  for_each([&](uint64_t c, uint64_t begin, uint64_t length) {
    const Chunk& chunk = chunks_[c];
    const uint64_t* selection = bitmap_.as<uint64_t>() + begin / 64;
    uint8_t* to = at(values, chunk.rank, width_);
    if (chunk.kept && (plain_zeros_ || !chunk.negative_zeros)) {
      place(width_, kept_of(c), local() + begin / 64, words_for(length), selection, to, chunk.size);
    } else {
      pack(width_, at(gradient_, begin, width_), length, selection, to, chunk.size);
      if (plain_zeros_ && chunk.negative_zeros)
        clear_others(local() + begin / 64, words_for(length), selection, width_, to);
    }
  });
}

// The gradient of the step is zero outside the union already, and is not written there again; but
// a -0.0 would stay where other workers write +0.0.
void UnionIndex::scatter(const void* values, void* gradient) const {
  const bool zeros_stand = gradient == gradient_ && !negative_zeros_;
  if (size_ > 0 && by_blocks_) {
    const Outside outside = zeros_stand ? Outside::kZeros : Outside::kAnything;
    return two_level_.unpack_values(values, outside, gradient);
  }
  if (size_ == 0) {
    if (zeros_stand) return;
    return for_each([&](uint64_t, uint64_t begin, uint64_t length) {
      std::memset(at(gradient, begin, width_), 0, length * width_);
    });
  }
  const auto write = zeros_stand ? unpack_into_zeros : unpack;
  const bool stream = count_ * width_ >= kStreamBytes;
  for_each([&](uint64_t c, uint64_t begin, uint64_t length) {
    write(width_, at(values, chunks_[c].rank, width_), bitmap_.as<uint64_t>() + begin / 64, length,
          at(gradient, begin, width_), stream);
  });
}

void UnionIndex::gather_floats(const float* array, float* values) const {
  for_each([&](uint64_t c, uint64_t begin, uint64_t length) {
    pack(4, array + begin, length, bitmap_.as<uint64_t>() + begin / 64, values + chunks_[c].rank,
         chunks_[c].size);
  });
}

void UnionIndex::put_floats(const float* values, float* array) const {
  for_each([&](uint64_t c, uint64_t begin, uint64_t length) {
    const float* from = values + chunks_[c].rank;
    for (uint64_t w = begin / 64; w < (begin + length + 63) / 64; ++w)
      for_each_bit(bitmap_.as<uint64_t>()[w], w * 64, [&](uint64_t i) { array[i] = *from++; });
  });
}

void UnionIndex::clear(void* gradient) const {
  if (gradient != gradient_ || negative_zeros_) {
    std::memset(gradient, 0, count_ * width_);
    return;
  }
  for (uint64_t w = 0; w < words(); ++w) {
    if (local()[w] == 0) continue;
    const uint64_t elements = std::min<uint64_t>(64, count_ - w * 64);
    std::memset(static_cast<uint8_t*>(gradient) + w * 64 * width_, 0, elements * width_);
  }
}

Error lost_index_bits() {
  return make_error(
      Errc::kUndecodable,
      "the union that came back lacks non-zeros of this worker: an adder lost index bits");
}

uint64_t UnionIndex::memory_bytes() const {
  uint64_t total = two_level_.memory_bytes() + chunks_.capacity() * sizeof(Chunk);
  for (const Buffer* buffer : {&local_, &kept_, &bitmap_, &filter_, &found_})
    total += buffer->capacity();
  return total;
}

}  // namespace addend::index
