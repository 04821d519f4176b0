// SPDX-License-Identifier: Apache-2.0
// Round 0 on a device: what this worker says about each block (QuantCodec::norm_lane).
#include "codec/quant/device_block.cuh"
#include "codec/quant/quant_launch.cuh"

namespace addend::quant {
namespace {

constexpr uint32_t kNormThreads = 256;
constexpr uint32_t kRotateThreads = 384;

__device__ __forceinline__ bool plain_energy(float energy) {
  return energy > kLeastEnergy && energy < kMostEnergy;
}

// Without a residual the elements themselves will do: sixteen threads a block, each with one of the
// sixteen running sums.
template <DType kType>
struct Sixteen {
  const void* gradient;
  uint64_t begin, n;
  uint32_t thread, mask;

  __device__ float at(uint64_t i) const { return load_element<kType>(gradient, begin + i); }

  __device__ float energy() const {
    float sum = 0;
    uint64_t i = thread;
#pragma unroll 1
    for (; i + 15 * kLanes < n; i += 16 * kLanes) {
      float x[16];
#pragma unroll
      for (uint32_t k = 0; k < 16; ++k)
        x[k] = at(i + k * kLanes);
#pragma unroll
      for (uint32_t k = 0; k < 16; ++k)
        sum += x[k] * x[k];
    }
    for (; i < n; i += kLanes) {
      const float x = at(i);
      sum += x * x;
    }
#pragma unroll
    for (uint32_t half = kLanes / 2; half > 0; half /= 2)
      sum += __shfl_down_sync(mask, sum, half, kLanes);
    return __shfl_sync(mask, sum, 0, kLanes);
  }

  // In double, one element after the other; infinity where one is not finite, the largest magnitude
  // without rotation.
  __device__ double slow_norm(bool rotates) const {
    bool broken = false;
    float largest = 0;
    for (uint64_t i = thread; i < n; i += kLanes) {
      const float x = at(i);
      broken = broken || !finite(x);
      largest = fmaxf(largest, fabsf(x));
    }
#pragma unroll
    for (uint32_t half = kLanes / 2; half > 0; half /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(mask, largest, half, kLanes));
    if (__any_sync(mask, broken)) return INFINITY;
    if (!rotates || largest == 0) return static_cast<double>(largest);
    double energy = 0;
    for (uint64_t i = 0; i < n; i += kLanes) {
      const float mine = i + thread < n ? at(i + thread) : 0.0f;
      for (uint32_t k = 0; k < kLanes; ++k) {
        const auto x = static_cast<double>(__shfl_sync(mask, mine, static_cast<int>(k), kLanes));
        energy += x * x;  // zeros behind the end add nothing
      }
    }
    return sqrt(energy);
  }
};

template <DType kType>
__global__ void __launch_bounds__(kNormThreads) plain_norms(const DeviceStep step) {
  const uint32_t thread = threadIdx.x % kLanes;
  const uint32_t mask = 0xFFFFu << (threadIdx.x / kLanes % 2 * kLanes);
  const uint64_t stride = uint64_t{gridDim.x} * (blockDim.x / kLanes);
  for (uint64_t b = blockIdx.x * uint64_t{blockDim.x / kLanes} + threadIdx.x / kLanes;
       b < step.block_count; b += stride) {
    const DeviceBlock& block = step.blocks[b];
    const Sixteen<kType> x{step.gradient, block.begin, block.elements, thread, mask};
    const bool in_float =
        step.grid.rotates && block.elements % kLanes == 0 && block.elements <= kMostFloatSum;
    const float energy = in_float ? x.energy() : 0.0f;
    double norm = static_cast<double>(sqrtf(energy));
    if (!plain_energy(energy)) norm = x.slow_norm(step.grid.rotates);
    if (thread == 0) step.norms[b] = lane_of_norm(norm);
  }
}

// With a residual: the norm of rotated coordinates, element 32 j + lane in v[j].
__device__ __forceinline__ double column_norm(const float (&v)[kPerLane]) {
  bool broken = false, any = false;
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j) {
    broken = broken || !finite(v[j]);
    any = any || v[j] != 0;
  }
  if (__any_sync(kAll, broken)) return INFINITY;
  if (!__any_sync(kAll, any)) return 0;
  double energy = 0;
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j) {
#pragma unroll 1
    for (uint32_t k = 0; k < kWarp; ++k) {
      const auto x = static_cast<double>(__shfl_sync(kAll, v[j], static_cast<int>(k)));
      energy += x * x;
    }
  }
  return sqrt(energy);
}

template <typename Word>
__global__ void __launch_bounds__(kRotateThreads, 1) owing_norms(const DeviceStep step) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t lane = threadIdx.x % kWarp;
  uint8_t* tile = shared + threadIdx.x / kWarp * 2 * kTileBytes;
  uint8_t* owed_tile = tile + kTileBytes;
  const auto start = [&](uint64_t at) {
    if (at >= step.warp_count) return;
    const DeviceBlock& block = step.blocks[step.warp_blocks[at]];
    start_tile(tile, static_cast<const Word*>(step.gradient) + block.begin, lane);
    start_owed(owed_tile, static_cast<const float*>(step.owed.values) + block.place, lane);
  };
  start(first_of_warp());
  for (uint64_t at = first_of_warp(); at < step.warp_count; at += warps_in_grid()) {
    const uint64_t b = step.warp_blocks[at];
    const DeviceBlock& block = step.blocks[b];
    const uint64_t signs = sign_stream(step.seed, block.owner, step.epoch, block.number);
    double norm = 0;
    float v[kPerLane];
    // A second time, out of harm's way, if the rotation itself overflowed.
#pragma unroll 1
    for (uint32_t pass = 0; pass < 2; ++pass) {
      const float prescale = pass == 0 ? 1.0f : kFarDown;
      wait_copies();
      rotate_tile<Word>(step, signs, prescale, tile, lane, v, [] {});
      add_owed(owed_tile, prescale, lane, v);
      start(at + warps_in_grid());
      const float energy = column_energy([&](uint32_t j) { return v[j] * v[j]; });
      norm = static_cast<double>(sqrtf(energy));
      if (pass > 0 || !plain_energy(energy)) norm = column_norm(v) / static_cast<double>(prescale);
      if (pass > 0 || norm <= 1.7976931348623157e308) break;
      wait_copies();
      start(at);
    }
    norm *= 1 / sqrt(static_cast<double>(block.size));
    if (lane == 0) step.norms[b] = lane_of_norm(norm);
  }
}

// Other sizes, tails, residuals of bytes: a CTA a block.
__device__ double shared_norm(const float* z, uint32_t n, bool rotates) {
  double energy = 0, largest = 0;
  for (uint32_t i = 0; i < n; ++i) {
    if (!finite(z[i])) return INFINITY;
    const auto x = static_cast<double>(z[i]);
    energy += x * x;
    largest = fmax(largest, fabs(x));
  }
  return rotates ? sqrt(energy) : largest;
}

__global__ void __launch_bounds__(kCtaThreads) owing_cta_norms(const DeviceStep step) {
  extern __shared__ __align__(16) float z[];
  __shared__ double found;
  for (uint64_t at = blockIdx.x; at < step.cta_count; at += gridDim.x) {
    const uint64_t b = step.cta_blocks[at];
    const DeviceBlock& block = step.blocks[b];
    load_shared(step, b, 1, z);
    const float energy = step.grid.rotates ? shared_energy(z, block.size) : 0;
    if (threadIdx.x == 0) {
      found = plain_energy(energy) ? static_cast<double>(sqrtf(energy))
                                   : shared_norm(z, block.size, step.grid.rotates);
    }
    __syncthreads();
    if (!(found <= 1.7976931348623157e308)) {
      load_shared(step, b, kFarDown, z);
      if (threadIdx.x == 0)
        found = shared_norm(z, block.size, step.grid.rotates) / static_cast<double>(kFarDown);
    }
    if (threadIdx.x == 0) {
      const double unrotated = step.grid.rotates ? 1 / sqrt(static_cast<double>(block.size)) : 1;
      step.norms[b] = lane_of_norm(found * unrotated);
    }
  }
}

}  // namespace

int launch_norms(const DeviceStep& step, void* stream) {
  if (step.owed.values == nullptr) {
    constexpr uint64_t kEach = kNormThreads / kLanes;
    const uint64_t wanted = (step.block_count + kEach - 1) / kEach;
    switch (static_cast<DType>(step.dtype)) {
      case DType::kF32:
        return launch_resident<plain_norms<DType::kF32>, kNormThreads, SharedBytes{}>(wanted,
                                                                                      stream, step);
      case DType::kBf16:
        return launch_resident<plain_norms<DType::kBf16>, kNormThreads, SharedBytes{}>(
            wanted, stream, step);
      default:
        return launch_resident<plain_norms<DType::kF16>, kNormThreads, SharedBytes{}>(wanted,
                                                                                      stream, step);
    }
  }
  constexpr SharedBytes kShared = {0, 2 * kTileBytes};
  const int code = static_cast<DType>(step.dtype) == DType::kF32
                       ? launch_resident<owing_norms<float>, kRotateThreads, kShared>(
                             step.warp_count, stream, step)
                       : launch_resident<owing_norms<uint16_t>, kRotateThreads, kShared>(
                             step.warp_count, stream, step);
  return code != 0 ? code : launch_ctas<owing_cta_norms>(step, step.cta_count, stream);
}

}  // namespace addend::quant
