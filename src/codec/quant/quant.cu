// SPDX-License-Identifier: Apache-2.0
// The table through which the codec reaches quant's kernels.
#include "codec/quant/quant_launch.cuh"
#include "cuda/part.cuh"

namespace addend::quant {
namespace {

constexpr QuantKernels kTable = {launch_norms,  launch_survey, launch_encode, launch_contributors,
                                 launch_decode, launch_turn,   launch_keep,   launch_multiply};

}  // namespace

ADDEND_CUDA_PART(QuantKernels, kTable);

}  // namespace addend::quant
