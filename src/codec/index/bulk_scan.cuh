// SPDX-License-Identifier: Apache-2.0
// The scan of a gradient that lies at a multiple of 16 bytes, on devices with bulk copies (compute
// capability 9): tiles come to shared memory two ahead of their warp, which no register has to wait
// for.
#pragma once

#include "codec/index/scan.cuh"

namespace addend::index {
namespace {

constexpr uint32_t kBulkWarps = 8, kBulkStages = 2, kTileBytes = 4096;
constexpr int kBulkCtas = 3;  // of a multiprocessor: all of its shared memory
constexpr uint32_t kBulkWarpBytes = kBulkStages * kTileBytes + kSlotBytes;
constexpr uint32_t kBulkBytes = kBulkWarps * kBulkWarpBytes;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

__device__ inline uint32_t in_shared(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

/// A barrier that bytes arrive at, used over and over.
__device__ inline void open_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(in_shared(barrier)) : "memory");
}

/// By one lane.
__device__ inline void start_bulk(uint64_t* barrier, void* to, const void* from) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(in_shared(barrier)),
               "r"(kTileBytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(in_shared(to)),
      "l"(from), "r"(kTileBytes), "r"(in_shared(barrier))
      : "memory");
}

__device__ inline void wait_for_bulk(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(in_shared(barrier)),
      "r"(parity)
      : "memory");
}

template <typename T>
__device__ inline void scan_in_bulk(const ScanCall& c, uint8_t* shared, uint64_t* barriers) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint8_t* tiles_here = shared + warp * kBulkWarpBytes;
  const auto* gradient = static_cast<const T*>(c.gradient);
  const uint64_t tiles = tiles_for(sizeof(T), c.count), whole = c.count / Tile<T>::kElements;
  const uint64_t stride = uint64_t{gridDim.x} * kBulkWarps;
  // From the end on: of a gradient that has just been written, the end may be in the cache still.
  const auto ask_for = [&](uint64_t at, uint32_t stage) {
    if (lane == 0 && at < whole)
      start_bulk(barriers + stage, tiles_here + stage * kTileBytes,
                 gradient + (whole - 1 - at) * Tile<T>::kElements);
  };
  if (lane == 0) {
    for (uint32_t stage = 0; stage < kBulkStages; ++stage)
      open_barrier(barriers + stage);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncwarp();
  Scan<T> scan{c, lane, reinterpret_cast<T*>(tiles_here + kBulkStages * kTileBytes)};
  if (whole < tiles && blockIdx.x == 0 && warp == 0) {
    const Rows<T> rows{gradient + whole * Tile<T>::kElements, c.count % Tile<T>::kElements, true};
    const auto word = nonzeros_in_memory<T>(rows, lane, scan.least);
    scan.keep(whole, scan.take(whole, word, rows.from));
  }
  uint64_t at = uint64_t{blockIdx.x} * kBulkWarps + warp;
  for (uint32_t stage = 0; stage < kBulkStages; ++stage)
    ask_for(at + stage * stride, stage);
  for (uint32_t k = 0; at < whole; at += stride, ++k) {
    const uint32_t stage = k % kBulkStages;
    const uint64_t t = whole - 1 - at;
    wait_for_bulk(barriers + stage, k / kBulkStages % 2);
    const uint8_t* tile = tiles_here + stage * kTileBytes;
    const auto row_at = [&](uint32_t first, uint32_t(&row)[16]) {
#pragma unroll
      for (uint32_t r = 0; r < 16; ++r)
        row[r] = reinterpret_cast<const uint32_t*>(tile)[(first + r) * 32 + lane];
    };
    const auto word = nonzeros_of<T, 16>(row_at, lane, scan.least);
    const uint32_t total = scan.take(t, word, reinterpret_cast<const T*>(tile));
    __syncwarp();
    ask_for(at + kBulkStages * stride, stage);
    scan.keep(t, total);
  }
  scan.end();
}

#endif

template <typename T>
__global__ void __launch_bounds__(kBulkWarps * 32, kBulkCtas) bulk_scan_kernel(ScanCall c) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t barriers[kBulkWarps][kBulkStages];
  scan_in_bulk<T>(c, shared, barriers[threadIdx.x / 32]);
#endif
}

}  // namespace
}  // namespace addend::index
