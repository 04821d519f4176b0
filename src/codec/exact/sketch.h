// SPDX-License-Identifier: Apache-2.0
// The sketch: every key (a non-zero position) adds its integer value to k cells; knowing the keys,
// a receiver peels the sums apart exactly, because a cell that holds one remaining key holds that
// key's sum. Which keys cannot be peeled depends on the keys and the seed alone, so all workers
// find the same stuck set. Cells wrap modulo 2^64: intermediate sums may, only a key's own sum must
// fit. Scheme: Li et al., arXiv 2402.07529; differences: docs/algorithms/exact.md.
#pragma once

#include <cstdint>

#include "addend/result.h"
#include "base/buffer.h"
#include "wire/half.h"

namespace addend::exact {

/// Layout of the cells: [chunk][segment][table row][lane][word]. All fields are part of the plan. A
/// key has one cell in each of k neighbouring segments; with one start these are sub-tables, and
/// every key has a cell in each.
struct SketchShape {
  uint64_t seed = 0;
  uint32_t hashes = 3;      ///< k: 3, 4 or 8
  uint32_t lanes = 1;       ///< elements hashed together, a power of two
  uint32_t chunks = 1;      ///< independent sketches
  uint32_t table_rows = 1;  ///< rows of one segment of one chunk
  uint32_t words = 1;       ///< i64 lanes a cell
  uint32_t starts = 1;      ///< segments at which keys begin; 1 unless hashes is 8

  ADDEND_HOST_DEVICE uint64_t segments() const { return uint64_t{hashes} - 1 + starts; }
  ADDEND_HOST_DEVICE uint64_t chunk_cells() const { return segments() * table_rows * lanes; }
  uint64_t cells() const { return chunk_cells() * chunks; }
  uint64_t lanes_total() const { return cells() * words; }

  /// The smallest shape that peels `keys` distinct keys in practice, at about 1.28 cells a key when
  /// there are many. A few may stick: for steps with a fix-up round.
  static SketchShape plan(uint64_t keys, uint32_t lanes, uint32_t words, uint64_t seed);

  /// A shape under which any set of at most `keys` keys (up to 10^9) peels whole but for one seed
  /// in 10^9, at no more than 1.36 cells a key when there are many: for files, which have no second
  /// round. Why: docs/algorithms/exact.md, "Sketches in files".
  static SketchShape plan_whole(uint64_t keys, uint32_t words, uint64_t seed);

  /// Whether peeling `keys` keys is worth trying with 3 or 4 hashes: beyond their threshold about
  /// half of them would stick.
  bool can_hold(uint64_t keys) const;
};

/// A bitmap of positions with the number of its set bits.
struct KeySet {
  const uint64_t* bitmap = nullptr;
  uint64_t words = 0;
  uint64_t count = 0;
};

/// Encoder and decoder of sketches; owns their workspace, reused across steps. Not thread-safe.
class Sketch {
 public:
  /// Adds values[r*shape.words ...] to the cells of the r-th key. REQUIRES: cells has
  /// shape.lanes_total() lanes.
  Status insert(const SketchShape& shape, const KeySet& keys, const int64_t* values,
                uint64_t* cells);

  /// Peels the keys out of `cells`, which keep only what the stuck keys left.
  /// values()[r*shape.words ...] is then the sum of the r-th key; of stuck keys it is unspecified.
  Status peel(const SketchShape& shape, const KeySet& keys, uint64_t* cells);
  const int64_t* values() const { return sorted_.as<int64_t>(); }

  /// The keys that the last peel could not recover. The bitmap is only written when there are some.
  KeySet stuck() const { return stuck_set_; }

  /// Takes the stuck keys' sums, in index order, out of the cells as well; then every counter must
  /// be zero. kUndecodable if one is not: cells and index do not belong together. (A
  /// contribution lost or repeated whole is a valid sum of other workers and cannot show here.)
  Status settle(const SketchShape& shape, const int64_t* stuck_values, uint64_t* cells);

  /// The check that settle ends with.
  static Status check_zero(const SketchShape& shape, const uint64_t* cells);
  /// The same, where somebody has counted the cells that are not zero.
  static Status check_zeros(const SketchShape& shape, uint64_t others);

  uint64_t memory_bytes() const;

 private:
  Status reserve(const SketchShape& shape, uint64_t keys);
  // kWords is the cells' width if known at compile time, else 0.
  template <typename CellId, uint32_t kWords, uint32_t kHashes>
  void distribute(const SketchShape& shape, const KeySet& keys, const int64_t* values);
  template <typename CellId, uint32_t kWords, uint32_t kHashes>
  bool spread(const SketchShape& shape, uint64_t keys, const int64_t* values);
  template <typename CellId, uint32_t kWords, uint32_t kHashes>
  void insert_chunk(const SketchShape& shape, uint32_t chunk, uint64_t* cells) const;
  template <typename CellId, uint32_t kWords, uint32_t kHashes>
  void peel_chunk(const SketchShape& shape, uint32_t chunk, uint64_t* cells);
  template <uint32_t kWords>
  void collect(const SketchShape& shape, const KeySet& keys);

  // Keys are grouped by chunk, ascending inside one; "slot" numbers them in that order.
  Buffer starts_;     // u64 per chunk + 1: its first slot
  Buffer ends_;       // u64 per chunk: behind its last slot in use
  Buffer positions_;  // u64 per key, ascending
  Buffer homes_;      // 4 or 8 cell numbers per slot, inside its chunk
  Buffer slots_;      // i64 words per slot: values to insert, or peeled
  Buffer done_;       // u8 per slot
  Buffer sorted_;     // i64 words per key, in index order
  Buffer nodes_;      // u64 (1 + words) per cell of one chunk
  Buffer queue_;      // u32 per cell of one chunk, and one
  Buffer stuck_;      // bitmap
  KeySet stuck_set_;
};

}  // namespace addend::exact
