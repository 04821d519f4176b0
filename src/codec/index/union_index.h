// SPDX-License-Identifier: Apache-2.0
// Where the gradients of all workers are not zero: each worker's positions travel as ORs, in one
// bitmap, in two levels or in a Bloom filter, and then values can travel for the union alone. What
// becomes of the values is the codec's. docs/formats/exact.md, "Packed", "Two-level index" and
// "Bloom filter".
#pragma once

#include <cstdint>
#include <vector>

#include "addend/plane.h"
#include "addend/result.h"
#include "base/bits.h"
#include "base/buffer.h"
#include "codec/index/bloom.h"
#include "codec/index/sparse.h"
#include "codec/index/two_level.h"

namespace addend::index {

/// Non-zeros are kept during the scan while they are at most a quarter of a chunk; beyond, they are
/// read from the gradient again. Where they are more than a quarter of the gradient, its -0.0s
/// travel; otherwise they travel as +0.0.
inline constexpr uint64_t kKeptShare = 4;

/// The index of one gradient after the other. Calls of a step come in this order:
///
///   start
///   scan          optional before two levels: a bitmap of the gradient, and its values where few
///   open_bitmap   then, once that is folded, close_bitmap
///   open_blocks   then close_blocks, and close_elements if that opened a round
///   open_filter   then close_filter, and perhaps open_found and close_found
///   gather, scatter
class UnionIndex {
 public:
  /// `gradient` must stay unchanged until gather, or until scatter if that gets another one.
  void start(uint32_t width, const void* gradient, uint64_t count);
  /// The same for a gradient that was scanned by the caller.
  void start(uint32_t width, const Sparse& gradient, uint64_t count);
  /// Such a gradient, element by element. REQUIRES: started with one.
  void write_gradient(void* to) const;

  Status scan();
  /// Of this worker, once scanned.
  uint64_t nonzeros() const { return nonzeros_; }
  const uint64_t* local() const {
    return given_.bitmap != nullptr ? given_.bitmap : local_.as<uint64_t>();
  }
  /// Their values in order. REQUIRES: as gather.
  void gather_local(void* values) const;

  /// The bitmap as a plane of the round.
  Status open_bitmap(Round& round);
  void close_bitmap();

  /// Adds the block planes. Unless scanned, the gradient is only looked at by blocks.
  Status open_blocks(uint64_t block, Round& round);
  /// Adds the elements of partial blocks and returns true; if there are none, false, and the union
  /// is known.
  Result<bool> close_blocks(Round& round);
  Status close_elements();

  /// Adds the filter of this worker's positions. REQUIRES: scanned.
  Status open_filter(const BloomShape& shape, Round& round);
  /// Finds what the folded filter holds: the union, and false positions, whose values are zero on
  /// all workers. Returns how many these may be.
  double close_filter();
  /// Adds the bits of this worker among those positions; their fold is the union without false
  /// ones.
  Status open_found(Round& round);
  void close_found();
  /// Takes positions out of the union whose values are zero. REQUIRES: not by_blocks().
  void drop_zeros(const void* values);

  /// Whether the union has all of this worker's positions. If not, an adder lost some, unless it
  /// left this worker out on purpose.
  bool holds_local() const;

  /// This worker is not in the union: what its gradient holds elsewhere is dropped by scatter.
  void leave_out();

  /// Positions in the union, once it is known.
  uint64_t size() const { return size_; }
  /// Whether the union is known by blocks only; bitmap() is then not made yet.
  bool by_blocks() const { return by_blocks_; }
  /// Room for the bitmap, so that write_bitmap cannot fail later.
  Status reserve_bitmap() { return bitmap_.reserve(words() * 8); }
  /// REQUIRES: reserve_bitmap.
  void write_bitmap();
  uint64_t* bitmap() { return bitmap_.as<uint64_t>(); }
  const uint64_t* bitmap() const { return bitmap_.as<uint64_t>(); }
  uint64_t words() const { return words_for(count_); }

  /// The gradient's elements of the union, in order. REQUIRES: Buffer::kSlack bytes of room past
  /// them.
  void gather(void* values) const;
  /// Writes elements of the union where they belong, and zeros elsewhere; not where the gradient of
  /// the step has them already. REQUIRES: Buffer::kSlack readable bytes past the values.
  void scatter(const void* values, void* gradient) const;
  /// The same of another array over the positions, by the bitmap: gathers its elements of the
  /// union, and writes those back, and nothing elsewhere.
  void gather_floats(const float* array, float* values) const;
  void put_floats(const float* values, float* array) const;

  /// Writes zeros everywhere, or where the gradient of the step has none. REQUIRES: scanned.
  void clear(void* gradient) const;

  uint64_t memory_bytes() const;

 private:
  // A stretch of kChunkElements positions, which one thread works on at a time.
  struct Chunk {
    uint64_t nonzeros = 0;  // of this worker
    uint64_t before = 0;    // of this worker, in earlier chunks
    uint64_t size = 0;      // of the union
    uint64_t rank = 0;      // of the union, in earlier chunks
    bool kept = false;      // this worker's non-zeros are in kept_
    bool negative_zeros = false;
  };
  template <typename Body>
  void for_each(const Body& body) const;
  uint64_t kept_room() const;
  uint64_t kept_at(uint64_t chunk) const;
  const uint8_t* kept_of(uint64_t chunk) const;
  void count_local();
  void count_chunks();

  uint32_t width_ = 4;
  uint64_t count_ = 0;
  const void* gradient_ = nullptr;
  Sparse given_;  // what the caller scanned
  bool scanned_ = false;
  bool two_levels_ = false;
  bool plain_zeros_ = false;  // -0.0s travel as +0.0
  bool by_blocks_ = false;
  bool negative_zeros_ = false;  // or others, where the union is not
  uint64_t nonzeros_ = 0;
  uint64_t size_ = 0;
  Buffer local_;   // bitmap of this worker, where it scanned
  Buffer kept_;    // its non-zeros, in chunks where they are few
  Buffer bitmap_;  // plane: bitmap, then the union
  Buffer filter_;  // plane: Bloom filter
  Buffer found_;   // plane: bits of what it holds
  BloomShape shape_;
  std::vector<Chunk> chunks_;
  TwoLevelIndex two_level_;
};

/// What a codec says where holds_local() does not hold: packing by such an index would scramble its
/// values without any sign of it.
Error lost_index_bits();

}  // namespace addend::index
