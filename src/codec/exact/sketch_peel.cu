// SPDX-License-Identifier: Apache-2.0
// Keys of a union are sorted by chunks, and a CTA peels a chunk from the first round to the last.
#include <type_traits>

#include "codec/exact/sketch_cells.cuh"

namespace addend::exact {
namespace {

constexpr int kSumThreads = index::kSumThreads;

// ---- keys by chunks

/// How many keys each chunk has; to `starts`, one further.
__global__ void __launch_bounds__(kBinThreads) tally_kernel(PeelCall c) {
  index::for_each_position<kBinWarps>(
      c.keys, [&](uint64_t i, uint64_t) { add_to(c.bins.starts + 1 + chunk_of(c.shape, i), 1); });
}

/// The chunks' sizes become their first slots; by one CTA.
__global__ void __launch_bounds__(kSumThreads) start_kernel(uint64_t chunks, SketchBins bins) {
  const uint64_t each = ceil_div(chunks, uint64_t{kSumThreads});
  const uint64_t first = threadIdx.x * each, last = first + each < chunks ? first + each : chunks;
  uint64_t own = 0, total = 0;
  for (uint64_t k = first; k < last; ++k)
    own += bins.starts[k + 1];
  uint64_t before = index::sum_in_block(own, &total) - own;
  for (uint64_t k = first; k < last; ++k) {
    before += bins.starts[k + 1];
    bins.starts[k + 1] = before;
  }
}

/// Positions into their chunks' slots, which are told by rank.
__global__ void __launch_bounds__(kBinThreads) spread_kernel(PeelCall c) {
  extern __shared__ uint64_t own_memory[];
  __shared__ Batch::Memory memory;
  const OwnBins own(c.shape, own_memory);
  uint64_t* window = own_memory + 2 * c.shape.chunks;
  const uint64_t tiles = kBatch / index::tile_elements(c.keys.width);
  for (uint64_t b = blockIdx.x; b * kBatch < c.keys.count; b += gridDim.x) {
    const Batch batch(memory, c.keys.bitmap, words_for(c.keys.count), b);
    const uint64_t first_rank = index::rank_of_tile(c.keys, b * tiles);
    batch.for_each_window([&](uint32_t from, uint32_t n) {
      uint32_t in_chunk[kKeysAtOnce];
#pragma unroll
      for (uint32_t j = 0; j < kKeysAtOnce; ++j) {
        const uint32_t i = j * kBinThreads + threadIdx.x;
        if (i < n) in_chunk[j] = own.count(chunk_of(c.shape, batch.position(i)));
      }
      own.reserve(c.shape, c.bins, memory.sums);
#pragma unroll
      for (uint32_t j = 0; j < kKeysAtOnce; ++j) {
        const uint32_t i = j * kBinThreads + threadIdx.x;
        if (i >= n) continue;
        const uint64_t position = batch.position(i);
        const uint32_t chunk = chunk_of(c.shape, position), place = own.begins[chunk] + in_chunk[j];
        window[place] = position;
        uint64_t slot = 0;
        if (own.find_slot(chunk, place, &slot))
          c.slots[first_rank + from + i] = static_cast<uint32_t>(slot);
      }
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < n; i += kBinThreads) {
        uint64_t slot = 0;
        if (own.find_slot(chunk_of(c.shape, window[i]), i, &slot))
          c.bins.positions[slot] = window[i];
      }
    });
  }
}

/// The same of chunks that were counted: each key asks for its slot.
__global__ void __launch_bounds__(kBinThreads) spread_counted_kernel(PeelCall c) {
  index::for_each_position<kBinWarps>(c.keys, [&](uint64_t i, uint64_t rank) {
    const uint32_t chunk = chunk_of(c.shape, i);
    auto* given = reinterpret_cast<unsigned long long*>(c.bins.given + chunk);
    const uint64_t slot = c.bins.starts[chunk] + atomicAdd(given, 1ull);
    c.bins.positions[slot] = i;
    c.slots[rank] = static_cast<uint32_t>(slot);
  });
}

// ---- peel

constexpr int kPeelThreads = 1024;
extern __shared__ uint64_t chunk_memory[];
constexpr uint32_t kNoKey = ~0u;

/// A chunk while it is peeled, in two passes. Which key is peeled from which cell depends on where
/// keys are alone: the first pass finds that, without a look at sums. Cells with one key are in the
/// queue, from which all threads take a share; a round's keys are taken out of their other cells,
/// and cells that come down to one key are the next round's. The second pass goes through the same
/// queue and takes sums out of cells, which have the memory that the first one needed.
///
/// A cell's word has how many keys are left above the sum of their numbers, so that one look tells
/// both. In a round nobody but who claims a key changes the cells that have it alone.
template <bool kShared>
struct Chunk {
  using Word = std::conditional_t<kShared, uint32_t, unsigned long long>;
  using Cell = std::conditional_t<kShared, uint16_t, uint32_t>;
  static constexpr int kNumberBits = kShared ? 20 : 40;
  static constexpr Word kOne = Word{1} << kNumberBits;

  const SketchShape& shape;
  const SketchBins& bins;
  uint64_t* cells;
  uint64_t first;  // slot
  uint64_t keys;
  uint32_t* claims;  // a bit a key, of as many keys as cells
  Cell* queue;
  Word* words;
  uint16_t* homes;  // cells of each key; null: they are computed again
  OwnCells own;
  uint32_t owned;    // cells, from the first on
  uint32_t* order;   // the key that a cell of the queue has alone
  uint32_t* rounds;  // their ends in the queue

  __device__ uint32_t size() const { return static_cast<uint32_t>(shape.chunk_cells()); }
  __device__ Word word(uint32_t cell) const {
    return *const_cast<const volatile Word*>(words + cell);
  }

  /// Keys are claimed by who finds them alone; those beyond the bits by their positions.
  __device__ bool claim(uint64_t key) const {
    if (key < size()) {
      const uint32_t bit = 1u << key % 32;
      return (atomicOr(claims + key / 32, bit) & bit) == 0;
    }
    auto* position = reinterpret_cast<unsigned long long*>(bins.positions + first + key);
    return (atomicOr(position, static_cast<unsigned long long>(kPeeled)) & kPeeled) == 0;
  }
  __device__ bool is_claimed(uint64_t key) const {
    if (key < size()) return (claims[key / 32] >> key % 32 & 1) != 0;
    return (__ldcg(bins.positions + first + key) & kPeeled) != 0;
  }
  __device__ uint64_t position(uint64_t key) const {
    return __ldcg(bins.positions + first + key) & ~kPeeled;
  }
  __device__ void find_homes(uint64_t key, uint32_t (&found)[kMostHashes]) const {
    if (homes == nullptr) {
      place(shape, position(key), found);
      return;
    }
#pragma unroll
    for (uint32_t j = 0; j < kMostHashes; ++j) {
      if (j < shape.hashes) found[j] = homes[key * shape.hashes + j];
    }
  }

  // ---- which key from which cell

  __device__ void count_keys() const {
    for (uint32_t cell = threadIdx.x; cell < size(); cell += kPeelThreads)
      words[cell] = 0;
    for (uint32_t i = threadIdx.x; i < ceil_div(size(), 32u); i += kPeelThreads)
      claims[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (uint64_t key = threadIdx.x; key < keys; key += kPeelThreads) {
      uint32_t found[kMostHashes];
      place(shape, bins.positions[first + key], found);
#pragma unroll
      for (uint32_t j = 0; j < kMostHashes; ++j) {
        if (j >= shape.hashes) continue;
        atomicAdd(words + found[j], kOne + static_cast<Word>(key));
        if (homes != nullptr) homes[key * shape.hashes + j] = static_cast<uint16_t>(found[j]);
      }
    }
    __syncthreads();
  }

  __device__ void push(uint32_t cell, uint32_t* tail) const {
    queue[atomicAdd(tail, 1u)] = static_cast<Cell>(cell);
  }
  __device__ void push_singles(uint32_t* tail) const {
    for (uint32_t cell = threadIdx.x; cell < size(); cell += kPeelThreads) {
      if (word(cell) >> kNumberBits == 1) push(cell, tail);
    }
    __syncthreads();
  }

  /// The key that a cell has alone, if nobody has claimed it, goes out of its other cells.
  __device__ uint32_t free_key(uint32_t cell, uint32_t* tail) const {
    const Word alone = word(cell);
    if (alone >> kNumberBits != 1) return kNoKey;
    const uint64_t key = alone & (kOne - 1);
    if (!claim(key)) return kNoKey;
    uint32_t found[kMostHashes];
    Word before[kMostHashes];
    find_homes(key, found);
    // What atomics give back is used after all of them are under way.
#pragma unroll
    for (uint32_t j = 0; j < kMostHashes; ++j) {
      if (j < shape.hashes) before[j] = atomicAdd(words + found[j], Word{0} - alone);
    }
#pragma unroll
    for (uint32_t j = 0; j < kMostHashes; ++j) {
      if (j < shape.hashes && before[j] >> kNumberBits == 2) push(found[j], tail);
    }
    return static_cast<uint32_t>(key);
  }

  /// Returns how many rounds there were.
  __device__ uint32_t find_order(uint32_t* tail) const {
    uint32_t begin = 0, end = *tail, round = 0;
    __syncthreads();
    for (; begin < end; ++round) {
      for (uint32_t at = begin + threadIdx.x; at < end; at += kPeelThreads)
        order[at] = free_key(queue[at], tail);
      if (threadIdx.x == 0) rounds[round] = end;
      __syncthreads();
      begin = end;
      end = *tail;
      __syncthreads();
    }
    return round;
  }

  // ---- their sums

  __device__ uint64_t sum(uint32_t cell) const {
    return cell < owned ? own.get(cell) : __ldcg(cells + cell);
  }
  __device__ void take_from(const uint32_t (&found)[kMostHashes], uint64_t value) const {
    const uint64_t less = 0 - value;
    const auto part = static_cast<uint32_t>(less), rest = static_cast<uint32_t>(less >> 32);
    uint32_t before[kMostHashes];
#pragma unroll
    for (uint32_t j = 0; j < kMostHashes; ++j) {
      if (j >= shape.hashes) continue;
      if (found[j] < owned) {
        before[j] = atomicAdd(own.low + found[j], part);
      } else {
        add_to(cells + found[j], less);
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < kMostHashes; ++j) {
      if (j < shape.hashes && found[j] < owned) own.carry(found[j], before[j], part, rest);
    }
  }

  /// A thread has every so many-th entry of the queue, and knows its next one before it waits.
  __device__ void take_sums(uint32_t number_of_rounds) const {
    for (uint32_t cell = threadIdx.x; cell < owned; cell += kPeelThreads)
      own.set(cell, __ldcs(cells + cell));
    const uint32_t all = number_of_rounds == 0 ? 0 : rounds[number_of_rounds - 1];
    uint32_t key = kNoKey, found[kMostHashes] = {};
    const auto look_at = [&](uint32_t at) {
      key = at < all ? __ldcg(order + at) : kNoKey;
      if (key != kNoKey) place(shape, position(key), found);
    };
    uint32_t at = threadIdx.x;
    look_at(at);
    for (uint32_t round = 0; round < number_of_rounds; ++round) {
      __syncthreads();
      for (const uint32_t end = rounds[round]; at < end; at += kPeelThreads) {
        if (key != kNoKey) {
          const uint64_t value = sum(queue[at]);
          bins.numbers[first + key] = static_cast<int64_t>(value);
          take_from(found, value);
        }
        look_at(at + kPeelThreads);
      }
    }
    __syncthreads();
  }

  /// What was left in cells of the CTA's own goes back; keys that were not peeled are told, and
  /// cells that are not zero.
  __device__ void close(const PeelCall& c) const {
    uint64_t stuck = 0, others = 0;
    for (uint32_t cell = threadIdx.x; cell < size(); cell += kPeelThreads) {
      const uint64_t left = sum(cell);
      if (cell < owned) cells[cell] = left;
      others += left != 0 ? 1 : 0;
    }
    for (uint64_t key = threadIdx.x; key < keys; key += kPeelThreads) {
      if (is_claimed(key)) continue;
      const uint64_t i = position(key);
      atomicOr(reinterpret_cast<uint32_t*>(c.stuck) + i / 32, 1u << i % 32);
      ++stuck;
    }
    if (stuck > 0) add_to(c.found, stuck);
    if (others > 0) add_to(c.found + 1, others);
    __syncthreads();  // before the next chunk
  }
};

/// What a shared word can count, and cells that a shared queue can name.
constexpr uint64_t kMostNumbers = uint64_t{1} << Chunk<true>::kNumberBits;
constexpr uint64_t kMostCells = 65536;

/// Bytes of what lies side by side for a chunk, each a multiple of 8.
ADDEND_HOST_DEVICE constexpr uint64_t whole(uint64_t bytes) {
  return ceil_div(bytes, uint64_t{8}) * 8;
}
ADDEND_HOST_DEVICE constexpr uint64_t claims_bytes(uint64_t cells) {
  return whole(ceil_div(cells, uint64_t{32}) * 4);
}
template <bool kShared>
ADDEND_HOST_DEVICE constexpr uint64_t queue_bytes(uint64_t cells) {
  return whole(cells * sizeof(typename Chunk<kShared>::Cell));
}
template <bool kShared>
ADDEND_HOST_DEVICE constexpr uint64_t words_bytes(uint64_t cells) {
  return whole(cells * sizeof(typename Chunk<kShared>::Word));
}
/// In memory of the device: the queue's keys and the rounds, of which each has a cell at least.
ADDEND_HOST_DEVICE constexpr uint64_t order_bytes(uint64_t cells) { return whole(cells * 4); }

template <bool kShared>
__device__ inline Chunk<kShared> chunk_at(const PeelCall& c, uint32_t k, uint32_t shared_bytes) {
  using Word = typename Chunk<kShared>::Word;
  using Cell = typename Chunk<kShared>::Cell;
  const uint64_t size = c.shape.chunk_cells(), keys = c.bins.given[k];
  const uint64_t first = c.bins.counted ? c.bins.starts[k] : k * size;
  auto* there = static_cast<uint8_t*>(c.workspace) + blockIdx.x * c.room.workspace;
  auto* order = reinterpret_cast<uint32_t*>(there);
  auto* rounds = reinterpret_cast<uint32_t*>(there + order_bytes(size));
  auto* own = kShared ? reinterpret_cast<uint8_t*>(chunk_memory) : there + 2 * order_bytes(size);
  auto* claims = reinterpret_cast<uint32_t*>(own);
  auto* queue = reinterpret_cast<Cell*>(own + claims_bytes(size));
  const uint64_t kept = claims_bytes(size) + queue_bytes<kShared>(size);
  auto* words = reinterpret_cast<Word*>(own + kept);
  Chunk<kShared> chunk{c.shape, c.bins,  c.cells + k * size, first, keys,  claims, queue,
                       words,   nullptr, {nullptr, nullptr}, 0,     order, rounds};
  if (kShared) {
    const uint64_t left = shared_bytes - kept, all = words_bytes<true>(size);
    if (all + keys * c.shape.hashes * sizeof(uint16_t) <= left)
      chunk.homes = reinterpret_cast<uint16_t*>(own + kept + all);
    chunk.owned = static_cast<uint32_t>(left / 8 < size ? left / 8 : size);
    auto* low = reinterpret_cast<uint32_t*>(words);
    chunk.own = {low, low + chunk.owned};
  }
  return chunk;
}

template <bool kShared>
__global__ void __launch_bounds__(kPeelThreads, 1) peel_kernel(PeelCall c, uint32_t shared_bytes) {
  __shared__ uint32_t tail;
  if (c.bins.given[c.shape.chunks] != 0) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *c.found = kNoRoom;
    return;
  }
  for (uint32_t k = blockIdx.x; k < c.shape.chunks; k += gridDim.x) {
    const Chunk<kShared> chunk = chunk_at<kShared>(c, k, shared_bytes);
    if (threadIdx.x == 0) tail = 0;
    chunk.count_keys();
    // So many keys in so few cells: none is alone in one.
    if (!kShared || chunk.keys < kMostNumbers) chunk.push_singles(&tail);
    chunk.take_sums(chunk.find_order(&tail));
    chunk.close(c);
  }
}

__global__ void tell_found_kernel(PeelCall c) {
  c.mail->numbers[0] = c.found[0];
  c.mail->numbers[1] = c.found[1];
  cuda::send(c.mail, c.sequence);
}

/// Bytes of a CTA's own memory: at most what the device lets it have.
int shared_of_device(uint64_t* bytes) {
  int device = 0, most = 0;
  if (const int code = cuda::taken(cudaGetDevice(&device))) return code;
  if (const int code = cuda::taken(
          cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)))
    return code;
  *bytes = static_cast<uint64_t>(most) - kDeclaredBytes;
  return 0;
}

/// Of which a CTA that peels takes this: at most what words and homes, or sums, need.
uint32_t peel_bytes(const SketchShape& shape, uint64_t most) {
  const uint64_t cells = shape.chunk_cells();
  const uint64_t all = claims_bytes(cells) + queue_bytes<true>(cells) + words_bytes<true>(cells) +
                       whole(cells * shape.hashes * sizeof(uint16_t));
  return static_cast<uint32_t>(all < most ? all : most);
}

}  // namespace

int sketch_room(const SketchShape& shape, SketchRoom* room) {
  uint64_t most = 0;
  if (const int code = shared_of_device(&most)) return code;
  const uint64_t cells = shape.chunk_cells();
  room->sorts = sums_in_shared(shape, most);
  room->counts = shape.chunks > kMostBins;
  room->peels_shared =
      cells <= kMostCells &&
      claims_bytes(cells) + queue_bytes<true>(cells) + words_bytes<true>(cells) <= most;
  room->workspace = 2 * order_bytes(cells);
  if (room->peels_shared)
    return cuda::fill_device(peel_kernel<true>, {kPeelThreads, peel_bytes(shape, most)},
                             shape.chunks, &room->ctas);
  room->workspace += claims_bytes(cells) + queue_bytes<false>(cells) + words_bytes<false>(cells);
  return cuda::fill_device(peel_kernel<false>, kPeelThreads, shape.chunks, &room->ctas);
}

int peel(const PeelCall& c, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  if (const int code = cuda::clear(c.stuck, words_for(c.keys.count) * 8, stream)) return code;
  if (const int code = cuda::clear(c.found, 2 * sizeof(uint64_t), stream)) return code;
  if (const int code = clear_bins(c.shape, c.bins, stream)) return code;
  if (!c.bins.counted) {
    if (const int code =
            cuda::launch(spread_kernel, {kBinThreads, OwnBins::bytes(c.shape, sizeof(uint64_t))},
                         ceil_div(c.keys.count, uint64_t{kBatch}), stream, c))
      return code;
  } else {
    const uint64_t tiles = index::tiles_for(c.keys.width, c.keys.count);
    const uint64_t work = ceil_div(tiles, uint64_t{kBinWarps});
    if (const int code = cuda::clear(c.bins.starts, (uint64_t{c.shape.chunks} + 1) * 8, stream))
      return code;
    if (const int code = cuda::launch(tally_kernel, kBinThreads, work, stream, c)) return code;
    start_kernel<<<1, kSumThreads, 0, queue>>>(c.shape.chunks, c.bins);
    if (const int code = cuda::launched()) return code;
    if (const int code = cuda::launch(spread_counted_kernel, kBinThreads, work, stream, c))
      return code;
  }
  if (c.room.peels_shared) {
    uint64_t most = 0;
    if (const int code = shared_of_device(&most)) return code;
    const uint32_t bytes = peel_bytes(c.shape, most);
    peel_kernel<true><<<c.room.ctas, kPeelThreads, bytes, queue>>>(c, bytes);
  } else {
    peel_kernel<false><<<c.room.ctas, kPeelThreads, 0, queue>>>(c, 0);
  }
  if (const int code = cuda::launched()) return code;
  tell_found_kernel<<<1, 1, 0, queue>>>(c);
  return cuda::launched();
}

}  // namespace addend::exact
