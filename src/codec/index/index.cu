// SPDX-License-Identifier: Apache-2.0
// docs/algorithms/cuda.md has the bytes that each kernel must move and what it reaches.
#include <type_traits>

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "codec/index/index_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/part.cuh"
#include "wire/half.h"

namespace addend::index {
namespace {

constexpr uint32_t kAll = 0xFFFFFFFFu;

/// How a warp looks at a tile: lane l has the bits of 32 or 64 elements that follow each other.
template <typename T>
struct Tile {
  using Word = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  static constexpr uint32_t kElements = 4096 / sizeof(T);
  static constexpr uint32_t kBits = kElements / 32;  // of a lane
  static constexpr uint32_t kSlot = kSlotBytes / sizeof(T);
  static constexpr uint32_t kVector = 16 / sizeof(T);
  static constexpr uint32_t kGroup = kGroupBits / kElements;  // tiles
};

__device__ inline uint32_t ones(uint32_t word) { return static_cast<uint32_t>(__popc(word)); }
__device__ inline uint32_t ones(uint64_t word) { return static_cast<uint32_t>(__popcll(word)); }
__device__ inline uint32_t lowest(uint32_t word) { return static_cast<uint32_t>(__ffs(word) - 1); }
__device__ inline uint32_t lowest(uint64_t word) {
  return static_cast<uint32_t>(__ffsll(static_cast<long long>(word)) - 1);
}

/// The sum over this lane and those below it.
template <typename Number>
__device__ inline Number sum_up_to(Number value, uint32_t lane) {
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const Number other = __shfl_up_sync(kAll, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

/// Bit i of the result is bit i / 2 of `word`, for even i.
__device__ inline uint64_t spread(uint32_t word) {
  uint64_t x = word;
  x = (x | x << 16) & 0x0000FFFF0000FFFFull;
  x = (x | x << 8) & 0x00FF00FF00FF00FFull;
  x = (x | x << 4) & 0x0F0F0F0F0F0F0F0Full;
  x = (x | x << 2) & 0x3333333333333333ull;
  return (x | x << 1) & 0x5555555555555555ull;
}

// ---- scan

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

/// The bits of this lane's elements. Rows become words by ballots, of which each lane keeps one.
template <typename T>
__device__ inline typename Tile<T>::Word nonzeros_of(const Rows<T>& rows, uint32_t lane,
                                                     uint32_t& least) {
  constexpr uint32_t kBatch = 16;  // loads under way
  const bool is_whole = rows.left >= Tile<T>::kElements;
  uint32_t even = 0, odd = 0;
#pragma unroll
  for (uint32_t first = 0; first < 32; first += kBatch) {
    uint32_t row[kBatch];
    if (is_whole) {
#pragma unroll
      for (uint32_t r = 0; r < kBatch; ++r)
        row[r] = rows.whole(first + r, lane);
    } else {
#pragma unroll
      for (uint32_t r = 0; r < kBatch; ++r)
        row[r] = rows.cut(first + r, lane);
    }
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

constexpr int kScanWarps = 4;
constexpr int kScanCtas = 12;  // of a multiprocessor: 40 registers; more spills, fewer wait

template <typename T>
__global__ void __launch_bounds__(kScanWarps * 32, kScanCtas) scan_kernel(ScanCall c) {
  using Word = typename Tile<T>::Word;
  __shared__ alignas(16) T stages[kScanWarps][Tile<T>::kSlot];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T* stage = stages[warp];
  const auto* gradient = static_cast<const T*>(c.gradient);
  const bool pairs = reinterpret_cast<uintptr_t>(gradient) % 4 == 0;
  const uint64_t tiles = tiles_for(sizeof(T), c.count);
  uint64_t found = 0;
  uint32_t least = ~0u;
  for (uint64_t t = uint64_t{blockIdx.x} * kScanWarps + warp; t < tiles;
       t += uint64_t{gridDim.x} * kScanWarps) {
    const uint64_t begin = t * Tile<T>::kElements;
    const Rows<T> rows{gradient + begin, c.count - begin, pairs};
    const Word word = nonzeros_of<T>(rows, lane, least);
    reinterpret_cast<Word*>(c.bitmap)[t * 32 + lane] = word;
    reinterpret_cast<Word*>(c.copy)[t * 32 + lane] = word;
    const uint32_t end = sum_up_to(ones(word), lane);
    const uint32_t total = __shfl_sync(kAll, end, 31);
    found += total;
    if (total == 0 || total > Tile<T>::kSlot) continue;
    uint32_t rank = end - ones(word);
    for (Word w = word; w != 0; w &= w - 1)
      stage[rank++] = rows.from[lane * Tile<T>::kBits + lowest(w)];
    __syncwarp();
    auto* slot = reinterpret_cast<uint4*>(static_cast<uint8_t*>(c.kept) + t * kSlotBytes);
    for (uint32_t i = lane; i * Tile<T>::kVector < total; i += 32)
      slot[i] = reinterpret_cast<const uint4*>(stage)[i];
    __syncwarp();
  }
  if (lane == 0 && found > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(&c.totals->nonzeros), found);
  if (__any_sync(kAll, has_negative_zero<T>(least)) && lane == 0)
    atomicOr(&c.totals->negative_zeros, 1u);
}

// ---- count

constexpr uint32_t kCountThreads = 256;
constexpr uint32_t kCountWords = kGroupBits / 64 / kCountThreads;  // of a thread

/// The sum over this thread and those below it in the CTA; `total` of all. For all threads at once.
template <typename Number>
__device__ inline Number sum_in_block(Number value, Number* total) {
  __shared__ Number sums[kCountThreads / 32];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  value = sum_up_to(value, lane);
  __syncthreads();  // whoever called before has read
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  const Number before = sum_up_to(lane < kCountThreads / 32 ? sums[lane] : Number{0}, lane);
  *total = __shfl_sync(kAll, before, 31);
  const Number below = __shfl_sync(kAll, before, warp == 0 ? 0 : warp - 1);
  return value + (warp == 0 ? 0 : below);
}

/// The groups' sizes become what lies before each; by one CTA.
__device__ inline uint64_t number_groups(volatile uint64_t* bases, uint64_t groups) {
  uint64_t carry = 0;
  for (uint64_t first = 0; first < groups; first += kCountThreads) {
    const uint64_t g = first + threadIdx.x;
    const uint64_t size = g < groups ? bases[g] : 0;
    uint64_t total = 0;
    const uint64_t end = sum_in_block(size, &total);
    if (g < groups) bases[g] = carry + end - size;
    carry += total;
  }
  return carry;
}

/// Union bits of a thread's words, those past the end dropped, and whether local ones are missing.
__device__ inline uint32_t count_words(const CountCall& c, uint64_t at, bool& lost) {
  const uint64_t words = words_for(c.count);
  uint32_t found = 0;
  uint64_t missing = 0;
  if (at + kCountWords < words) {
    ulonglong2 all[kCountWords / 2], local[kCountWords / 2];
#pragma unroll
    for (uint32_t k = 0; k < kCountWords / 2; ++k) {
      all[k] = reinterpret_cast<const ulonglong2*>(c.bitmap)[at / 2 + k];
      local[k] = reinterpret_cast<const ulonglong2*>(c.local)[at / 2 + k];
    }
#pragma unroll
    for (uint32_t k = 0; k < kCountWords / 2; ++k) {
      found += ones(uint64_t{all[k].x}) + ones(uint64_t{all[k].y});
      missing |= (local[k].x & ~all[k].x) | (local[k].y & ~all[k].y);
    }
  } else {
    for (uint64_t w = at; w < at + kCountWords && w < words; ++w) {
      uint64_t all = c.bitmap[w];
      if (w == words - 1 && c.count % 64 != 0) {
        all &= (uint64_t{1} << c.count % 64) - 1;
        c.bitmap[w] = all;
      }
      found += ones(all);
      missing |= c.local[w] & ~all;
    }
  }
  lost = missing != 0;
  return found;
}

__global__ void __launch_bounds__(kCountThreads) count_kernel(CountCall c) {
  __shared__ bool is_last;
  const uint64_t at = uint64_t{blockIdx.x} * (kGroupBits / 64) + threadIdx.x * kCountWords;
  bool lost = false;
  const uint32_t own = count_words(c, at, lost);
  uint32_t total = 0;
  const uint32_t end = sum_in_block(own, &total);
  const uint64_t tile = at * 64 / tile_elements(c.width);
  if (at * 64 % tile_elements(c.width) == 0 && tile < tiles_for(c.width, c.count))
    c.offsets[tile] = end - own;
  const bool any_lost = __syncthreads_or(lost) != 0;
  if (threadIdx.x == 0) {
    if (any_lost) atomicOr(&c.totals->lost, 1u);
    c.bases[blockIdx.x] = total;
    __threadfence();
    is_last = atomicAdd(&c.totals->tickets, 1u) == gridDim.x - 1;
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
  c.mail->numbers[3] = totals->lost;
  totals->nonzeros = 0;  // for the next scan
  totals->negative_zeros = 0;
  totals->lost = 0;
  totals->tickets = 0;
  cuda::send(c.mail, c.sequence);
}

// ---- scale

/// The element times the factor, rounded once; a NaN keeps its payload, as on the CPU.
template <DType kType, typename T>
__device__ inline T scaled(T bits, float factor) {
  if (factor == 1.0f) return bits;
  if constexpr (kType == DType::kF32) {
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits | 0x400000u;
    return __float_as_uint(__fmul_rn(__uint_as_float(bits), factor));
  } else if constexpr (kType == DType::kBf16) {
    if ((bits & 0x7FFFu) > 0x7F80u) return static_cast<T>(bits | 0x40u);
    return addend_bf16_from_f32(__fmul_rn(addend_f32_from_bf16(bits), factor));
  } else {
    if ((bits & 0x7FFFu) > 0x7C00u) return static_cast<T>(bits | 0x200u);
    return __half_as_ushort(
        __float2half_rn(__fmul_rn(__half2float(__ushort_as_half(bits)), factor)));
  }
}

template <DType kType>
using Element = std::conditional_t<kType == DType::kF32, uint32_t, uint16_t>;

constexpr int kPlainThreads = 256;

template <DType kType>
__global__ void __launch_bounds__(kPlainThreads)
    multiply_kernel(const Element<kType>* from, uint64_t count, float factor, Element<kType>* to) {
  for (uint64_t i = uint64_t{blockIdx.x} * kPlainThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kPlainThreads)
    to[i] = scaled<kType>(from[i], factor);
}

// ---- expand

constexpr int kExpandWarps = 8;
constexpr uint32_t kExpandBatch = 4;  // tiles whose loads are under way at once

template <typename T>
struct ExpandTile {
  typename Tile<T>::Word all, own;
  uint64_t rank;
  T early[2];  // the first values of the slot
};

template <typename T>
__device__ inline ExpandTile<T> load_tile(const ExpandCall& c, uint64_t t, uint64_t tiles,
                                          uint32_t lane) {
  using Word = typename Tile<T>::Word;
  if (t >= tiles) return {};
  const auto* slot =
      reinterpret_cast<const T*>(static_cast<const uint8_t*>(c.kept)) + t * Tile<T>::kSlot;
  return {reinterpret_cast<const Word*>(c.bitmap)[t * 32 + lane],
          reinterpret_cast<const Word*>(c.local)[t * 32 + lane],
          c.bases[t / Tile<T>::kGroup] + c.offsets[t],
          {slot[lane], slot[lane + 32]}};
}

/// What a warp knows of a tile when it puts values in union order into `stage`.
template <typename T>
struct Packing {
  const ExpandTile<T>& tile;
  uint64_t t;
  uint32_t rank, taken;  // of this lane's first element, in the union and in the slot
  uint32_t lane;
  T* stage;
};

/// From the slot, into zeros: only this worker's own positions are visited.
template <typename T>
__device__ inline void stage_kept(const ExpandCall& c, Packing<T> p) {
  using Word = typename Tile<T>::Word;
  const auto* slot = static_cast<const T*>(c.kept) + p.t * Tile<T>::kSlot;
  for (Word w = p.tile.own; w != 0; w &= w - 1) {
    const Word below = (w & (~w + 1)) - 1;
    p.stage[p.rank + ones(static_cast<Word>(p.tile.all & below))] = slot[p.taken++];
  }
}

/// From the gradient, row by row as it lies there.
template <typename T>
__device__ inline void stage_gradient(const ExpandCall& c, const Packing<T>& p) {
  using Word = typename Tile<T>::Word;
  const uint64_t begin = p.t * Tile<T>::kElements;
  const T* from = static_cast<const T*>(c.gradient) + begin;
#pragma unroll 8
  for (uint32_t row = 0; row < Tile<T>::kElements / 32; ++row) {
    const uint32_t owner = row * 32 / Tile<T>::kBits, bit = row * 32 % Tile<T>::kBits + p.lane;
    const Word all = __shfl_sync(kAll, p.tile.all, owner);
    const Word own = __shfl_sync(kAll, p.tile.own, owner);
    const uint32_t rank = __shfl_sync(kAll, p.rank, owner);
    const uint32_t i = row * 32 + p.lane;
    if ((all >> bit & 1) == 0) continue;
    const bool travels = c.raw || (own >> bit & 1) != 0;
    p.stage[rank + ones(static_cast<Word>(all & ((Word{1} << bit) - 1)))] =
        travels ? from[i] : T{0};
  }
}

template <DType kType>
__global__ void __launch_bounds__(kExpandWarps * 32) expand_kernel(ExpandCall c) {
  using T = Element<kType>;
  __shared__ T stages[kExpandWarps][Tile<T>::kElements];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T* stage = stages[warp];
  const uint64_t tiles = tiles_for(sizeof(T), c.count);
  for (uint64_t first = (uint64_t{blockIdx.x} * kExpandWarps + warp) * kExpandBatch; first < tiles;
       first += uint64_t{gridDim.x} * kExpandWarps * kExpandBatch) {
    ExpandTile<T> batch[kExpandBatch];
#pragma unroll
    for (uint32_t k = 0; k < kExpandBatch; ++k)
      batch[k] = load_tile<T>(c, first + k, tiles, lane);
#pragma unroll
    for (uint32_t k = 0; k < kExpandBatch; ++k) {
      const ExpandTile<T>& tile = batch[k];
      const uint32_t both = ones(tile.all) | ones(tile.own) << 16;  // neither reaches 2^16
      const uint32_t end = sum_up_to(both, lane);
      const uint32_t totals = __shfl_sync(kAll, end, 31);
      const uint32_t total = totals & 0xFFFF, own = totals >> 16;
      if (total == 0) continue;
      T* out = static_cast<T*>(c.values) + tile.rank;
      const bool same = __all_sync(kAll, tile.all == tile.own);
      if (same && own <= 64 && !c.raw) {  // the slot is the answer
        if (lane < own) out[lane] = scaled<kType>(tile.early[0], c.factor);
        if (lane + 32 < own) out[lane + 32] = scaled<kType>(tile.early[1], c.factor);
        continue;
      }
      const bool kept = own <= Tile<T>::kSlot && !c.raw;
      if (kept && !same) {
        for (uint32_t i = lane; i < total; i += 32)
          stage[i] = 0;
        __syncwarp();
      }
      const uint32_t before = end - both;
      const Packing<T> packing{tile, first + k, before & 0xFFFF, before >> 16, lane, stage};
      if (kept) {
        stage_kept(c, packing);
      } else {
        stage_gradient(c, packing);
      }
      __syncwarp();
      for (uint32_t i = lane; i < total; i += 32)
        out[i] = scaled<kType>(stage[i], c.factor);
      __syncwarp();
    }
  }
}

// ---- unpack

constexpr int kUnpackWarps = 8;

template <typename T>
__global__ void __launch_bounds__(kUnpackWarps * 32) unpack_kernel(UnpackCall c) {
  using Word = typename Tile<T>::Word;
  constexpr uint32_t kVector = Tile<T>::kVector;
  __shared__ T stages[kUnpackWarps][Tile<T>::kElements];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T* stage = stages[warp];
  T* gradient = static_cast<T*>(c.gradient);
  const bool aligned = reinterpret_cast<uintptr_t>(gradient) % 16 == 0;
  const uint64_t tiles = tiles_for(sizeof(T), c.count);
  for (uint64_t t = uint64_t{blockIdx.x} * kUnpackWarps + warp; t < tiles;
       t += uint64_t{gridDim.x} * kUnpackWarps) {
    const Word all = reinterpret_cast<const Word*>(c.bitmap)[t * 32 + lane];
    const T* in = static_cast<const T*>(c.values) + c.bases[t / Tile<T>::kGroup] + c.offsets[t];
    const uint32_t end = sum_up_to(ones(all), lane);
    const uint32_t total = __shfl_sync(kAll, end, 31);
    if (total == 0 && !c.everywhere) continue;
    for (uint32_t i = lane; i < total; i += 32)
      stage[i] = in[i];
    __syncwarp();
    const uint32_t before = end - ones(all);
#pragma unroll
    for (uint32_t part = 0; part < 8; ++part) {
      const uint32_t owner = part * 4 + lane / 8, shift = lane % 8 * kVector;
      const Word word = __shfl_sync(kAll, all, owner);
      uint32_t rank = __shfl_sync(kAll, before, owner);
      // A sector of 32 bytes is written as a whole or not at all.
      const auto sector = static_cast<uint32_t>(word >> shift / (2 * kVector) * (2 * kVector)) &
                          ((1u << 2 * kVector) - 1);
      const auto bits = static_cast<uint32_t>(word >> shift);
      if (sector == 0 && !c.everywhere) continue;
      rank += ones(static_cast<Word>(word & ((Word{1} << shift) - 1)));
      union {
        T elements[kVector];
        uint4 vector;
      } out;
#pragma unroll
      for (uint32_t j = 0; j < kVector; ++j) {
        const bool set = (bits >> j & 1) != 0;
        out.elements[j] = set ? stage[rank] : T{0};
        rank += set ? 1 : 0;
      }
      const uint64_t i = t * Tile<T>::kElements + part * 32 * kVector + lane * kVector;
      if (aligned && i + kVector <= c.count) {
        __stcs(reinterpret_cast<uint4*>(gradient + i), out.vector);
        continue;
      }
      for (uint32_t j = 0; j < kVector; ++j) {
        if (i + j < c.count) gradient[i + j] = out.elements[j];
      }
    }
    __syncwarp();
  }
}

// ---- finite

template <typename T>
__global__ void __launch_bounds__(kPlainThreads)
    nonfinite_kernel(const T* values, uint64_t count, uint32_t infinity, uint64_t* found) {
  constexpr T kMagnitude = static_cast<T>(~T{0}) / 2;
  bool any = false;
  for (uint64_t i = uint64_t{blockIdx.x} * kPlainThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kPlainThreads)
    any |= static_cast<uint32_t>(values[i] & kMagnitude) >= infinity;
  if (__any_sync(kAll, any) && threadIdx.x % 32 == 0)
    *const_cast<volatile uint64_t*>(found) = 1;  // all write the same
}

__global__ void post_kernel(const uint64_t* number, cuda::Mail* mail, uint64_t sequence) {
  mail->numbers[0] = *number;
  cuda::send(mail, sequence);
}

// ---- launches

template <typename Kernel, typename... Arguments>
int launch(Kernel kernel, int threads, uint64_t work, void* stream, Arguments... arguments) {
  if (work == 0) return 0;
  uint32_t ctas = 0;
  if (const int code = cuda::fill_device(kernel, threads, work, &ctas)) return code;
  kernel<<<ctas, threads, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
  return cuda::launched();
}

int scan(const ScanCall& c, void* stream) {
  const uint64_t work = ceil_div(tiles_for(c.width, c.count), kScanWarps);
  return c.width == 4 ? launch(scan_kernel<uint32_t>, kScanWarps * 32, work, stream, c)
                      : launch(scan_kernel<uint16_t>, kScanWarps * 32, work, stream, c);
}

int count(const CountCall& c, void* stream) {
  const auto groups = static_cast<uint32_t>(ceil_div(c.count, kGroupBits));
  count_kernel<<<groups, kCountThreads, 0, static_cast<cudaStream_t>(stream)>>>(c);
  return cuda::launched();
}

int expand(const ExpandCall& c, void* stream) {
  const uint64_t work =
      ceil_div(tiles_for(dtype_bytes(c.dtype), c.count), kExpandWarps * kExpandBatch);
  if (c.dtype == DType::kF32)
    return launch(expand_kernel<DType::kF32>, kExpandWarps * 32, work, stream, c);
  if (c.dtype == DType::kBf16)
    return launch(expand_kernel<DType::kBf16>, kExpandWarps * 32, work, stream, c);
  return launch(expand_kernel<DType::kF16>, kExpandWarps * 32, work, stream, c);
}

int unpack(const UnpackCall& c, void* stream) {
  const uint64_t work = ceil_div(tiles_for(c.width, c.count), kUnpackWarps);
  return c.width == 4 ? launch(unpack_kernel<uint32_t>, kUnpackWarps * 32, work, stream, c)
                      : launch(unpack_kernel<uint16_t>, kUnpackWarps * 32, work, stream, c);
}

template <DType kType>
int multiply_as(const void* from, uint64_t count, float factor, void* to, void* stream) {
  using T = Element<kType>;
  return launch(multiply_kernel<kType>, kPlainThreads, ceil_div(count, kPlainThreads), stream,
                static_cast<const T*>(from), count, factor, static_cast<T*>(to));
}

int multiply(DType dtype, const void* from, uint64_t count, float factor, void* to, void* stream) {
  if (factor == 1.0f) {
    if (to == from || count == 0) return 0;
    return cudaMemcpyAsync(to, from, count * dtype_bytes(dtype), cudaMemcpyDeviceToDevice,
                           static_cast<cudaStream_t>(stream));
  }
  if (dtype == DType::kF32) return multiply_as<DType::kF32>(from, count, factor, to, stream);
  if (dtype == DType::kBf16) return multiply_as<DType::kBf16>(from, count, factor, to, stream);
  return multiply_as<DType::kF16>(from, count, factor, to, stream);
}

int look_for_nonfinite(DType dtype, const void* values, uint64_t count, uint64_t* scratch,
                       cuda::Mail* mail, uint64_t sequence, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  if (const auto code = cudaMemsetAsync(scratch, 0, 8, queue); code != cudaSuccess) return code;
  const uint64_t work = ceil_div(count, kPlainThreads);
  const uint32_t infinity = dtype == DType::kF32    ? 0x7F800000u
                            : dtype == DType::kBf16 ? 0x7F80u
                                                    : 0x7C00u;
  const int code = dtype == DType::kF32
                       ? launch(nonfinite_kernel<uint32_t>, kPlainThreads, work, stream,
                                static_cast<const uint32_t*>(values), count, infinity, scratch)
                       : launch(nonfinite_kernel<uint16_t>, kPlainThreads, work, stream,
                                static_cast<const uint16_t*>(values), count, infinity, scratch);
  if (code != 0) return code;
  post_kernel<<<1, 1, 0, queue>>>(scratch, mail, sequence);
  return cuda::launched();
}

constexpr IndexKernels kKernels{scan, count, expand, unpack, multiply, look_for_nonfinite};

}  // namespace

ADDEND_CUDA_PART(IndexKernels, kKernels);

}  // namespace addend::index
