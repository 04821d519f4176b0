// SPDX-License-Identifier: Apache-2.0
// From a gradient to its bitmap and slots, and from a union to the ranks of its tiles.
#pragma once

#include "codec/index/tile.cuh"
#include "cuda/launch.cuh"

namespace addend::index {
namespace {

/// Elements of a tile by rows: 32 lanes with 4 bytes each.
template <typename T>
struct Rows {
  const T* from;
  uint64_t left;  // elements up to the end of the gradient
  bool pairs;     // of 2-byte elements lie at multiples of 4

  __device__ uint32_t whole(uint32_t row, uint32_t lane) const {
    if constexpr (sizeof(T) == 4) {
      return from[row * 32 + lane];
    } else {
      if (pairs) return reinterpret_cast<const uint32_t*>(from)[row * 32 + lane];
      return from[row * 64 + 2 * lane] | uint32_t{from[row * 64 + 2 * lane + 1]} << 16;
    }
  }
  __device__ uint32_t cut(uint32_t row, uint32_t lane) const {
    if constexpr (sizeof(T) == 4) {
      const uint32_t i = row * 32 + lane;
      return i < left ? from[i] : 0;
    } else {
      const uint32_t i = row * 64 + 2 * lane;
      return (i < left ? from[i] : 0) | (i + 1 < left ? uint32_t{from[i + 1]} : 0) << 16;
    }
  }
};

/// `least` is zero in a half, or all of it, once an element was -0.0.
template <typename T>
__device__ inline uint32_t look_for_negative_zero(uint32_t least, uint32_t row) {
  if constexpr (sizeof(T) == 4) return min(least, row ^ 0x80000000u);
  return __vminu2(least, row ^ 0x80008000u);
}
template <typename T>
__device__ inline bool has_negative_zero(uint32_t least) {
  return least == 0 || (sizeof(T) == 2 && ((least & 0xFFFFu) == 0 || least >> 16 == 0));
}

/// The bits of this lane's elements. Rows, of which `row_at` has kBatch in each of 32 lanes at a
/// time, become words by ballots, of which each lane keeps one.
template <typename T, uint32_t kBatch, typename RowAt>
__device__ inline typename Tile<T>::Word nonzeros_of(const RowAt& row_at, uint32_t lane,
                                                     uint32_t& least) {
  uint32_t even = 0, odd = 0;
#pragma unroll
  for (uint32_t first = 0; first < 32; first += kBatch) {
    uint32_t row[kBatch];
    row_at(first, row);
#pragma unroll
    for (uint32_t r = 0; r < kBatch; ++r) {
      const bool mine = lane == first + r;
      least = look_for_negative_zero<T>(least, row[r]);
      if constexpr (sizeof(T) == 4) {
        const uint32_t found = __ballot_sync(kAll, (row[r] << 1) != 0);
        if (mine) even = found;
      } else {
        const uint32_t low = __ballot_sync(kAll, (row[r] & 0x7FFFu) != 0);
        const uint32_t high = __ballot_sync(kAll, (row[r] & 0x7FFF0000u) != 0);
        if (mine) even = low, odd = high;
      }
    }
  }
  if constexpr (sizeof(T) == 4) return even;
  return spread(even) | spread(odd) << 1;
}

/// Of elements in memory, 16 loads under way at once.
template <typename T>
__device__ inline typename Tile<T>::Word nonzeros_in_memory(const Rows<T>& rows, uint32_t lane,
                                                            uint32_t& least) {
  constexpr uint32_t kBatch = 16;
  const bool is_whole = rows.left >= Tile<T>::kElements;
  const auto row_at = [&](uint32_t first, uint32_t(&row)[kBatch]) {
    if (is_whole) {
#pragma unroll
      for (uint32_t r = 0; r < kBatch; ++r)
        row[r] = rows.whole(first + r, lane);
    } else {
#pragma unroll
      for (uint32_t r = 0; r < kBatch; ++r)
        row[r] = rows.cut(first + r, lane);
    }
  };
  return nonzeros_of<T, kBatch>(row_at, lane, least);
}

/// What a warp finds in its tiles.
template <typename T>
struct Scan {
  using Word = typename Tile<T>::Word;
  const ScanCall& call;
  uint32_t lane;
  T* stage;  // a slot in shared memory
  uint64_t found = 0;
  uint32_t least = ~0u;

  /// Writes a tile's bits and stages its non-zeros. Returns how many the slot is to hold.
  __device__ uint32_t take(uint64_t t, Word word, const T* elements) {
    reinterpret_cast<Word*>(call.bitmap)[t * 32 + lane] = word;
    reinterpret_cast<Word*>(call.copy)[t * 32 + lane] = word;
    const uint32_t end = sum_up_to(ones(word), lane);
    const uint32_t total = __shfl_sync(kAll, end, 31);
    found += total;
    if (total > Tile<T>::kSlot || call.kept == nullptr) return 0;
    uint32_t rank = end - ones(word);
    for (Word w = word; w != 0; w &= w - 1)
      stage[rank++] = elements[lane * Tile<T>::kBits + lowest(w)];
    __syncwarp();
    return total;
  }

  __device__ void keep(uint64_t t, uint32_t total) const {
    auto* slot = reinterpret_cast<uint4*>(static_cast<uint8_t*>(call.kept) + t * kSlotBytes);
    for (uint32_t i = lane; i * Tile<T>::kVector < total; i += 32)
      slot[i] = reinterpret_cast<const uint4*>(stage)[i];
    __syncwarp();
  }

  __device__ void end() const {
    if (lane == 0 && found > 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(&call.totals->nonzeros), found);
    if (__any_sync(kAll, has_negative_zero<T>(least)) && lane == 0)
      atomicOr(&call.totals->negative_zeros, 1u);
  }
};

constexpr int kScanWarps = 4;
constexpr int kScanCtas = 12;  // of a multiprocessor: 40 registers; more spills, fewer wait

/// Any gradient, on any device.
template <typename T>
__global__ void __launch_bounds__(kScanWarps * 32, kScanCtas) scan_kernel(ScanCall c) {
  __shared__ alignas(16) T stages[kScanWarps][Tile<T>::kSlot];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto* gradient = static_cast<const T*>(c.gradient);
  const bool pairs = reinterpret_cast<uintptr_t>(gradient) % 4 == 0;
  const uint64_t tiles = tiles_for(sizeof(T), c.count);
  Scan<T> scan{c, lane, stages[warp]};
  for (uint64_t t = uint64_t{blockIdx.x} * kScanWarps + warp; t < tiles;
       t += uint64_t{gridDim.x} * kScanWarps) {
    const uint64_t begin = t * Tile<T>::kElements;
    const Rows<T> rows{gradient + begin, c.count - begin, pairs};
    scan.keep(t, scan.take(t, nonzeros_in_memory<T>(rows, lane, scan.least), rows.from));
  }
  scan.end();
}

// ---- count

constexpr uint32_t kGroupPairs = kGroupBits / 128;                    // of words; a load each
constexpr uint32_t kCountPairs = kGroupPairs / kSumThreads;           // of a thread
constexpr uint32_t kMostTiles = kGroupBits / (4096 / sizeof(float));  // of a group

/// The groups' sizes become what lies before each; by one CTA, once. Returns the sum.
__device__ inline uint64_t number_groups(uint64_t* bases, uint64_t groups) {
  const uint64_t each = ceil_div(groups, uint64_t{kSumThreads}), first = threadIdx.x * each;
  const uint64_t last = first + each < groups ? first + each : groups;
  uint64_t own = 0, total = 0;
  for (uint64_t g = first; g < last; ++g)
    own += __ldcg(bases + g);
  uint64_t before = sum_in_block(own, &total) - own;
  for (uint64_t g = first; g < last; ++g) {
    const uint64_t size = __ldcg(bases + g);
    bases[g] = before;
    before += size;
  }
  return total;
}

/// Two words of the union and of this worker's bitmap.
struct Pair {
  ulonglong2 all, local;
};

/// At the end of the bitmaps: bits of the union past the end are dropped.
__device__ inline Pair last_pair(const CountCall& c, uint64_t pair) {
  const uint64_t words = words_for(c.count);
  const auto all_of = [&](uint64_t w) -> uint64_t {
    if (w >= words) return 0;
    if (w != words - 1 || c.count % 64 == 0) return c.bitmap[w];
    return c.bitmap[w] &= (uint64_t{1} << c.count % 64) - 1;
  };
  const auto local_of = [&](uint64_t w) { return w < words ? c.local[w] : 0; };
  return {{all_of(2 * pair), all_of(2 * pair + 1)}, {local_of(2 * pair), local_of(2 * pair + 1)}};
}

/// Writes the ranks of a group's tiles, whose sizes are in `sizes`, and returns the group's size.
/// By the first warp.
__device__ inline uint32_t number_tiles(const CountCall& c, const uint32_t* sizes) {
  const auto in_group = static_cast<uint32_t>(kGroupBits / tile_elements(c.width));
  const uint64_t first = uint64_t{blockIdx.x} * in_group, tiles = tiles_for(c.width, c.count);
  uint32_t carry = 0;
  for (uint32_t i = threadIdx.x; i < in_group; i += 32) {
    const uint32_t end = sum_up_to(sizes[i], threadIdx.x);
    if (first + i < tiles) c.offsets[first + i] = carry + end - sizes[i];
    carry += __shfl_sync(kAll, end, 31);
  }
  return carry;
}

__global__ void __launch_bounds__(kSumThreads) count_kernel(CountCall c) {
  __shared__ uint32_t sizes[kMostTiles];
  __shared__ bool is_last;
  const uint64_t first = uint64_t{blockIdx.x} * kGroupPairs + threadIdx.x;
  const bool is_whole = (uint64_t{blockIdx.x} + 1) * kGroupBits < c.count;
  Pair pairs[kCountPairs];
#pragma unroll
  for (uint32_t k = 0; k < kCountPairs; ++k) {
    const uint64_t at = first + k * kSumThreads;
    pairs[k] = is_whole ? Pair{reinterpret_cast<const ulonglong2*>(c.bitmap)[at],
                               reinterpret_cast<const ulonglong2*>(c.local)[at]}
                        : last_pair(c, at);
  }
  const auto lanes =
      static_cast<uint32_t>(tile_elements(c.width) / 128);  // that a tile's pairs take
  uint64_t missing = 0;
#pragma unroll
  for (uint32_t k = 0; k < kCountPairs; ++k) {
    const Pair& pair = pairs[k];
    missing |= (pair.local.x & ~pair.all.x) | (pair.local.y & ~pair.all.y);
    uint32_t size = ones(uint64_t{pair.all.x}) + ones(uint64_t{pair.all.y});
    for (uint32_t step = 1; step < lanes; step *= 2)
      size += __shfl_xor_sync(kAll, size, step);
    if (threadIdx.x % lanes == 0) sizes[(k * kSumThreads + threadIdx.x) / lanes] = size;
  }
  const bool any_lost = __syncthreads_or(missing != 0) != 0;
  if (threadIdx.x < 32) {
    const uint32_t total = number_tiles(c, sizes);
    if (threadIdx.x == 0) {
      if (any_lost) atomicOr(&c.totals->lost, 1u);
      c.bases[blockIdx.x] = total;
      __threadfence();
      is_last = atomicAdd(&c.totals->tickets, 1u) == gridDim.x - 1;
    }
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const uint64_t size = number_groups(c.bases, gridDim.x);
  if (threadIdx.x != 0) return;
  volatile Totals* totals = c.totals;
  c.mail->numbers[0] = size;
  c.mail->numbers[1] = totals->nonzeros;
  c.mail->numbers[2] = totals->negative_zeros;
  totals->size = size;
  totals->raw = totals->negative_zeros != 0 && totals->nonzeros > c.few;
  c.mail->numbers[3] = totals->lost;
  totals->nonzeros = 0;  // for the next scan
  totals->negative_zeros = 0;
  totals->lost = 0;
  totals->tickets = 0;
  cuda::send(c.mail, c.sequence);
}

}  // namespace
}  // namespace addend::index
