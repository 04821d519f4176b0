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
//
// The gradient is read once as a whole, to find the live blocks; everything after touches live
// blocks only. No bitmap of all elements is made unless asked for (write_union).
#pragma once

#include <cstdint>
#include <vector>

#include "addend/plane.h"
#include "addend/result.h"
#include "base/buffer.h"
#include "codec/index/scan_blocks.h"

namespace addend::index {

/// What a gradient that values are written to holds outside live blocks.
enum class Outside : uint8_t { kAnything, kZeros };

/// A gradient, or, where somebody knows, which of its elements are not zero.
struct Elements {
  const void* gradient = nullptr;
  const uint64_t* bitmap = nullptr;
};

/// Calls come in the order of the declarations. `gradient` is the same, unchanged, in all of them
/// up to pack_values.
class TwoLevelIndex {
 public:
  /// Cuts `count` elements of `width` bytes into blocks of `block` (the last may be shorter) and
  /// marks those of the gradient.
  Status set_blocks(uint32_t width, const Elements& of, uint64_t count, uint64_t block);
  /// What the gradient holds; known from here on, but for what its bitmap does not show.
  const BlockScan& local() const { return local_; }
  Plane live_plane();
  Plane partial_plane();

  /// Collects the element bits of partial blocks, once the block planes are folded; an empty plane
  /// if no block is partial.
  Status set_elements(const Elements& of);
  Plane element_plane();
  uint64_t live_blocks() const { return live_blocks_; }

  /// Once the element plane is folded: the size of the union.
  uint64_t count_union();
  /// Whether the union has every non-zero of this worker; if not, an adder lost bits.
  bool holds_local() const;

  /// Writes the union bitmap (words_for(count) words).
  void write_union(uint64_t* bitmap);

  /// Gathers the elements of the union in order. REQUIRES: Buffer::kSlack bytes of room past them.
  void pack_values(const void* gradient, void* values) const;
  /// Writes them back, and zeros wherever the union is not. REQUIRES: Buffer::kSlack readable bytes
  /// past the values.
  void unpack_values(const void* values, Outside outside, void* gradient) const;

  uint64_t memory_bytes() const;

 private:
  // Words of the block bitmaps that one thread works on at a time.
  struct Chunk {
    uint64_t first = 0, end = 0;  // words
    uint64_t bit = 0;             // of its first element in the element plane
    uint64_t bits = 0;            // that it has there
    uint64_t rank = 0;            // of its first value
    uint64_t size = 0;            // elements of the union
    BlockScan found{};
  };
  struct Run;
  struct Piece;
  uint64_t live_of(uint64_t word) const;
  uint64_t elements_of(uint64_t word, uint64_t blocks) const;
  template <typename Body>
  void for_each(const Body& body);
  template <typename Visit>
  void for_each_run(const Chunk& chunk, Visit&& visit) const;
  template <typename Visit>
  void for_each_run_of(const Chunk& chunk, const void* gradient, const Visit& visit) const;
  template <typename Visit>
  void for_each_piece_of(const Run& run, Visit&& visit) const;
  void read_elements(const Piece& piece, uint64_t* words) const;
  void copy_words(const Chunk& chunk, const uint64_t* bitmap);
  void write_elements(const Chunk& chunk, const Piece& piece, const uint64_t* words);
  uint64_t begin_of(const Chunk& chunk) const { return chunk.first * 64 * block_; }
  uint64_t end_of(const Chunk& chunk) const;
  void pack_chunk(const Chunk& chunk, const void* gradient, void* values) const;
  void unpack_chunk(const Chunk& chunk, const void* values, Outside outside, void* gradient) const;

  uint32_t width_ = 4;
  uint64_t count_ = 0;
  uint64_t block_ = 1;
  uint64_t blocks_ = 0;
  uint64_t live_blocks_ = 0;
  uint64_t element_bits_ = 0;
  BlockScan local_;
  Buffer live_;      // bitmap over blocks
  Buffer partial_;   // bitmap over blocks
  Buffer elements_;  // bitmap over the elements of partial blocks, in order, without gaps
  Buffer local_live_;
  Buffer local_elements_;
  std::vector<Chunk> chunks_;
};

}  // namespace addend::index
