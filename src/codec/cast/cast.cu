// SPDX-License-Identifier: Apache-2.0
// Compiled with -fmad=false: sums and products are rounded one by one, as on a CPU.
#include <cuda_runtime.h>

#include "base/bits.h"
#include "codec/cast/cast_kernels.h"
#include "codec/index/element.cuh"
#include "cuda/launch.cuh"
#include "cuda/part.cuh"

namespace addend::cast {
namespace {

using index::load;
using index::store;

constexpr int kThreads = 256;

template <DType kType>
constexpr uint32_t kBytes = kType == DType::kF32 ? 4 : 2;

/// Elements of a thread at a time: what it stores is then 16 bytes, whose neighbours are the next
/// thread's.
template <DType kTo>
constexpr uint32_t kWide = 16 / kBytes<kTo>;

/// Some elements as they lie in memory.
template <DType kType, uint32_t kCount>
struct alignas(kCount* kBytes<kType> < 16 ? kCount * kBytes<kType> : 16) Packed {
  uint32_t words[kCount * kBytes<kType> / 4];
};

__device__ inline bool is_finite(float x) {
  return (addend_f32_bits(x) & 0x7F800000u) != 0x7F800000u;
}

/// A NaN keeps its payload, which a device's product does not.
__device__ inline float times(float x, float factor) {
  const uint32_t bits = addend_f32_bits(x);
  return (bits & 0x7FFFFFFFu) > 0x7F800000u ? addend_f32_from_bits(bits | 0x400000u) : x * factor;
}

/// One element: what goes out, and what is owed then.
template <DType kFrom, DType kTo>
__device__ inline void send_one(const SendCall& c, const void* from, uint64_t in, uint64_t i,
                                void* to) {
  const float x = load<kFrom>(from, in);
  if (c.owed == nullptr) return store<kTo>(to, in, times(x, c.scale));
  const float before = c.owed[i], addend = x + before;
  store<kTo>(to, in, addend * c.scale);
  const float lost = addend - load<kTo>(to, in) / c.scale;
  c.next[i] = is_finite(lost) ? lost : before;
}

template <DType kFrom, DType kTo>
__global__ void __launch_bounds__(kThreads) send_kernel(SendCall c) {
  const bool aligned = reinterpret_cast<uintptr_t>(c.gradient) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(c.sent) % 16 == 0;
  const uint64_t stride = uint64_t{gridDim.x} * kThreads;
  const uint64_t me = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  constexpr uint32_t kAtOnce = kWide<kTo>;
  const uint64_t wide = aligned ? c.count / kAtOnce : 0;
  for (uint64_t at = me; at < wide; at += stride) {
    const auto in = static_cast<const Packed<kFrom, kAtOnce>*>(c.gradient)[at];
    Packed<kTo, kAtOnce> out;
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k)
      send_one<kFrom, kTo>(c, &in, k, at * kAtOnce + k, &out);
    static_cast<Packed<kTo, kAtOnce>*>(c.sent)[at] = out;
  }
  for (uint64_t i = wide * kAtOnce + me; i < c.count; i += stride) {
    const auto* from = static_cast<const uint8_t*>(c.gradient) + i * kBytes<kFrom>;
    send_one<kFrom, kTo>(c, from, 0, i, static_cast<uint16_t*>(c.sent) + i);
  }
}

template <DType kFrom, DType kTo>
__global__ void __launch_bounds__(kThreads)
    take_kernel(const void* sums, uint64_t count, void* gradient) {
  const bool aligned = reinterpret_cast<uintptr_t>(gradient) % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(sums) % 16 == 0;
  const uint64_t stride = uint64_t{gridDim.x} * kThreads;
  const uint64_t me = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  constexpr uint32_t kAtOnce = kWide<kTo>;
  const uint64_t wide = aligned ? count / kAtOnce : 0;
  for (uint64_t at = me; at < wide; at += stride) {
    const auto in = static_cast<const Packed<kFrom, kAtOnce>*>(sums)[at];
    Packed<kTo, kAtOnce> out;
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k)
      store<kTo>(&out, k, times(load<kFrom>(&in, k), 1));
    static_cast<Packed<kTo, kAtOnce>*>(gradient)[at] = out;
  }
  for (uint64_t i = wide * kAtOnce + me; i < count; i += stride)
    store<kTo>(gradient, i, times(load<kFrom>(sums, i), 1));
}

/// A CTA a stretch.
template <DType kFrom, DType kTo>
__global__ void __launch_bounds__(kThreads) sample_kernel(SendCall c, SampleCall which) {
  __shared__ double energies[kThreads], errors[kThreads];
  const uint64_t begin = (which.first + blockIdx.x * which.every) * which.length;
  const uint64_t left = c.count - begin, n = left < which.length ? left : which.length;
  double energy = 0, error = 0;
  for (uint64_t i = begin + threadIdx.x; i < begin + n; i += kThreads) {
    const float addend = load<kFrom>(c.gradient, i) + (c.owed == nullptr ? 0.0f : c.owed[i]);
    float lane = 0;  // room for any type
    store<kTo>(&lane, 0, addend * c.scale);
    const double lost =
        static_cast<double>(addend) - static_cast<double>(load<kTo>(&lane, 0) / c.scale);
    if (!isfinite(lost)) continue;
    energy += static_cast<double>(addend) * static_cast<double>(addend);
    error += lost * lost;
  }
  energies[threadIdx.x] = energy;
  errors[threadIdx.x] = error;
  for (uint32_t half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x >= half) continue;
    energies[threadIdx.x] += energies[threadIdx.x + half];
    errors[threadIdx.x] += errors[threadIdx.x + half];
  }
  if (threadIdx.x == 0) which.samples[blockIdx.x] = {energies[0], errors[0]};
}

__global__ void __launch_bounds__(kThreads)
    multiply_kernel(float* values, uint64_t count, double factor) {
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kThreads) {
    const auto x = static_cast<float>(static_cast<double>(values[i]) * factor);
    values[i] = is_finite(x) ? x : 0.0f;
  }
}

// ---- launches

/// visit<from, to>, one of which is a 16-bit type.
template <typename Visit>
int with_types(DType any, DType half, const Visit& visit) {
  return index::with_type(any, [&]<DType kAny>() {
    return half == DType::kBf16 ? visit.template operator()<kAny, DType::kBf16>()
                                : visit.template operator()<kAny, DType::kF16>();
  });
}

int send(const SendCall& c, void* stream) {
  return with_types(c.from, c.to, [&]<DType kFrom, DType kTo>() {
    return cuda::launch(send_kernel<kFrom, kTo>, kThreads,
                        ceil_div(c.count, uint64_t{kThreads} * kWide<kTo>), stream, c);
  });
}

int take(DType from, const void* sums, uint64_t count, DType to, void* gradient, void* stream) {
  return with_types(to, from, [&]<DType kTo, DType kFrom>() {
    return cuda::launch(take_kernel<kFrom, kTo>, kThreads,
                        ceil_div(count, uint64_t{kThreads} * kWide<kTo>), stream, sums, count,
                        gradient);
  });
}

int sample(const SendCall& c, const SampleCall& which, cuda::Mail* mail, uint64_t sequence,
           void* stream) {
  const uint64_t stretches = ceil_div(c.count, which.length);
  const auto queue = static_cast<cudaStream_t>(stream);
  const auto ctas = static_cast<uint32_t>(ceil_div(stretches - which.first, which.every));
  const int code = with_types(c.from, c.to, [&]<DType kFrom, DType kTo>() {
    sample_kernel<kFrom, kTo><<<ctas, kThreads, 0, queue>>>(c, which);
    return cuda::launched();
  });
  if (code != 0) return code;
  return cuda::tell<uint64_t>(nullptr, mail, sequence, stream);
}

int multiply(float* values, uint64_t count, double factor, void* stream) {
  return cuda::launch(multiply_kernel, kThreads, ceil_div(count, uint64_t{kThreads}), stream,
                      values, count, factor);
}

constexpr CastKernels kKernels{send, sample, take, multiply};

}  // namespace

ADDEND_CUDA_PART(CastKernels, kKernels);

}  // namespace addend::cast
