// SPDX-License-Identifier: Apache-2.0
// The launchers of quant's kernels, for the table in quant.cu, and what several of them need.
#pragma once

#include "codec/quant/device_block.cuh"

namespace addend::quant {

int launch_norms(const DeviceStep& step, void* stream);
int launch_survey(const DeviceStep& step, uint32_t* contributors, cuda::Mail* mail,
                  uint64_t sequence, void* stream);
int launch_encode(const DeviceStep& step, void* lanes, DeviceResidual next, Sample* samples,
                  void* stream);
int launch_contributors(const uint32_t* contributors, cuda::Mail* mail, uint64_t sequence,
                        void* stream);
int launch_decode(const DeviceStep& step, const void* sums, DeviceCarrier carrier,
                  const SumScale& scale, void* gradient, void* stream);
int launch_turn(const DeviceStep& step, DeviceResidual owed, void* stream);
int launch_keep(const DeviceStep& step, float* owed, void* stream);
int launch_multiply(float* values, uint64_t n, double factor, void* stream);

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
