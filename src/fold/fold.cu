// SPDX-License-Identifier: Apache-2.0
// Three streams of memory and hardly any arithmetic: 16 bytes a thread where both sides are aligned
// to them, lanes otherwise.
#include <algorithm>
#include <cstring>

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "base/bits.h"
#include "cuda/launch.cuh"
#include "cuda/part.cuh"
#include "fold/fold_kernels.h"
#include "wire/half.h"

namespace addend {
namespace {

constexpr int kThreads = 256;

// Each adds 4 bytes of lanes; `Lane` is what a lane is when one is added alone.
struct SumF32 {
  using Lane = uint32_t;
  __device__ static uint32_t add(uint32_t a, uint32_t b) {
    return __float_as_uint(__fadd_rn(__uint_as_float(a), __uint_as_float(b)));
  }
};
struct SumBf16 {
  using Lane = uint16_t;
  __device__ static uint16_t lane(uint16_t a, uint16_t b) {
    return addend_bf16_from_f32(__fadd_rn(addend_f32_from_bf16(a), addend_f32_from_bf16(b)));
  }
  __device__ static uint32_t add(uint32_t a, uint32_t b) {
    return lane(static_cast<uint16_t>(a), static_cast<uint16_t>(b)) |
           uint32_t{lane(static_cast<uint16_t>(a >> 16), static_cast<uint16_t>(b >> 16))} << 16;
  }
};
struct SumF16 {
  using Lane = uint16_t;
  __device__ static uint16_t lane(uint16_t a, uint16_t b) {
    return __half_as_ushort(__float2half_rn(
        __fadd_rn(__half2float(__ushort_as_half(a)), __half2float(__ushort_as_half(b)))));
  }
  __device__ static uint32_t add(uint32_t a, uint32_t b) {
    return lane(static_cast<uint16_t>(a), static_cast<uint16_t>(b)) |
           uint32_t{lane(static_cast<uint16_t>(a >> 16), static_cast<uint16_t>(b >> 16))} << 16;
  }
};
struct SumI32 {
  using Lane = uint32_t;
  __device__ static uint32_t add(uint32_t a, uint32_t b) { return a + b; }
};
struct SumU8 {
  using Lane = uint8_t;
  __device__ static uint32_t add(uint32_t a, uint32_t b) { return __vadd4(a, b); }
};
struct SumU16 {
  using Lane = uint16_t;
  __device__ static uint32_t add(uint32_t a, uint32_t b) { return __vadd2(a, b); }
};
struct Or {
  using Lane = uint32_t;
  __device__ static uint32_t add(uint32_t a, uint32_t b) { return a | b; }
};
struct MaxU32 {
  using Lane = uint32_t;
  __device__ static uint32_t add(uint32_t a, uint32_t b) { return a > b ? a : b; }
};

template <typename Fold>
__global__ void __launch_bounds__(kThreads)
    fold_vectors(uint4* acc, const uint4* in, uint64_t vectors) {
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors;
       i += uint64_t{gridDim.x} * kThreads) {
    const uint4 a = acc[i], b = __ldcs(in + i);
    acc[i] = {Fold::add(a.x, b.x), Fold::add(a.y, b.y), Fold::add(a.z, b.z), Fold::add(a.w, b.w)};
  }
}

template <typename Fold>
__global__ void __launch_bounds__(kThreads)
    fold_lanes(typename Fold::Lane* acc, const typename Fold::Lane* in, uint64_t lanes) {
  using Lane = typename Fold::Lane;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < lanes;
       i += uint64_t{gridDim.x} * kThreads)
    acc[i] = static_cast<Lane>(Fold::add(acc[i], in[i]));
}

// 64-bit sums carry, so they have a kernel of their own.
__global__ void __launch_bounds__(kThreads)
    sum_i64(uint64_t* acc, const uint64_t* in, uint64_t lanes) {
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < lanes;
       i += uint64_t{gridDim.x} * kThreads)
    acc[i] += __ldcs(in + i);
}

bool aligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % 16 == 0; }

template <typename Kernel, typename... Arguments>
int launch(Kernel kernel, uint64_t threads, void* stream, Arguments... arguments) {
  return cuda::launch(kernel, kThreads, ceil_div(threads, kThreads), stream, arguments...);
}

template <typename Fold>
int fold_as(void* acc, const void* in, uint64_t bytes, void* stream) {
  using Lane = typename Fold::Lane;
  uint64_t done = 0;
  if (aligned(acc) && aligned(in)) {
    done = bytes / 16 * 16;
    if (const int code = launch(fold_vectors<Fold>, done / 16, stream, static_cast<uint4*>(acc),
                                static_cast<const uint4*>(in), done / 16))
      return code;
  }
  return launch(fold_lanes<Fold>, (bytes - done) / sizeof(Lane), stream,
                reinterpret_cast<Lane*>(static_cast<uint8_t*>(acc) + done),
                reinterpret_cast<const Lane*>(static_cast<const uint8_t*>(in) + done),
                (bytes - done) / sizeof(Lane));
}

int fold(Op op, void* acc, const void* in, uint64_t lanes, void* stream) {
  const uint64_t bytes = op_bytes(op, lanes);
  switch (op) {
    case Op::kSumF32:
      return fold_as<SumF32>(acc, in, bytes, stream);
    case Op::kSumBf16:
      return fold_as<SumBf16>(acc, in, bytes, stream);
    case Op::kSumF16:
      return fold_as<SumF16>(acc, in, bytes, stream);
    case Op::kSumI32:
      return fold_as<SumI32>(acc, in, bytes, stream);
    case Op::kSumI64:
      return launch(sum_i64, lanes, stream, static_cast<uint64_t*>(acc),
                    static_cast<const uint64_t*>(in), lanes);
    case Op::kSumU8:
      return fold_as<SumU8>(acc, in, bytes, stream);
    case Op::kSumU16:
      return fold_as<SumU16>(acc, in, bytes, stream);
    case Op::kOrU64:
      return fold_as<Or>(acc, in, bytes, stream);
    case Op::kMaxU32:
      return fold_as<MaxU32>(acc, in, bytes, stream);
    default:  // table sums: below
      break;
  }
  return cudaErrorInvalidValue;
}

// ---- table sums

struct Tables {
  const uint8_t* indices[FoldKernels::kMaxSources];
  uint32_t sources;
  uint32_t u8[4];    // 16 entries
  uint16_t u16[16];  // likewise
};

/// Bytes of two registers, by four bits each: the fourth takes the sign of the byte instead, eight
/// times.
__device__ inline uint32_t pick(uint32_t low, uint32_t high, uint32_t nibbles) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(nibbles));
  return bytes;
}

/// The entries of the four nibbles in the low half.
__device__ inline uint32_t look_up(const Tables& t, uint32_t nibbles) {
  const uint32_t low = pick(t.u8[0], t.u8[1], nibbles & 0x7777u);
  const uint32_t high = pick(t.u8[2], t.u8[3], nibbles & 0x7777u);
  const uint32_t mask = pick(0xFF00u, 0, nibbles >> 3 & 0x1111u);
  return (low & ~mask) | (high & mask);
}

/// Four sums of bytes that wrap: what every other one carries has a byte to go to.
class WrappingSums {
 public:
  __device__ void add(const Tables& t, uint32_t nibbles) {
    const uint32_t bytes = look_up(t, nibbles);
    even_ += bytes & kEven, odd_ += (bytes & ~kEven) >> 8;
  }
  __device__ uint32_t bytes() const { return (even_ & kEven) | (odd_ & kEven) << 8; }

 private:
  static constexpr uint32_t kEven = 0x00FF00FFu;
  uint32_t even_ = 0, odd_ = 0;
};
static_assert(FoldKernels::kMaxSources < 256);

/// Four sums of bytes that stay below 256, of entries below 128: what one half of the table says of
/// nibbles of the other is zero, so both are added.
class FittingSums {
 public:
  __device__ void add(const Tables& t, uint32_t nibbles) {
    bytes_ += pick(t.u8[0], t.u8[1], nibbles) + pick(t.u8[2], t.u8[3], nibbles ^ 0x8888u);
  }
  __device__ uint32_t bytes() const { return bytes_; }

 private:
  uint32_t bytes_ = 0;
};

template <typename Sums>
__global__ void __launch_bounds__(kThreads)
    table_vectors_u8(Tables t, uint4* acc, uint64_t vectors) {
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors;
       i += uint64_t{gridDim.x} * kThreads) {
    const uint4 before = acc[i];
    uint2 in[FoldKernels::kMaxSources];
#pragma unroll
    for (uint32_t s = 0; s < FoldKernels::kMaxSources; ++s) {
      if (s < t.sources) in[s] = __ldcs(reinterpret_cast<const uint2*>(t.indices[s]) + i);
    }
    Sums sums[4];
#pragma unroll
    for (uint32_t s = 0; s < FoldKernels::kMaxSources; ++s) {
      if (s >= t.sources) break;
      sums[0].add(t, in[s].x);
      sums[1].add(t, in[s].x >> 16);
      sums[2].add(t, in[s].y);
      sums[3].add(t, in[s].y >> 16);
    }
    acc[i] = {__vadd4(before.x, sums[0].bytes()), __vadd4(before.y, sums[1].bytes()),
              __vadd4(before.z, sums[2].bytes()), __vadd4(before.w, sums[3].bytes())};
  }
}

/// Whether entries of so many sources add up to bytes, which a sum of levels does.
bool fits(const Tables& t) {
  uint32_t most = 0;
  for (uint32_t k = 0; k < 16; ++k)
    most = std::max(most, t.u8[k / 4] >> k % 4 * 8 & 0xFF);
  return most < 128 && most * t.sources < 256;
}

template <typename Lane>
__global__ void __launch_bounds__(kThreads)
    table_lanes(Tables t, Lane* acc, uint64_t first, uint64_t lanes) {
  __shared__ Lane entries[16];
  if (threadIdx.x < 16) {
    if constexpr (sizeof(Lane) == 1)
      entries[threadIdx.x] = static_cast<Lane>(t.u8[threadIdx.x / 4] >> threadIdx.x % 4 * 8);
    else
      entries[threadIdx.x] = t.u16[threadIdx.x];
  }
  __syncthreads();
  for (uint64_t i = first + uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < lanes;
       i += uint64_t{gridDim.x} * kThreads) {
    Lane sum = acc[i];
    for (uint32_t s = 0; s < t.sources; ++s)
      sum = static_cast<Lane>(sum + entries[t.indices[s][i / 2] >> i % 2 * 4 & 15]);
    acc[i] = sum;
  }
}

int fold_tables(Op op, void* acc, const uint8_t* const* indices, uint32_t sources,
                const void* table, uint64_t lanes, void* stream) {
  if (sources > FoldKernels::kMaxSources || !is_table_sum(op) || is_narrow_sum(op))
    return cudaErrorInvalidValue;
  Tables t{};
  t.sources = sources;
  bool vectors = op == Op::kTableSumU8 && aligned(acc);
  for (uint32_t s = 0; s < sources; ++s) {
    t.indices[s] = indices[s];
    vectors = vectors && reinterpret_cast<uintptr_t>(indices[s]) % 8 == 0;
  }
  if (op == Op::kTableSumU16) {
    std::memcpy(t.u16, table, sizeof(t.u16));
    return launch(table_lanes<uint16_t>, lanes, stream, t, static_cast<uint16_t*>(acc), uint64_t{0},
                  lanes);
  }
  std::memcpy(t.u8, table, sizeof(t.u8));
  const uint64_t done = vectors ? lanes / 16 * 16 : 0;
  if (const int code =
          launch(fits(t) ? table_vectors_u8<FittingSums> : table_vectors_u8<WrappingSums>,
                 done / 16, stream, t, static_cast<uint4*>(acc), done / 16))
    return code;
  return launch(table_lanes<uint8_t>, lanes - done, stream, t, static_cast<uint8_t*>(acc), done,
                lanes);
}

constexpr FoldKernels kKernels{fold, fold_tables};

}  // namespace

ADDEND_CUDA_PART(FoldKernels, kKernels);

}  // namespace addend
