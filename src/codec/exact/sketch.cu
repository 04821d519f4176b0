// SPDX-License-Identifier: Apache-2.0
// A sketch's passes. Cells are integers modulo 2^64, so the order of additions shows nowhere, and
// neither does that of peeling. docs/algorithms/cuda.md, "exact, sketch".
#include "codec/exact/sketch_cells.cuh"
#include "cuda/part.cuh"

namespace addend::exact {
namespace {

using index::CountedUnion;
using index::Element;
using index::for_each_position;
using index::load;
using index::lowest;
using index::ones;
using index::sum_up_to;

constexpr int kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;

// ---- split

__global__ void __launch_bounds__(kThreads) split_kernel(SplitCall c) {
  for (uint64_t w = uint64_t{blockIdx.x} * kThreads + threadIdx.x; w < c.words;
       w += uint64_t{gridDim.x} * kThreads) {
    const uint64_t word = c.bitmap[w];
    const bool escapes = c.quanta.lanes == nullptr ? (c.escape[w / 64] >> w % 64 & 1) != 0
                                                   : !format_at(c.quanta, w * 64).single();
    c.fix_up[w] = escapes ? word : 0;
    if (c.keys != nullptr) c.keys[w] = escapes ? 0 : word;
  }
}

// ---- fix-up

template <DType kType>
__global__ void __launch_bounds__(kThreads) quanta_kernel(PickCall c) {
  auto* to = static_cast<int64_t*>(c.to);
  for_each_position<kWarps>(c.of, [&](uint64_t i, uint64_t rank) {
    const float value = load<kType>(c.gradient, i);
    int64_t quanta = 0;
    if (c.quanta.lanes != nullptr) {
      quanta = to_quanta(value, format_at(c.quanta, i).to_quanta);
    } else {
      const bool escapes = (c.local_escape[i / 4096] >> i / 64 % 64 & 1) != 0;
      if (escapes || !c.quanta.window.quanta(value, &quanta)) quanta = 0;
    }
    to[rank] = quanta;
  });
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) element_kernel(PickCall c) {
  const auto* gradient = static_cast<const Element<kType>*>(c.gradient);
  auto* to = static_cast<Element<kType>*>(c.to);
  for_each_position<kWarps>(c.of, [&](uint64_t i, uint64_t rank) {
    to[rank] = index::scaled<kType>(gradient[i], c.factor);
  });
}

__global__ void __launch_bounds__(kThreads) settle_kernel(SettleCall c) {
  for_each_position<kWarps>(c.stuck, [&](uint64_t i, uint64_t rank) {
    add_to_cells(c.shape, c.cells, i, 0 - static_cast<uint64_t>(c.values[rank]));
  });
}

__global__ void __launch_bounds__(kThreads)
    zero_kernel(const uint64_t* cells, uint64_t count, uint64_t* found) {
  uint64_t others = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kThreads)
    others += __ldcg(cells + i) != 0 ? 1 : 0;
  if (others > 0) add_to(found, others);
}

// ---- assemble

/// A half word of a bitmap, and the rank of its first position.
struct Half {
  uint32_t bits = 0;
  uint64_t rank = 0;
};
/// Half words `at` of a tile's row of 32, each lane with one; `first` is the row's own rank, and
/// becomes the next one's.
__device__ inline Half half_of(const CountedUnion& u, uint64_t at, uint64_t& first) {
  Half half;
  if (u.bitmap == nullptr) return half;
  const uint32_t lane = threadIdx.x % 32;
  half.bits = at < 2 * words_for(u.count) ? reinterpret_cast<const uint32_t*>(u.bitmap)[at] : 0;
  const uint32_t end = sum_up_to(ones(half.bits), lane);
  half.rank = first + end - ones(half.bits);
  first += __shfl_sync(kAll, end, 31);
  return half;
}

__device__ inline uint64_t first_of(const CountedUnion& u, uint64_t t) {
  return u.bitmap == nullptr ? 0 : index::rank_of_tile(u, t);
}

/// Peeled integers as the sum that they stand for.
__device__ inline float sum_of(const Quanta& quanta, DType decoded, uint64_t position,
                               int64_t number) {
  const int quantum =
      quanta.lanes == nullptr ? quanta.window.quantum() : format_at(quanta, position).fixed.quantum;
  const auto weight = static_cast<float>(power_of_two(quantum));
  if (weight != 0) return from_quanta(decoded, number, quantum, weight);
  const bool negative = number < 0;  // a window below the subnormals
  const auto magnitude = static_cast<uint64_t>(number);
  return round_to(decoded, negative, negative ? 0 - magnitude : magnitude, quantum, false);
}

/// A place of a row, as the lane that has its half word sees a bitmap there.
struct Place {
  bool set;
  uint64_t rank;
};
__device__ inline Place at_place(const Half& half, uint32_t place) {
  const uint32_t bits = __shfl_sync(kAll, half.bits, place / 32), bit = 1u << place % 32;
  const uint64_t rank = __shfl_sync(kAll, half.rank, place / 32);
  return {(bits & bit) != 0, rank + ones(bits & (bit - 1))};
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) assemble_kernel(AssembleCall c) {
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t tile = index::tile_elements(c.all.width);
  const DType decoded = scaled_sum_type(kType, c.scale);
  const auto* fixed = static_cast<const Element<kType>*>(c.fix_values);
  uint16_t* list = index::list_of_warp<kWarps>();
  for (uint64_t t = uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32; t * tile < c.all.count;
       t += uint64_t{gridDim.x} * kWarps) {
    uint64_t first = first_of(c.all, t), key = first_of(c.keys, t), stuck = first_of(c.stuck, t),
             fix = first_of(c.fix_up, t);
    for (uint64_t base = t * tile / 32; base < (t + 1) * tile / 32; base += 32) {
      const uint64_t before = first;
      const Half all = half_of(c.all, base + lane, first), keys = half_of(c.keys, base + lane, key);
      const Half sticks = half_of(c.stuck, base + lane, stuck);
      const Half fixes = half_of(c.fix_up, base + lane, fix);
      const uint32_t n = index::list_bits(all.bits, list);
      for (uint32_t some = 0; some < n; some += 32) {
        const uint32_t i = some + lane, place = list[i < n ? i : some];
        const Place of_key = at_place(keys, place), of_stuck = at_place(sticks, place),
                    of_fix = at_place(fixes, place);
        if (i >= n) continue;
        if (of_fix.set) {
          static_cast<Element<kType>*>(c.values)[before + i] = fixed[of_fix.rank];
          continue;
        }
        const int64_t number =
            of_stuck.set ? c.stuck_values[of_stuck.rank] : c.peeled[c.slots[of_key.rank]];
        const float sum = sum_of(c.quanta, decoded, base * 32 + place, number);
        index::store<kType>(c.values, before + i, c.scale == 1 ? sum : __fmul_rn(sum, c.scale));
      }
      __syncwarp();
    }
  }
}

// ---- launches

uint64_t work_of(const CountedUnion& of) {
  return ceil_div(index::tiles_for(of.width, of.count), uint64_t{kWarps});
}

int split(const SplitCall& c, void* stream) {
  if (const int code = cuda::tell(c.top, c.mail, c.sequence, stream)) return code;
  return cuda::launch(split_kernel, kThreads, ceil_div(c.words, uint64_t{kThreads}), stream, c);
}

int pick_quanta(const PickCall& c, void* stream) {
  const uint64_t work = work_of(c.of);
  return index::with_type(c.quanta.dtype, [&]<DType kType>() {
    return cuda::launch(quanta_kernel<kType>, kThreads, work, stream, c);
  });
}

int pick_elements(const PickCall& c, void* stream) {
  const uint64_t work = work_of(c.of);
  return index::with_type(c.quanta.dtype, [&]<DType kType>() {
    return cuda::launch(element_kernel<kType>, kThreads, work, stream, c);
  });
}

int settle(const SettleCall& c, void* stream) {
  if (const int code = cuda::clear(c.found, 8, stream)) return code;
  if (c.stuck.bitmap != nullptr) {
    if (const int code = cuda::launch(settle_kernel, kThreads, work_of(c.stuck), stream, c))
      return code;
  }
  const uint64_t work = ceil_div(c.shape.cells(), uint64_t{kThreads});
  if (const int code =
          cuda::launch(zero_kernel, kThreads, work, stream, static_cast<const uint64_t*>(c.cells),
                       c.shape.cells(), c.found))
    return code;
  return cuda::tell(c.found, c.mail, c.sequence, stream);
}

int assemble(const AssembleCall& c, void* stream) {
  const uint64_t work = work_of(c.all);
  return index::with_type(c.quanta.dtype, [&]<DType kType>() {
    return cuda::launch(assemble_kernel<kType>, kThreads, work, stream, c);
  });
}

constexpr SketchKernels kKernels{sketch_room, insert,        split,  peel,
                                 pick_quanta, pick_elements, settle, assemble};

}  // namespace

ADDEND_CUDA_PART(SketchKernels, kKernels);

}  // namespace addend::exact
