// SPDX-License-Identifier: Apache-2.0
// What kernels that select share: a CTA has a piece of a segment at a time.
#pragma once

#include "base/bits.h"
#include "codec/select/arithmetic.h"
#include "codec/select/select_kernels.h"
#include "cuda/launch.cuh"

namespace addend::select {

/// cuts.cu; SelectKernels::find_cuts.
int find_cuts(const SelectStep& s, void* stream);

namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kAll = 0xFFFFFFFFu;

/// What selections compare: of what is not finite none is larger than another.
__device__ inline uint32_t key_of(float e) { return min(magnitude_bits(e), kInfinity); }

/// By all lanes of a warp.
template <typename Number, typename Total>
__device__ inline void add_to(Total* total, Number mine) {
#pragma unroll
  for (uint32_t step = 16; step > 0; step /= 2)
    mine += __shfl_down_sync(kAll, mine, step);
  if (threadIdx.x % 32 == 0 && mine != 0) atomicAdd(total, static_cast<Total>(mine));
}

__device__ inline unsigned long long* counter(uint64_t* count) {
  return reinterpret_cast<unsigned long long*>(count);
}

/// Calls visit(number, piece), for this CTA's pieces.
template <typename Visit>
__device__ inline void for_each_piece_of(const SelectStep& s, const Visit& visit) {
  for (uint64_t n = blockIdx.x; n < s.piece_count; n += gridDim.x)
    visit(n, s.pieces[n]);
}

/// Calls visit(part, cut), by a thread each.
template <typename Visit>
__device__ inline void for_each_part_of(const SelectStep& s, const Visit& visit) {
  for (uint64_t p = uint64_t{blockIdx.x} * kThreads + threadIdx.x; p < s.part_count;
       p += uint64_t{gridDim.x} * kThreads)
    visit(s.parts[p], s.cuts[p]);
}

/// What running sums come to, each thread's being `sum`: add_by_pieces. By all threads of a CTA.
__device__ inline void add_piece(double sum, double* to) {
  static_assert(kRunningSums == kThreads);
  __shared__ double sums[kRunningSums];
  sums[threadIdx.x] = sum;
  for (uint32_t half = kRunningSums / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *to = sums[0];
  __syncthreads();
}

/// By one thread.
__device__ inline double add_pieces(const SelectStep& s, const DevicePart& part) {
  const uint64_t end = part.first_piece + ceil_div(part.end - part.begin, kPieceElements);
  double sum = 0;
  for (uint64_t n = part.first_piece; n < end; ++n)
    sum += s.sums[n];
  return sum;
}

/// Calls use(i, load(i)), for all elements of a piece; several loads are under way at once.
template <typename Load, typename Use>
__device__ inline void for_each_of(const DevicePiece& piece, const Load& load, const Use& use) {
  constexpr uint32_t kAtOnce = 4;
  for (uint64_t base = piece.begin + threadIdx.x; base < piece.end; base += kAtOnce * kThreads) {
    decltype(load(base)) loaded[kAtOnce];
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      if (base + k * kThreads < piece.end) loaded[k] = load(base + k * kThreads);
    }
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      if (base + k * kThreads < piece.end) use(base + k * kThreads, loaded[k]);
    }
  }
}

template <typename Kernel>
int over_parts(Kernel kernel, const SelectStep& s, void* stream) {
  return cuda::launch(kernel, kThreads, ceil_div(s.part_count, kThreads), stream, s);
}

template <typename Kernel, typename... More>
int over_pieces(Kernel kernel, const SelectStep& s, void* stream, More... more) {
  return cuda::launch(kernel, kThreads, s.piece_count, stream, s, more...);
}

}  // namespace
}  // namespace addend::select
