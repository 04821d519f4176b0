// SPDX-License-Identifier: Apache-2.0
// A sketch's passes. Cells are integers modulo 2^64, so the order of additions shows nowhere, and
// neither does that of peeling. docs/algorithms/cuda.md, "exact, sketch".
#include <cuda_runtime.h>

#include "codec/exact/sketch_kernels.h"
#include "codec/index/counted.cuh"
#include "codec/index/element.cuh"
#include "cuda/launch.cuh"
#include "cuda/part.cuh"
#include "wire/sketch_hash.h"

namespace addend::exact {
namespace {

using index::CountedUnion;
using index::Element;
using index::for_each_half;
using index::for_each_position;
using index::kAll;
using index::kSumThreads;
using index::load;
using index::lowest;
using index::ones;
using index::sum_in_block;
using index::sum_up_to;

constexpr int kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;
constexpr uint32_t kMostHashes = 4;

__device__ inline void add_to(uint64_t* sum, uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
}

/// Cells of a key inside its chunk; returns the chunk.
__device__ inline uint32_t place(const SketchShape& shape, uint64_t position,
                                 uint32_t (&homes)[kMostHashes]) {
  const uint64_t row = position / shape.lanes;  // a power of two
  const uint64_t hash = addend_sketch_hash(shape.seed, row);
  uint32_t rows[kMostHashes] = {};
  addend_sketch_rows(hash, shape.hashes, shape.table_rows, rows);
  const auto lane = static_cast<uint32_t>(position) & (shape.lanes - 1);
#pragma unroll
  for (uint32_t j = 0; j < kMostHashes; ++j)
    homes[j] = (j * shape.table_rows + rows[j]) * shape.lanes + lane;
  return addend_sketch_chunk(hash, shape.chunks);
}

__device__ inline uint32_t chunk_of(const SketchShape& shape, uint64_t position) {
  return addend_sketch_chunk(addend_sketch_hash(shape.seed, position / shape.lanes), shape.chunks);
}

__device__ inline void add_to_cells(const SketchShape& shape, uint64_t* cells, uint64_t position,
                                    uint64_t value) {
  uint32_t homes[kMostHashes];
  uint64_t* chunk = cells + place(shape, position, homes) * shape.chunk_cells();
#pragma unroll
  for (uint32_t j = 0; j < kMostHashes; ++j) {
    if (j < shape.hashes) add_to(chunk + homes[j], value);
  }
}

__device__ inline BlockFormat format_at(const Quanta& quanta, uint64_t position) {
  return block_format(quanta.lanes + position / kRangeBlock * kRangeLanes, quanta.rules);
}

// ---- insert

/// Whether all of a word's values have an integer in the window; `largest` of the finite ones'
/// magnitudes, as bits.
template <DType kType>
__device__ inline bool fits(const InsertCall& c, uint64_t word, uint64_t base, uint32_t& largest) {
  bool all = true;
  for (uint64_t left = word; left != 0; left &= left - 1) {
    const float value = load<kType>(c.gradient, base + lowest(left));
    int64_t quanta = 0;
    all = c.quanta.window.quanta(value, &quanta) && all;
    const uint32_t magnitude = __float_as_uint(value) & 0x7FFFFFFFu;
    if (is_finite(value) && magnitude > largest) largest = magnitude;
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
  const uint32_t lane = threadIdx.x % 32;
  uint32_t largest = 0;
  // Lanes of a warp stay together: what escapes is written as words of theirs.
  const uint64_t padded = words_for(c.words) * 64;
  for (uint64_t w = uint64_t{blockIdx.x} * kThreads + threadIdx.x; w < padded;
       w += uint64_t{gridDim.x} * kThreads) {
    const uint64_t word = w < c.words ? c.bitmap[w] : 0;
    bool escapes = false;
    if (c.escape != nullptr) {
      escapes = !fits<kType>(c, word, w * 64, largest);
      const uint32_t half = __ballot_sync(kAll, escapes);
      if (lane == 0) {
        reinterpret_cast<uint32_t*>(c.escape)[w / 32] = half;
        reinterpret_cast<uint32_t*>(c.local_escape)[w / 32] = half;
      }
    }
    if (word != 0 && !escapes) insert_word<kType>(c, word, w * 64);
  }
  if (c.top == nullptr) return;
  largest = __reduce_max_sync(kAll, largest);
  if (lane != 0 || largest == 0) return;
  BitRange range;
  range.include(__uint_as_float(largest));
  atomicMax(c.top, static_cast<uint32_t>(range.top + kTopBias));
}

// ---- split

__global__ void __launch_bounds__(kThreads) split_kernel(SplitCall c) {
  for (uint64_t w = uint64_t{blockIdx.x} * kThreads + threadIdx.x; w < c.words;
       w += uint64_t{gridDim.x} * kThreads) {
    const uint64_t word = c.bitmap[w];
    const bool escapes = c.quanta.lanes == nullptr ? (c.escape[w / 64] >> w % 64 & 1) != 0
                                                   : !format_at(c.quanta, w * 64).single();
    c.fix_up[w] = escapes ? word : 0;
    if (c.keys != nullptr) c.keys[w] = escapes ? 0 : word;
  }
}

// ---- peel

__global__ void __launch_bounds__(kThreads) tally_kernel(PeelCall c) {
  for_each_position<kWarps>(
      c.keys, [&](uint64_t i, uint64_t) { add_to(c.starts + 1 + chunk_of(c.shape, i), 1); });
}

/// The chunks' sizes become their first slots; by one CTA.
__global__ void __launch_bounds__(kSumThreads) start_kernel(PeelCall c) {
  const uint64_t chunks = c.shape.chunks, each = ceil_div(chunks, uint64_t{kSumThreads});
  const uint64_t first = threadIdx.x * each, last = first + each < chunks ? first + each : chunks;
  uint64_t own = 0, total = 0;
  for (uint64_t k = first; k < last; ++k)
    own += c.starts[k + 1];
  uint64_t before = sum_in_block(own, &total) - own;
  for (uint64_t k = first; k < last; ++k) {
    c.ends[k] = before;
    before += c.starts[k + 1];
    c.starts[k + 1] = before;
  }
}

__global__ void __launch_bounds__(kThreads) spread_kernel(PeelCall c) {
  for_each_position<kWarps>(c.keys, [&](uint64_t i, uint64_t rank) {
    auto* end = reinterpret_cast<unsigned long long*>(c.ends + chunk_of(c.shape, i));
    c.slots[atomicAdd(end, 1ull)] = {i, rank};
  });
}

constexpr int kPeelThreads = 1024;
extern __shared__ uint32_t chunk_memory[];
constexpr uint32_t kNoKey = ~0u;

/// A chunk while it is peeled. A CTA goes from round to round without leaving it: cells with one
/// key are in the queue, from which all take a share; then what they found is taken out of the
/// keys' other cells, and those that come down to one key are queued.
struct Chunk {
  const SketchShape& shape;
  uint64_t* cells;
  SketchKey* slots;
  uint32_t keys;
  uint32_t *left, *numbers, *queue;

  /// Of counts, wherever they are: what atomics have made of them.
  __device__ static uint32_t now(const uint32_t* count) {
    return *const_cast<const volatile uint32_t*>(count);
  }

  __device__ void count_keys() const {
    const auto all = static_cast<uint32_t>(shape.chunk_cells());
    for (uint32_t cell = threadIdx.x; cell < all; cell += kPeelThreads)
      left[cell] = numbers[cell] = 0;
    __syncthreads();
    for (uint32_t key = threadIdx.x; key < keys; key += kPeelThreads) {
      uint32_t homes[kMostHashes];
      place(shape, slots[key].position, homes);
#pragma unroll
      for (uint32_t j = 0; j < kMostHashes; ++j) {
        if (j >= shape.hashes) break;
        atomicAdd(left + homes[j], 1u);
        atomicAdd(numbers + homes[j], key);
      }
    }
    __syncthreads();
  }

  __device__ void queue_singles(uint32_t* tail) const {
    const auto all = static_cast<uint32_t>(shape.chunk_cells());
    for (uint32_t cell = threadIdx.x; cell < all; cell += kPeelThreads) {
      if (now(left + cell) == 1) queue[atomicAdd(tail, 1u)] = cell;
    }
    __syncthreads();
  }

  /// What the cell's only key has; the key takes the cell's place in the queue.
  __device__ void take(uint32_t at, int64_t* values) const {
    const uint32_t cell = __ldcg(queue + at);
    uint32_t key = kNoKey;
    if (now(left + cell) == 1) {
      key = now(numbers + cell);
      auto* rank = reinterpret_cast<unsigned long long*>(&slots[key].rank);
      const uint64_t before = atomicOr(rank, static_cast<unsigned long long>(kPeeled));
      if ((before & kPeeled) != 0) {
        key = kNoKey;  // taken from another cell
      } else {
        values[before] = static_cast<int64_t>(__ldcg(cells + cell));
      }
    }
    queue[at] = key;
  }

  __device__ void take_out(uint32_t at, const int64_t* values, uint32_t* tail) const {
    const uint32_t key = queue[at];
    if (key == kNoKey) return;
    const auto value = static_cast<uint64_t>(values[__ldcg(&slots[key].rank) & ~kPeeled]);
    uint32_t homes[kMostHashes];
    place(shape, slots[key].position, homes);
#pragma unroll
    for (uint32_t j = 0; j < kMostHashes; ++j) {
      if (j >= shape.hashes) break;
      atomicSub(numbers + homes[j], key);
      add_to(cells + homes[j], 0 - value);
      if (atomicSub(left + homes[j], 1u) == 2) queue[atomicAdd(tail, 1u)] = homes[j];
    }
  }
};

__device__ inline void peel_chunk(const PeelCall& c, uint32_t k, uint32_t* tail) {
  const uint64_t size = c.shape.chunk_cells();
  uint32_t* own = c.workspace + blockIdx.x * peel_workspace(c.shape, c.counts_in_shared);
  const Chunk chunk{c.shape,
                    c.cells + k * size,
                    c.slots + c.starts[k],
                    static_cast<uint32_t>(c.starts[k + 1] - c.starts[k]),
                    c.counts_in_shared ? chunk_memory : own + size,
                    c.counts_in_shared ? chunk_memory + size : own + 2 * size,
                    own};
  if (threadIdx.x == 0) *tail = 0;
  chunk.count_keys();
  chunk.queue_singles(tail);
  uint32_t begin = 0, end = *tail;
  __syncthreads();
  while (begin < end) {
    for (uint32_t at = begin + threadIdx.x; at < end; at += kPeelThreads)
      chunk.take(at, c.values);
    __syncthreads();
    for (uint32_t at = begin + threadIdx.x; at < end; at += kPeelThreads)
      chunk.take_out(at, c.values, tail);
    __syncthreads();
    begin = end;
    end = *tail;
    __syncthreads();
  }
  uint64_t stuck = 0;
  for (uint32_t key = threadIdx.x; key < chunk.keys; key += kPeelThreads) {
    if ((__ldcg(&chunk.slots[key].rank) & kPeeled) != 0) continue;
    const uint64_t i = chunk.slots[key].position;
    atomicOr(reinterpret_cast<uint32_t*>(c.stuck) + i / 32, 1u << i % 32);
    ++stuck;
  }
  if (stuck > 0) add_to(c.found, stuck);
  __syncthreads();  // before the next chunk
}

__global__ void __launch_bounds__(kPeelThreads) peel_kernel(PeelCall c) {
  __shared__ uint32_t tail;
  for (uint32_t k = blockIdx.x; k < c.shape.chunks; k += gridDim.x)
    peel_chunk(c, k, &tail);
}

// ---- fix-up

template <DType kType>
__global__ void __launch_bounds__(kThreads) quanta_kernel(PickCall c) {
  auto* to = static_cast<int64_t*>(c.to);
  for_each_position<kWarps>(c.of, [&](uint64_t i, uint64_t rank) {
    const float value = load<kType>(c.gradient, i);
    int64_t quanta = 0;
    if (c.quanta.lanes != nullptr) {
      quanta = to_quanta(value, format_at(c.quanta, i).to_quanta);
    } else {
      const bool escapes = (c.local_escape[i / 4096] >> i / 64 % 64 & 1) != 0;
      if (escapes || !c.quanta.window.quanta(value, &quanta)) quanta = 0;
    }
    to[rank] = quanta;
  });
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) element_kernel(PickCall c) {
  const auto* gradient = static_cast<const Element<kType>*>(c.gradient);
  auto* to = static_cast<Element<kType>*>(c.to);
  for_each_position<kWarps>(c.of, [&](uint64_t i, uint64_t rank) {
    to[rank] = index::scaled<kType>(gradient[i], c.factor);
  });
}

__global__ void __launch_bounds__(kThreads) settle_kernel(SettleCall c) {
  for_each_position<kWarps>(c.stuck, [&](uint64_t i, uint64_t rank) {
    add_to_cells(c.shape, c.cells, i, 0 - static_cast<uint64_t>(c.values[rank]));
  });
}

__global__ void __launch_bounds__(kThreads)
    zero_kernel(const uint64_t* cells, uint64_t count, uint64_t* found) {
  uint64_t others = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kThreads)
    others += __ldcg(cells + i) != 0 ? 1 : 0;
  if (others > 0) add_to(found, others);
}

// ---- assemble

/// A half word of a bitmap, and the rank of its first position.
struct Half {
  uint32_t bits = 0;
  uint64_t rank = 0;
};
/// Half words `at` of a tile's row of 32, each lane with one; `first` is the row's own rank, and
/// becomes the next one's.
__device__ inline Half half_of(const CountedUnion& u, uint64_t at, uint64_t& first) {
  Half half;
  if (u.bitmap == nullptr) return half;
  const uint32_t lane = threadIdx.x % 32;
  half.bits = at < 2 * words_for(u.count) ? reinterpret_cast<const uint32_t*>(u.bitmap)[at] : 0;
  const uint32_t end = sum_up_to(ones(half.bits), lane);
  half.rank = first + end - ones(half.bits);
  first += __shfl_sync(kAll, end, 31);
  return half;
}

__device__ inline uint64_t first_of(const CountedUnion& u, uint64_t t) {
  return u.bitmap == nullptr ? 0 : index::rank_of_tile(u, t);
}

/// Peeled integers as the sum that they stand for.
__device__ inline float sum_of(const Quanta& quanta, DType decoded, uint64_t position,
                               int64_t number) {
  const int quantum =
      quanta.lanes == nullptr ? quanta.window.quantum() : format_at(quanta, position).fixed.quantum;
  const auto weight = static_cast<float>(power_of_two(quantum));
  if (weight != 0) return from_quanta(decoded, number, quantum, weight);
  const bool negative = number < 0;  // a window below the subnormals
  const auto magnitude = static_cast<uint64_t>(number);
  return round_to(decoded, negative, negative ? 0 - magnitude : magnitude, quantum, false);
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) assemble_kernel(AssembleCall c) {
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t tile = index::tile_elements(c.all.width);
  const DType decoded = scaled_sum_type(kType, c.scale);
  const auto* fixed = static_cast<const Element<kType>*>(c.fix_values);
  for (uint64_t t = uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32; t * tile < c.all.count;
       t += uint64_t{gridDim.x} * kWarps) {
    uint64_t first = first_of(c.all, t), key = first_of(c.keys, t), stuck = first_of(c.stuck, t),
             fix = first_of(c.fix_up, t);
    for (uint64_t base = t * tile / 32; base < (t + 1) * tile / 32; base += 32) {
      const Half all = half_of(c.all, base + lane, first), keys = half_of(c.keys, base + lane, key);
      const Half sticks = half_of(c.stuck, base + lane, stuck);
      const Half fixes = half_of(c.fix_up, base + lane, fix);
      for (uint32_t left = all.bits; left != 0; left &= left - 1) {
        const uint32_t bit = left & (~left + 1), below = bit - 1;
        const uint64_t rank = all.rank + ones(all.bits & below);
        if ((fixes.bits & bit) != 0) {
          static_cast<Element<kType>*>(c.values)[rank] =
              fixed[fixes.rank + ones(fixes.bits & below)];
          continue;
        }
        const int64_t number = (sticks.bits & bit) != 0
                                   ? c.stuck_values[sticks.rank + ones(sticks.bits & below)]
                                   : c.peeled[keys.rank + ones(keys.bits & below)];
        const float sum = sum_of(c.quanta, decoded, (base + lane) * 32 + lowest(bit), number);
        index::store<kType>(c.values, rank, c.scale == 1 ? sum : __fmul_rn(sum, c.scale));
      }
    }
  }
}

// ---- launches

uint64_t work_of(const CountedUnion& of) {
  return ceil_div(index::tiles_for(of.width, of.count), uint64_t{kWarps});
}

cuda::CtaShape peel_cta(const SketchShape& shape, bool counts_in_shared) {
  const auto bytes = static_cast<uint32_t>(shape.chunk_cells() * 8);
  return {kPeelThreads, counts_in_shared ? bytes : 0};
}

int insert(const InsertCall& c, void* stream) {
  if (const int code = cuda::clear(c.cells, c.shape.lanes_total() * 8, stream)) return code;
  if (c.top != nullptr) {
    if (const int code = cuda::clear(c.top, sizeof(uint32_t), stream)) return code;
  }
  const uint64_t work = ceil_div(words_for(c.words) * 64, uint64_t{kThreads});
  return index::with_type(c.quanta.dtype, [&]<DType kType>() {
    return cuda::launch(insert_kernel<kType>, kThreads, work, stream, c);
  });
}

int split(const SplitCall& c, void* stream) {
  if (const int code = cuda::tell(c.top, c.mail, c.sequence, stream)) return code;
  return cuda::launch(split_kernel, kThreads, ceil_div(c.words, uint64_t{kThreads}), stream, c);
}

int peel_ctas(const SketchShape& shape, uint32_t* ctas, bool* counts_in_shared) {
  constexpr uint64_t kDeclared = 1024;  // at most, by the kernel itself and the system
  int device = 0, bytes = 0;
  if (const int code = cuda::taken(cudaGetDevice(&device))) return code;
  if (const int code = cuda::taken(
          cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)))
    return code;
  *counts_in_shared = shape.chunk_cells() * 8 + kDeclared <= static_cast<uint64_t>(bytes);
  return cuda::fill_device(peel_kernel, peel_cta(shape, *counts_in_shared), shape.chunks, ctas);
}

int peel(const PeelCall& c, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  if (const int code = cuda::clear(c.starts, (uint64_t{c.shape.chunks} + 1) * 8, stream))
    return code;
  if (const int code = cuda::clear(c.stuck, words_for(c.keys.count) * 8, stream)) return code;
  if (const int code = cuda::clear(c.found, 8, stream)) return code;
  const uint64_t work = work_of(c.keys);
  if (const int code = cuda::launch(tally_kernel, kThreads, work, stream, c)) return code;
  start_kernel<<<1, kSumThreads, 0, queue>>>(c);
  if (const int code = cuda::launched()) return code;
  if (const int code = cuda::launch(spread_kernel, kThreads, work, stream, c)) return code;
  peel_kernel<<<c.ctas, kPeelThreads, peel_cta(c.shape, c.counts_in_shared).shared, queue>>>(c);
  if (const int code = cuda::launched()) return code;
  return cuda::tell(c.found, c.mail, c.sequence, stream);
}

int pick_quanta(const PickCall& c, void* stream) {
  const uint64_t work = work_of(c.of);
  return index::with_type(c.quanta.dtype, [&]<DType kType>() {
    return cuda::launch(quanta_kernel<kType>, kThreads, work, stream, c);
  });
}

int pick_elements(const PickCall& c, void* stream) {
  const uint64_t work = work_of(c.of);
  return index::with_type(c.quanta.dtype, [&]<DType kType>() {
    return cuda::launch(element_kernel<kType>, kThreads, work, stream, c);
  });
}

int settle(const SettleCall& c, void* stream) {
  if (const int code = cuda::clear(c.found, 8, stream)) return code;
  if (c.stuck.bitmap != nullptr) {
    if (const int code = cuda::launch(settle_kernel, kThreads, work_of(c.stuck), stream, c))
      return code;
  }
  const uint64_t work = ceil_div(c.shape.cells(), uint64_t{kThreads});
  if (const int code =
          cuda::launch(zero_kernel, kThreads, work, stream, static_cast<const uint64_t*>(c.cells),
                       c.shape.cells(), c.found))
    return code;
  return cuda::tell(c.found, c.mail, c.sequence, stream);
}

int assemble(const AssembleCall& c, void* stream) {
  const uint64_t work = work_of(c.all);
  return index::with_type(c.quanta.dtype, [&]<DType kType>() {
    return cuda::launch(assemble_kernel<kType>, kThreads, work, stream, c);
  });
}

constexpr SketchKernels kKernels{insert,      split,         peel_ctas, peel,
                                 pick_quanta, pick_elements, settle,    assemble};

}  // namespace

ADDEND_CUDA_PART(SketchKernels, kKernels);

}  // namespace addend::exact
