// SPDX-License-Identifier: Apache-2.0
// Values in the order of the union, and back to where they belong.
#pragma once

#include "codec/index/element.cuh"
#include "codec/index/tile.cuh"

namespace addend::index {
namespace {

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
  T early[Tile<T>::kEarly];  // the first values of the slot
};

template <typename T>
__device__ inline ExpandTile<T> load_tile(const ExpandCall& c, uint64_t t, uint64_t tiles,
                                          uint32_t lane) {
  using Word = typename Tile<T>::Word;
  if (t >= tiles) return {};
  const auto* slot =
      reinterpret_cast<const T*>(static_cast<const uint8_t*>(c.kept)) + t * Tile<T>::kSlot;
  ExpandTile<T> tile{reinterpret_cast<const Word*>(c.bitmap)[t * 32 + lane],
                     reinterpret_cast<const Word*>(c.local)[t * 32 + lane],
                     c.bases[t / Tile<T>::kGroup] + c.offsets[t],
                     {}};
#pragma unroll
  for (uint32_t k = 0; k < Tile<T>::kEarly; ++k)
    tile.early[k] = slot[k * 32 + lane];
  return tile;
}

/// What a warp knows of a tile when it puts values in union order into `stage`.
template <typename T>
struct Packing {
  const ExpandTile<T>& tile;
  uint64_t t;
  uint32_t rank, taken;  // of this lane's first element, in the union and in the slot
  uint32_t lane;
  bool raw;
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

/// From the gradient, a whole tile of it at a multiple of 16 bytes: several loads are under way at
/// once.
template <typename T>
__device__ inline void stage_vectors(const Packing<T>& p, const T* from) {
  using Word = typename Tile<T>::Word;
  constexpr uint32_t kVector = Tile<T>::kVector, kParts = 8, kAtOnce = 4;
#pragma unroll 1
  for (uint32_t first = 0; first < kParts; first += kAtOnce) {
    Vector<T> loaded[kAtOnce];
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k)
      loaded[k].whole = __ldcs(reinterpret_cast<const uint4*>(from) + (first + k) * 32 + p.lane);
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      const uint32_t owner = (first + k) * 4 + p.lane / 8, shift = p.lane % 8 * kVector;
      const Word all = __shfl_sync(kAll, p.tile.all, owner);
      const Word own = p.raw ? all : __shfl_sync(kAll, p.tile.own, owner);
      uint32_t rank = __shfl_sync(kAll, p.rank, owner);
      rank += ones(static_cast<Word>(all & ((Word{1} << shift) - 1)));
#pragma unroll
      for (uint32_t j = 0; j < kVector; ++j) {
        if ((all >> (shift + j) & 1) == 0) continue;
        p.stage[rank++] = (own >> (shift + j) & 1) != 0 ? loaded[k].elements[j] : T{0};
      }
    }
  }
}

/// From the gradient, wherever it lies, row by row.
template <typename T>
__device__ inline void stage_rows(const Packing<T>& p, const T* from) {
  using Word = typename Tile<T>::Word;
#pragma unroll 8
  for (uint32_t row = 0; row < Tile<T>::kElements / 32; ++row) {
    const uint32_t owner = row * 32 / Tile<T>::kBits, bit = row * 32 % Tile<T>::kBits + p.lane;
    const Word all = __shfl_sync(kAll, p.tile.all, owner);
    const Word own = __shfl_sync(kAll, p.tile.own, owner);
    const uint32_t rank = __shfl_sync(kAll, p.rank, owner);
    if ((all >> bit & 1) == 0) continue;
    const bool travels = p.raw || (own >> bit & 1) != 0;
    p.stage[rank + ones(static_cast<Word>(all & ((Word{1} << bit) - 1)))] =
        travels ? from[row * 32 + p.lane] : T{0};
  }
}

template <typename T>
__device__ inline void stage_gradient(const ExpandCall& c, const Packing<T>& p) {
  const T* from = static_cast<const T*>(c.gradient) + p.t * Tile<T>::kElements;
  if constexpr (sizeof(T) == 4) {  // eight elements a load would take too many registers
    const bool is_whole = (p.t + 1) * Tile<T>::kElements <= c.count;
    if (is_whole && reinterpret_cast<uintptr_t>(from) % 16 == 0) return stage_vectors(p, from);
  }
  stage_rows(p, from);
}

template <DType kType>
__global__ void __launch_bounds__(kExpandWarps * 32, 4) expand_kernel(ExpandCall c) {
  using T = Element<kType>;
  __shared__ T stages[kExpandWarps][Tile<T>::kElements];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T* stage = stages[warp];
  const bool raw = c.totals->raw;
  const uint64_t tiles = c.totals->size > c.room ? 0 : tiles_for(sizeof(T), c.count);
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
      if (same && own <= 32 * Tile<T>::kEarly && !raw) {  // the slot is the answer
#pragma unroll
        for (uint32_t i = 0; i < Tile<T>::kEarly; ++i) {
          if (i * 32 + lane < own) out[i * 32 + lane] = scaled<kType>(tile.early[i], c.factor);
        }
        continue;
      }
      const bool kept = own <= Tile<T>::kSlot && !raw;
      if (kept && !same) {
        for (uint32_t i = lane; i < total; i += 32)
          stage[i] = 0;
        __syncwarp();
      }
      const uint32_t before = end - both;
      const Packing<T> packing{tile, first + k, before & 0xFFFF, before >> 16, lane, raw, stage};
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

/// A tile of the union on its way: its bits and the rank of its first value, then its first values.
template <typename T>
struct UnpackTile {
  typename Tile<T>::Word all;
  uint64_t rank;
  uint32_t before, total;
  T early[2];
};

template <typename T>
__device__ inline UnpackTile<T> ask_for_tile(const UnpackCall& c, uint64_t t, uint64_t tiles,
                                             uint32_t lane) {
  using Word = typename Tile<T>::Word;
  if (t >= tiles) return {};
  return {reinterpret_cast<const Word*>(c.bitmap)[t * 32 + lane],
          c.bases[t / Tile<T>::kGroup] + c.offsets[t]};
}

template <typename T>
__device__ inline void ask_for_values(const UnpackCall& c, uint32_t lane, UnpackTile<T>& tile) {
  const uint32_t end = sum_up_to(ones(tile.all), lane);
  tile.before = end - ones(tile.all);
  tile.total = __shfl_sync(kAll, end, 31);
  const T* in = static_cast<const T*>(c.values) + tile.rank;
  tile.early[0] = lane < tile.total ? in[lane] : T{0};
  tile.early[1] = lane + 32 < tile.total ? in[lane + 32] : T{0};
}

/// Writes the tile's elements, whose values are in `stage`.
template <typename T>
__device__ inline void write_tile(const UnpackCall& c, uint64_t t, const UnpackTile<T>& tile,
                                  const T* stage, uint32_t lane) {
  using Word = typename Tile<T>::Word;
  constexpr uint32_t kVector = Tile<T>::kVector;
  T* gradient = static_cast<T*>(c.gradient);
  const bool aligned = reinterpret_cast<uintptr_t>(gradient) % 16 == 0;
#pragma unroll
  for (uint32_t part = 0; part < 8; ++part) {
    const uint32_t owner = part * 4 + lane / 8, shift = lane % 8 * kVector;
    const Word word = __shfl_sync(kAll, tile.all, owner);
    uint32_t rank = __shfl_sync(kAll, tile.before, owner);
    // A sector of 32 bytes is written as a whole or not at all.
    const auto sector = static_cast<uint32_t>(word >> shift / (2 * kVector) * (2 * kVector)) &
                        ((1u << 2 * kVector) - 1);
    const auto bits = static_cast<uint32_t>(word >> shift);
    if (sector == 0 && !c.everywhere) continue;
    rank += ones(static_cast<Word>(word & ((Word{1} << shift) - 1)));
    Vector<T> out;
#pragma unroll
    for (uint32_t j = 0; j < kVector; ++j) {
      const bool set = (bits >> j & 1) != 0;
      out.elements[j] = set ? stage[rank] : T{0};
      rank += set ? 1 : 0;
    }
    const uint64_t i = t * Tile<T>::kElements + part * 32 * kVector + lane * kVector;
    if (aligned && i + kVector <= c.count) {
      __stcs(reinterpret_cast<uint4*>(gradient + i), out.whole);
      continue;
    }
    for (uint32_t j = 0; j < kVector; ++j) {
      if (i + j < c.count) gradient[i + j] = out.elements[j];
    }
  }
}

// While a warp writes a tile, the values of its next and the bits of the one after are on their
// way.
template <typename T>
__global__ void __launch_bounds__(kUnpackWarps * 32) unpack_kernel(UnpackCall c) {
  __shared__ T stages[kUnpackWarps][Tile<T>::kElements];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  T* stage = stages[warp];
  const uint64_t tiles = tiles_for(sizeof(T), c.count);
  const uint64_t stride = uint64_t{gridDim.x} * kUnpackWarps;
  uint64_t t = uint64_t{blockIdx.x} * kUnpackWarps + warp;
  UnpackTile<T> tile = ask_for_tile<T>(c, t, tiles, lane);
  UnpackTile<T> next = ask_for_tile<T>(c, t + stride, tiles, lane);
  ask_for_values(c, lane, tile);
  for (; t < tiles; t += stride) {
    const UnpackTile<T> after = ask_for_tile<T>(c, t + 2 * stride, tiles, lane);
    ask_for_values(c, lane, next);
    if (tile.total > 0 || c.everywhere) {
      stage[lane] = tile.early[0];
      stage[lane + 32] = tile.early[1];
      const T* in = static_cast<const T*>(c.values) + tile.rank;
      for (uint32_t i = lane + 64; i < tile.total; i += 32)
        stage[i] = in[i];
      __syncwarp();
      write_tile(c, t, tile, stage, lane);
      __syncwarp();
    }
    tile = next;
    next = after;
  }
}

}  // namespace
}  // namespace addend::index
