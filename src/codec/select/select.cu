// SPDX-License-Identifier: Apache-2.0
// What a selection on a device begins and ends with: sums with what is owed, and what travels.
// Compiled with -fmad=false: sums and products are rounded one by one, as on a CPU.
#include <cmath>

#include <cuda_runtime.h>

#include "base/bits.h"
#include "codec/index/element.cuh"
#include "codec/select/pieces.cuh"
#include "cuda/part.cuh"

namespace addend::select {
namespace {

using index::store;
using index::with_type;

/// A NaN keeps its payload, which a device's sum does not.
__device__ inline float sum_of(float x, float owed) {
  const uint32_t bits = addend_f32_bits(x);
  return (bits & 0x7FFFFFFFu) > kInfinity ? addend_f32_from_bits(bits | 0x400000u) : x + owed;
}

__device__ inline double square_of(float e) {
  return is_finite(e) ? static_cast<double>(e) * static_cast<double>(e) : 0.0;
}

template <DType kType, bool kCounts>
__global__ void __launch_bounds__(kThreads) add_kernel(SelectStep s) {
  __shared__ uint32_t bins[Histogram::kBins];
  double energy = 0;
  for_each_piece_of(s, [&](uint64_t, const DevicePiece& piece) {
    DeviceCut& cut = s.cuts[piece.part];
    for (uint32_t b = threadIdx.x; kCounts && b < Histogram::kBins; b += kThreads)
      bins[b] = 0;
    __syncthreads();
    uint32_t nonfinite = 0;
    const auto load = [&](uint64_t i) {
      return sum_of(index::load<kType>(s.gradient, i), s.owed[i]);
    };
    for_each_of(piece, load, [&](uint64_t i, float e) {
      s.left[i] = e;
      energy += square_of(e);
      nonfinite += is_finite(e) ? 0 : 1;
      if constexpr (kCounts) atomicAdd(&bins[key_of(e) >> Histogram::kShift], 1u);
    });
    add_to(counter(&cut.nonfinite), nonfinite);
    __syncthreads();
    for (uint32_t b = threadIdx.x; kCounts && b < Histogram::kBins; b += kThreads) {
      if (bins[b] != 0) atomicAdd(counter(&cut.counts[b]), uint64_t{bins[b]});
    }
    __syncthreads();
  });
  add_to(&s.totals->energy, energy);
}

// ---- dgc

template <DType kType>
__global__ void __launch_bounds__(kThreads) energy_kernel(SelectStep s) {
  for_each_piece_of(s, [&](uint64_t n, const DevicePiece& piece) {
    double sum = 0;
    const auto load = [&](uint64_t i) { return index::load<kType>(s.gradient, i); };
    for_each_of(piece, load,
                [&](uint64_t, float x) { sum += static_cast<double>(x) * static_cast<double>(x); });
    add_piece(sum, &s.sums[n]);
  });
}

__global__ void __launch_bounds__(kThreads) clip_kernel(SelectStep s) {
  for_each_part_of(s, [&](const DevicePart& part, DeviceCut& cut) {
    const double norm = s.most_norm > 0 ? sqrt(add_pieces(s, part)) : 0;
    const bool clips = norm > s.most_norm && norm < INFINITY;
    cut.factor = clips ? static_cast<float>(s.most_norm / norm) : 1.0f;
  });
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) accelerate_kernel(SelectStep s) {
  double energy = 0;
  for_each_piece_of(s, [&](uint64_t, const DevicePiece& piece) {
    DeviceCut& cut = s.cuts[piece.part];
    const float factor = cut.factor;
    uint32_t nonfinite = 0;
    const auto load = [&](uint64_t i) {
      const float x = index::load<kType>(s.gradient, i);
      const uint32_t bits = addend_f32_bits(x);
      if ((bits & 0x7FFFFFFFu) > kInfinity) return addend_f32_from_bits(bits | 0x400000u);
      return s.velocity[i] * s.momentum + x * factor;
    };
    for_each_of(piece, load, [&](uint64_t i, float velocity) {
      const float e = sum_of(velocity, s.owed[i]);
      s.next_velocity[i] = velocity;
      s.left[i] = e;
      energy += square_of(e);
      nonfinite += is_finite(e) ? 0 : 1;
    });
    add_to(counter(&cut.nonfinite), nonfinite);
  });
  add_to(&s.totals->energy, energy);
}

// ---- what travels

/// How many threads of the CTA before this one say so, and how many do at all.
__device__ inline uint32_t rank_in_block(bool says, uint32_t* total) {
  __shared__ uint32_t counts[kThreads / 32];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t votes = __ballot_sync(kAll, says);
  if (lane == 0) counts[warp] = static_cast<uint32_t>(__popc(votes));
  __syncthreads();
  uint32_t before = 0, all = 0;
  for (uint32_t w = 0; w < kThreads / 32; ++w) {
    before += w < warp ? counts[w] : 0;
    all += counts[w];
  }
  __syncthreads();
  *total = all;
  return before + static_cast<uint32_t>(__popc(votes & ((1u << lane) - 1)));
}

/// Elements at the cut in pieces of the part before this one.
__device__ inline uint64_t equals_before(const SelectStep& s, uint64_t n,
                                         const DevicePiece& piece) {
  __shared__ unsigned long long before;
  if (threadIdx.x == 0) before = 0;
  __syncthreads();
  uint64_t mine = 0;
  for (uint64_t m = s.parts[piece.part].first_piece + threadIdx.x; m < n; m += kThreads)
    mine += s.equals[m];
  add_to(&before, static_cast<unsigned long long>(mine));
  __syncthreads();
  return before;
}

/// Calls visit(position, element, whether it travels) for the elements of a piece.
template <typename Visit>
__device__ inline void for_each_element(const SelectStep& s, uint64_t n, const DevicePiece& piece,
                                        const Visit& visit) {
  const DeviceCut& cut = s.cuts[piece.part];
  const uint32_t bits = cut.bits;
  const uint64_t wanted = cut.wanted;
  if (!cut.ranked) {
    const uint32_t least = bits + (wanted > 0 ? 0 : 1);
    const auto load = [&](uint64_t i) { return s.left[i]; };
    for_each_of(piece, load, [&](uint64_t i, float e) { visit(i, e, key_of(e) >= least); });
    return;
  }
  uint64_t before = equals_before(s, n, piece);
  for (uint64_t base = piece.begin; base < piece.end; base += kThreads) {
    const uint64_t i = base + threadIdx.x;
    const bool inside = i < piece.end;
    const float e = inside ? s.left[i] : 0.0f;
    uint32_t all = 0;
    const bool equal = inside && key_of(e) == bits;
    const uint64_t rank = before + rank_in_block(equal, &all);
    before += all;
    if (inside) visit(i, e, key_of(e) > bits || (equal && rank < wanted));
  }
  __syncthreads();
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) take_kernel(SelectStep s, void* picked) {
  double travels = 0;
  uint32_t chosen = 0;
  for_each_piece_of(s, [&](uint64_t n, const DevicePiece& piece) {
    for_each_element(s, n, piece, [&](uint64_t i, float e, bool goes) {
      const float sent = goes ? nearest(kType, e) : 0.0f;
      store<kType>(picked, i, sent == 0 ? 0.0f : sent);
      if (!goes) return;
      s.left[i] = left_of(e, sent);
      if (s.next_velocity != nullptr) s.next_velocity[i] = 0;
      travels += square_of(e);
      chosen += sent == 0 ? 0 : 1;
    });
  });
  add_to(&s.totals->travels, travels);
  add_to(counter(&s.totals->chosen), chosen);
}

__global__ void __launch_bounds__(kThreads) mark_kernel(SelectStep s, uint32_t* words) {
  for_each_piece_of(s, [&](uint64_t n, const DevicePiece& piece) {
    for_each_element(s, n, piece, [&](uint64_t i, float, bool goes) {
      if (goes) atomicOr(&words[i / 32], 1u << i % 32);
    });
  });
}

/// The part that value number j is of.
__device__ inline uint32_t part_of(const SelectStep& s, uint64_t j) {
  uint32_t low = 0, high = static_cast<uint32_t>(s.part_count);
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (s.parts[middle].first <= j ? low : high) = middle;
  }
  return low;
}

__device__ inline uint64_t position_of(const SelectStep& s, const DevicePart& part, uint64_t j) {
  Fingerprint draws = part.draws;
  const uint64_t draw = draws.add(s.step).value();
  return part.begin + drawn(part.end - part.begin, part.kept, draw, j - part.first);
}

/// Calls visit(j), for all values.
template <typename Visit>
__device__ inline void for_each_value(uint64_t count, const Visit& visit) {
  for (uint64_t j = uint64_t{blockIdx.x} * kThreads + threadIdx.x; j < count;
       j += uint64_t{gridDim.x} * kThreads)
    visit(j);
}

/// Values are what was drawn, or, if these are given, elements.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    value_kernel(SelectStep s, uint64_t count, float* elements, void* values) {
  double travels = 0;
  for_each_value(count, [&](uint64_t j) {
    const uint32_t p = part_of(s, j);
    float& e = elements != nullptr ? elements[j] : s.left[position_of(s, s.parts[p], j)];
    const float sent = nearest(kType, e);
    store<kType>(values, j, sent);
    travels += square_of(e);
    if (!is_finite(e)) atomicAdd(counter(&s.cuts[p].sent), 1ull);
    e = left_of(e, sent);
  });
  add_to(&s.totals->travels, travels);
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) spoil_kernel(SelectStep s, void* values) {
  for_each_piece_of(s, [&](uint64_t n, const DevicePiece& piece) {
    const DeviceCut& cut = s.cuts[piece.part];
    if (cut.nonfinite == cut.sent) return;
    const DevicePart& part = s.parts[piece.part];
    if (n == part.first_piece && threadIdx.x == 0)
      store<kType>(values, part.first, addend_f32_from_bits(0x7FC00000u));
    for (uint64_t i = piece.begin + threadIdx.x; i < piece.end; i += kThreads) {
      if (!is_finite(s.left[i])) s.left[i] = 0;
    }
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(SelectStep s, uint64_t count, const T* values, T* gradient) {
  for_each_value(
      count, [&](uint64_t j) { gradient[position_of(s, s.parts[part_of(s, j)], j)] = values[j]; });
}

__global__ void tell_kernel(const DeviceTotals* totals, cuda::Mail* mail, uint64_t sequence) {
  if (threadIdx.x != 0) return;
  mail->numbers[kMailEnergy] = static_cast<uint64_t>(__double_as_longlong(totals->energy));
  mail->numbers[kMailTravels] = static_cast<uint64_t>(__double_as_longlong(totals->travels));
  mail->numbers[kMailChosen] = totals->chosen;
  cuda::send(mail, sequence);
}

// ---- launches

template <DType kType>
int accelerate(const SelectStep& s, void* stream) {
  int code = s.most_norm > 0 ? over_pieces(energy_kernel<kType>, s, stream) : 0;
  if (code == 0) code = over_parts(clip_kernel, s, stream);
  return code == 0 ? over_pieces(accelerate_kernel<kType>, s, stream) : code;
}

int add_up(const SelectStep& s, void* stream) {
  return with_type(s.dtype, [&]<DType kType>() {
    if (s.selector == Selector::kDgc) return accelerate<kType>(s, stream);
    return s.chooses ? over_pieces(add_kernel<kType, true>, s, stream)
                     : over_pieces(add_kernel<kType, false>, s, stream);
  });
}

int take(const SelectStep& s, void* picked, void* stream) {
  return with_type(
      s.dtype, [&]<DType kType>() { return over_pieces(take_kernel<kType>, s, stream, picked); });
}

int mark(const SelectStep& s, uint64_t* bitmap, void* stream) {
  return over_pieces(mark_kernel, s, stream, reinterpret_cast<uint32_t*>(bitmap));
}

int round_elements(const SelectStep& s, uint64_t count, float* elements, void* values,
                   void* stream) {
  return with_type(s.dtype, [&]<DType kType>() {
    return cuda::launch(value_kernel<kType>, kThreads, ceil_div(count, kThreads), stream, s, count,
                        elements, values);
  });
}

int draw(const SelectStep& s, uint64_t count, void* values, void* stream) {
  return round_elements(s, count, nullptr, values, stream);
}

int spoil(const SelectStep& s, void* values, void* stream) {
  return with_type(
      s.dtype, [&]<DType kType>() { return over_pieces(spoil_kernel<kType>, s, stream, values); });
}

template <typename T>
int scatter_as(const SelectStep& s, uint64_t count, const void* values, void* gradient,
               void* stream) {
  return cuda::launch(scatter_kernel<T>, kThreads, ceil_div(count, kThreads), stream, s, count,
                      static_cast<const T*>(values), static_cast<T*>(gradient));
}

int scatter(const SelectStep& s, uint64_t count, const void* values, void* gradient, void* stream) {
  return s.dtype == DType::kF32 ? scatter_as<uint32_t>(s, count, values, gradient, stream)
                                : scatter_as<uint16_t>(s, count, values, gradient, stream);
}

int tell(const SelectStep& s, cuda::Mail* mail, uint64_t sequence, void* stream) {
  return cuda::launch(tell_kernel, 32, 1, stream, static_cast<const DeviceTotals*>(s.totals), mail,
                      sequence);
}

constexpr SelectKernels kKernels{add_up,         find_cuts, take,    mark, draw,
                                 round_elements, spoil,     scatter, tell};

}  // namespace

ADDEND_CUDA_PART(SelectKernels, kKernels);

}  // namespace addend::select
