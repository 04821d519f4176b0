// SPDX-License-Identifier: Apache-2.0
// Between the rounds: what the folded norms say (QuantCodec::read_norms), the step's thresholds,
// and the few bytes that the host waits for.
#include "codec/quant/device_block.cuh"
#include "codec/quant/quant_launch.cuh"
#include "cuda/launch.cuh"

namespace addend::quant {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kWarps = kThreads / kWarp;

// What rounding and decoding need of a block, once for all lanes of a warp.
__device__ BlockPart part_of(const DeviceStep& step, const DeviceBlock& block, uint32_t bits) {
  BlockPart part;
  part.begin = block.begin;
  part.place = block.place;
  part.signs = sign_stream(step.seed, block.owner, step.epoch, block.number);
  part.threshold = static_cast<uint32_t>(threshold_place(step.draw.seed, block.threshold_name));
  if (!is_live(bits)) return part;
  const float norm = addend_f32_from_bits(bits);
  part.prescale = prescale_of(norm);
  part.norm = norm * part.prescale;
  part.scale = scale_to_table(step.grid, part.norm);
  part.values = level_values(step.grid, part.norm);
  return part;
}

__device__ uint64_t sum_of_warp(uint64_t x) {
  for (uint32_t by = kWarp / 2; by > 0; by /= 2)
    x += __shfl_xor_sync(kAll, x, by);
  return x;
}

__device__ void add(uint64_t* to, uint64_t x) {
  if (x != 0) atomicAdd(reinterpret_cast<unsigned long long*>(to), x);
}

// Where the live blocks' lanes start, and which are sampled, if some blocks do not travel. One CTA.
__device__ void place_blocks(const DeviceStep& step, uint32_t every) {
  __shared__ uint64_t lanes_of[kWarps];
  __shared__ uint32_t live_of[kWarps];
  const uint32_t lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  uint64_t lanes = 0;
  uint32_t live_before = 0;
  for (uint64_t base = 0; base < step.block_count; base += kThreads) {
    const uint64_t b = base + threadIdx.x;
    const bool live = b < step.block_count && is_live(step.norms[b]);
    const uint32_t size = live ? step.sizes[b] : 0;
    const uint32_t all = __ballot_sync(kAll, live);
    uint32_t end = size;
    for (uint32_t by = 1; by < kWarp; by *= 2) {
      const uint32_t other = __shfl_up_sync(kAll, end, by);
      if (lane >= by) end += other;
    }
    if (lane == kWarp - 1) lanes_of[warp] = end, live_of[warp] = __popc(all);
    __syncthreads();
    uint64_t mine = lanes + end - size;
    uint32_t rank = live_before + __popc(all & ((1u << lane) - 1));
    for (uint32_t w = 0; w < kWarps; ++w) {
      if (w < warp) mine += lanes_of[w], rank += live_of[w];
      lanes += lanes_of[w], live_before += live_of[w];
    }
    if (live) step.lanes[b] = mine;
    if (live && rank % every == step.step % every)
      step.sampled[rank / every] = static_cast<uint32_t>(b);
    __syncthreads();
  }
}

// A thread a block; the CTA that comes last has all counts, and tells the host.
__global__ void __launch_bounds__(kThreads)
    survey_blocks(const DeviceStep step, uint32_t* contributors, cuda::Mail* mail,
                  uint64_t sequence) {
  __shared__ bool last;
  const uint64_t stride = uint64_t{gridDim.x} * kThreads;
  const uint64_t first = blockIdx.x * uint64_t{kThreads} + threadIdx.x;
  uint64_t live = 0, lanes = 0, broken = 0;
  for (uint64_t b = first; b < step.block_count; b += stride) {
    const uint32_t norm = step.norms[b];
    const DeviceBlock& block = step.blocks[b];
    step.parts[b] = part_of(step, block, norm);
    if (is_live(norm)) {
      ++live;
      lanes += block.size;
    } else if (norm != 0) {
      broken += block.elements;
    }
  }
  for (uint64_t i = first; i < kThresholds; i += stride)
    step.thresholds[i] = step.thresholds[i + kThresholds] = draw_threshold(step.draw, i);
  live = sum_of_warp(live), lanes = sum_of_warp(lanes), broken = sum_of_warp(broken);
  Survey* survey = step.survey;
  BlockCount* counting = &survey->counting;
  if (threadIdx.x % kWarp == 0)
    add(&counting->live, live), add(&counting->lanes, lanes), add(&counting->broken, broken);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&survey->tickets, 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  const uint64_t all = __ldcg(&counting->live);
  const auto every = static_cast<uint32_t>(all < kSampleEvery ? all : kSampleEvery);
  if (all != step.block_count) place_blocks(step, every);
  if (threadIdx.x != 0) return;
  mail->numbers[kMailLive] = survey->live = all;
  mail->numbers[kMailLanes] = __ldcg(&counting->lanes);
  mail->numbers[kMailBroken] = __ldcg(&counting->broken);
  survey->all_live = all == step.block_count ? 1 : 0;
  survey->every = every == 0 ? 1 : every;
  survey->phase = static_cast<uint32_t>(step.step % survey->every);
  survey->tickets = 0;  // for the next step
  *counting = {};
  *contributors = 1;
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
  return launch_resident<survey_blocks, kThreads, SharedBytes{}>(
      (step.block_count + kThreads - 1) / kThreads, stream, step, contributors, mail, sequence);
}

int launch_contributors(const uint32_t* contributors, cuda::Mail* mail, uint64_t sequence,
                        void* stream) {
  return cuda::tell(contributors, mail, sequence, stream);
}

int launch_multiply(float* values, uint64_t n, double factor, void* stream) {
  return launch_resident<multiply_values, kThreads, SharedBytes{}>((n + kThreads - 1) / kThreads,
                                                                   stream, values, n, factor);
}

}  // namespace addend::quant
