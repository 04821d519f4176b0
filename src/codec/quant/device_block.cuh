// SPDX-License-Identifier: Apache-2.0
// Parts that all kernels of quant share: elements, rounding, and how a warp rotates a block of 2048
// in registers. Files that include this are compiled with -fmad=false: sums and products are
// rounded one by one, as on a CPU.
#pragma once

#include <cuda_runtime.h>

#include "addend/plane.h"
#include "codec/quant/quant_kernels.h"
#include "wire/half.h"

namespace addend::quant {

inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kAll = 0xFFFFFFFFu;
inline constexpr uint32_t kPerLane = kWarpBlock / kWarp;
inline constexpr uint32_t kTileBytes = kWarpBlock * 4;

__device__ __forceinline__ float widen_f16(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}

// An element of a type that is known where a kernel is compiled.
template <DType kType>
__device__ __forceinline__ float load_element(const void* gradient, uint64_t i) {
  if constexpr (kType == DType::kF32) {
    return static_cast<const float*>(gradient)[i];
  } else {
    const uint16_t half = static_cast<const uint16_t*>(gradient)[i];
    return kType == DType::kBf16 ? addend_f32_from_bf16(half) : widen_f16(half);
  }
}

// The same where the type is not worth a kernel of its own.
__device__ inline float load_any(uint8_t dtype, const void* gradient, uint64_t i) {
  return static_cast<DType>(dtype) == DType::kF32    ? load_element<DType::kF32>(gradient, i)
         : static_cast<DType>(dtype) == DType::kBf16 ? load_element<DType::kBf16>(gradient, i)
                                                     : load_element<DType::kF16>(gradient, i);
}

__device__ __forceinline__ bool finite(float x) { return fabsf(x) < INFINITY; }

// What overflows is dropped (Residual::store).
__device__ __forceinline__ float kept(float x) { return finite(x) ? x : 0.0f; }

__device__ __forceinline__ bool is_live(uint32_t norm) { return norm != 0 && norm < kFirstBroken; }

__device__ __forceinline__ uint64_t first_lane(const DeviceStep& step, uint64_t b) {
  return step.survey->all_live != 0 ? step.parts[b].place : step.lanes[b];
}

// What a norm lane says, out of a norm in double.
__device__ __forceinline__ uint32_t lane_of_norm(double norm) {
  if (!(norm <= 3.4028234663852886e38)) return kBroken;
  return addend_f32_bits(static_cast<float>(norm));
}

// A block's part in rounding.
struct Rounder {
  float scale, middle, top;
  const float* thresholds;

  __device__ __forceinline__ Rounder(const DeviceStep& step, const BlockPart& part,
                                     const float* table)
      : scale(part.scale),
        middle(static_cast<float>(step.grid.granularity) / 2),
        top(static_cast<float>(step.grid.granularity)),
        thresholds(table + part.threshold) {}
};

// What became of an element: its cell, as it lies in memory, and the way it was rounded.
struct Rounded {
  uint2 cell;
  bool up;
  __device__ __forceinline__ float lower() const { return addend_f32_from_bits(cell.x); }
  __device__ __forceinline__ float gap() const {
    return addend_f32_from_bits(cell.y & 0xFFFF0000u);
  }
  __device__ __forceinline__ float level() const { return up ? lower() + gap() : lower(); }
  __device__ __forceinline__ uint32_t code() const { return (up ? cell.y >> 8 : cell.y) & 0xFFu; }
  // `word` with the code as its byte k.
  template <uint32_t kByte>
  __device__ __forceinline__ uint32_t code_in(uint32_t word) const {
    constexpr uint32_t kOthers = 0x3210u & ~(0xFu << 4 * kByte);
    return __byte_perm(word, cell.y, up ? kOthers | 5u << 4 * kByte : kOthers | 4u << 4 * kByte);
  }
};

__device__ __forceinline__ Rounded round_element(const Rounder& q, const DeviceCell* cells, float x,
                                                 float threshold) {
  const float y = fminf(fmaxf(x * q.scale + q.middle, 0.0f), q.top);
  const uint32_t cell = (addend_f32_bits(y + kToCell) >> kCellShift) & 0xFFu;
  Rounded result;
  result.cell = reinterpret_cast<const uint2*>(cells)[cell];
  result.up = y - result.lower() > threshold * result.gap();
  return result;
}

// ---- A warp and its block ------------------------------------------------------------------
//
// A tile is 8 KB of shared memory, one a warp: rows of 32 floats, whose 16-byte chunks are permuted
// by a key of the row, so that lane l reads rows 2l and 2l + 1 whole, and all lanes together read
// one row, without conflicts between banks. Elements of 16 bits lie in it as rows of 64.

template <uint32_t kBytes>
__device__ __forceinline__ constexpr uint32_t tile_key(uint32_t byte) {
  const uint32_t row = byte >> 7;
  return ((kBytes == 4 ? row >> 1 : row) & 7u) << 4;
}
template <uint32_t kBytes>
__device__ __forceinline__ uint32_t tile_at(uint32_t byte) {
  return byte ^ tile_key<kBytes>(byte);
}

template <uint32_t kCopy>
__device__ __forceinline__ void copy_async(uint8_t* to, const uint8_t* from) {
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kCopy == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(from) : "memory");
  }
}

// Copies that were started since the last call belong together.
__device__ __forceinline__ void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits for all copies but those of the last kPending calls of end_copies.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  __syncwarp();
}

// Starts copying the block's elements, wherever they are aligned to.
template <typename Word>
__device__ __forceinline__ void start_tile(uint8_t* tile, const Word* elements, uint32_t lane) {
  constexpr uint32_t kBytes = sizeof(Word);
  constexpr uint32_t kTotal = kWarpBlock * kBytes;
  const auto* from = reinterpret_cast<const uint8_t*>(elements);
  const auto address = reinterpret_cast<uintptr_t>(from);
  if (address % 16 == 0) {
    // As tile_at, whose keys of the two addends are of different bits; few are to be computed.
    const uint32_t mine = tile_at<kBytes>(lane * 16);
#pragma unroll
    for (uint32_t at = 0; at < kTotal; at += kWarp * 16)
      copy_async<16>(tile + (mine ^ tile_key<kBytes>(at)) + at, from + at + lane * 16);
  } else if (address % 4 == 0) {
    for (uint32_t at = lane * 4; at < kTotal; at += kWarp * 4)
      copy_async<4>(tile + tile_at<kBytes>(at), from + at);
  } else {
    for (uint32_t at = lane * 2; at < kTotal; at += kWarp * 2)
      *reinterpret_cast<uint16_t*>(tile + tile_at<kBytes>(at)) =
          *reinterpret_cast<const uint16_t*>(from + at);
  }
}

template <uint32_t kFirst, uint32_t kLast>
__device__ __forceinline__ void butterflies(float (&v)[kPerLane]) {
#pragma unroll
  for (uint32_t h = kFirst; h <= kLast; h *= 2) {
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; ++i) {
      if ((i & h) != 0) continue;
      const float a = v[i], b = v[i + h];
      v[i] = a + b;
      v[i + h] = a - b;
    }
  }
}

// v = the lane's 64 consecutive elements, of a tile of floats.
__device__ __forceinline__ void read_rows(const uint8_t* tile, uint32_t lane,
                                          float (&v)[kPerLane]) {
  const uint32_t key = (lane & 7u) << 4;
#pragma unroll
  for (uint32_t k = 0; k < 16; ++k) {
    const float4 four =
        *reinterpret_cast<const float4*>(tile + lane * 256 + ((k % 8 * 16) ^ key) + k / 8 * 128);
    v[4 * k] = four.x, v[4 * k + 1] = four.y, v[4 * k + 2] = four.z, v[4 * k + 3] = four.w;
  }
}

// The same of a tile of 16-bit elements.
template <typename Widen>
__device__ __forceinline__ void read_half_rows(const uint8_t* tile, uint32_t lane,
                                               const Widen& widen, float (&v)[kPerLane]) {
  const uint32_t key = (lane & 7u) << 4;
#pragma unroll
  for (uint32_t k = 0; k < 8; ++k) {
    const uint4 eight = *reinterpret_cast<const uint4*>(tile + lane * 128 + ((k * 16) ^ key));
    const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (uint32_t w = 0; w < 4; ++w) {
      v[8 * k + 2 * w] = widen(static_cast<uint16_t>(words[w] & 0xFFFFu));
      v[8 * k + 2 * w + 1] = widen(static_cast<uint16_t>(words[w] >> 16));
    }
  }
}

template <typename Word>
__device__ __forceinline__ void read_elements(const uint8_t* tile, uint32_t lane, uint8_t dtype,
                                              float (&v)[kPerLane]) {
  if constexpr (sizeof(Word) == 4) {
    read_rows(tile, lane, v);
  } else if (static_cast<DType>(dtype) == DType::kBf16) {
    read_half_rows(
        tile, lane, [](uint16_t half) { return addend_f32_from_bf16(half); }, v);
  } else {
    read_half_rows(
        tile, lane, [](uint16_t half) { return widen_f16(half); }, v);
  }
}

__device__ __forceinline__ void flip(float& x, uint32_t sign_bit_31) {
  x = addend_f32_from_bits(addend_f32_bits(x) ^ (sign_bit_31 & 0x80000000u));
}

// Negates the lane's 64 consecutive elements where bits of its word are set.
__device__ __forceinline__ void flip_rows(float (&v)[kPerLane], uint64_t word) {
  const auto low = static_cast<uint32_t>(word), high = static_cast<uint32_t>(word >> 32);
#pragma unroll
  for (uint32_t i = 0; i < 32; ++i) {
    if ((low >> i & 1) != 0) v[i] = -v[i];
  }
#pragma unroll
  for (uint32_t i = 0; i < 32; ++i) {
    if ((high >> i & 1) != 0) v[i + 32] = -v[i + 32];
  }
}

// From the lane's 64 consecutive elements to elements 32 j + lane, in v[j].
__device__ __forceinline__ void rows_to_columns(uint8_t* tile, uint32_t lane,
                                                float (&v)[kPerLane]) {
  const uint32_t key = (lane & 7u) << 4;
  __syncwarp();
#pragma unroll
  for (uint32_t k = 0; k < 16; ++k) {
    *reinterpret_cast<float4*>(tile + lane * 256 + ((k % 8 * 16) ^ key) + k / 8 * 128) =
        make_float4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
  }
  __syncwarp();
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j)
    v[j] = *reinterpret_cast<const float*>(tile + ((lane * 4) ^ tile_key<4>(j * 128)) + j * 128);
  __syncwarp();
}

// And back.
__device__ __forceinline__ void columns_to_rows(uint8_t* tile, uint32_t lane,
                                                float (&v)[kPerLane]) {
  __syncwarp();
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j)
    *reinterpret_cast<float*>(tile + ((lane * 4) ^ tile_key<4>(j * 128)) + j * 128) = v[j];
  __syncwarp();
  read_rows(tile, lane, v);
}

// The transform of 64 consecutive elements a lane, to elements 32 j + lane; stages in order, as the
// reference has them: 1 to 32 before the change of places, 64 to 1024 after it.
template <typename AfterTile>
__device__ __forceinline__ void transform_rows(uint8_t* tile, uint32_t lane, float (&v)[kPerLane],
                                               const AfterTile& tile_is_free) {
  butterflies<1, 32>(v);
  rows_to_columns(tile, lane, v);
  tile_is_free();
  butterflies<2, 32>(v);
}

// v = the rotated block times prescale, elements 32 j + lane; the tile holds its elements.
template <typename Word, typename AfterTile>
__device__ __forceinline__ void rotate_tile(const DeviceStep& step, uint64_t signs, float prescale,
                                            uint8_t* tile, uint32_t lane, float (&v)[kPerLane],
                                            const AfterTile& tile_is_free) {
  read_elements<Word>(tile, lane, step.dtype, v);
  if (prescale != 1) {
#pragma unroll
    for (float& x : v)
      x *= prescale;
  }
  flip_rows(v, addend_random(signs, lane));
  transform_rows(tile, lane, v, tile_is_free);
}

// How what is owed lies in memory: floats, or bytes and a scale a block.
enum class Owes : uint8_t { kNothing, kFloats, kBytes };
inline constexpr uint32_t kOwedBytes[] = {0, kTileBytes, kWarpBlock};  // of a block

template <Owes kOwes>
inline constexpr uint32_t kOwedTile = kOwedBytes[static_cast<uint32_t>(kOwes)];

__device__ __forceinline__ uint64_t owed_at(Owes owes, uint64_t place) {
  return owes == Owes::kFloats ? place * 4 : place;
}

// Starts copying what a block owes to a tile of its own, as it lies in memory.
template <Owes kOwes>
__device__ __forceinline__ void start_owed(uint8_t* tile, const DeviceResidual& owed,
                                           uint64_t place, uint32_t lane) {
  const auto* from = static_cast<const uint8_t*>(owed.values) + owed_at(kOwes, place);
#pragma unroll
  for (uint32_t k = 0; k < kOwedTile<kOwes> / (kWarp * 16); ++k) {
    const uint32_t at = (k * kWarp + lane) * 16;
    copy_async<16>(tile + at, from + at);
  }
}

// Adds it to elements 32 j + lane. As the scalar code: owed is added to 0, scaled, and added.
template <Owes kOwes>
__device__ __forceinline__ void add_owed(const uint8_t* tile, float scale, float prescale,
                                         uint32_t lane, float (&v)[kPerLane]) {
  const auto at = [&](uint32_t j) {
    if constexpr (kOwes == Owes::kFloats) {
      return 0.0f + reinterpret_cast<const float*>(tile)[j * kWarp + lane];
    } else {
      // A byte with its sign flipped, in the low bits of 2^23, is 2^23 + 128 plus that byte.
      const uint32_t byte = tile[j * kWarp + lane];
      return 0.0f + (addend_f32_from_bits(byte ^ 0x4B000080u) - 8388736.0f) * scale;
    }
  };
  if (prescale == 1) {
#pragma unroll
    for (uint32_t j = 0; j < kPerLane; ++j)
      v[j] += at(j);
  } else {
#pragma unroll
    for (uint32_t j = 0; j < kPerLane; ++j)
      v[j] += at(j) * prescale;
  }
  __syncwarp();
}

// The energy of elements square(j) = the square of element 32 j + lane, in the sixteen running sums
// of the reference: sum l takes its elements from lanes l and l + 16 in turn.
template <uint32_t kAtOnce = kPerLane, typename Square>
__device__ __forceinline__ float column_energy(const Square& square) {
  float sum = 0;
#pragma unroll kAtOnce
  for (uint32_t j = 0; j < kPerLane; ++j) {
    const float mine = square(j);
    const float other = __shfl_xor_sync(kAll, mine, kLanes);
    sum = (sum + mine) + other;
  }
#pragma unroll
  for (uint32_t half = kLanes / 2; half > 0; half /= 2)
    sum += __shfl_down_sync(kAll, sum, half);
  return __shfl_sync(kAll, sum, 0);
}

// Blocks of a launch: block, then the one that this warp has next. Neighbours go to different CTAs,
// so that a small bucket uses all of the device.
__device__ __forceinline__ uint64_t first_of_warp() {
  return blockIdx.x + uint64_t{gridDim.x} * (threadIdx.x / kWarp);
}
__device__ __forceinline__ uint64_t warps_in_grid() {
  return uint64_t{gridDim.x} * (blockDim.x / kWarp);
}

// ---- A CTA and its block -------------------------------------------------------------------

// The transform in shared memory.
__device__ inline void transform_shared(float* x, uint32_t n) {
  __syncthreads();
  for (uint32_t h = 1; h < n; h *= 2) {
    for (uint32_t p = threadIdx.x; p < n / 2; p += blockDim.x) {
      const uint32_t i = ((p & ~(h - 1)) << 1) | (p & (h - 1));
      const float a = x[i], b = x[i + h];
      x[i] = a + b;
      x[i + h] = a - b;
    }
    __syncthreads();
  }
}

// Negates element i of n where bit i of the stream is set.
__device__ inline void flip_shared(float* x, uint32_t n, uint64_t stream) {
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
    const uint64_t word = addend_random(stream, i / 64);
    flip(x[i], static_cast<uint32_t>(word >> (i % 64)) << 31);
  }
}

__device__ inline float owed_value(const DeviceResidual& owed, const DeviceBlock& block, uint64_t b,
                                   uint32_t i) {
  if (owed.scales == nullptr) return 0.0f + static_cast<const float*>(owed.values)[block.place + i];
  const auto byte = static_cast<const int8_t*>(owed.values)[block.place + i];
  return 0.0f + static_cast<float>(byte) * owed.scales[b];
}

// z = rotation of the block's elements times prescale, plus what is owed; all threads of the CTA.
__device__ inline void load_shared(const DeviceStep& step, uint64_t b, float prescale, float* z) {
  const DeviceBlock& block = step.blocks[b];
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x) {
    z[i] = i < block.elements ? load_any(step.dtype, step.gradient, block.begin + i) * prescale : 0;
  }
  if (step.grid.rotates) {
    flip_shared(z, block.size, sign_stream(step.seed, block.owner, step.epoch, block.number));
    transform_shared(z, block.size);
  }
  if (step.owed.values != nullptr) {
    for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x)
      z[i] += owed_value(step.owed, block, b, i) * prescale;
  }
  __syncthreads();
}

}  // namespace addend::quant
