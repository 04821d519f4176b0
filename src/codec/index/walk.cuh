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

/// A word of blocks: which live, which of those are partial, and what lies before it.
struct LiveWord {
  uint64_t w, live, partial;
  uint64_t at, rank;  // of its first element bit and value
};

/// What memory says of a word; rank and at are sums of two numbers each.
struct AskedWord {
  uint64_t live = 0, partial = 0;
  BlockSums before{}, group{};
};
__device__ inline AskedWord ask_for_word(const TwoLevelCall& c, uint64_t w) {
  if (w >= words_of(c)) return {};
  return {c.live[w] & valid_in(c, w), c.partial[w], c.before[w], c.groups[w / kGroupWords]};
}
__device__ inline LiveWord word_of(const TwoLevelCall& c, uint64_t w, const AskedWord& asked,
                                   uint32_t lane) {
  const uint64_t at = asked.before.bits + asked.group.bits;
  return {w, asked.live, asked.partial & asked.live, at,
          asked.before.full + asked.group.full + rank_of(c, at, lane)};
}

/// Calls visit(pieces, how many) for the live blocks of a word: up to two pieces of up to 64
/// elements at a time, so that their loads can be under way together.
template <typename Visit>
__device__ inline void walk(const TwoLevelCall& c, const LiveWord& word, const Visit& visit) {
  uint64_t left = word.live, at = word.at, rank = word.rank;
  uint64_t i = 0;  // in the block
  while (left != 0) {
    Piece pieces[kPieces];
    uint32_t filled = 0;
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p) {
      if (left == 0) break;
      const uint32_t k = lowest(left);
      const uint64_t b = word.w * 64 + k, length = length_of(c, b);
      const bool is_partial = (word.partial >> k & 1) != 0;
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

/// Blocks whose bytes are a power of two, from 16 on, in vectors of 16 bytes.
constexpr uint64_t kMostVectors = 1 << 20;  // of a block: 64 blocks can be counted in 32 bits
struct Vectors {
  bool any;
  uint32_t shift;  // 2^shift vectors are a block
};
template <typename T>
__device__ inline Vectors vectors_of(const TwoLevelCall& c, const void* gradient) {
  const uint64_t each = c.block * sizeof(T) / 16;
  return {c.block * sizeof(T) % 16 == 0 && (each & (each - 1)) == 0 && each <= kMostVectors &&
              reinterpret_cast<uintptr_t>(gradient) % 16 == 0 &&
              reinterpret_cast<uintptr_t>(c.values) % 16 == 0,
          lowest(each)};
}

/// Whether all live blocks of a word are whole and travel whole, to and from multiples of 16 bytes.
template <typename T>
__device__ inline bool has_vectors(const TwoLevelCall& c, const Vectors& vectors,
                                   const LiveWord& word) {
  return vectors.any && word.partial == 0 && word.rank * sizeof(T) % 16 == 0 &&
         (word.w + 1) * 64 * c.block <= c.count;
}

/// Calls visit(gradient's vectors, values' vectors, how many) for kAtOnce vectors a lane at a time:
/// vectors of the gradient from the word's first on, and of the values that follow each other
/// by 32. `list` is 64 bytes of the warp's.
constexpr uint32_t kAtOnce = 4;
template <typename Visit>
__device__ inline void walk_vectors(const Vectors& vectors, uint64_t live, uint8_t* list,
                                    uint32_t lane, const Visit& visit) {
  const auto low = static_cast<uint32_t>(live), high = static_cast<uint32_t>(live >> 32);
  const uint32_t below = (1u << lane) - 1;
  if ((low >> lane & 1) != 0) list[ones(low & below)] = static_cast<uint8_t>(lane);
  if ((high >> lane & 1) != 0)
    list[ones(low) + ones(high & below)] = static_cast<uint8_t>(lane + 32);
  __syncwarp();
  const uint32_t n = ones(live) << vectors.shift, mask = (1u << vectors.shift) - 1;
  for (uint32_t i = lane; i < n; i += 32 * kAtOnce) {
    uint32_t at[kAtOnce];
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      const uint32_t v = i + 32 * k < n ? i + 32 * k : i;
      at[k] = (uint32_t{list[v >> vectors.shift]} << vectors.shift) + (v & mask);
    }
    const uint32_t left = (n - i + 31) / 32;
    visit(at, i, left < kAtOnce ? left : kAtOnce);
  }
  __syncwarp();
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

/// Words of blocks, each by a warp of the grid: before(w), then visit(word) if one of its blocks
/// lives. What memory says of the next word is on its way meanwhile.
template <typename Before, typename Visit>
__device__ inline void walk_all(const TwoLevelCall& c, uint32_t lane, const Before& before,
                                const Visit& visit) {
  const uint64_t words = words_of(c);
  const uint64_t stride = uint64_t{gridDim.x} * kWarps;
  const uint64_t first = uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  AskedWord asked = ask_for_word(c, first);
  for (uint64_t w = first; w < words; w += stride) {
    const AskedWord next = ask_for_word(c, w + stride);
    before(w);
    if (asked.live != 0) visit(word_of(c, w, asked, lane));
    asked = next;
  }
}

template <DType kType>
__device__ inline void pack_pieces(const TwoLevelCall& c, const LiveWord& word, uint32_t lane) {
  using T = Element<kType>;
  const auto* gradient = static_cast<const T*>(c.gradient);
  T* values = static_cast<T*>(c.values);
  walk(c, word, [&](const Piece(&pieces)[kPieces], uint32_t filled) {
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

template <DType kType>
__device__ inline void pack_vectors(const TwoLevelCall& c, const Vectors& vectors,
                                    const LiveWord& word, uint8_t* list, uint32_t lane) {
  using T = Element<kType>;
  const uint4* gradient = static_cast<const uint4*>(c.gradient) + (word.w * 64 << vectors.shift);
  uint4* values = static_cast<uint4*>(c.values) + word.rank * sizeof(T) / 16;
  walk_vectors(vectors, word.live, list, lane,
               [&](const uint32_t(&from)[kAtOnce], uint32_t to, uint32_t filled) {
                 Vector<T> x[kAtOnce];
#pragma unroll
                 for (uint32_t k = 0; k < kAtOnce; ++k)
                   x[k].whole = gradient[from[k]];
#pragma unroll
                 for (uint32_t k = 0; k < kAtOnce; ++k) {
                   if (k >= filled) break;
#pragma unroll
                   for (T& element : x[k].elements)
                     element = scaled<kType>(element, c.factor);
                   values[to + 32 * k] = x[k].whole;
                 }
               });
}

constexpr int kWalkCtas = 3;  // of a multiprocessor: 80 registers

template <DType kType>
__global__ void __launch_bounds__(kThreads, kWalkCtas) pack_kernel(TwoLevelCall c) {
  using T = Element<kType>;
  __shared__ uint8_t lists[kWarps][64];
  const BlockSums all = c.totals->all;
  if (!c.counted && all.bits != 0) return;
  if (all.full + (c.counted ? c.element_totals->size : 0) > c.value_room) return;
  const uint32_t lane = threadIdx.x % 32;
  const Vectors vectors = vectors_of<T>(c, c.gradient);
  walk_all(
      c, lane, [](uint64_t) {},
      [&](const LiveWord& word) {
        if (has_vectors<T>(c, vectors, word)) {
          pack_vectors<kType>(c, vectors, word, lists[threadIdx.x / 32], lane);
        } else {
          pack_pieces<kType>(c, word, lane);
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
__device__ inline void unpack_pieces(const TwoLevelCall& c, const LiveWord& word, T* gradient,
                                     uint32_t lane) {
  const auto* values = static_cast<const T*>(c.values);
  walk(c, word, [&](const Piece(&pieces)[kPieces], uint32_t filled) {
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

template <typename T>
__device__ inline void unpack_vectors(const TwoLevelCall& c, const Vectors& vectors,
                                      const LiveWord& word, uint8_t* list, T* gradient,
                                      uint32_t lane) {
  uint4* to = reinterpret_cast<uint4*>(gradient) + (word.w * 64 << vectors.shift);
  const uint4* values = static_cast<const uint4*>(c.values) + word.rank * sizeof(T) / 16;
  walk_vectors(vectors, word.live, list, lane,
               [&](const uint32_t(&at)[kAtOnce], uint32_t from, uint32_t filled) {
                 uint4 x[kAtOnce];
#pragma unroll
                 for (uint32_t k = 0; k < kAtOnce; ++k) {
                   if (k < filled) x[k] = __ldcs(values + from + 32 * k);
                 }
#pragma unroll
                 for (uint32_t k = 0; k < kAtOnce; ++k) {
                   if (k < filled) __stcs(to + at[k], x[k]);
                 }
               });
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kWalkCtas)
    unpack_kernel(TwoLevelCall c, bool everywhere, T* gradient) {
  __shared__ uint8_t lists[kWarps][64];
  const uint32_t lane = threadIdx.x % 32;
  const Vectors vectors = vectors_of<T>(c, gradient);
  const auto clear = [&](uint64_t w) {
    if (everywhere) clear_dead(c, w, lane, gradient);
  };
  walk_all(c, lane, clear, [&](const LiveWord& word) {
    if (has_vectors<T>(c, vectors, word)) {
      unpack_vectors(c, vectors, word, lists[threadIdx.x / 32], gradient, lane);
    } else {
      unpack_pieces(c, word, gradient, lane);
    }
  });
}

__global__ void __launch_bounds__(kThreads) union_kernel(TwoLevelCall c, uint64_t* bitmap) {
  const uint32_t lane = threadIdx.x % 32;
  walk_all(
      c, lane, [](uint64_t) {},
      [&](const LiveWord& word) {
        walk(c, word, [&](const Piece(&pieces)[kPieces], uint32_t filled) {
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
      });
}

}  // namespace
}  // namespace addend::index
