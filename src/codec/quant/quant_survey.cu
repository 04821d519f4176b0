// SPDX-License-Identifier: Apache-2.0
// Between the rounds: what the folded norms say (QuantCodec::read_norms), the step's thresholds,
// and the few bytes that the host waits for.
#include "codec/quant/device_block.cuh"
#include "codec/quant/quant_launch.cuh"
#include "cuda/launch.cuh"

namespace addend::quant {
namespace {

constexpr uint32_t kThreads = 1024;

struct Counts {
  uint64_t live = 0, lanes = 0, broken = 0;
  __device__ void add(const Counts& other) {
    live += other.live, lanes += other.lanes, broken += other.broken;
  }
};

__device__ Counts shuffle_up(const Counts& mine, uint32_t by) {
  Counts other;
  other.live = __shfl_up_sync(kAll, mine.live, by);
  other.lanes = __shfl_up_sync(kAll, mine.lanes, by);
  other.broken = __shfl_up_sync(kAll, mine.broken, by);
  return other;
}

// The sum of `mine` over the threads before this one; `total` gets that over all.
__device__ Counts scan(const Counts& mine, Counts* total) {
  __shared__ Counts of_warp[kWarp];
  const uint32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Counts sum = mine;
  for (uint32_t by = 1; by < kWarp; by *= 2) {
    const Counts other = shuffle_up(sum, by);
    if (lane >= by) sum.add(other);
  }
  if (lane == kWarp - 1) of_warp[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    Counts warps = of_warp[lane];
    for (uint32_t by = 1; by < kWarp; by *= 2) {
      const Counts other = shuffle_up(warps, by);
      if (lane >= by) warps.add(other);
    }
    of_warp[lane] = warps;
  }
  __syncthreads();
  *total = of_warp[kWarp - 1];
  if (warp > 0) sum.add(of_warp[warp - 1]);
  sum.live -= mine.live, sum.lanes -= mine.lanes, sum.broken -= mine.broken;
  return sum;
}

// One CTA: each thread has a stretch of blocks.
__global__ void __launch_bounds__(kThreads, 1)
    survey_blocks(const DeviceStep step, uint32_t* contributors, cuda::Mail* mail,
                  uint64_t sequence) {
  const uint64_t stretch = (step.block_count + kThreads - 1) / kThreads;
  const uint64_t first = threadIdx.x * stretch;
  const uint64_t end = first + stretch < step.block_count ? first + stretch : step.block_count;
  Counts mine;
#pragma unroll 4
  for (uint64_t b = first; b < end; ++b) {
    const uint32_t norm = step.norms[b];
    const DeviceBlock& block = step.blocks[b];
    if (is_live(norm)) {
      ++mine.live;
      mine.lanes += block.size;
    } else if (norm != 0) {
      mine.broken += block.elements;
    }
  }
  Counts total;
  Counts before = scan(mine, &total);
  const bool all_live = total.live == step.block_count;
  const uint64_t every = total.live < kSampleEvery ? total.live : kSampleEvery;
  for (uint64_t b = first; b < end && !all_live; ++b) {
    if (!is_live(step.norms[b])) continue;
    step.lanes[b] = before.lanes;
    before.lanes += step.blocks[b].size;
    const uint64_t rank = before.live++;
    if (rank % every == step.step % every) step.sampled[rank / every] = static_cast<uint32_t>(b);
  }
  const float threshold = draw_threshold(step.draw, threadIdx.x);
  step.thresholds[threadIdx.x] = step.thresholds[threadIdx.x + kThresholds] = threshold;
  if (threadIdx.x != 0) return;
  const Survey survey{total.live, total.lanes, total.broken, all_live ? 1u : 0u};
  *step.survey = survey;
  *contributors = 1;
  mail->numbers[kMailLive] = survey.live;
  mail->numbers[kMailLanes] = survey.lanes;
  mail->numbers[kMailBroken] = survey.broken;
  cuda::send(mail, sequence);
}
static_assert(kThreads == kThresholds);

__global__ void tell_contributors(const uint32_t* contributors, cuda::Mail* mail,
                                  uint64_t sequence) {
  mail->numbers[0] = *contributors;
  cuda::send(mail, sequence);
}

__global__ void multiply_values(float* values, uint64_t n, double factor) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = blockIdx.x * uint64_t{blockDim.x} + threadIdx.x; i < n; i += stride)
    values[i] = kept(static_cast<float>(static_cast<double>(values[i]) * factor));
}

}  // namespace

int launch_survey(const DeviceStep& step, uint32_t* contributors, cuda::Mail* mail,
                  uint64_t sequence, void* stream) {
  survey_blocks<<<1, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(step, contributors, mail,
                                                                       sequence);
  return cudaGetLastError();
}

int launch_contributors(const uint32_t* contributors, cuda::Mail* mail, uint64_t sequence,
                        void* stream) {
  tell_contributors<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(contributors, mail, sequence);
  return cudaGetLastError();
}

int launch_multiply(float* values, uint64_t n, double factor, void* stream) {
  return launch(multiply_values, 256, 0, (n + 255) / 256, stream, values, n, factor);
}

}  // namespace addend::quant
