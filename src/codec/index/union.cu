// SPDX-License-Identifier: Apache-2.0
// Floats over the positions of a union: UnionIndex::gather, gather_floats and put_floats. A warp
// has a tile.
#include <cuda_runtime.h>

#include "codec/index/counted.cuh"
#include "codec/index/element.cuh"
#include "codec/index/union_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/part.cuh"

namespace addend::index {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;

/// Positions of the union below `at`.
__device__ inline uint64_t rank_of(const CountedUnion& u, uint64_t at) {
  if (at >= u.count) return u.totals->size;
  const uint64_t tile = tile_elements(u.width), t = at / tile;
  uint64_t rank = rank_of_tile(u, t);
  for (uint64_t w = t * tile / 64; w < at / 64; ++w)
    rank += ones(u.bitmap[w]);
  return rank + ones(u.bitmap[at / 64] & ((uint64_t{1} << at % 64) - 1));
}

__global__ void __launch_bounds__(kThreads) segment_kernel(SegmentCall c) {
  for (uint64_t s = threadIdx.x; s < c.segments; s += kThreads) {
    const uint64_t before = s == 0 ? 0 : rank_of(c.of, c.bounds[s - 1]);
    c.sizes[s] = rank_of(c.of, c.bounds[s]) - before;
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) cuda::send(c.mail, c.sequence);
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) gather_kernel(GatherCall c) {
  const bool raw = c.raw || c.of.totals->raw;
  for_each_position<kWarps>(c.of, [&](uint64_t i, uint64_t rank) {
    float x = load<kType>(c.gradient, i);
    if (!raw && x == 0) x = 0.0f;
    if (c.residual != nullptr) {
      const float owed = c.residual[i];
      c.owed[rank] = owed;
      x += owed;
    }
    c.values[rank] = x;
  });
}

__global__ void __launch_bounds__(kThreads)
    put_kernel(CountedUnion u, const float* values, float* array) {
  for_each_position<kWarps>(u, [&](uint64_t i, uint64_t rank) { array[i] = values[rank]; });
}

// ---- launches

uint64_t work_of(const CountedUnion& u) { return ceil_div(tiles_for(u.width, u.count), kWarps); }

int segments(const SegmentCall& c, void* stream) {
  segment_kernel<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(c);
  return cuda::launched();
}

int gather(const GatherCall& c, void* stream) {
  const uint64_t work = work_of(c.of);
  return with_type(c.dtype, [&]<DType kType>() {
    return cuda::launch(gather_kernel<kType>, kThreads, work, stream, c);
  });
}

int put(const CountedUnion& u, const float* values, float* array, void* stream) {
  return cuda::launch(put_kernel, kThreads, work_of(u), stream, u, values, array);
}

constexpr UnionKernels kKernels{segments, gather, put};

}  // namespace

ADDEND_CUDA_PART(UnionKernels, kKernels);

}  // namespace addend::index
