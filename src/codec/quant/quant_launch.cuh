// SPDX-License-Identifier: Apache-2.0
// The launchers of quant's kernels, for the table in quant.cu, and what several of them need.
#pragma once

#include <atomic>

#include "codec/quant/device_block.cuh"
#include "cuda/launch.cuh"

namespace addend::quant {

int launch_norms(const DeviceStep& step, void* stream);
int launch_survey(const DeviceStep& step, uint32_t* contributors, cuda::Mail* mail,
                  uint64_t sequence, void* stream);
int launch_encode(const DeviceStep& step, void* lanes, DeviceResidual next, Sample* samples,
                  void* stream);
int launch_contributors(const uint32_t* contributors, cuda::Mail* mail, uint64_t sequence,
                        void* stream);
int launch_decode(const DeviceStep& step, const void* sums, DeviceCarrier carrier,
                  const SumScale& scale, DeviceCount count, void* gradient, void* stream);
int launch_turn(const DeviceStep& step, DeviceResidual owed, void* stream);
int launch_keep(const DeviceStep& step, float* owed, void* stream);
int launch_multiply(float* values, uint64_t n, double factor, void* stream);

inline constexpr int kKnownDevices = 64;

// Shared memory of a kernel whose warps each have some of it, beside what a CTA has.
struct SharedBytes {
  uint32_t cta = 0, warp = 0;
  constexpr uint32_t of(uint32_t threads) const { return cta + threads / kWarp * warp; }
};

struct Shape {
  uint32_t threads = 0, ctas = 0;
};

// How a kernel fills the calling thread's device: with at most kThreads threads a CTA, fewer where
// shared memory is short, and as many CTAs as run at once. Asked once a device.
template <auto kKernel, uint32_t kThreads, SharedBytes kShared>
int resident_shape(Shape* shape) {
  static std::atomic<uint64_t> known[kKnownDevices];
  int device = 0, processors = 0, each = 0, room = 0;
  if (const int code = cuda::taken(cudaGetDevice(&device))) return code;
  std::atomic<uint64_t>& here = known[device % kKnownDevices];
  const uint64_t found = device < kKnownDevices ? here.load(std::memory_order_relaxed) : 0;
  if (found != 0) {
    *shape = {static_cast<uint32_t>(found >> 32), static_cast<uint32_t>(found)};
    return 0;
  }
  if (const int code =
          cuda::taken(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)))
    return code;
  if (const int code = cuda::taken(
          cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)))
    return code;
  uint32_t threads = kThreads;
  while (threads > kWarp && kShared.of(threads) > static_cast<uint32_t>(room))
    threads -= kWarp;
  const uint32_t bytes = kShared.of(threads);
  if (const int code = cuda::taken(cudaFuncSetAttribute(
          kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes))))
    return code;
  if (const int code = cuda::taken(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &each, kKernel, static_cast<int>(threads), bytes)))
    return code;
  *shape = {threads, static_cast<uint32_t>(processors * each)};
  here.store(uint64_t{shape->threads} << 32 | shape->ctas, std::memory_order_relaxed);
  return 0;
}

// Launches as many CTAs as run at once, or as are wanted.
template <auto kKernel, uint32_t kThreads, SharedBytes kShared, typename... Arguments>
int launch_resident(uint64_t wanted, void* stream, const Arguments&... arguments) {
  if (wanted == 0) return 0;
  Shape shape;
  if (const int code = resident_shape<kKernel, kThreads, kShared>(&shape)) return code;
  const auto grid = static_cast<uint32_t>(wanted < shape.ctas ? wanted : shape.ctas);
  kKernel<<<grid, shape.threads, kShared.of(shape.threads), static_cast<cudaStream_t>(stream)>>>(
      arguments...);
  return cuda::launched();
}

inline constexpr uint32_t kCtaThreads = 256;

// Launches a kernel that has a block of the step in shared memory, a CTA each.
template <auto kKernel, typename... Arguments>
int launch_ctas(const DeviceStep& step, uint64_t wanted, void* stream,
                const Arguments&... arguments) {
  constexpr uint64_t kUnasked = 48 * 1024, kMostCtas = 1 << 20;
  const uint64_t shared = uint64_t{step.largest} * 4;
  if (wanted == 0) return 0;
  if (shared > kUnasked) {
    if (const int code = cuda::taken(cudaFuncSetAttribute(
            kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared))))
      return code;
  }
  const auto grid = static_cast<uint32_t>(wanted < kMostCtas ? wanted : kMostCtas);
  kKernel<<<grid, kCtaThreads, shared, static_cast<cudaStream_t>(stream)>>>(step, arguments...);
  return cuda::launched();
}

// Energy of n elements in shared memory in sixteen running sums; all threads of the CTA call it and
// get the result. REQUIRES: n a multiple of 16.
__device__ inline float shared_energy(const float* x, uint32_t n) {
  __shared__ float sums[kLanes];
  __syncthreads();
  if (threadIdx.x < kLanes) {
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += kLanes)
      sum += x[i] * x[i];
    sums[threadIdx.x] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (uint32_t half = kLanes / 2; half > 0; half /= 2) {
      for (uint32_t l = 0; l < half; ++l)
        sums[l] += sums[l + half];
    }
  }
  __syncthreads();
  return sums[0];
}

// How bytes of a block are scaled whose largest magnitude is this (Residual::store).
struct ByteScale {
  float scale, inverse;
  __device__ __forceinline__ explicit ByteScale(float largest)
      : scale(largest >= 127 * 0x1p-126f ? largest / 127.0f : 0.0f),
        inverse(scale > 0 ? 1.0f / scale : 0.0f) {}
};

// What is owed becomes z (Residual::store).
__device__ inline void store_owed(const DeviceResidual& next, const DeviceBlock& block, uint64_t b,
                                  const float* z) {
  if (next.scales == nullptr) {
    for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x)
      static_cast<float*>(next.values)[block.place + i] = kept(z[i]);
    return;
  }
  __shared__ uint32_t largest_bits;
  if (threadIdx.x == 0) largest_bits = 0;
  __syncthreads();
  float largest = 0;
  for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x)
    largest = fmaxf(largest, fabsf(kept(z[i])));
  atomicMax(&largest_bits, addend_f32_bits(largest));
  __syncthreads();
  const ByteScale scale(addend_f32_from_bits(largest_bits));
  for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x) {
    const float rounded = rintf(kept(z[i]) * scale.inverse);
    static_cast<int8_t*>(next.values)[block.place + i] =
        static_cast<int8_t>(fminf(fmaxf(rounded, -127.0f), 127.0f));
  }
  if (threadIdx.x == 0) next.scales[b] = scale.scale;
  __syncthreads();
}

}  // namespace addend::quant
