// SPDX-License-Identifier: Apache-2.0
// Where keys lie in a sketch: their chunk, and a cell for each hash in there.
#pragma once

#include <bit>
#include <cstdint>

#include "codec/exact/sketch.h"
#include "wire/sketch_hash.h"

namespace addend::exact {

/// Cell numbers that are kept for a key: three take the room of four.
constexpr uint32_t homes_room(uint32_t hashes) { return std::bit_ceil(hashes); }

/// The cells of one key inside its chunk, all numbers in one or two aligned loads or stores.
template <typename CellId, uint32_t kHashes>
struct alignas(homes_room(kHashes) * sizeof(CellId)) Homes {
  CellId cell[homes_room(kHashes)];
};

template <typename CellId, uint32_t kHashes>
Homes<CellId, kHashes> homes_of(const SketchShape& shape, uint64_t hash, uint64_t position) {
  uint32_t rows[homes_room(kHashes)] = {};
  uint32_t first = 0;
  if constexpr (kHashes == ADDEND_SKETCH_RUN) {
    first = addend_sketch_run(hash, shape.starts, shape.table_rows, rows);
  } else {
    addend_sketch_rows(hash, kHashes, shape.table_rows, rows);
  }
  const auto lane = static_cast<uint32_t>(position) & (shape.lanes - 1);
  Homes<CellId, kHashes> homes;
  for (uint32_t j = 0; j < homes_room(kHashes); ++j) {
    homes.cell[j] =
        static_cast<CellId>(((first + j) * shape.table_rows + rows[j]) * shape.lanes + lane);
  }
  return homes;
}

/// What homes_of and addend_sketch_chunk say of each position; `homes` are 4 numbers each.
/// REQUIRES: 3 or 4 hashes, chunks of fewer than 2^16 cells.
void find_short_homes(const SketchShape& shape, const uint64_t* positions, uint64_t count,
                      uint64_t* chunks, uint16_t* homes);

template <typename CellId, uint32_t kHashes>
void find_homes(const SketchShape& shape, const uint64_t* positions, uint64_t count,
                uint64_t* chunks, Homes<CellId, kHashes>* homes) {
  if constexpr (sizeof(CellId) == 2 && kHashes <= 4) {
    return find_short_homes(shape, positions, count, chunks, homes->cell);
  }
  const auto shift = static_cast<uint32_t>(std::countr_zero(shape.lanes));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t hash = addend_sketch_hash(shape.seed, positions[i] >> shift);
    chunks[i] = addend_sketch_chunk(hash, shape.chunks);
    homes[i] = homes_of<CellId, kHashes>(shape, hash, positions[i]);
  }
}

}  // namespace addend::exact
