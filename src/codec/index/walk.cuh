// SPDX-License-Identifier: Apache-2.0
// Values in the order of a union in two levels, and back to where they belong.
#pragma once

#include "codec/index/blocks.cuh"
#include "codec/index/element.cuh"

namespace addend::index {
namespace {

/// How many element bits before bit `at` are set; for the warp as a whole.
__device__ inline uint64_t rank_of(const TwoLevelCall& c, uint64_t at, uint32_t lane) {
  if (!c.counted) return 0;
  constexpr uint64_t kTile = 1024;
  if (at >= c.totals->all.bits) return c.element_totals->size;
  const uint64_t tile = at / kTile;
  const auto below = static_cast<uint32_t>(at % kTile);
  uint32_t word = 0;
  if (lane * 32 < below) {
    word = reinterpret_cast<const uint32_t*>(c.elements)[tile * 32 + lane];
    if (below - lane * 32 < 32) word &= (1u << (below - lane * 32)) - 1;
  }
  return c.bases[at / kGroupBits] + c.offsets[tile] + __reduce_add_sync(kAll, ones(word));
}

/// 64 element bits from bit `at` on.
__device__ inline uint64_t bits_at(const uint64_t* elements, uint64_t at) {
  const uint64_t low = elements[at / 64];
  const auto shift = static_cast<uint32_t>(at % 64);
  return shift == 0 ? low : low >> shift | elements[at / 64 + 1] << (64 - shift);
}

/// Elements of a live block, and which of them are in the union.
struct Piece {
  uint64_t first;
  uint64_t rank;  // of the first that is
  uint64_t bits;
  uint32_t n;
};

constexpr uint32_t kPieces = 2;

/// Calls visit(pieces, how many) for the live blocks of a word: up to two pieces of up to 64
/// elements at a time, so that their loads can be under way together.
template <typename Visit>
__device__ inline void walk(const TwoLevelCall& c, uint64_t w, uint32_t lane, const Visit& visit) {
  uint64_t left = c.live[w] & valid_in(c, w);
  if (left == 0) return;
  const uint64_t partial = c.partial[w];
  const BlockSums before = c.before[w], group = c.groups[w / kGroupWords];
  uint64_t at = before.bits + group.bits;
  uint64_t rank = before.full + group.full + rank_of(c, at, lane);
  uint64_t i = 0;  // in the block
  while (left != 0) {
    Piece pieces[kPieces];
    uint32_t filled = 0;
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p) {
      if (left == 0) break;
      const uint32_t k = lowest(left);
      const uint64_t b = w * 64 + k, length = length_of(c, b);
      const bool is_partial = (partial >> k & 1) != 0;
      const uint32_t n = length - i < 64 ? static_cast<uint32_t>(length - i) : 64;
      uint64_t bits = is_partial ? bits_at(c.elements, at) : ~uint64_t{0};
      if (n < 64) bits &= (uint64_t{1} << n) - 1;
      pieces[p] = {b * c.block + i, rank, bits, n};
      rank += ones(bits);
      at += is_partial ? n : 0;
      i += n;
      if (i == length) left &= left - 1, i = 0;
      filled = p + 1;
    }
    visit(pieces, filled);
  }
}

/// Where the lane's two elements of a piece are among the values, if they are in the union.
struct Places {
  bool has[2];
  uint64_t rank[2];
};
__device__ inline Places places_of(const Piece& piece, uint32_t lane) {
  const auto low = static_cast<uint32_t>(piece.bits),
             high = static_cast<uint32_t>(piece.bits >> 32);
  const uint32_t below = (1u << lane) - 1;
  return {{(low >> lane & 1) != 0, (high >> lane & 1) != 0},
          {piece.rank + ones(low & below), piece.rank + ones(low) + ones(high & below)}};
}

/// Words of blocks, each by a warp of the grid: before(w), then visit as in walk.
template <typename Before, typename Visit>
__device__ inline void walk_all(const TwoLevelCall& c, uint32_t lane, const Before& before,
                                const Visit& visit) {
  const uint64_t words = words_of(c);
  const uint64_t stride = uint64_t{gridDim.x} * kWarps;
  const uint64_t first = uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  for (uint64_t w = first; w < words; w += stride) {
    before(w);
    walk(c, w, lane, visit);
  }
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) pack_kernel(TwoLevelCall c) {
  using T = Element<kType>;
  const BlockSums all = c.totals->all;
  if (!c.counted && all.bits != 0) return;
  if (all.full + (c.counted ? c.element_totals->size : 0) > c.value_room) return;
  const uint32_t lane = threadIdx.x % 32;
  const auto* gradient = static_cast<const T*>(c.gradient);
  T* values = static_cast<T*>(c.values);
  walk_all(
      c, lane, [](uint64_t) {},
      [&](const Piece(&pieces)[kPieces], uint32_t filled) {
        T x[kPieces][2];
#pragma unroll
        for (uint32_t p = 0; p < kPieces; ++p) {
          if (p >= filled) break;
          const uint64_t bits = pieces[p].bits >> lane;
          x[p][0] = (bits & 1) != 0 ? gradient[pieces[p].first + lane] : T{0};
          x[p][1] = (bits >> 32 & 1) != 0 ? gradient[pieces[p].first + 32 + lane] : T{0};
        }
#pragma unroll
        for (uint32_t p = 0; p < kPieces; ++p) {
          if (p >= filled) break;
          const Places to = places_of(pieces[p], lane);
          if (to.has[0]) values[to.rank[0]] = scaled<kType>(x[p][0], c.factor);
          if (to.has[1]) values[to.rank[1]] = scaled<kType>(x[p][1], c.factor);
        }
      });
}

template <typename T>
__device__ inline void clear_dead(const TwoLevelCall& c, uint64_t w, uint32_t lane, T* gradient) {
  for (uint64_t left = ~c.live[w] & valid_in(c, w); left != 0; left &= left - 1) {
    const uint64_t b = w * 64 + lowest(left), length = length_of(c, b);
    for (uint64_t i = lane; i < length; i += 32)
      gradient[b * c.block + i] = 0;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(TwoLevelCall c, bool everywhere, T* gradient) {
  const uint32_t lane = threadIdx.x % 32;
  const auto* values = static_cast<const T*>(c.values);
  const auto clear = [&](uint64_t w) {
    if (everywhere) clear_dead(c, w, lane, gradient);
  };
  walk_all(c, lane, clear, [&](const Piece(&pieces)[kPieces], uint32_t filled) {
    T x[kPieces][2];
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p) {
      if (p >= filled) break;
      const Places from = places_of(pieces[p], lane);
      x[p][0] = from.has[0] ? values[from.rank[0]] : T{0};
      x[p][1] = from.has[1] ? values[from.rank[1]] : T{0};
    }
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p) {
      if (p >= filled) break;
      if (lane < pieces[p].n) gradient[pieces[p].first + lane] = x[p][0];
      if (lane + 32 < pieces[p].n) gradient[pieces[p].first + 32 + lane] = x[p][1];
    }
  });
}

__global__ void __launch_bounds__(kThreads) union_kernel(TwoLevelCall c, uint64_t* bitmap) {
  const uint32_t lane = threadIdx.x % 32;
  walk_all(
      c, lane, [](uint64_t) {},
      [&](const Piece(&pieces)[kPieces], uint32_t filled) {
#pragma unroll
        for (uint32_t p = 0; p < kPieces; ++p) {
          if (p >= filled) break;
          const Piece& piece = pieces[p];
          const auto low = static_cast<uint32_t>(piece.bits);
          const auto high = static_cast<uint32_t>(piece.bits >> 32);
          if (lane == 0) put_bits(bitmap, piece.first, piece.n < 32 ? piece.n : 32, low);
          if (lane == 1 && piece.n > 32) put_bits(bitmap, piece.first + 32, piece.n - 32, high);
        }
      });
}

}  // namespace
}  // namespace addend::index
