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
  // From the end on: what is read last is still in the cache when encoding starts at the beginning.
  for (uint64_t at = blockIdx.x * uint64_t{blockDim.x / kLanes} + threadIdx.x / kLanes;
       at < step.block_count; at += stride) {
    const uint64_t b = step.block_count - 1 - at;
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

template <typename Word, Owes kOwes>
__global__ void __launch_bounds__(kRotateThreads, 1) owing_norms(const DeviceStep step) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t lane = threadIdx.x % kWarp;
  uint8_t* tile = shared + threadIdx.x / kWarp * (kTileBytes + kOwedTile<kOwes>);
  uint8_t* owed_tile = tile + kTileBytes;
  // From the end on, as plain_norms.
  const auto number = [&](uint64_t at) { return step.warp_blocks[step.warp_count - 1 - at]; };
  const auto start_gradient = [&](uint64_t at) {
    if (at < step.warp_count) {
      const DeviceBlock& block = step.blocks[number(at)];
      start_tile(tile, static_cast<const Word*>(step.gradient) + block.begin, lane);
    }
    end_copies();
  };
  const auto start_what_is_owed = [&](uint64_t at) {
    if (at < step.warp_count)
      start_owed<kOwes>(owed_tile, step.owed, step.blocks[number(at)].place, lane);
    end_copies();
  };
  start_gradient(first_of_warp());
  start_what_is_owed(first_of_warp());
  for (uint64_t at = first_of_warp(); at < step.warp_count; at += warps_in_grid()) {
    const uint64_t b = number(at), next = at + warps_in_grid();
    const DeviceBlock& block = step.blocks[b];
    const uint64_t signs = sign_stream(step.seed, block.owner, step.epoch, block.number);
    const float scale = kOwes == Owes::kBytes ? step.owed.scales[b] : 1.0f;
    double norm = 0;
    float v[kPerLane];
    // A second time, out of harm's way, if the rotation itself overflowed.
#pragma unroll 1
    for (uint32_t pass = 0; pass < 2; ++pass) {
      const float prescale = pass == 0 ? 1.0f : kFarDown;
      wait_copies<1>();
      rotate_tile<Word>(step, signs, prescale, tile, lane, v, [&] { start_gradient(next); });
      wait_copies<1>();
      add_owed<kOwes>(owed_tile, scale, prescale, lane, v);
      start_what_is_owed(next);
      const float energy = column_energy([&](uint32_t j) { return v[j] * v[j]; });
      norm = static_cast<double>(sqrtf(energy));
      if (pass > 0 || !plain_energy(energy)) norm = column_norm(v) / static_cast<double>(prescale);
      if (pass > 0 || norm <= 1.7976931348623157e308) break;
      wait_copies<0>();
      start_gradient(at);
      start_what_is_owed(at);
    }
    norm *= 1 / sqrt(static_cast<double>(block.size));
    if (lane == 0) step.norms[b] = lane_of_norm(norm);
  }
}

// Other sizes and tails: a CTA a block.
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

template <DType kType>
int launch_plain(const DeviceStep& step, void* stream) {
  // As many CTAs as there are blocks for: those that come late fill the device to the end.
  constexpr uint64_t kEach = kNormThreads / kLanes, kMostCtas = 1u << 30;
  const uint64_t wanted = (step.block_count + kEach - 1) / kEach;
  if (wanted == 0) return 0;
  const auto grid = static_cast<uint32_t>(wanted < kMostCtas ? wanted : kMostCtas);
  plain_norms<kType><<<grid, kNormThreads, 0, static_cast<cudaStream_t>(stream)>>>(step);
  return cuda::launched();
}

template <typename Word, Owes kOwes>
int launch_owing(const DeviceStep& step, void* stream) {
  constexpr SharedBytes kShared = {0, kTileBytes + kOwedTile<kOwes>};
  return launch_resident<owing_norms<Word, kOwes>, kRotateThreads, kShared>(step.warp_count, stream,
                                                                            step);
}

template <typename Word>
int launch_owing(const DeviceStep& step, void* stream) {
  return step.owed.scales == nullptr ? launch_owing<Word, Owes::kFloats>(step, stream)
                                     : launch_owing<Word, Owes::kBytes>(step, stream);
}

}  // namespace

int launch_norms(const DeviceStep& step, void* stream) {
  const auto dtype = static_cast<DType>(step.dtype);
  if (step.owed.values == nullptr) {
    return dtype == DType::kF32    ? launch_plain<DType::kF32>(step, stream)
           : dtype == DType::kBf16 ? launch_plain<DType::kBf16>(step, stream)
                                   : launch_plain<DType::kF16>(step, stream);
  }
  const int code = dtype == DType::kF32 ? launch_owing<float>(step, stream)
                                        : launch_owing<uint16_t>(step, stream);
  return code != 0 ? code : launch_ctas<owing_cta_norms>(step, step.cta_count, stream);
}

}  // namespace addend::quant
