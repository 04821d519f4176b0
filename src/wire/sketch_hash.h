/* SPDX-License-Identifier: Apache-2.0
 * Where the sketch puts a position: docs/formats/exact.md, "Sketch". Shared by CPU and GPU;
 * changing it changes the format.
 *
 * Positions are cut into rows of `lanes`; a row is hashed, its elements keep their lane. The row's
 * first hash picks a chunk (an independent sketch small enough for a cache) and every hash picks
 * one row of cells in its own sub-table. */
#pragma once

#include <stdint.h>

#include "wire/hash.h"

/* Hashes of a sketch that has no second round to fetch stuck keys in. */
#define ADDEND_SKETCH_RUN 8

/* The row's hash: the upper half picks the chunk, the lower half the cell of sub-table 0. */
ADDEND_HOST_DEVICE static inline uint64_t addend_sketch_hash(uint64_t seed, uint64_t row) {
  return addend_random(seed, row);
}

ADDEND_HOST_DEVICE static inline uint32_t addend_sketch_chunk(uint64_t hash, uint32_t chunks) {
  return addend_reduce32((uint32_t)(hash >> 32), chunks);
}

/* Cell rows of sub-tables 0, 1, 2 (and 3), each in [0, table_rows). */
ADDEND_HOST_DEVICE static inline void addend_sketch_rows(uint64_t hash, uint32_t hashes,
                                                         uint32_t table_rows, uint32_t* rows) {
  const uint64_t second = addend_mix64(hash + 0x9E3779B97F4A7C15ull);
  rows[0] = addend_reduce32((uint32_t)hash, table_rows);
  rows[1] = addend_reduce32((uint32_t)(second >> 32), table_rows);
  rows[2] = addend_reduce32((uint32_t)second, table_rows);
  if (hashes == 4) rows[3] = addend_reduce32((uint32_t)addend_mix64(second + hash), table_rows);
}

/* A run of eight neighbouring segments of segment_rows cells each: returns its first segment, in
 * [0, starts), and the row in each of the eight. */
ADDEND_HOST_DEVICE static inline uint32_t addend_sketch_run(uint64_t hash, uint32_t starts,
                                                            uint32_t segment_rows, uint32_t* rows) {
  const uint64_t second = addend_mix64(hash + 0x9E3779B97F4A7C15ull);
  const uint64_t third = addend_mix64(second + hash);
  const uint64_t fourth = addend_mix64(third + hash);
  const uint64_t fifth = addend_mix64(fourth + hash);
  rows[0] = addend_reduce32((uint32_t)hash, segment_rows);
  rows[1] = addend_reduce32((uint32_t)(second >> 32), segment_rows);
  rows[2] = addend_reduce32((uint32_t)second, segment_rows);
  rows[3] = addend_reduce32((uint32_t)third, segment_rows);
  rows[4] = addend_reduce32((uint32_t)(third >> 32), segment_rows);
  rows[5] = addend_reduce32((uint32_t)(fourth >> 32), segment_rows);
  rows[6] = addend_reduce32((uint32_t)fourth, segment_rows);
  rows[7] = addend_reduce32((uint32_t)(fifth >> 32), segment_rows);
  return addend_reduce32((uint32_t)fifth, starts);
}
