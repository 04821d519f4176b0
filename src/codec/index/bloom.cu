// SPDX-License-Identifier: Apache-2.0
// A Bloom filter's passes: a thread has a word of 64 positions. docs/algorithms/cuda.md, "exact,
// Bloom filter".
#include <cuda_runtime.h>

#include "codec/index/bloom_kernels.h"
#include "codec/index/bloom_probe.h"
#include "codec/index/counted.cuh"
#include "cuda/launch.cuh"
#include "cuda/part.cuh"

namespace addend::index {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;

__device__ inline void add_to(uint64_t* sum, uint64_t value) {
  value = sum_up_to(value, threadIdx.x % 32);
  if (threadIdx.x % 32 == 31 && value > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(value));
}

__global__ void __launch_bounds__(kThreads) insert_kernel(BloomCall c) {
  for (uint64_t w = uint64_t{blockIdx.x} * kThreads + threadIdx.x; w < c.words;
       w += uint64_t{gridDim.x} * kThreads) {
    const uint64_t word = c.bitmap[w];
    if (word == 0) continue;
    BloomProbe probe(c.shape.seed, w);
    for (uint32_t j = 0; j < c.shape.hashes; ++j, probe.next()) {
      const uint64_t bit = probe.bit(c.shape.words * 64);
      atomicOr(reinterpret_cast<unsigned long long*>(c.filter + bit / 64),
               static_cast<unsigned long long>(rotated_left(word, bit % 64)));
    }
  }
}

__global__ void __launch_bounds__(kThreads) find_kernel(BloomCall c) {
  for (uint64_t w = uint64_t{blockIdx.x} * kThreads + threadIdx.x; w < c.words;
       w += uint64_t{gridDim.x} * kThreads)
    c.bitmap[w] = bloom_word(c.shape, c.filter, w);
}

__global__ void __launch_bounds__(kThreads)
    fill_kernel(const uint64_t* filter, uint64_t words, uint64_t* set) {
  uint64_t bits = 0;
  for (uint64_t w = uint64_t{blockIdx.x} * kThreads + threadIdx.x; w < words;
       w += uint64_t{gridDim.x} * kThreads)
    bits += ones(filter[w]);
  add_to(set, bits);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    nonzero_kernel(const T* values, uint64_t count, uint64_t* found) {
  uint64_t nonzeros = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kThreads)
    nonzeros += static_cast<T>(values[i] << 1) != 0 ? 1 : 0;
  add_to(found, nonzeros);
}

__global__ void __launch_bounds__(kThreads) select_kernel(SelectCall c) {
  for_each_half<kWarps>(c.of, [&](uint64_t at, uint32_t word, uint64_t first, uint32_t before) {
    if (word == 0) return;
    const uint64_t rank = first + before;
    const uint32_t from = reinterpret_cast<const uint32_t*>(c.bitmap)[at];
    uint32_t bits = 0, next = 1;
    for (uint32_t left = word; left != 0; left &= left - 1, next <<= 1)
      bits |= (from >> lowest(left) & 1) != 0 ? next : 0;
    put_bits(c.found, rank, ones(word), bits);
  });
}

__global__ void __launch_bounds__(kThreads) spread_kernel(SelectCall c) {
  const auto* found = reinterpret_cast<const uint32_t*>(c.found);
  for_each_half<kWarps>(c.of, [&](uint64_t at, uint32_t word, uint64_t first, uint32_t before) {
    if (word == 0) return;
    const uint64_t rank = first + before;
    const auto shift = static_cast<uint32_t>(rank % 32);
    uint32_t bits = found[rank / 32] >> shift, kept = 0;
    if (shift + ones(word) > 32) bits |= found[rank / 32 + 1] << (32 - shift);
    for (uint32_t left = word; left != 0; left &= left - 1, bits >>= 1)
      kept |= (bits & 1) != 0 ? left & (~left + 1) : 0;
    reinterpret_cast<uint32_t*>(c.bitmap)[at] = kept;
  });
}

// ---- launches

int insert(const BloomCall& c, void* stream) {
  if (const int code = cuda::clear(c.filter, c.shape.words * 8, stream)) return code;
  return cuda::launch(insert_kernel, kThreads, ceil_div(c.words, kThreads), stream, c);
}

int find(const BloomCall& c, uint64_t* scratch, cuda::Mail* mail, uint64_t sequence, void* stream) {
  if (const int code = cuda::clear(scratch, 8, stream)) return code;
  if (const int code =
          cuda::launch(fill_kernel, kThreads, ceil_div(c.shape.words, kThreads), stream,
                       static_cast<const uint64_t*>(c.filter), c.shape.words, scratch))
    return code;
  if (const int code = cuda::tell(scratch, mail, sequence, stream)) return code;
  return cuda::launch(find_kernel, kThreads, ceil_div(c.words, kThreads), stream, c);
}

uint64_t work_of(const CountedUnion& of) { return ceil_div(tiles_for(of.width, of.count), kWarps); }

int select(const SelectCall& c, void* stream) {
  return cuda::launch(select_kernel, kThreads, work_of(c.of), stream, c);
}

int spread(const SelectCall& c, void* stream) {
  return cuda::launch(spread_kernel, kThreads, work_of(c.of), stream, c);
}

int count_nonzeros(uint32_t width, const void* values, uint64_t count, uint64_t* scratch,
                   cuda::Mail* mail, uint64_t sequence, void* stream) {
  if (const int code = cuda::clear(scratch, 8, stream)) return code;
  const uint64_t work = ceil_div(count, kThreads);
  const int code = width == 4 ? cuda::launch(nonzero_kernel<uint32_t>, kThreads, work, stream,
                                             static_cast<const uint32_t*>(values), count, scratch)
                              : cuda::launch(nonzero_kernel<uint16_t>, kThreads, work, stream,
                                             static_cast<const uint16_t*>(values), count, scratch);
  if (code != 0) return code;
  return cuda::tell(scratch, mail, sequence, stream);
}

constexpr BloomKernels kKernels{insert, find, select, spread, count_nonzeros};

}  // namespace

ADDEND_CUDA_PART(BloomKernels, kKernels);

}  // namespace addend::index
