// SPDX-License-Identifier: Apache-2.0
// The kernels of an index in two levels, launched. docs/algorithms/cuda.md, "exact, two levels".
#include <cuda_runtime.h>

#include "codec/index/walk.cuh"
#include "cuda/launch.cuh"
#include "cuda/part.cuh"

namespace addend::index {
namespace {

// ---- survey

/// Whether a block has a bit, and whether it has all.
struct Share {
  bool some, all;
};
/// What every `step`th word from word `first` of the block says of it.
__device__ inline Share share_of(const uint64_t* bitmap, uint64_t begin, uint64_t length,
                                 uint32_t first, uint32_t step) {
  Share share{false, true};
  const uint64_t end = begin + length;
  for (uint64_t word = begin / 64 + first; word * 64 < end; word += step) {
    uint64_t mask = ~uint64_t{0};
    if (word * 64 < begin) mask <<= begin % 64;
    if (end - word * 64 < 64) mask &= (uint64_t{1} << end % 64) - 1;
    const uint64_t bits = bitmap[word] & mask;
    share.some |= bits != 0;
    share.all &= bits == mask;
  }
  return share;
}

/// Blocks of more words than this are looked at by a warp, shorter ones by a thread.
constexpr uint64_t kWarpSurveys = 32;

__global__ void __launch_bounds__(kThreads) survey_kernel(SurveyCall c) {
  for (uint32_t s = 0; s < c.size_count; ++s) {
    const uint64_t block = c.sizes[s], blocks = ceil_div(c.count, block);
    const bool by_warp = block > 64 * kWarpSurveys;
    const uint32_t team = by_warp ? 32 : 1, member = threadIdx.x % team;
    uint64_t live = 0, elements = 0;
    const uint64_t thread = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
    for (uint64_t b = thread / team; b < blocks; b += uint64_t{gridDim.x} * kThreads / team) {
      const uint64_t left = c.count - b * block, length = left < block ? left : block;
      Share share = share_of(c.bitmap, b * block, length, member, team);
      if (by_warp) {
        share.some = __any_sync(kAll, share.some) != 0;
        share.all = __all_sync(kAll, share.all) != 0;
        if (member != 0) continue;
      }
      live += share.some ? 1 : 0;
      elements += share.some && !share.all ? length : 0;
    }
    const uint32_t lane = threadIdx.x % 32;
    live = sum_up_to(live, lane);
    elements = sum_up_to(elements, lane);
    if (lane != 31) continue;
    atomicAdd(reinterpret_cast<unsigned long long*>(c.scratch + 2 * s), live);
    atomicAdd(reinterpret_cast<unsigned long long*>(c.scratch + 2 * s + 1), elements);
  }
}

__global__ void tell_kernel(SurveyCall c) {
  for (uint32_t k = 0; k < 2 * c.size_count; ++k)
    c.mail->numbers[k] = c.scratch[k];
  cuda::send(c.mail, c.sequence);
}

// ---- launches

int scan(const TwoLevelCall& c, void* stream) {
  const uint64_t work = ceil_div(words_of(c), uint64_t{kWarps});
  return c.dtype == DType::kF32 ? cuda::launch(scan_kernel<uint32_t>, kThreads, work, stream, c)
                                : cuda::launch(scan_kernel<uint16_t>, kThreads, work, stream, c);
}

int count(const TwoLevelCall& c, cuda::Mail* mail, uint64_t sequence, void* stream) {
  const auto groups = static_cast<uint32_t>(ceil_div(words_of(c), kGroupWords));
  count_kernel<<<groups, kSumThreads, 0, static_cast<cudaStream_t>(stream)>>>(c, mail, sequence);
  return cuda::launched();
}

int mark(const TwoLevelCall& c, void* stream) {
  const uint64_t clears = ceil_div(words_for(c.element_room), uint64_t{kThreads});
  if (const int code = cuda::launch(clear_kernel, kThreads, clears, stream, c)) return code;
  const uint64_t work = ceil_div(words_of(c), uint64_t{kWarps});
  return c.dtype == DType::kF32 ? cuda::launch(mark_kernel<uint32_t>, kThreads, work, stream, c)
                                : cuda::launch(mark_kernel<uint16_t>, kThreads, work, stream, c);
}

int pack(const TwoLevelCall& c, void* stream) {
  const uint64_t work = ceil_div(words_of(c), uint64_t{kWarps});
  return with_type(c.dtype, [&]<DType kType>() {
    return cuda::launch(pack_kernel<kType>, kThreads, work, stream, c);
  });
}

int unpack(const TwoLevelCall& c, bool everywhere, void* gradient, void* stream) {
  const uint64_t work = ceil_div(words_of(c), uint64_t{kWarps});
  if (dtype_bytes(c.dtype) == 4)
    return cuda::launch(unpack_kernel<uint32_t>, kThreads, work, stream, c, everywhere,
                        static_cast<uint32_t*>(gradient));
  return cuda::launch(unpack_kernel<uint16_t>, kThreads, work, stream, c, everywhere,
                      static_cast<uint16_t*>(gradient));
}

int write_union(const TwoLevelCall& c, uint64_t* bitmap, void* stream) {
  return cuda::launch(union_kernel, kThreads, ceil_div(words_of(c), uint64_t{kWarps}), stream, c,
                      bitmap);
}

int survey(const SurveyCall& c, void* stream) {
  if (const int code = cuda::clear(c.scratch, 2 * c.size_count * 8, stream)) return code;
  const uint64_t team = c.sizes[0] > 64 * kWarpSurveys ? 32 : 1;
  const uint64_t work = ceil_div(ceil_div(c.count, c.sizes[0]) * team, uint64_t{kThreads});
  if (const int code = cuda::launch(survey_kernel, kThreads, work, stream, c)) return code;
  tell_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(c);
  return cuda::launched();
}

constexpr TwoLevelKernels kKernels{scan, count, mark, pack, unpack, write_union, survey};

}  // namespace

ADDEND_CUDA_PART(TwoLevelKernels, kKernels);

}  // namespace addend::index
