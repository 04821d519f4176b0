// SPDX-License-Identifier: Apache-2.0
// What a sketch's kernels share: where keys go, and how they are sorted by chunks.
#pragma once

#include <cuda_runtime.h>

#include "codec/exact/sketch_kernels.h"
#include "codec/index/counted.cuh"
#include "codec/index/element.cuh"
#include "cuda/launch.cuh"
#include "wire/sketch_hash.h"

namespace addend::exact {

int insert(const InsertCall& call, void* stream);
int sketch_room(const SketchShape& shape, SketchRoom* room);
int peel(const PeelCall& call, void* stream);
/// Whether keys are sorted to be added up in a CTA's own memory, of so many bytes.
bool sums_in_shared(const SketchShape& shape, uint64_t bytes);
namespace {

using index::kAll;

constexpr uint32_t kMostHashes = 4;

inline int clear_bins(const SketchShape& shape, const SketchBins& bins, void* stream) {
  return cuda::clear(bins.given, (uint64_t{shape.chunks} + 1) * sizeof(uint64_t), stream);
}

__device__ inline void add_to(uint64_t* sum, uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
}

/// Which row of positions, each of `lanes`, a power of two.
__device__ inline uint64_t row_of(const SketchShape& shape, uint64_t position) {
  return position >> index::lowest(shape.lanes);
}

/// Cells of a key inside its chunk; returns the chunk.
__device__ inline uint32_t place(const SketchShape& shape, uint64_t position,
                                 uint32_t (&homes)[kMostHashes]) {
  const uint64_t hash = addend_sketch_hash(shape.seed, row_of(shape, position));
  uint32_t rows[kMostHashes] = {};
  addend_sketch_rows(hash, shape.hashes, shape.table_rows, rows);
  const auto lane = static_cast<uint32_t>(position) & (shape.lanes - 1);
#pragma unroll
  for (uint32_t j = 0; j < kMostHashes; ++j)
    homes[j] = (j * shape.table_rows + rows[j]) * shape.lanes + lane;
  return addend_sketch_chunk(hash, shape.chunks);
}

__device__ inline uint32_t chunk_of(const SketchShape& shape, uint64_t position) {
  return addend_sketch_chunk(addend_sketch_hash(shape.seed, row_of(shape, position)), shape.chunks);
}

__device__ inline void add_to_cells(const SketchShape& shape, uint64_t* cells, uint64_t position,
                                    uint64_t value) {
  uint32_t homes[kMostHashes];
  uint64_t* chunk = cells + place(shape, position, homes) * shape.chunk_cells();
#pragma unroll
  for (uint32_t j = 0; j < kMostHashes; ++j) {
    if (j < shape.hashes) add_to(chunk + homes[j], value);
  }
}

__device__ inline BlockFormat format_at(const Quanta& quanta, uint64_t position) {
  return block_format(quanta.lanes + position / kRangeBlock * kRangeLanes, quanta.rules);
}

/// Sums of cells in a CTA's own memory: lower and upper halves, added to by 32 bits with a carry.
struct OwnCells {
  uint32_t *low, *high;

  __device__ uint64_t get(uint32_t cell) const {
    return uint64_t{*const_cast<const volatile uint32_t*>(high + cell)} << 32 |
           *const_cast<const volatile uint32_t*>(low + cell);
  }
  __device__ void set(uint32_t cell, uint64_t value) const {
    low[cell] = static_cast<uint32_t>(value);
    high[cell] = static_cast<uint32_t>(value >> 32);
  }
  /// Ends an addition whose lower half, `part`, was added to `before`.
  __device__ void carry(uint32_t cell, uint32_t before, uint32_t part, uint32_t rest) const {
    rest += before + part < part ? 1 : 0;
    if (rest != 0) atomicAdd(high + cell, rest);
  }
};
/// A CTA's own memory that kernels declare themselves, and the system's, at most.
constexpr uint64_t kDeclaredBytes = 1024 + 64;

// ---- keys by chunks

constexpr int kBinThreads = 512;
constexpr uint32_t kBinWarps = kBinThreads / 32;
/// What a CTA looks at at once: 128 positions a thread, 64 rows; and of the keys there so many.
constexpr uint32_t kBatch = kBinThreads * 128;
constexpr uint32_t kRow = 1024;
constexpr uint32_t kRows = kBatch / kRow;
constexpr uint32_t kKeysAtOnce = 8;
constexpr uint32_t kWindow = kBinThreads * kKeysAtOnce;
static_assert(kBatch <= 65536, "offsets of 16 bits");

/// The sum over the threads of a CTA below this one; `total` of all. For all threads at once.
__device__ inline uint32_t sum_below(uint32_t value, uint32_t* sums, uint32_t* total) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t end = index::sum_up_to(value, lane);
  __syncthreads();
  if (lane == 31) sums[warp] = end;
  __syncthreads();
  const uint32_t others = lane < kBinWarps ? sums[lane] : 0;
  *total = __reduce_add_sync(kAll, others);
  return __reduce_add_sync(kAll, lane < warp ? others : 0) + end - value;
}

/// The keys of a CTA's batch, listed by windows.
struct Batch {
  struct Memory {
    uint32_t sums[kBinWarps];
    uint32_t rows[kRows + 1];
    uint16_t list[kWindow];
  };

  Memory& memory;
  uint64_t first;   // position
  uint32_t keys;    // memory.rows: of them, how many are before each row
  uint32_t before;  // this thread's
  uint64_t bits[2];

  __device__ Batch(Memory& memory_of, const uint64_t* bitmap, uint64_t words, uint64_t batch)
      : memory(memory_of), first(batch * kBatch) {
    const uint64_t at = first / 64 + 2 * threadIdx.x;
    bits[0] = at < words ? bitmap[at] : 0;
    bits[1] = at + 1 < words ? bitmap[at + 1] : 0;
    before = sum_below(index::ones(bits[0]) + index::ones(bits[1]), memory.sums, &keys);
    constexpr uint32_t kEach = kBinThreads / kRows;
    if (threadIdx.x % kEach == 0) memory.rows[threadIdx.x / kEach] = before;
    if (threadIdx.x == 0) memory.rows[kRows] = keys;
    __syncthreads();
  }

  /// Calls visit(window's first key, its keys): these are then listed.
  template <typename Visit>
  __device__ void for_each_window(const Visit& visit) const {
    for (uint32_t from = 0; from < keys; from += kWindow) {
      const uint32_t n = keys - from < kWindow ? keys - from : kWindow;
      uint32_t rank = before - from;  // below the window it is too large, too
#pragma unroll
      for (uint32_t w = 0; w < 2; ++w) {
        for (uint64_t left = bits[w]; left != 0; left &= left - 1, ++rank) {
          if (rank < n)
            memory.list[rank] =
                static_cast<uint16_t>(threadIdx.x * 128 + w * 64 + index::lowest(left));
        }
      }
      __syncthreads();
      visit(from, n);
      __syncthreads();
    }
  }
  __device__ uint64_t position(uint32_t i) const { return first + memory.list[i]; }
};

/// More chunks than this are not sorted in a CTA's own memory.
constexpr uint32_t kMostBins = 1024;

/// A window's keys side by side as their chunks want them, so that they are written in runs. A key
/// has its number in its chunk when it is counted; reserve() then knows where chunks go.
struct OwnBins {
  uint64_t* slots;   // a chunk's first one, or kNoRoom
  uint32_t* counts;  // zeros between windows
  uint32_t* begins;  // in the window

  /// Bytes of a CTA's own memory, of windows with so many a key.
  static uint32_t bytes(const SketchShape& shape, uint32_t key) {
    return shape.chunks * 16 + kWindow * key;
  }
  __device__ OwnBins(const SketchShape& shape, uint64_t* memory)
      : slots(memory),
        counts(reinterpret_cast<uint32_t*>(memory + shape.chunks)),
        begins(counts + shape.chunks) {
    for (uint32_t k = threadIdx.x; k < shape.chunks; k += kBinThreads)
      counts[k] = 0;
    __syncthreads();
  }
  __device__ uint32_t count(uint32_t chunk) const { return atomicAdd(counts + chunk, 1u); }
  __device__ void reserve(const SketchShape& shape, const SketchBins& bins, uint32_t* sums) const {
    constexpr uint32_t kEach = kMostBins / kBinThreads;
    __syncthreads();
    uint32_t own[kEach], all = 0, total = 0;
#pragma unroll
    for (uint32_t j = 0; j < kEach; ++j) {
      const uint32_t k = threadIdx.x * kEach + j;
      own[j] = k < shape.chunks ? counts[k] : 0;
      all += own[j];
    }
    uint32_t begin = sum_below(all, sums, &total);
#pragma unroll
    for (uint32_t j = 0; j < kEach; ++j) {
      if (own[j] == 0) continue;
      const uint32_t k = threadIdx.x * kEach + j;
      begins[k] = begin;
      slots[k] = take(shape, bins, k, own[j]);
      counts[k] = 0;
      begin += own[j];
    }
    __syncthreads();
  }
  /// Where what lies at this place of the window goes; false: nowhere.
  __device__ bool find_slot(uint32_t chunk, uint32_t place, uint64_t* slot) const {
    *slot = slots[chunk] + place - begins[chunk];
    return slots[chunk] != kNoRoom;
  }

 private:
  __device__ static uint64_t take(const SketchShape& shape, const SketchBins& bins, uint32_t chunk,
                                  uint32_t n) {
    const uint64_t room = shape.chunk_cells();
    const uint64_t before =
        atomicAdd(reinterpret_cast<unsigned long long*>(bins.given + chunk), uint64_t{n});
    if (before + n <= room) return chunk * room + before;
    bins.given[shape.chunks] = 1;
    return kNoRoom;
  }
};

}  // namespace
}  // namespace addend::exact
