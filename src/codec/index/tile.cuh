// SPDX-License-Identifier: Apache-2.0
// A tile as a warp sees it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "codec/index/index_kernels.h"

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
  static constexpr uint32_t kEarly = 8 / sizeof(T);  // values of a slot that a lane has ahead
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

constexpr uint32_t kSumThreads = 256;

/// The sum over this thread and those below it in the CTA; `total` of all. For all threads at once.
__device__ inline uint64_t sum_in_block(uint64_t value, uint64_t* total) {
  __shared__ uint64_t sums[kSumThreads / 32];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  value = sum_up_to(value, lane);
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  const uint64_t before = sum_up_to(lane < kSumThreads / 32 ? sums[lane] : uint64_t{0}, lane);
  *total = __shfl_sync(kAll, before, 31);
  const uint64_t below = __shfl_sync(kAll, before, warp == 0 ? 0 : warp - 1);
  return value + (warp == 0 ? 0 : below);
}

/// Writes n bits from bit `at` of zeros on. By one lane.
__device__ inline void put_bits(uint64_t* to, uint64_t at, uint32_t n, uint32_t bits) {
  auto* words = reinterpret_cast<uint32_t*>(to);
  const auto shift = static_cast<uint32_t>(at % 32);
  if (shift == 0 && n == 32) {
    words[at / 32] = bits;
    return;
  }
  if (bits << shift != 0) atomicOr(words + at / 32, bits << shift);
  if (shift + n > 32 && bits >> (32 - shift) != 0)
    atomicOr(words + at / 32 + 1, bits >> (32 - shift));
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

}  // namespace
}  // namespace addend::index
