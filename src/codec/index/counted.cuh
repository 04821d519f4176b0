// SPDX-License-Identifier: Apache-2.0
// The positions of a union that was counted, by the warps of a grid.
#pragma once

#include "codec/index/tile.cuh"
#include "codec/index/union_kernels.h"

namespace addend::index {
namespace {

__device__ inline uint64_t rank_of_tile(const CountedUnion& u, uint64_t t) {
  return u.bases[t * tile_elements(u.width) / kGroupBits] + u.offsets[t];
}

/// Calls visit(which, bits, rank, before) for all half words of the bitmap, each lane with one of
/// its own, whose first position has the sum of the latter two for a rank; those past the end have
/// no bits. kWarps is the warps of a CTA.
template <uint32_t kWarps, typename Visit>
__device__ inline void for_each_half(const CountedUnion& u, const Visit& visit) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto* words = reinterpret_cast<const uint32_t*>(u.bitmap);
  const uint64_t tile = tile_elements(u.width), all = 2 * words_for(u.count);
  for (uint64_t t = uint64_t{blockIdx.x} * kWarps + warp; t * tile < u.count;
       t += uint64_t{gridDim.x} * kWarps) {
    uint64_t first = rank_of_tile(u, t);
    for (uint64_t base = t * tile / 32; base < (t + 1) * tile / 32; base += 32) {
      const uint32_t word = base + lane < all ? words[base + lane] : 0;
      const uint32_t end = sum_up_to(ones(word), lane);
      visit(base + lane, word, first, end - ones(word));
      first += __shfl_sync(kAll, end, 31);
    }
  }
}

/// Positions of a row, whose half words the lanes of a warp have.
constexpr uint32_t kListed = 1024;

/// Room for a list of the calling warp's.
template <uint32_t kWarps>
__device__ inline uint16_t* list_of_warp() {
  __shared__ uint16_t lists[kWarps][kListed];
  return lists[threadIdx.x / 32];
}

/// Lists which places of a row have a bit, ascending, and returns how many: then each lane has one,
/// however they lie. Before the list is made anew the warp has to come together.
__device__ inline uint32_t list_bits(uint32_t bits, uint16_t* list) {
  const uint32_t lane = threadIdx.x % 32, end = sum_up_to(ones(bits), lane);
  uint16_t* next = list + end - ones(bits);
  for (uint32_t left = bits; left != 0; left &= left - 1)
    *next++ = static_cast<uint16_t>(lane * 32 + lowest(left));
  __syncwarp();
  return __shfl_sync(kAll, end, 31);
}

/// Calls visit(position, rank), for all positions of the union, by the lanes of a warp: rows of 32
/// positions are visited where the union has some, a lane a position.
template <uint32_t kWarps, typename Visit>
__device__ inline void for_each_position(const CountedUnion& u, const Visit& visit) {
  const uint32_t lane = threadIdx.x % 32;
  for_each_half<kWarps>(u, [&](uint64_t at, uint32_t word, uint64_t first, uint32_t own) {
    const uint64_t base = at - lane;
    for (uint32_t rows = __ballot_sync(kAll, word != 0); rows != 0; rows &= rows - 1) {
      const uint32_t row = lowest(rows);
      const uint32_t bits = __shfl_sync(kAll, word, row);
      const uint32_t before = __shfl_sync(kAll, own, row);
      if ((bits >> lane & 1) != 0)
        visit((base + row) * 32 + lane, first + before + ones(bits & ((1u << lane) - 1)));
    }
  });
}

}  // namespace
}  // namespace addend::index
