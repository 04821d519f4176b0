// SPDX-License-Identifier: Apache-2.0
// The end of a step on a device: decoding the sums, and turning what is owed to new signs.
#include "codec/quant/device_block.cuh"
#include "codec/quant/quant_launch.cuh"

namespace addend::quant {
namespace {

constexpr uint32_t kWarpThreads = 128;
constexpr uint32_t kWarpCtas = 4;  // at once on a multiprocessor: 128 registers a thread; 96 spill
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

// Two numbers, neither of them NaN, in a 16-bit type.
__device__ __forceinline__ uint32_t narrowed_pair(uint8_t dtype, float low, float high) {
  uint32_t pair;
  if (static_cast<DType>(dtype) == DType::kBf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// Elements 32 j + lane of a 16-bit type. Of two rows a lane has one number each; neighbours
// exchange one, and store two of one row.
__device__ __forceinline__ void store_half_columns(uint8_t dtype, uint16_t* block, uint32_t lane,
                                                   const float (&v)[kPerLane]) {
  bool plain = reinterpret_cast<uintptr_t>(block) % 4 == 0;
#pragma unroll
  for (const float x : v)
    plain = plain && x == x;
  if (!__all_sync(kAll, plain)) {
#pragma unroll
    for (uint32_t j = 0; j < kPerLane; ++j)
      block[j * kWarp + lane] = narrowed(dtype, v[j]);
    return;
  }
  const uint32_t odd = lane & 1u, select = odd != 0 ? 0x3276u : 0x5410u;
  auto* to = reinterpret_cast<uint32_t*>(block) + odd * (kWarp / 2) + lane / 2;
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; j += 2) {
    const uint32_t mine = narrowed_pair(dtype, v[j], v[j + 1]);
    const uint32_t other = __shfl_xor_sync(kAll, mine, 1);
    __stcs(to + j * (kWarp / 2), __byte_perm(mine, other, select));
  }
}

// What a warp has to know of a block that it decodes. Lane l finds out about the l-th block that
// its warp has next, for 32 blocks at once.
struct Ahead {
  uint64_t begin = 0, first = 0, signs = 0;
  SumValues values;
  uint32_t norm = 0;
};
constexpr SharedBytes kDecodeShared = {0, kTileBytes + kWarp * sizeof(Ahead)};

__device__ __forceinline__ Ahead look_ahead(const DeviceStep& step, const SumScale& scale,
                                            uint64_t at) {
  Ahead block;
  if (at >= step.warp_count) return block;
  const uint32_t b = step.warp_blocks[at];
  const BlockPart& part = step.parts[b];
  block.begin = part.begin;
  block.signs = part.signs;
  block.norm = step.norms[b];
  if (!is_live(block.norm)) return block;
  block.first = first_lane(step, b);
  block.values = sum_values(step.grid, addend_f32_from_bits(block.norm), kWarpBlock, scale);
  return block;
}

template <bool kWide>
__device__ __forceinline__ void decode_block(const DeviceStep& step, const void* sums,
                                             DeviceCarrier carrier, const Ahead& block,
                                             void* gradient, uint8_t* tile, uint32_t lane) {
  float v[kPerLane];
  const uint64_t first = block.first + lane * kPerLane;
  if (carrier == DeviceCarrier::kU8) {
    read_sums<1>(sums, first, v);
  } else if (carrier == DeviceCarrier::kU16) {
    read_sums<2>(sums, first, v);
  } else {
    read_sums<4>(sums, first, v);
  }
#pragma unroll
  for (float& x : v)
    x = x * block.values.levels.factor + block.values.levels.offset;
  transform_rows(tile, lane, v, [] {});
  flip_columns(tile, lane, addend_random(block.signs, lane), v);
  if (block.values.back != 1) {
#pragma unroll
    for (float& x : v)
      x = scaled_back(x, block.values.back);
  }
  if constexpr (kWide) {
    float* to = static_cast<float*>(gradient) + block.begin + lane;
#pragma unroll
    for (uint32_t j = 0; j < kPerLane; ++j)
      __stcs(to + j * kWarp, v[j]);
  } else {
    store_half_columns(step.dtype, static_cast<uint16_t*>(gradient) + block.begin, lane, v);
  }
}

/// Whether sums may be those of so many workers, which are then in `scale`: as
/// QuantPlan::take_contributors.
__device__ __forceinline__ bool take_count(const DeviceCount& count, SumScale& scale) {
  if (count.counted == nullptr) return true;
  const uint32_t n = *count.counted;
  scale.contributors = n;
  return n > 0 && n <= scale.world && (count.expected == 0 || n == count.expected);
}

template <bool kWide>
__global__ void __launch_bounds__(kWarpThreads, kWarpCtas)
    decode_warps(const DeviceStep step, const void* sums, DeviceCarrier carrier, SumScale scale,
                 const DeviceCount count, void* gradient) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t lane = threadIdx.x % kWarp;
  uint8_t* tile = shared + threadIdx.x / kWarp * kDecodeShared.warp;
  auto* ahead = reinterpret_cast<Ahead*>(tile + kTileBytes);
  if (!take_count(count, scale)) return;
  uint32_t k = 0;
  for (uint64_t at = first_of_warp(); at < step.warp_count; at += warps_in_grid(), ++k) {
    if (k % kWarp == 0) {
      __syncwarp();
      ahead[lane] = look_ahead(step, scale, at + lane * warps_in_grid());
      __syncwarp();
    }
    const Ahead& block = ahead[k % kWarp];
    if (is_live(block.norm)) {
      decode_block<kWide>(step, sums, carrier, block, gradient, tile, lane);
      continue;
    }
    for (uint32_t i = lane; i < kWarpBlock; i += kWarp)
      store_element(step.dtype, gradient, block.begin + i, fill_of(block.norm));
  }
}

__global__ void __launch_bounds__(kCtaThreads)
    decode_ctas(const DeviceStep step, const void* sums, DeviceCarrier carrier, SumScale scale,
                const DeviceCount count, void* gradient) {
  extern __shared__ __align__(16) float x[];
  if (!take_count(count, scale)) return;
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
    end_copies();
    wait_copies<0>();
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
    turn_ctas(const DeviceStep step, DeviceResidual owed, const uint32_t* blocks, uint64_t count) {
  extern __shared__ __align__(16) float x[];
  for (uint64_t at = blockIdx.x; at < count; at += gridDim.x) {
    const uint64_t b = blocks[at];
    const DeviceBlock& block = step.blocks[b];
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x)
      x[i] = owed_value(owed, block, b, i) / static_cast<float>(block.size);
    transform_shared(x, block.size);
    for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x)
      flip(x[i], static_cast<uint32_t>(old_and_new(step, block, i / 64) >> (i % 64)) << 31);
    transform_shared(x, block.size);
    store_owed(owed, block, b, x);
  }
}

}  // namespace

int launch_decode(const DeviceStep& step, const void* sums, DeviceCarrier carrier,
                  const SumScale& scale, DeviceCount count, void* gradient, void* stream) {
  const int code = static_cast<DType>(step.dtype) == DType::kF32
                       ? launch_resident<decode_warps<true>, kWarpThreads, kDecodeShared>(
                             step.warp_count, stream, step, sums, carrier, scale, count, gradient)
                       : launch_resident<decode_warps<false>, kWarpThreads, kDecodeShared>(
                             step.warp_count, stream, step, sums, carrier, scale, count, gradient);
  return code != 0 ? code
                   : launch_ctas<decode_ctas>(step, step.cta_count, stream, sums, carrier, scale,
                                              count, gradient);
}

// Bytes are turned rarely enough to take the slow way.
int launch_turn(const DeviceStep& step, DeviceResidual owed, void* stream) {
  const int code = owed.scales == nullptr
                       ? launch_resident<turn_warps, kWarpThreads, kWarpShared>(
                             step.warp_count, stream, step, static_cast<float*>(owed.values))
                       : launch_ctas<turn_ctas>(step, step.warp_count, stream, owed,
                                                step.warp_blocks, step.warp_count);
  return code != 0 ? code
                   : launch_ctas<turn_ctas>(step, step.cta_count, stream, owed, step.cta_blocks,
                                            step.cta_count);
}

}  // namespace addend::quant
