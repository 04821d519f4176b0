// SPDX-License-Identifier: Apache-2.0
// Keys go into a sketch's cells. Where there are many chunks, keys are sorted by them first, and a
// CTA adds up a chunk in its own memory; otherwise each is added to its cells where they are, which
// then stay in the second-level cache.
#include "codec/exact/sketch_cells.cuh"

namespace addend::exact {
namespace {

using index::Element;
using index::load;
using index::lowest;

constexpr int kThreads = 256;
constexpr int kSumThreads = 1024;  // of sum_kernel
/// Fewer chunks leave most of a device idle when a CTA has one.
constexpr uint32_t kFewestChunks = 32;

/// A chunk has more keys than cells: they are added directly. What comes of that nobody decodes.
__device__ inline bool has_no_room(const InsertCall& c) {
  return c.bins.given[c.shape.chunks] != 0;
}

/// The exponent of a warp's largest magnitude, as bits.
__device__ inline void tell_top(const InsertCall& c, uint32_t largest) {
  if (c.top == nullptr) return;
  largest = __reduce_max_sync(kAll, largest);
  if (threadIdx.x % 32 != 0 || largest == 0) return;
  BitRange range;
  range.include(__uint_as_float(largest));
  atomicMax(c.top, static_cast<uint32_t>(range.top + kTopBias));
}

/// Whether a value has an integer in the window, which is `quanta`; `largest` of the finite values'
/// magnitudes, as bits.
__device__ inline bool fits(const Window& window, float value, int64_t* quanta, uint32_t& largest) {
  const uint32_t magnitude = __float_as_uint(value) & 0x7FFFFFFFu;
  if (is_finite(value) && magnitude > largest) largest = magnitude;
  return window.quanta(value, quanta);
}

// ---- key by key

/// Whether all of a word's values have an integer in the window.
template <DType kType>
__device__ inline bool word_fits(const InsertCall& c, uint64_t word, uint64_t base,
                                 uint32_t& largest) {
  bool all = true;
  for (uint64_t left = word; left != 0; left &= left - 1) {
    int64_t quanta = 0;
    const float value = load<kType>(c.gradient, base + lowest(left));
    all = fits(c.quanta.window, value, &quanta, largest) && all;
  }
  return all;
}

template <DType kType>
__device__ inline void insert_word(const InsertCall& c, uint64_t word, uint64_t base) {
  const bool by_window = c.quanta.lanes == nullptr;
  double inverse = 0;
  if (by_window) {
    inverse = power_of_two(-c.quanta.window.quantum());
  } else {
    const BlockFormat format = format_at(c.quanta, base);
    if (!format.single()) return;
    inverse = format.to_quanta;
  }
  for (uint64_t left = word; left != 0; left &= left - 1) {
    const uint64_t position = base + lowest(left);
    const auto value = static_cast<uint64_t>(to_quanta(load<kType>(c.gradient, position), inverse));
    add_to_cells(c.shape, c.cells, position, value);
  }
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) insert_kernel(InsertCall c) {
  if (c.sorted && !has_no_room(c)) return;
  const uint32_t lane = threadIdx.x % 32;
  uint32_t largest = 0;
  // Lanes of a warp stay together: what escapes is written as words of theirs.
  const uint64_t padded = words_for(c.words) * 64;
  for (uint64_t w = uint64_t{blockIdx.x} * kThreads + threadIdx.x; w < padded;
       w += uint64_t{gridDim.x} * kThreads) {
    const uint64_t word = w < c.words ? c.bitmap[w] : 0;
    bool escapes = false;
    if (c.escape != nullptr) {
      escapes = !word_fits<kType>(c, word, w * 64, largest);
      const uint32_t half = __ballot_sync(kAll, escapes);
      if (lane == 0) {
        reinterpret_cast<uint32_t*>(c.escape)[w / 32] = half;
        reinterpret_cast<uint32_t*>(c.local_escape)[w / 32] = half;
      }
    }
    if (word != 0 && !escapes) insert_word<kType>(c, word, w * 64);
  }
  tell_top(c, largest);
}

// ---- by chunks

constexpr uint32_t kBatchWords = kBatch / 64;

/// The values of a batch: from the slots of tiles that have them, or the gradient.
template <DType kType>
struct BatchValues {
  using T = Element<kType>;
  static constexpr uint32_t kTile = index::Tile<T>::kElements, kTileRows = kTile / kRow;

  const InsertCall& c;
  const Batch& batch;

  /// Of the batch's key `i`, which is so far from its first position.
  __device__ float at(uint32_t i, uint32_t offset) const {
    const uint32_t row = offset / kTile * kTileRows;
    const uint32_t begin = batch.memory.rows[row], end = batch.memory.rows[row + kTileRows];
    if (end - begin > index::Tile<T>::kSlot) return load<kType>(c.gradient, batch.first + offset);
    const uint64_t tile = batch.first / kTile + offset / kTile;
    return load<kType>(c.kept, tile * index::Tile<T>::kSlot + i - begin);
  }
};

/// Which words of a batch escape, a bit each: told by all threads, then known to all.
template <DType kType>
struct Escapes {
  uint32_t* bits;

  __device__ void clear() const {
    if (threadIdx.x < kBatchWords / 32) bits[threadIdx.x] = 0;
    __syncthreads();
  }
  /// Looks at what a window lists.
  __device__ void find(const InsertCall& c, const BatchValues<kType>& values, uint32_t from,
                       uint32_t n, uint32_t& largest) const {
#pragma unroll
    for (uint32_t j = 0; j < kKeysAtOnce; ++j) {
      const uint32_t i = j * kBinThreads + threadIdx.x;
      if (i >= n) continue;
      const uint32_t offset = values.batch.memory.list[i], word = offset / 64;
      int64_t quanta = 0;
      if (!fits(c.quanta.window, values.at(from + i, offset), &quanta, largest))
        atomicOr(bits + word / 32, 1u << word % 32);
    }
    __syncthreads();
  }
  __device__ void write(const InsertCall& c, const Batch& batch) const {
    const uint64_t at = batch.first / 2048 + threadIdx.x;
    if (threadIdx.x >= kBatchWords / 32 || at >= 2 * words_for(c.words)) return;
    reinterpret_cast<uint32_t*>(c.escape)[at] = bits[threadIdx.x];
    reinterpret_cast<uint32_t*>(c.local_escape)[at] = bits[threadIdx.x];
  }
};

/// Of a key: its integer, or 0 where it travels otherwise.
__device__ inline int64_t number_of(const InsertCall& c, const uint32_t* escapes, uint64_t position,
                                    float value) {
  if (c.quanta.lanes == nullptr) {
    const uint64_t word = position % kBatch / 64;
    if ((escapes[word / 32] >> word % 32 & 1) != 0) return 0;
    return to_quanta(value, power_of_two(-c.quanta.window.quantum()));
  }
  const BlockFormat format = format_at(c.quanta, position);
  return format.single() ? to_quanta(value, format.to_quanta) : 0;
}

/// Keys into their chunks' slots. Those that escape have a slot, too: they add 0.
template <DType kType>
__global__ void __launch_bounds__(kBinThreads, 2) fill_kernel(InsertCall c) {
  extern __shared__ uint64_t own_memory[];
  __shared__ Batch::Memory memory;
  __shared__ uint32_t escapes[kBatchWords / 32];
  const Escapes<kType> escaping{escapes};
  const OwnBins own(c.shape, own_memory);
  uint64_t* positions = own_memory + 2 * c.shape.chunks;
  auto* numbers = reinterpret_cast<int64_t*>(positions + kWindow);
  uint32_t largest = 0;
  for (uint64_t b = blockIdx.x; b * kBatchWords < words_for(c.words) * 64; b += gridDim.x) {
    const Batch batch(memory, c.bitmap, c.words, b);
    const BatchValues<kType> values{c, batch};
    // A word may go on in the next window.
    const bool apart = batch.keys > kWindow;
    const auto find = [&](uint32_t from, uint32_t n) {
      escaping.find(c, values, from, n, largest);
    };
    if (c.escape != nullptr) escaping.clear();
    if (c.escape != nullptr && apart) batch.for_each_window(find);
    batch.for_each_window([&](uint32_t from, uint32_t n) {
      if (c.escape != nullptr && !apart) find(from, n);
      uint32_t in_chunk[kKeysAtOnce];
      int64_t number[kKeysAtOnce];
#pragma unroll
      for (uint32_t j = 0; j < kKeysAtOnce; ++j) {
        const uint32_t i = j * kBinThreads + threadIdx.x;
        if (i >= n) continue;
        const uint32_t offset = memory.list[i];
        const uint64_t position = batch.first + offset;
        in_chunk[j] = own.count(chunk_of(c.shape, position));
        number[j] = number_of(c, escapes, position, values.at(from + i, offset));
      }
      own.reserve(c.shape, c.bins, memory.sums);
#pragma unroll
      for (uint32_t j = 0; j < kKeysAtOnce; ++j) {
        const uint32_t i = j * kBinThreads + threadIdx.x;
        if (i >= n) continue;
        const uint64_t position = batch.position(i);
        const uint32_t place = own.begins[chunk_of(c.shape, position)] + in_chunk[j];
        positions[place] = position;
        numbers[place] = number[j];
      }
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < n; i += kBinThreads) {
        uint64_t slot = 0;
        if (!own.find_slot(chunk_of(c.shape, positions[i]), i, &slot)) continue;
        c.bins.positions[slot] = positions[i];
        c.bins.numbers[slot] = numbers[i];
      }
    });
    if (c.escape != nullptr) escaping.write(c, batch);
    __syncthreads();  // before the next batch clears them
  }
  tell_top(c, largest);
}

__global__ void __launch_bounds__(kSumThreads) sum_kernel(InsertCall c) {
  extern __shared__ uint32_t own_cells[];
  constexpr uint32_t kAtOnce = 4;
  const auto size = static_cast<uint32_t>(c.shape.chunk_cells());
  const OwnCells own{own_cells, own_cells + size};
  const bool leaves = has_no_room(c);  // zeros, for those who add
  for (uint32_t k = blockIdx.x; k < c.shape.chunks; k += gridDim.x) {
    for (uint32_t cell = threadIdx.x; cell < size; cell += kSumThreads)
      own.set(cell, 0);
    __syncthreads();
    const uint64_t begin = uint64_t{k} * size, end = leaves ? 0 : begin + c.bins.given[k];
    for (uint64_t i = begin + threadIdx.x; i < end; i += kSumThreads * kAtOnce) {
      uint64_t position[kAtOnce];
      int64_t number[kAtOnce];
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce; ++j) {
        const uint64_t at = i + j * kSumThreads;
        position[j] = at < end ? __ldcs(c.bins.positions + at) : 0;
        number[j] = at < end ? __ldcs(c.bins.numbers + at) : 0;
      }
#pragma unroll
      for (uint32_t j = 0; j < kAtOnce; ++j) {
        if (number[j] == 0) continue;
        const auto part = static_cast<uint32_t>(number[j]);
        const auto rest = static_cast<uint32_t>(static_cast<uint64_t>(number[j]) >> 32);
        uint32_t homes[kMostHashes], before[kMostHashes];
        place(c.shape, position[j], homes);
#pragma unroll
        for (uint32_t h = 0; h < kMostHashes; ++h) {
          if (h < c.shape.hashes) before[h] = atomicAdd(own.low + homes[h], part);
        }
#pragma unroll
        for (uint32_t h = 0; h < kMostHashes; ++h) {
          if (h < c.shape.hashes) own.carry(homes[h], before[h], part, rest);
        }
      }
    }
    __syncthreads();
    uint64_t* cells = c.cells + uint64_t{k} * size;
    for (uint32_t cell = threadIdx.x; cell < size; cell += kSumThreads)
      cells[cell] = own.get(cell);
    __syncthreads();
  }
}

uint32_t cells_bytes(const SketchShape& shape) {
  return static_cast<uint32_t>(shape.chunk_cells() * 8);
}

template <DType kType>
int insert_of(const InsertCall& c, void* stream) {
  if (c.sorted) {
    const uint64_t words = words_for(c.words) * 64;
    constexpr uint32_t kKeyBytes = sizeof(uint64_t) + sizeof(int64_t);
    if (const int code = clear_bins(c.shape, c.bins, stream)) return code;
    if (const int code =
            cuda::launch(fill_kernel<kType>, {kBinThreads, OwnBins::bytes(c.shape, kKeyBytes)},
                         ceil_div(words, uint64_t{kBatchWords}), stream, c))
      return code;
    if (const int code = cuda::launch(sum_kernel, {kSumThreads, cells_bytes(c.shape)},
                                      c.shape.chunks, stream, c))
      return code;
  } else if (const int code = cuda::clear(c.cells, c.shape.lanes_total() * 8, stream)) {
    return code;
  }
  const uint64_t work = ceil_div(words_for(c.words) * 64, uint64_t{kThreads});
  return cuda::launch(insert_kernel<kType>, kThreads, work, stream, c);
}

}  // namespace

bool sums_in_shared(const SketchShape& shape, uint64_t bytes) {
  return shape.chunks >= kFewestChunks && shape.chunks <= kMostBins &&
         shape.chunk_cells() * 8 <= bytes;
}

int insert(const InsertCall& c, void* stream) {
  if (c.top != nullptr) {
    if (const int code = cuda::clear(c.top, sizeof(uint32_t), stream)) return code;
  }
  return index::with_type(c.quanta.dtype,
                          [&]<DType kType>() { return insert_of<kType>(c, stream); });
}

}  // namespace addend::exact
