// SPDX-License-Identifier: Apache-2.0
// Where the selections of cut.h end, on a device: from magnitudes that were counted to a cut of
// each segment.
#include <cuda_runtime.h>

#include "base/bits.h"
#include "codec/select/pieces.cuh"

namespace addend::select {
namespace {

// Magnitudes have 31 bits: those of a bin, and twice so many more.
constexpr uint32_t kDigitBits = Histogram::kShift / 2, kDigits = 1u << kDigitBits;

/// Where, from the highest count on, `wanted` end, and how many of that count are among them.
struct Found {
  uint32_t at;
  uint64_t wanted;
};

/// By all threads of a CTA.
__device__ inline Found find(const uint64_t* counts, uint32_t size, uint64_t wanted) {
  __shared__ uint64_t sums[kThreads];
  __shared__ Found found;
  const uint32_t each = size / kThreads;
  uint64_t sum = 0;
  for (uint32_t k = 0; k < each; ++k)
    sum += counts[threadIdx.x * each + k];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t t = kThreads - 1;
    while (t > 0 && sums[t] < wanted)
      wanted -= sums[t--];
    uint32_t at = t * each + each - 1;
    while (at > 0 && counts[at] < wanted)
      wanted -= counts[at--];
    found.at = at;
    found.wanted = wanted;
  }
  __syncthreads();
  return found;
}

/// Level 0 finds the bin, 1 and 2 the further bits.
__global__ void __launch_bounds__(kThreads) cut_kernel(SelectStep s, uint32_t level) {
  const bool fills = s.selector == Selector::kLeader;  // up to what everybody was told
  for (uint64_t p = blockIdx.x; p < s.part_count; p += gridDim.x) {
    DeviceCut& cut = s.cuts[p];
    const uint64_t kept = s.parts[p].kept;
    const uint64_t first = fills ? kept : max(kept, cut.nonfinite);
    const uint32_t size = level == 0 ? Histogram::kBins : kDigits;
    const Found found = find(cut.counts, size, level == 0 ? first : cut.wanted);
    const uint64_t inside = cut.counts[found.at];
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < size; b += kThreads)
      cut.counts[b] = 0;
    if (threadIdx.x == 0) {
      cut.bits = cut.bits << kDigitBits | found.at;
      cut.wanted = level == 2 && cut.bits == 0 && !fills ? 0 : found.wanted;
      cut.ranked = cut.wanted > 0 && cut.wanted < inside;
    }
    __syncthreads();
  }
}

/// Counts the next bits of elements on the cut.
__global__ void __launch_bounds__(kThreads) refine_kernel(SelectStep s, uint32_t shift) {
  __shared__ uint32_t bins[kDigits];
  for_each_piece_of(s, [&](uint64_t, const DevicePiece& piece) {
    DeviceCut& cut = s.cuts[piece.part];
    const uint32_t bits = cut.bits;
    for (uint32_t b = threadIdx.x; b < kDigits; b += kThreads)
      bins[b] = 0;
    __syncthreads();
    const auto load = [&](uint64_t i) { return key_of(s.left[i]); };
    for_each_of(piece, load, [&](uint64_t, uint32_t key) {
      if (key >> shift == bits) atomicAdd(&bins[key >> (shift - kDigitBits) & (kDigits - 1)], 1u);
    });
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < kDigits; b += kThreads) {
      if (bins[b] != 0) atomicAdd(counter(&cut.counts[b]), uint64_t{bins[b]});
    }
    __syncthreads();
  });
}

/// How many of a piece equal the cut, where it matters which of them come first.
__global__ void __launch_bounds__(kThreads) equals_kernel(SelectStep s) {
  __shared__ uint32_t equals;
  for_each_piece_of(s, [&](uint64_t n, const DevicePiece& piece) {
    const DeviceCut& cut = s.cuts[piece.part];
    if (!cut.ranked) return;
    if (threadIdx.x == 0) equals = 0;
    __syncthreads();
    uint32_t mine = 0;
    for (uint64_t i = piece.begin + threadIdx.x; i < piece.end; i += kThreads)
      mine += key_of(s.left[i]) == cut.bits ? 1 : 0;
    add_to(&equals, mine);
    __syncthreads();
    if (threadIdx.x == 0) s.equals[n] = equals;
    __syncthreads();
  });
}

/// The last magnitude that does not travel, if these do. Zeros never do, what is not finite always.
__device__ inline uint32_t below(uint32_t least) { return min(max(least, 1u), kInfinity) - 1; }

__device__ inline float threshold_of(const uint64_t* counts, const DevicePart& part) {
  const auto all = static_cast<double>(part.end - part.begin);
  const auto kept =
      static_cast<uint64_t>(ceil(fmin(static_cast<double>(part.kept) / all, 1.0) * all));
  const Found found = find(counts, Histogram::kBins, kept);
  if (found.at >= Histogram::kFirstNonFinite) return addend_f32_from_bits(kInfinity);
  if (found.at == 0) return 0;
  const uint32_t from = Histogram::least_bits(found.at), to = Histogram::least_bits(found.at + 1);
  const double end = to < kInfinity ? static_cast<double>(addend_f32_from_bits(to)) : 0x1p128;
  return cut_inside(static_cast<double>(addend_f32_from_bits(from)), end, kept - found.wanted,
                    counts[found.at], kept);
}

__global__ void __launch_bounds__(kThreads) threshold_kernel(SelectStep s) {
  for (uint64_t p = blockIdx.x; p < s.part_count; p += gridDim.x) {
    DeviceCut& cut = s.cuts[p];
    const DevicePart part = s.parts[p];
    const float threshold = threshold_of(cut.counts, part);
    const Found found = find(cut.counts, Histogram::kBins, part.kept);
    __syncthreads();
    if (threadIdx.x == 0) {
      cut.counts[0] = 0;
      cut.bits = below(addend_f32_bits(threshold));
      cut.bin_bits = below(Histogram::least_bits(found.at));
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) above_kernel(SelectStep s) {
  for_each_piece_of(s, [&](uint64_t, const DevicePiece& piece) {
    DeviceCut& cut = s.cuts[piece.part];
    const uint32_t bits = cut.bits;
    if (cut.phase == BisectPhase::kDone) return;
    uint32_t above = 0;
    const auto load = [&](uint64_t i) { return key_of(s.left[i]); };
    for_each_of(piece, load, [&](uint64_t, uint32_t key) { above += key > bits ? 1 : 0; });
    add_to(counter(&cut.counts[0]), above);
  });
}

/// Calls visit(part, cut), by a thread each.
template <typename Visit>
__device__ inline void for_each_part_of(const SelectStep& s, const Visit& visit) {
  for (uint64_t p = uint64_t{blockIdx.x} * kThreads + threadIdx.x; p < s.part_count;
       p += uint64_t{gridDim.x} * kThreads)
    visit(s.parts[p], s.cuts[p]);
}

__global__ void __launch_bounds__(kThreads) settle_kernel(SelectStep s) {
  for_each_part_of(s, [](const DevicePart& part, DeviceCut& cut) {
    if (2 * cut.counts[0] < part.kept) cut.bits = cut.bin_bits;
  });
}

// ---- halving: keep_bisected

__global__ void __launch_bounds__(kRunningSums) measure_kernel(SelectStep s) {
  static_assert(kRunningSums == kThreads);
  __shared__ double sums[kRunningSums];
  for_each_piece_of(s, [&](uint64_t n, const DevicePiece& piece) {
    double sum = 0;
    uint32_t largest = 0;
    const auto load = [&](uint64_t i) { return s.left[i]; };
    for_each_of(piece, load, [&](uint64_t, float e) {
      if (!is_finite(e)) return;
      sum += static_cast<double>(addend_f32_from_bits(magnitude_bits(e)));
      largest = max(largest, magnitude_bits(e));
    });
    sums[threadIdx.x] = sum;
    for (uint32_t half = kRunningSums / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    atomicMax(&s.cuts[piece.part].largest, largest);
    if (threadIdx.x == 0) s.sums[n] = sums[0];
    __syncthreads();
  });
}

__device__ inline uint32_t below_threshold(double threshold) {
  return below(addend_f32_bits(static_cast<float>(fmax(threshold, 0.0))));
}

__global__ void __launch_bounds__(kThreads) begin_kernel(SelectStep s) {
  for_each_part_of(s, [&](const DevicePart& part, DeviceCut& cut) {
    const uint64_t count = part.end - part.begin, pieces = ceil_div(count, kPieceElements);
    double sum = 0;
    for (uint64_t n = part.first_piece; n < part.first_piece + pieces; ++n)
      sum += s.sums[n];
    cut.low = sum / static_cast<double>(count);
    cut.high = static_cast<double>(addend_f32_from_bits(cut.largest));
    cut.bits = below_threshold(cut.low);
  });
}

/// Looks halfway again, or stays with what leaves enough.
__device__ inline void go_on(DeviceCut& cut, uint64_t about) {
  const bool halves = cut.tries < kMostTries && cut.above_low > 2 * about;
  cut.middle = (cut.low + cut.high) / 2;
  cut.phase = halves ? BisectPhase::kMiddle : BisectPhase::kDone;
  cut.bits = below_threshold(halves ? cut.middle : cut.low);
}

/// What the last count was for is known.
__device__ inline void take_count(DeviceCut& cut, uint64_t about) {
  const uint64_t above = cut.counts[0];
  cut.counts[0] = 0;
  if (cut.phase == BisectPhase::kMean && above < about) {
    cut.high = cut.low;
    cut.low = 0;
    cut.bits = below_threshold(0);
    cut.phase = BisectPhase::kAll;
    return;
  }
  const bool middle = cut.phase == BisectPhase::kMiddle;
  if (middle) ++cut.tries;
  if (middle && above < about) {
    cut.high = cut.middle;
  } else {
    if (middle) cut.low = cut.middle;
    cut.above_low = above;
  }
  go_on(cut, about);
}

__global__ void __launch_bounds__(kThreads) halve_kernel(SelectStep s) {
  for_each_part_of(s, [&](const DevicePart& part, DeviceCut& cut) {
    if (cut.phase != BisectPhase::kDone) take_count(cut, part.kept);
  });
}

// ---- launches

int find_threshold(const SelectStep& s, void* stream) {
  const int code = cuda::launch(threshold_kernel, kThreads, s.part_count, stream, s);
  if (code != 0) return code;
  if (const int counted = over_pieces(above_kernel, s, stream)) return counted;
  return cuda::launch(settle_kernel, kThreads, ceil_div(s.part_count, kThreads), stream, s);
}

int find_by_halving(const SelectStep& s, void* stream) {
  const uint64_t ctas = ceil_div(s.part_count, kThreads);
  int code = over_pieces(measure_kernel, s, stream);
  if (code == 0) code = cuda::launch(begin_kernel, kThreads, ctas, stream, s);
  for (uint32_t look = 0; look < kMostTries + 2 && code == 0; ++look) {
    code = over_pieces(above_kernel, s, stream);
    if (code == 0) code = cuda::launch(halve_kernel, kThreads, ctas, stream, s);
  }
  return code;
}

}  // namespace

int find_cuts(const SelectStep& s, void* stream) {
  if (s.selector == Selector::kRedsync) return find_by_halving(s, stream);
  if (s.selector == Selector::kThreshold) return find_threshold(s, stream);
  for (uint32_t level = 0; level < 3; ++level) {
    const uint32_t shift = Histogram::kShift + kDigitBits - level * kDigitBits;
    if (level > 0) {
      if (const int code = over_pieces(refine_kernel, s, stream, shift)) return code;
    }
    if (const int code = cuda::launch(cut_kernel, kThreads, s.part_count, stream, s, level))
      return code;
  }
  return over_pieces(equals_kernel, s, stream);
}

}  // namespace addend::select
