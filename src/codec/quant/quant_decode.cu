// SPDX-License-Identifier: Apache-2.0
// The end of a step on a device: decoding the sums, and turning what is owed to new signs.
#include "codec/quant/device_block.cuh"
#include "codec/quant/quant_launch.cuh"

namespace addend::quant {
namespace {

constexpr uint32_t kWarpThreads = 128;
constexpr uint32_t kWarpCtas = 4;  // at once on a multiprocessor: 128 registers a thread
constexpr SharedBytes kWarpShared = {0, kTileBytes};

__device__ float sum_at(DeviceCarrier carrier, const void* sums, uint64_t at) {
  if (carrier == DeviceCarrier::kU8)
    return static_cast<float>(static_cast<const uint8_t*>(sums)[at]);
  if (carrier == DeviceCarrier::kU16)
    return static_cast<float>(static_cast<const uint16_t*>(sums)[at]);
  return static_cast<float>(static_cast<const int32_t*>(sums)[at]);
}

// v = the lane's 64 consecutive sums, as numbers. A whole number below 2^23 in the low bits of the
// pattern of 2^23 is 2^23 plus that number, which costs less than a conversion.
template <uint32_t kBytes>
__device__ __forceinline__ void read_sums(const void* sums, uint64_t first, float (&v)[kPerLane]) {
  constexpr uint32_t kEach = 16 / kBytes;
  const auto* from =
      reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(sums) + first * kBytes);
#pragma unroll
  for (uint32_t k = 0; k < kPerLane / kEach; ++k) {
    const uint4 four = from[k];
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (uint32_t e = 0; e < kEach; ++e) {
      const uint32_t word = words[e * kBytes / 4];
      if constexpr (kBytes == 4) {
        v[k * kEach + e] = __int2float_rn(static_cast<int32_t>(word));
      } else {
        const uint32_t select = kBytes == 1 ? 0x7440u | e % 4 : e % 2 == 0 ? 0x7410u : 0x7432u;
        v[k * kEach + e] =
            addend_f32_from_bits(__byte_perm(word, 0x4B000000u, select)) - 8388608.0f;
      }
    }
  }
}

// As wire/half.h, which NaN is left to.
__device__ __forceinline__ uint16_t narrowed(uint8_t dtype, float x) {
  uint16_t half;
  if (static_cast<DType>(dtype) == DType::kBf16) {
    if (x != x) return addend_bf16_from_f32(x);
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
  } else {
    if (x != x) return addend_f16_from_f32(x);
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
  }
  return half;
}

// Element i of the gradient = x, rounded to its type.
__device__ __forceinline__ void store_element(uint8_t dtype, void* gradient, uint64_t i, float x) {
  if (static_cast<DType>(dtype) == DType::kF32) {
    __stcs(static_cast<float*>(gradient) + i, x);
  } else {
    __stcs(static_cast<uint16_t*>(gradient) + i, narrowed(dtype, x));
  }
}

__device__ __forceinline__ float scaled_back(float x, double back) {
  return back == 1 ? x : static_cast<float>(static_cast<double>(x) * back);
}

__device__ __forceinline__ float fill_of(uint32_t norm) {
  return addend_f32_from_bits(norm == 0 ? 0 : 0x7FC00000u);
}

// Negates elements 32 j + lane where bit 32 j + lane of the words is set; lane w has word w.
__device__ __forceinline__ void flip_columns(uint8_t* tile, uint32_t lane, uint64_t word,
                                             float (&v)[kPerLane]) {
  reinterpret_cast<uint64_t*>(tile)[lane] = word;
  __syncwarp();
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; j += 4) {
    const uint4 four = reinterpret_cast<const uint4*>(tile)[j / 4];
    flip(v[j], four.x << (31 - lane));
    flip(v[j + 1], four.y << (31 - lane));
    flip(v[j + 2], four.z << (31 - lane));
    flip(v[j + 3], four.w << (31 - lane));
  }
  __syncwarp();
}

// f32, or a 16-bit type.
template <bool kWide>
__device__ __forceinline__ void store_columns(uint8_t dtype, void* gradient, uint64_t first,
                                              const float (&v)[kPerLane]) {
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j) {
    if constexpr (kWide) {
      __stcs(static_cast<float*>(gradient) + first + j * kWarp, v[j]);
    } else {
      store_element(dtype, gradient, first + j * kWarp, v[j]);
    }
  }
}

template <bool kWide>
__global__ void __launch_bounds__(kWarpThreads, kWarpCtas)
    decode_warps(const DeviceStep step, const void* sums, DeviceCarrier carrier,
                 const SumScale scale, void* gradient) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t lane = threadIdx.x % kWarp;
  uint8_t* tile = shared + threadIdx.x / kWarp * kTileBytes;
  for (uint64_t at = first_of_warp(); at < step.warp_count; at += warps_in_grid()) {
    const uint32_t b = step.warp_blocks[at];
    const BlockPart& part = step.parts[b];
    const uint32_t bits = step.norms[b];
    if (!is_live(bits)) {
      for (uint32_t i = lane; i < kWarpBlock; i += kWarp)
        store_element(step.dtype, gradient, part.begin + i, fill_of(bits));
      continue;
    }
    float v[kPerLane];
    const uint64_t first = first_lane(step, b) + lane * kPerLane;
    if (carrier == DeviceCarrier::kU8) {
      read_sums<1>(sums, first, v);
    } else if (carrier == DeviceCarrier::kU16) {
      read_sums<2>(sums, first, v);
    } else {
      read_sums<4>(sums, first, v);
    }
    const SumValues values = sum_values(step.grid, addend_f32_from_bits(bits), kWarpBlock, scale);
#pragma unroll
    for (float& x : v)
      x = x * values.levels.factor + values.levels.offset;
    transform_rows(tile, lane, v, [] {});
    flip_columns(tile, lane, addend_random(part.signs, lane), v);
    if (values.back != 1) {
#pragma unroll
      for (float& x : v)
        x = scaled_back(x, values.back);
    }
    store_columns<kWide>(step.dtype, gradient, part.begin + lane, v);
  }
}

__global__ void __launch_bounds__(kCtaThreads)
    decode_ctas(const DeviceStep step, const void* sums, DeviceCarrier carrier,
                const SumScale scale, void* gradient) {
  extern __shared__ __align__(16) float x[];
  for (uint64_t at = blockIdx.x; at < step.cta_count; at += gridDim.x) {
    const uint64_t b = step.cta_blocks[at];
    const DeviceBlock& block = step.blocks[b];
    const uint32_t bits = step.norms[b];
    if (!is_live(bits)) {
      for (uint32_t i = threadIdx.x; i < block.elements; i += blockDim.x)
        store_element(step.dtype, gradient, block.begin + i, fill_of(bits));
      continue;
    }
    const SumValues values = sum_values(step.grid, addend_f32_from_bits(bits), block.size, scale);
    const uint64_t first = first_lane(step, b);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x)
      x[i] = sum_at(carrier, sums, first + i) * values.levels.factor + values.levels.offset;
    if (step.grid.rotates) {
      transform_shared(x, block.size);
      flip_shared(x, block.size, sign_stream(step.seed, block.owner, step.epoch, block.number));
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < block.elements; i += blockDim.x)
      store_element(step.dtype, gradient, block.begin + i, scaled_back(x[i], values.back));
  }
}

// At the end of a sign period what is owed moves to the next period's coordinates.
__device__ __forceinline__ uint64_t old_and_new(const DeviceStep& step, const DeviceBlock& block,
                                                uint32_t word) {
  return addend_random(sign_stream(step.seed, block.owner, step.epoch, block.number), word) ^
         addend_random(sign_stream(step.seed, block.owner, step.epoch + 1, block.number), word);
}

__global__ void __launch_bounds__(kWarpThreads, kWarpCtas)
    turn_warps(const DeviceStep step, float* owed) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t lane = threadIdx.x % kWarp;
  uint8_t* tile = shared + threadIdx.x / kWarp * kTileBytes;
  for (uint64_t at = first_of_warp(); at < step.warp_count; at += warps_in_grid()) {
    const DeviceBlock& block = step.blocks[step.warp_blocks[at]];
    float* values = owed + block.place;
    start_tile(tile, values, lane);
    wait_copies();
    float v[kPerLane];
    read_rows(tile, lane, v);
#pragma unroll
    for (float& x : v)
      x = (0.0f + x) * (1.0f / kWarpBlock);  // as exact as the division
    transform_rows(tile, lane, v, [] {});
    flip_columns(tile, lane, old_and_new(step, block, lane), v);
    columns_to_rows(tile, lane, v);
    transform_rows(tile, lane, v, [] {});
#pragma unroll
    for (uint32_t j = 0; j < kPerLane; ++j)
      values[j * kWarp + lane] = kept(v[j]);
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kCtaThreads)
    turn_ctas(const DeviceStep step, DeviceResidual owed) {
  extern __shared__ __align__(16) float x[];
  for (uint64_t at = blockIdx.x; at < step.cta_count; at += gridDim.x) {
    const uint64_t b = step.cta_blocks[at];
    const DeviceBlock& block = step.blocks[b];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x)
      x[i] = owed_at(owed, block, b, i) / static_cast<float>(block.size);
    transform_shared(x, block.size);
    for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x)
      flip(x[i], static_cast<uint32_t>(old_and_new(step, block, i / 64) >> (i % 64)) << 31);
    transform_shared(x, block.size);
    store_owed(owed, block, b, x);
  }
}

}  // namespace

int launch_decode(const DeviceStep& step, const void* sums, DeviceCarrier carrier,
                  const SumScale& scale, void* gradient, void* stream) {
  const int code = static_cast<DType>(step.dtype) == DType::kF32
                       ? launch_resident<decode_warps<true>, kWarpThreads, kWarpShared>(
                             step.warp_count, stream, step, sums, carrier, scale, gradient)
                       : launch_resident<decode_warps<false>, kWarpThreads, kWarpShared>(
                             step.warp_count, stream, step, sums, carrier, scale, gradient);
  return code != 0 ? code
                   : launch_ctas<decode_ctas>(step, step.cta_count, stream, sums, carrier, scale,
                                              gradient);
}

int launch_turn(const DeviceStep& step, DeviceResidual owed, void* stream) {
  const int code = launch_resident<turn_warps, kWarpThreads, kWarpShared>(
      step.warp_count, stream, step, static_cast<float*>(owed.values));
  return code != 0 ? code : launch_ctas<turn_ctas>(step, step.cta_count, stream, owed);
}

}  // namespace addend::quant
