// SPDX-License-Identifier: Apache-2.0
// What is owed with an index, where blocks change from step to step: in the gradient's own
// coordinates (QuantCodec::keep_by_position).
#include "codec/quant/device_block.cuh"
#include "codec/quant/quant_launch.cuh"

namespace addend::quant {
namespace {

__device__ void keep_block(const DeviceStep& step, uint64_t b, float* owed, float* z) {
  const DeviceBlock& block = step.blocks[b];
  const BlockPart& part = step.parts[b];
  load_shared(step, b, part.prescale, z);
  const Rounder q(step, part, step.thresholds);
  const float unit = step.grid.rotates ? static_cast<float>(block.size) : 1.0f;
  for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x) {
    const Rounded r = round_element(q, step.cells, z[i], q.thresholds[i % kThresholds]);
    z[i] = (z[i] - (r.level() * part.values.factor + part.values.offset)) / unit;
  }
  if (step.grid.rotates) {
    transform_shared(z, block.size);
    flip_shared(z, block.size, part.signs);
  }
  for (uint32_t i = threadIdx.x; i < block.elements; i += blockDim.x)
    owed[block.begin + i] = kept(z[i] / part.prescale);
}

__global__ void __launch_bounds__(kCtaThreads) keep_ctas(const DeviceStep step, float* owed) {
  extern __shared__ __align__(16) float z[];
  for (uint64_t b = blockIdx.x; b < step.block_count; b += gridDim.x) {
    const uint32_t norm = step.norms[b];
    if (is_live(norm)) {
      keep_block(step, b, owed, z);
    } else if (norm == 0) {  // gradient and residual cancelled on every worker
      const DeviceBlock& block = step.blocks[b];
      for (uint32_t i = threadIdx.x; i < block.elements; i += blockDim.x)
        owed[block.begin + i] = 0.0f;
    }
  }
}

}  // namespace

int launch_keep(const DeviceStep& step, float* owed, void* stream) {
  return launch_ctas<keep_ctas>(step, step.block_count, stream, owed);
}

}  // namespace addend::quant
