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

// Elements of a gradient; kF32 etc. are known where a kernel is compiled.
template <DType kType>
struct Element {
  using Word = uint16_t;
};
template <>
struct Element<DType::kF32> {
  using Word = float;
};

template <DType kType>
__device__ __forceinline__ float widen(typename Element<kType>::Word word) {
  if constexpr (kType == DType::kF32) {
    return word;
  } else if constexpr (kType == DType::kBf16) {
    return addend_f32_from_bf16(word);
  } else {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(word));
    return value;
  }
}

template <DType kType>
__device__ __forceinline__ typename Element<kType>::Word narrow(float value) {
  if constexpr (kType == DType::kF32) {
    return value;
  } else if constexpr (kType == DType::kBf16) {
    return addend_bf16_from_f32(value);
  } else {
    return addend_f16_from_f32(value);
  }
}

template <DType kType>
__device__ __forceinline__ float load_element(const void* gradient, uint64_t i) {
  return widen<kType>(static_cast<const typename Element<kType>::Word*>(gradient)[i]);
}

// The same where the type is not worth a kernel of its own.
__device__ inline float load_any(uint8_t dtype, const void* gradient, uint64_t i) {
  return static_cast<DType>(dtype) == DType::kF32    ? load_element<DType::kF32>(gradient, i)
         : static_cast<DType>(dtype) == DType::kBf16 ? load_element<DType::kBf16>(gradient, i)
                                                     : load_element<DType::kF16>(gradient, i);
}

__device__ __forceinline__ bool finite(float x) {
  return (addend_f32_bits(x) & 0x7F800000u) != 0x7F800000u;
}

// What overflows is dropped (Residual::store).
__device__ __forceinline__ float kept(float x) { return finite(x) ? x : 0.0f; }

__device__ __forceinline__ bool is_live(uint32_t norm) { return norm != 0 && norm < kFirstBroken; }

__device__ __forceinline__ uint64_t first_lane(const DeviceStep& step, uint64_t b) {
  return step.survey->all_live != 0 ? step.blocks[b].place : step.lanes[b];
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

  __device__ Rounder(const DeviceStep& step, const DeviceBlock& block, float norm,
                     const float* table)
      : scale(scale_to_table(step.grid, norm)),
        middle(static_cast<float>(step.grid.granularity) / 2),
        top(static_cast<float>(step.grid.granularity)),
        thresholds(table + threshold_place(step.draw.seed, block.threshold_name)) {}
};

struct Rounded {
  DeviceCell cell;
  bool up;
  __device__ __forceinline__ uint32_t code() const { return up ? cell.code_up : cell.code_down; }
  __device__ __forceinline__ float level() const {
    return up ? cell.lower + addend_f32_from_bf16(cell.gap) : cell.lower;
  }
};

__device__ __forceinline__ Rounded round_element(const Rounder& q, const DeviceCell* cells, float x,
                                                 float threshold) {
  const float y = fminf(fmaxf(x * q.scale + q.middle, 0.0f), q.top);
  const uint32_t cell = (addend_f32_bits(y + kToCell) >> kCellShift) & 0xFFu;
  Rounded result;
  const uint2 raw = reinterpret_cast<const uint2*>(cells)[cell];
  memcpy(&result.cell, &raw, sizeof(raw));
  result.up = y - result.cell.lower > threshold * addend_f32_from_bf16(result.cell.gap);
  return result;
}

// ---- A warp and its block ------------------------------------------------------------------
//
// A tile is 8 KB of shared memory, one a warp: rows of 32 floats, whose 16-byte chunks are permuted
// by a key of the row, so that lane l reads rows 2l and 2l + 1 whole, and all lanes together read
// one row, without conflicts between banks. Elements of 16 bits lie in it as rows of 64.

template <uint32_t kBytes>
__device__ __forceinline__ uint32_t tile_at(uint32_t byte) {
  const uint32_t row = byte >> 7;
  return byte ^ (((kBytes == 4 ? row >> 1 : row) & 7u) << 4);
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

__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
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
#pragma unroll
    for (uint32_t at = 0; at < kTotal; at += kWarp * 16)
      copy_async<16>(tile + tile_at<kBytes>(at + lane * 16), from + at + lane * 16);
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

// v = the lane's 64 consecutive elements, of a tile of floats or 16-bit elements.
template <DType kType>
__device__ __forceinline__ void read_rows(const uint8_t* tile, uint32_t lane,
                                          float (&v)[kPerLane]) {
  const uint32_t key = (lane & 7u) << 4;
  if constexpr (kType == DType::kF32) {
#pragma unroll
    for (uint32_t k = 0; k < 16; ++k) {
      const float4 four = *reinterpret_cast<const float4*>(tile + lane * 256 + ((k * 16) ^ key));
      v[4 * k] = four.x, v[4 * k + 1] = four.y, v[4 * k + 2] = four.z, v[4 * k + 3] = four.w;
    }
  } else {
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k) {
      const uint4 eight = *reinterpret_cast<const uint4*>(tile + lane * 128 + ((k * 16) ^ key));
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (uint32_t w = 0; w < 4; ++w) {
        v[8 * k + 2 * w] = widen<kType>(static_cast<uint16_t>(words[w] & 0xFFFFu));
        v[8 * k + 2 * w + 1] = widen<kType>(static_cast<uint16_t>(words[w] >> 16));
      }
    }
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
    flip(v[i], low << (31 - i));
    flip(v[i + 32], high << (31 - i));
  }
}

// From the lane's 64 consecutive elements to elements 32 j + lane, in v[j].
__device__ __forceinline__ void rows_to_columns(uint8_t* tile, uint32_t lane,
                                                float (&v)[kPerLane]) {
  const uint32_t key = (lane & 7u) << 4;
  __syncwarp();
#pragma unroll
  for (uint32_t k = 0; k < 16; ++k) {
    *reinterpret_cast<float4*>(tile + lane * 256 + ((k * 16) ^ key)) =
        make_float4(v[4 * k], v[4 * k + 1], v[4 * k + 2], v[4 * k + 3]);
  }
  __syncwarp();
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j)
    v[j] = *reinterpret_cast<const float*>(tile + tile_at<4>(j * 128 + lane * 4));
  __syncwarp();
}

// And back.
__device__ __forceinline__ void columns_to_rows(uint8_t* tile, uint32_t lane,
                                                float (&v)[kPerLane]) {
  __syncwarp();
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j)
    *reinterpret_cast<float*>(tile + tile_at<4>(j * 128 + lane * 4)) = v[j];
  __syncwarp();
  read_rows<DType::kF32>(tile, lane, v);
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
template <DType kType, typename AfterTile>
__device__ __forceinline__ void rotate_tile(const DeviceStep& step, const DeviceBlock& block,
                                            float prescale, uint8_t* tile, uint32_t lane,
                                            float (&v)[kPerLane], const AfterTile& tile_is_free) {
  read_rows<kType>(tile, lane, v);
  if (prescale != 1) {
#pragma unroll
    for (float& x : v)
      x *= prescale;
  }
  flip_rows(v, addend_random(sign_stream(step.seed, block.owner, step.epoch, block.number), lane));
  transform_rows(tile, lane, v, tile_is_free);
}

// Adds what is owed, elements 32 j + lane. As the scalar code: owed is added to 0, scaled, and
// added.
__device__ __forceinline__ void add_owed(const float* owed, float prescale, uint32_t lane,
                                         float (&v)[kPerLane]) {
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j)
    v[j] += (0.0f + __ldcs(owed + j * kWarp + lane)) * prescale;
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

__device__ inline float owed_at(const DeviceResidual& owed, const DeviceBlock& block, uint64_t b,
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
      z[i] += owed_at(step.owed, block, b, i) * prescale;
  }
  __syncthreads();
}

// Runs `body` with the gradient's type as a constant.
template <typename Body>
int with_type(uint8_t dtype, const Body& body) {
  switch (static_cast<DType>(dtype)) {
    case DType::kF32:
      return body(std::integral_constant<DType, DType::kF32>());
    case DType::kBf16:
      return body(std::integral_constant<DType, DType::kBf16>());
    default:
      return body(std::integral_constant<DType, DType::kF16>());
  }
}

// A kernel's grid where every warp takes the blocks that it can: as many CTAs as run at once.
template <typename Kernel>
int resident_grid(Kernel* kernel, uint32_t threads, uint64_t shared, uint64_t wanted,
                  uint32_t* grid) {
  int device = 0, processors = 0, each = 0;
  if (const auto code = cudaGetDevice(&device)) return code;
  if (const auto code = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device))
    return code;
  if (const auto code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(shared)))
    return code;
  if (const auto code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &each, kernel, static_cast<int>(threads), shared))
    return code;
  const uint64_t most = static_cast<uint64_t>(processors) * static_cast<uint64_t>(each);
  *grid = static_cast<uint32_t>(wanted < most ? wanted : most);
  return 0;
}

// Launches with as many CTAs as run at once, or as are wanted.
template <typename... Parameters, typename... Arguments>
int launch(void (*kernel)(Parameters...), uint32_t threads, uint64_t shared, uint64_t wanted,
           void* stream, const Arguments&... arguments) {
  if (wanted == 0) return 0;
  uint32_t grid = 0;
  if (const int code = resident_grid(kernel, threads, shared, wanted, &grid)) return code;
  kernel<<<grid, threads, shared, static_cast<cudaStream_t>(stream)>>>(arguments...);
  return cudaGetLastError();
}

}  // namespace addend::quant
