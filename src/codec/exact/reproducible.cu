// SPDX-License-Identifier: Apache-2.0
// Values as integers and back; the arithmetic is that of ranges.h and fixed.h. A warp has a block
// of 1024 positions.
#include <cuda_runtime.h>

#include "codec/exact/reproducible_kernels.h"
#include "codec/index/element.cuh"
#include "codec/index/tile.cuh"
#include "cuda/launch.cuh"
#include "cuda/part.cuh"

namespace addend::exact {
namespace {

using index::as_element;
using index::as_float;
using index::Element;
using index::kAll;
using index::kSumThreads;
using index::ones;
using index::sum_in_block;

constexpr int kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;

// ---- measure

/// The elements of a block that may not be zero.
template <typename T>
struct BlockElements {
  const T* from;
  uint32_t count;
};

/// From the slot of the block's tile, or the gradient where it holds nothing.
template <typename T>
__device__ inline BlockElements<T> elements_of(const MeasureCall& c, uint64_t b) {
  constexpr uint32_t kBlocks = index::Tile<T>::kElements / kRangeBlock;  // of a tile
  const uint64_t rest = c.count - b * kRangeBlock;
  const BlockElements<T> all{static_cast<const T*>(c.gradient) + b * kRangeBlock,
                             static_cast<uint32_t>(rest < kRangeBlock ? rest : kRangeBlock)};
  if (c.bitmap == nullptr) return all;
  const auto* words = reinterpret_cast<const uint32_t*>(c.bitmap) + b / kBlocks * kBlocks * 32;
  uint32_t own = 0, before = 0, total = 0;
#pragma unroll
  for (uint32_t k = 0; k < kBlocks; ++k) {
    const uint32_t found = __reduce_add_sync(kAll, ones(words[k * 32 + threadIdx.x % 32]));
    before += k < b % kBlocks ? found : 0;
    own = k == b % kBlocks ? found : own;
    total += found;
  }
  if (total > index::Tile<T>::kSlot) return all;
  const T* slot = static_cast<const T*>(c.kept) + b / kBlocks * index::Tile<T>::kSlot;
  return {slot + before, own};
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) measure_kernel(MeasureCall c) {
  constexpr uint32_t kAtOnce = 8;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint64_t blocks = ceil_div(c.count, kRangeBlock);
  for (uint64_t b = uint64_t{blockIdx.x} * kWarps + warp; b < blocks;
       b += uint64_t{gridDim.x} * kWarps) {
    const BlockElements<Element<kType>> block = elements_of<Element<kType>>(c, b);
    BitRange range;
    for (uint32_t first = lane; first < block.count; first += 32 * kAtOnce) {
      Element<kType> bits[kAtOnce];
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k)
        bits[k] = first + 32 * k < block.count ? block.from[first + 32 * k] : Element<kType>{0};
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k)
        range.include(as_float<kType>(bits[k]));
    }
    // As numbers without a sign, so that the largest is found by the same instruction.
    constexpr int kOffset = 256;
    const uint32_t top = __reduce_max_sync(kAll, static_cast<uint32_t>(range.top + kOffset));
    const uint32_t low = __reduce_min_sync(kAll, static_cast<uint32_t>(range.low + kOffset));
    range.non_finite = __any_sync(kAll, range.non_finite) != 0;
    range.top = static_cast<int>(top) - kOffset;
    range.low = static_cast<int>(low) - kOffset;
    if (lane == 0) write_range(range, c.lanes + b * kRangeLanes);
  }
}

// ---- count

/// The sums of the threads before this one, and of all.
__device__ inline RangeSums sums_in_block(const RangeSums& own, RangeSums* total) {
  RangeSums before{};
  before.values = sum_in_block(own.values, &total->values) - own.values;
  __syncthreads();
  before.narrow = sum_in_block(own.narrow, &total->narrow) - own.narrow;
  __syncthreads();
  before.wide = sum_in_block(own.wide, &total->wide) - own.wide;
  __syncthreads();
  before.escaped = sum_in_block(own.escaped, &total->escaped) - own.escaped;
  __syncthreads();
  return before;
}

__device__ inline void add(RangeSums& to, const RangeSums& sums) {
  to.values += sums.values;
  to.narrow += sums.narrow;
  to.wide += sums.wide;
  to.escaped += sums.escaped;
}

__device__ inline RangeSums load_sums(const RangeSums* from) {
  return {__ldcg(&from->values), __ldcg(&from->narrow), __ldcg(&from->wide),
          __ldcg(&from->escaped)};
}

/// The groups' sums become what lies before each; by one CTA, once.
__device__ inline RangeSums number_groups(RangeSums* groups, uint64_t count) {
  const uint64_t each = ceil_div(count, uint64_t{kSumThreads}), first = threadIdx.x * each;
  const uint64_t last = first + each < count ? first + each : count;
  RangeSums own{}, total{};
  for (uint64_t g = first; g < last; ++g)
    add(own, load_sums(groups + g));
  RangeSums before = sums_in_block(own, &total);
  for (uint64_t g = first; g < last; ++g) {
    const RangeSums size = load_sums(groups + g);
    groups[g] = before;
    add(before, size);
  }
  return total;
}

__device__ inline uint32_t bits_in_block(const RangeCall& c, uint64_t b) {
  constexpr uint64_t kWords = kRangeBlock / 64;
  const uint64_t words = words_for(c.count);
  uint32_t bits = 0;
#pragma unroll
  for (uint64_t k = 0; k < kWords; ++k) {
    const uint64_t w = b * kWords + k;
    bits += w < words ? ones(c.bitmap[w]) : 0;
  }
  return bits;
}

__global__ void __launch_bounds__(kSumThreads)
    count_kernel(RangeCall c, cuda::Mail* mail, uint64_t sequence) {
  static_assert(kRangeGroup == kSumThreads);
  __shared__ bool is_last;
  const uint64_t b = uint64_t{blockIdx.x} * kRangeGroup + threadIdx.x;
  const bool is_block = b < ceil_div(c.count, kRangeBlock);
  RangeSums own{}, total{};
  if (is_block) {
    const BlockFormat format = block_format(c.lanes + b * kRangeLanes, c.rules);
    const uint32_t words = format.fixed.words();
    own.values = bits_in_block(c, b);
    own.narrow = format.narrow ? own.values : 0;
    own.wide = format.narrow ? 0 : own.values * words;
    own.escaped = !format.narrow && words > 1 ? own.values : 0;
    c.blocks[b] = {static_cast<int16_t>(format.fixed.quantum),
                   static_cast<uint8_t>(format.fixed.digits), format.fixed.special, format.narrow,
                   static_cast<uint32_t>(own.values)};
  }
  const RangeSums before = sums_in_block(own, &total);
  if (is_block) c.before[b] = before;
  if (threadIdx.x == 0) {
    c.groups[blockIdx.x] = total;
    __threadfence();
    is_last = atomicAdd(c.tickets, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const RangeSums all = number_groups(c.groups, gridDim.x);
  if (threadIdx.x != 0) return;
  *c.tickets = 0;
  mail->numbers[0] = all.values;
  mail->numbers[1] = all.narrow;
  mail->numbers[2] = all.wide;
  mail->numbers[3] = all.escaped;
  cuda::send(mail, sequence);
}

// ---- pack and unpack

/// A block's format, and where its values and lanes begin.
struct PlacedBlock {
  Fixed fixed;
  bool narrow;
  uint32_t values;
  RangeSums at;
};

__device__ inline PlacedBlock placed_block(const RangeCall& c, uint64_t b) {
  const RangeBlock block = c.blocks[b];
  PlacedBlock placed;
  placed.fixed.quantum = block.quantum;
  placed.fixed.digits = block.digits;
  placed.fixed.digit_bits = static_cast<uint32_t>(63 - c.rules.room);
  placed.fixed.special = block.special;
  placed.narrow = block.narrow;
  placed.values = block.values;
  placed.at = c.before[b];
  add(placed.at, c.groups[b / kRangeGroup]);
  return placed;
}

/// Calls visit(block) for the blocks that have values, a warp for each.
template <typename Visit>
__device__ inline void for_each_block(const RangeCall& c, const Visit& visit) {
  const uint64_t blocks = ceil_div(c.count, kRangeBlock);
  for (uint64_t b = uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32; b < blocks;
       b += uint64_t{gridDim.x} * kWarps)
    visit(placed_block(c, b));
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) pack_kernel(RangeCall c) {
  const auto* values = static_cast<const Element<kType>*>(c.values);
  for_each_block(c, [&](const PlacedBlock& block) {
    const double inverse = power_of_two(-block.fixed.quantum);
    const uint32_t words = block.fixed.words();
    for (uint32_t i = threadIdx.x % 32; i < block.values; i += 32) {
      const float value = as_float<kType>(values[block.at.values + i]);
      if (block.narrow) {
        c.narrow[block.at.narrow + i] = static_cast<int32_t>(to_quanta(value, inverse));
      } else if (words == 1) {
        c.wide[block.at.wide + i] = to_quanta(value, inverse);
      } else {
        to_fixed(block.fixed, value, c.wide + block.at.wide + uint64_t{i} * words);
      }
    }
  });
}

/// A NaN stays the one that it is, as on the CPU.
__device__ inline float scaled_sum(float sum, float scale) {
  return scale == 1 || sum != sum ? sum : __fmul_rn(sum, scale);
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) unpack_kernel(RangeCall c) {
  auto* values = static_cast<Element<kType>*>(c.values);
  const DType decoded = scaled_sum_type(kType, c.scale);
  for_each_block(c, [&](const PlacedBlock& block) {
    const auto weight = static_cast<float>(power_of_two(block.fixed.quantum));
    const uint32_t words = block.fixed.words();
    for (uint32_t i = threadIdx.x % 32; i < block.values; i += 32) {
      float sum = 0;
      if (words == 1) {
        const int64_t quanta =
            block.narrow ? c.narrow[block.at.narrow + i] : c.wide[block.at.wide + i];
        sum = from_quanta(decoded, quanta, block.fixed.quantum, weight);
      } else {
        sum = from_fixed(block.fixed, decoded, c.wide + block.at.wide + uint64_t{i} * words);
      }
      values[block.at.values + i] = as_element<kType>(scaled_sum(sum, c.scale));
    }
  });
}

// ---- launches

int measure(const MeasureCall& c, void* stream) {
  const uint64_t work = ceil_div(ceil_div(c.count, kRangeBlock), uint64_t{kWarps});
  return index::with_type(c.dtype, [&]<DType kType>() {
    return cuda::launch(measure_kernel<kType>, kThreads, work, stream, c);
  });
}

int count(const RangeCall& c, cuda::Mail* mail, uint64_t sequence, void* stream) {
  const auto groups = static_cast<uint32_t>(ceil_div(ceil_div(c.count, kRangeBlock), kRangeGroup));
  count_kernel<<<groups, kSumThreads, 0, static_cast<cudaStream_t>(stream)>>>(c, mail, sequence);
  return cuda::launched();
}

int pack(const RangeCall& c, void* stream) {
  const uint64_t work = ceil_div(ceil_div(c.count, kRangeBlock), uint64_t{kWarps});
  return index::with_type(c.dtype, [&]<DType kType>() {
    return cuda::launch(pack_kernel<kType>, kThreads, work, stream, c);
  });
}

int unpack(const RangeCall& c, void* stream) {
  const uint64_t work = ceil_div(ceil_div(c.count, kRangeBlock), uint64_t{kWarps});
  return index::with_type(c.dtype, [&]<DType kType>() {
    return cuda::launch(unpack_kernel<kType>, kThreads, work, stream, c);
  });
}

constexpr ReproducibleKernels kKernels{measure, count, pack, unpack};

}  // namespace

ADDEND_CUDA_PART(ReproducibleKernels, kKernels);

}  // namespace addend::exact
