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

/// How many of all that is counted are beyond the cut.
__device__ inline uint64_t first_wanted(const SelectStep& s, const DevicePart& part,
                                        const DeviceCut& cut) {
  const uint64_t count = part.end - part.begin;
  if (s.selector == Selector::kDgc)
    return sample_rank(count, sample_size(count, part.kept), part.kept);
  return s.selector == Selector::kLeader ? part.kept : max(part.kept, cut.nonfinite);
}

/// Level 0 finds the bin, 1 and 2 the further bits.
__global__ void __launch_bounds__(kThreads) cut_kernel(SelectStep s, uint32_t level) {
  const bool fills = s.selector == Selector::kLeader;  // up to what everybody was told
  for (uint64_t p = blockIdx.x; p < s.part_count; p += gridDim.x) {
    DeviceCut& cut = s.cuts[p];
    const uint64_t first = first_wanted(s, s.parts[p], cut);
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

/// Counts the next bits of what is on the cut: of magnitudes that key_at gives.
template <typename KeyAt>
__device__ inline void refine(const DevicePiece& piece, DeviceCut& cut, uint32_t shift,
                              const KeyAt& key_at) {
  __shared__ uint32_t bins[kDigits];
  const uint32_t bits = cut.bits;
  for (uint32_t b = threadIdx.x; b < kDigits; b += kThreads)
    bins[b] = 0;
  __syncthreads();
  for_each_of(piece, key_at, [&](uint64_t, uint32_t key) {
    if (key >> shift == bits) atomicAdd(&bins[key >> (shift - kDigitBits) & (kDigits - 1)], 1u);
  });
  __syncthreads();
  for (uint32_t b = threadIdx.x; b < kDigits; b += kThreads) {
    if (bins[b] != 0) atomicAdd(counter(&cut.counts[b]), uint64_t{bins[b]});
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) refine_kernel(SelectStep s, uint32_t shift) {
  for_each_piece_of(s, [&](uint64_t, const DevicePiece& piece) {
    refine(piece, s.cuts[piece.part], shift, [&](uint64_t i) { return key_of(s.left[i]); });
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

__global__ void __launch_bounds__(kThreads) settle_kernel(SelectStep s) {
  for_each_part_of(s, [](const DevicePart& part, DeviceCut& cut) {
    if (2 * cut.counts[0] < part.kept) cut.bits = cut.bin_bits;
  });
}

// ---- halving: keep_bisected

__global__ void __launch_bounds__(kThreads) measure_kernel(SelectStep s) {
  for_each_piece_of(s, [&](uint64_t n, const DevicePiece& piece) {
    double sum = 0;
    uint32_t largest = 0;
    const auto load = [&](uint64_t i) { return s.left[i]; };
    for_each_of(piece, load, [&](uint64_t, float e) {
      if (!is_finite(e)) return;
      sum += static_cast<double>(addend_f32_from_bits(magnitude_bits(e)));
      largest = max(largest, magnitude_bits(e));
    });
    atomicMax(&s.cuts[piece.part].largest, largest);
    add_piece(sum, &s.sums[n]);
  });
}

__device__ inline uint32_t below_threshold(double threshold) {
  return below(addend_f32_bits(static_cast<float>(fmax(threshold, 0.0))));
}

__global__ void __launch_bounds__(kThreads) begin_kernel(SelectStep s) {
  for_each_part_of(s, [&](const DevicePart& part, DeviceCut& cut) {
    cut.low = add_pieces(s, part) / static_cast<double>(part.end - part.begin);
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

// ---- a sample: keep_sampled

/// The piece without what lies beyond this step's sample.
__device__ inline DevicePiece of_sample(const SelectStep& s, DevicePiece piece) {
  const DevicePart& part = s.parts[piece.part];
  const uint64_t size = sample_size(part.end - part.begin, part.kept);
  piece.end = min(piece.end, part.first_sample + size);
  return piece;
}

/// Draws a sample and counts its bins.
__global__ void __launch_bounds__(kThreads) sample_kernel(SelectStep s) {
  for (uint64_t n = blockIdx.x; n < s.sample_piece_count; n += gridDim.x) {
    const DevicePiece piece = of_sample(s, s.sample_pieces[n]);
    const DevicePart part = s.parts[piece.part];
    const uint64_t count = part.end - part.begin, size = sample_size(count, part.kept);
    Fingerprint draws = part.draws;
    const uint64_t draw = draws.add(s.step).value();
    for (uint64_t j = piece.begin + threadIdx.x; j < piece.end; j += kThreads) {
      const uint64_t at = part.begin + sampled(count, size, draw, j - part.first_sample);
      const uint32_t key = key_of(s.left[at]);
      s.samples[j] = key;
      atomicAdd(counter(&s.cuts[piece.part].counts[key >> Histogram::kShift]), 1ull);
    }
  }
}

__global__ void __launch_bounds__(kThreads) refine_sample_kernel(SelectStep s, uint32_t shift) {
  for (uint64_t n = blockIdx.x; n < s.sample_piece_count; n += gridDim.x) {
    const DevicePiece piece = of_sample(s, s.sample_pieces[n]);
    refine(piece, s.cuts[piece.part], shift, [&](uint64_t j) { return s.samples[j]; });
  }
}

__global__ void __launch_bounds__(kThreads) try_kernel(SelectStep s) {
  for_each_part_of(s, [](const DevicePart&, DeviceCut& cut) {
    cut.low = static_cast<double>(addend_f32_from_bits(min(cut.bits, kInfinity - 1)));
    cut.high = 0;
    cut.wanted = 0;
    cut.ranked = false;
    cut.counts[0] = 0;
    cut.bits = below_threshold(cut.low);
  });
}

/// Whether as many are kept as should be; if not, corrects the threshold.
__device__ inline void correct(DeviceCut& cut, uint64_t about) {
  const double ratio = static_cast<double>(cut.counts[0]) / static_cast<double>(about);
  cut.counts[0] = 0;
  cut.phase = BisectPhase::kDone;
  if (cut.tries == kMostTries || !(cut.low > 0)) {
    // Too many travel sooner than none: where many are equal there is nothing between.
    if (ratio < kTooFew) cut.bits = below_threshold(cut.high);
    return;
  }
  if (ratio >= kTooFew && ratio <= kTooMany) return;
  if (ratio > kTooMany) cut.high = fmax(cut.high, cut.low);
  cut.low *= ratio > kTooMany ? kTooMany : kTooFew;
  cut.bits = below_threshold(cut.low);
  cut.phase = BisectPhase::kMean;
  ++cut.tries;
}

__global__ void __launch_bounds__(kThreads) correct_kernel(SelectStep s) {
  for_each_part_of(s, [](const DevicePart& part, DeviceCut& cut) {
    if (cut.phase != BisectPhase::kDone) correct(cut, part.kept);
  });
}

// ---- launches

int find_threshold(const SelectStep& s, void* stream) {
  int code = cuda::launch(threshold_kernel, kThreads, s.part_count, stream, s);
  if (code == 0) code = over_pieces(above_kernel, s, stream);
  return code == 0 ? over_parts(settle_kernel, s, stream) : code;
}

/// Counts so often what is above the thresholds that are tried, and tries others.
int count_and(void (*correct)(SelectStep), uint32_t looks, const SelectStep& s, void* stream) {
  int code = 0;
  for (uint32_t look = 0; look < looks && code == 0; ++look) {
    code = over_pieces(above_kernel, s, stream);
    if (code == 0) code = over_parts(correct, s, stream);
  }
  return code;
}

int find_by_halving(const SelectStep& s, void* stream) {
  int code = over_pieces(measure_kernel, s, stream);
  if (code == 0) code = over_parts(begin_kernel, s, stream);
  return code == 0 ? count_and(halve_kernel, kMostTries + 2, s, stream) : code;
}

/// Level by level, refine(shift) having counted what is on the cut by then.
template <typename Refine>
int find_by_bits(const SelectStep& s, void* stream, const Refine& refine) {
  int code = 0;
  for (uint32_t level = 0; level < 3 && code == 0; ++level) {
    if (level > 0) code = refine(Histogram::kShift + kDigitBits - level * kDigitBits);
    if (code == 0) code = cuda::launch(cut_kernel, kThreads, s.part_count, stream, s, level);
  }
  return code;
}

int find_by_sample(const SelectStep& s, void* stream) {
  int code = cuda::launch(sample_kernel, kThreads, s.sample_piece_count, stream, s);
  if (code == 0) {
    code = find_by_bits(s, stream, [&](uint32_t shift) {
      return cuda::launch(refine_sample_kernel, kThreads, s.sample_piece_count, stream, s, shift);
    });
  }
  if (code == 0) code = over_parts(try_kernel, s, stream);
  return code == 0 ? count_and(correct_kernel, kMostTries + 1, s, stream) : code;
}

}  // namespace

int find_cuts(const SelectStep& s, void* stream) {
  if (s.selector == Selector::kRedsync) return find_by_halving(s, stream);
  if (s.selector == Selector::kDgc) return find_by_sample(s, stream);
  if (s.selector == Selector::kThreshold) return find_threshold(s, stream);
  const int code = find_by_bits(
      s, stream, [&](uint32_t shift) { return over_pieces(refine_kernel, s, stream, shift); });
  return code == 0 ? over_pieces(equals_kernel, s, stream) : code;
}

}  // namespace addend::select
