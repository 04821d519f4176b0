// SPDX-License-Identifier: Apache-2.0
// From a gradient to the bits of its blocks and of what is in partial ones.
#pragma once

#include "codec/index/tile.cuh"
#include "codec/index/two_level_kernels.h"
#include "cuda/launch.cuh"

namespace addend::index {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;

__host__ __device__ inline uint64_t blocks_of(const TwoLevelCall& c) {
  return ceil_div(c.count, c.block);
}
__host__ __device__ inline uint64_t words_of(const TwoLevelCall& c) {
  return words_for(blocks_of(c));
}

/// Bits of a word that stand for blocks.
__device__ inline uint64_t valid_in(const TwoLevelCall& c, uint64_t w) {
  const uint64_t left = blocks_of(c) - w * 64;
  return left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
}

__device__ inline uint64_t length_of(const TwoLevelCall& c, uint64_t b) {
  const uint64_t left = c.count - b * c.block;
  return left < c.block ? left : c.block;
}

template <typename T>
__device__ inline bool is_zero(T bits) {
  return static_cast<T>(bits << 1) == 0;
}

// ---- scan

/// What was found in a word of blocks; in all lanes.
struct FoundBlocks {
  uint64_t live = 0, partial = 0;
  bool negative_zeros = false;
};

/// Any blocks, wherever they lie. `nonzeros` is the lane's part.
template <typename T>
__device__ inline FoundBlocks look_at_blocks(const TwoLevelCall& c, uint64_t w, uint32_t lane,
                                             uint64_t& nonzeros) {
  FoundBlocks found;
  const auto* gradient = static_cast<const T*>(c.gradient);
  const uint64_t valid = valid_in(c, w);
  for (uint32_t k = 0; k < 64 && (valid >> k & 1) != 0; ++k) {
    const uint64_t b = w * 64 + k, length = length_of(c, b);
    const T* from = gradient + b * c.block;
    bool any = false, zero = false, signs = false;
    for (uint64_t i = lane; i < length; i += 32) {
      const T x = from[i];
      const bool is = !is_zero(x);
      any |= is;
      zero |= !is;
      signs |= x != 0;
      nonzeros += is ? 1 : 0;
    }
    if (!__any_sync(kAll, any)) {
      found.negative_zeros |= __any_sync(kAll, signs) != 0;
      continue;
    }
    found.live |= uint64_t{1} << k;
    if (__any_sync(kAll, zero)) found.partial |= uint64_t{1} << k;
  }
  return found;
}

/// Magnitude bits of the elements in a word.
template <typename T>
__device__ inline uint32_t magnitudes(uint32_t word) {
  return word & (sizeof(T) == 4 ? 0x7FFFFFFFu : 0x7FFF7FFFu);
}
template <typename T>
__device__ inline uint32_t count_zeros(const uint4& v) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  uint32_t zeros = 0;
#pragma unroll
  for (const uint32_t word : words) {
    if constexpr (sizeof(T) == 4) {
      zeros += magnitudes<T>(word) == 0 ? 1 : 0;
    } else {
      zeros += ones(__vseteq2(magnitudes<T>(word), 0));
    }
  }
  return zeros;
}

/// Blocks of kLanes times 16 bytes that lie at multiples of 16: a load of the warp has 32 / kLanes
/// of them, and lane k keeps what the votes said of load k.
template <typename T, uint32_t kLanes>
__device__ inline FoundBlocks look_at_vectors(const TwoLevelCall& c, uint64_t w, uint32_t lane,
                                              uint64_t& nonzeros) {
  constexpr uint32_t kLoads = 2 * kLanes < 32 ? 2 * kLanes : 32, kAtOnce = 8;
  constexpr uint32_t kBlocks = 32 / kLanes;  // of a load
  constexpr uint32_t kMask = kLanes == 32 ? kAll : (1u << kLanes % 32) - 1;
  FoundBlocks found;
  const auto* from =
      reinterpret_cast<const uint4*>(static_cast<const T*>(c.gradient) + w * 64 * c.block);
  for (uint32_t first = 0; first < 2 * kLanes; first += kLoads) {
    uint32_t some = 0, set = 0, zero = 0;  // of this lane's load
#pragma unroll
    for (uint32_t at = 0; at < kLoads; at += kAtOnce) {
      uint4 v[kAtOnce];
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k)
        v[k] = __ldcs(from + (first + at + k) * 32 + lane);
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        const uint32_t any = v[k].x | v[k].y | v[k].z | v[k].w;
        const uint32_t bits = __ballot_sync(kAll, any != 0);
        if (bits == 0) continue;
        const uint32_t live = __ballot_sync(kAll, magnitudes<T>(any) != 0);
        const uint32_t zeros = count_zeros<T>(v[k]);
        const uint32_t partial = __ballot_sync(kAll, zeros != 0);
        nonzeros += Tile<T>::kVector - zeros;
        if (lane == at + k) set = bits, some = live, zero = partial;
      }
    }
    uint64_t live = 0, partial = 0;
    bool negative = false;
#pragma unroll
    for (uint32_t j = 0; j < kBlocks; ++j) {
      const uint32_t mask = kMask << j * kLanes % 32;
      const bool is_live = (some & mask) != 0;
      const uint32_t bit = (lane * kBlocks + j) % 64;
      if (is_live) live |= uint64_t{1} << bit;
      if (is_live && (zero & mask) != 0) partial |= uint64_t{1} << bit;
      negative |= !is_live && (set & mask) != 0;
    }
    const auto merged = [](uint64_t bits) {
      return uint64_t{__reduce_or_sync(kAll, static_cast<uint32_t>(bits))} |
             uint64_t{__reduce_or_sync(kAll, static_cast<uint32_t>(bits >> 32))} << 32;
    };
    found.live |= merged(live) << first;
    found.partial |= merged(partial) << first;
    found.negative_zeros |= __any_sync(kAll, negative) != 0;
  }
  return found;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) scan_kernel(TwoLevelCall c) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint64_t words = words_of(c);
  const bool aligned = reinterpret_cast<uintptr_t>(c.gradient) % 16 == 0;
  const uint64_t bytes = c.block * sizeof(T);
  const uint32_t lanes =
      aligned && bytes % 16 == 0 && bytes <= 512 ? static_cast<uint32_t>(bytes / 16) : 0;
  uint64_t nonzeros = 0;
  bool negative_zeros = false;
  for (uint64_t w = uint64_t{blockIdx.x} * kWarps + warp; w < words;
       w += uint64_t{gridDim.x} * kWarps) {
    const bool is_whole = (w + 1) * 64 * c.block <= c.count;
    FoundBlocks found;
    if (is_whole && lanes == 16) {
      found = look_at_vectors<T, 16>(c, w, lane, nonzeros);
    } else if (is_whole && lanes == 32) {
      found = look_at_vectors<T, 32>(c, w, lane, nonzeros);
    } else if (is_whole && lanes == 8) {
      found = look_at_vectors<T, 8>(c, w, lane, nonzeros);
    } else {
      found = look_at_blocks<T>(c, w, lane, nonzeros);
    }
    negative_zeros |= found.negative_zeros;
    if (lane != 0) continue;
    c.live[w] = c.local_live[w] = found.live;
    c.partial[w] = found.partial;
  }
  nonzeros = sum_up_to(nonzeros, lane);
  if (lane == 31 && nonzeros > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(&c.totals->nonzeros), nonzeros);
  if (lane == 0 && negative_zeros) atomicOr(&c.totals->negative_zeros, 1u);
}

// ---- count

/// Elements of the blocks that these bits of a word stand for.
__device__ inline uint64_t elements_of(const TwoLevelCall& c, uint64_t w, uint64_t bits) {
  const uint64_t last = blocks_of(c) - 1;
  const bool has_last = w == last / 64 && (bits >> last % 64 & 1) != 0;
  return ones(bits) * c.block - (has_last ? c.block - length_of(c, last) : 0);
}

__device__ inline BlockSums sums_in_block(const BlockSums& own, BlockSums* total) {
  const uint64_t full = sum_in_block(own.full, &total->full);
  __syncthreads();
  const uint64_t bits = sum_in_block(own.bits, &total->bits);
  return {full - own.full, bits - own.bits};
}

/// The groups' sums become what lies before each; by one CTA, once.
__device__ inline BlockSums number_groups(const TwoLevelCall& c) {
  const uint64_t groups = gridDim.x, each = ceil_div(groups, uint64_t{kSumThreads});
  const uint64_t first = threadIdx.x * each, last = first + each < groups ? first + each : groups;
  const auto size_of = [&](uint64_t g) {
    return BlockSums{__ldcg(&c.groups[g].full), __ldcg(&c.groups[g].bits)};
  };
  BlockSums own{}, total{};
  for (uint64_t g = first; g < last; ++g) {
    const BlockSums size = size_of(g);
    own.full += size.full, own.bits += size.bits;
  }
  __syncthreads();
  BlockSums before = sums_in_block(own, &total);
  for (uint64_t g = first; g < last; ++g) {
    const BlockSums size = size_of(g);
    c.groups[g] = before;
    before.full += size.full, before.bits += size.bits;
  }
  return total;
}

__global__ void __launch_bounds__(kSumThreads)
    count_kernel(TwoLevelCall c, cuda::Mail* mail, uint64_t sequence) {
  static_assert(kGroupWords == kSumThreads);
  __shared__ bool is_last;
  const uint64_t w = uint64_t{blockIdx.x} * kGroupWords + threadIdx.x;
  BlockSums own{}, total{};
  bool lost = false;
  if (w < words_of(c)) {
    // A partial bit without its live bit cannot come from an honest peer and is ignored.
    const uint64_t live = c.live[w] & valid_in(c, w), partial = c.partial[w] & live;
    lost = (c.local_live[w] & ~live) != 0;
    own = {elements_of(c, w, live & ~partial), elements_of(c, w, partial)};
  }
  const BlockSums before = sums_in_block(own, &total);
  if (w < words_of(c)) c.before[w] = before;
  const bool any_lost = __syncthreads_or(lost) != 0;
  if (threadIdx.x == 0) {
    if (any_lost) atomicOr(&c.totals->lost, 1u);
    c.groups[blockIdx.x] = total;
    __threadfence();
    is_last = atomicAdd(&c.totals->tickets, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const BlockSums all = number_groups(c);
  if (threadIdx.x != 0) return;
  volatile BlockTotals* totals = c.totals;
  mail->numbers[0] = all.full;
  mail->numbers[1] = all.bits;
  mail->numbers[2] = totals->nonzeros;
  mail->numbers[3] = totals->negative_zeros;
  mail->numbers[4] = totals->lost;
  totals->all.full = all.full;
  totals->all.bits = all.bits;
  totals->nonzeros = 0;  // for the next scan
  totals->negative_zeros = 0;
  totals->lost = 0;
  totals->tickets = 0;
  cuda::send(mail, sequence);
}

// ---- mark

__device__ inline bool has_room(const TwoLevelCall& c) {
  return c.totals->all.bits != 0 && c.totals->all.bits <= c.element_room;
}

__global__ void __launch_bounds__(kThreads) clear_kernel(TwoLevelCall c) {
  const uint64_t words = has_room(c) ? words_for(c.totals->all.bits) : 0;
  for (uint64_t w = uint64_t{blockIdx.x} * kThreads + threadIdx.x; w < words;
       w += uint64_t{gridDim.x} * kThreads)
    c.elements[w] = c.local_elements[w] = 0;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) mark_kernel(TwoLevelCall c) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint64_t words = has_room(c) ? words_of(c) : 0;
  for (uint64_t w = uint64_t{blockIdx.x} * kWarps + warp; w < words;
       w += uint64_t{gridDim.x} * kWarps) {
    uint64_t at = c.before[w].bits + c.groups[w / kGroupWords].bits;
    for (uint64_t left = c.partial[w] & c.live[w] & valid_in(c, w); left != 0; left &= left - 1) {
      const uint64_t b = w * 64 + lowest(left), length = length_of(c, b);
      const T* from = static_cast<const T*>(c.gradient) + b * c.block;
      for (uint64_t i = 0; i < length; i += 32) {
        const bool is = i + lane < length && !is_zero(from[i + lane]);
        const uint32_t bits = __ballot_sync(kAll, is);
        const uint32_t n = length - i < 32 ? static_cast<uint32_t>(length - i) : 32;
        if (lane == 0) put_bits(c.elements, at + i, n, bits);
        if (lane == 1) put_bits(c.local_elements, at + i, n, bits);
      }
      at += length;
    }
  }
}

}  // namespace
}  // namespace addend::index
