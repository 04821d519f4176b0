// SPDX-License-Identifier: Apache-2.0
// A union on a device, once it is counted (IndexKernels::count): how it falls into segments, and
// arrays of floats over its positions.
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "codec/index/index_kernels.h"

namespace addend::index {

/// The bitmap and what its count found; `width` is that of the tiles it was counted in.
struct CountedUnion {
  uint32_t width;
  uint64_t count;
  const uint64_t* bitmap;
  const uint32_t* offsets;
  const uint64_t* bases;
  const Totals* totals;
};

/// sizes[s] = positions of the union from bounds[s - 1], or 0, up to bounds[s]. `sizes` is memory
/// that the host reads when the letter, which is empty, has come.
struct SegmentCall {
  CountedUnion of;
  const uint64_t* bounds;
  uint64_t segments;
  uint64_t* sizes;
  cuda::Mail* mail;
  uint64_t sequence;
};

/// values[r] = the gradient's element at the r-th position. A -0.0 travels as one where the totals
/// say so, or `raw` does. With a residual, which lies over the positions: owed[r] = its element
/// there, and values[r] has that added.
struct GatherCall {
  CountedUnion of;
  DType dtype;
  const void* gradient;
  bool raw;
  const float* residual;
  float* owed;
  float* values;
};

struct UnionKernels {
  static constexpr const char* kPart = "union";
  static constexpr uint32_t kVersion = 1;

  int (*segments)(const SegmentCall& call, void* stream);
  int (*gather)(const GatherCall& call, void* stream);
  /// array[position r] = values[r], and nothing elsewhere.
  int (*put)(const CountedUnion& of, const float* values, float* array, void* stream);
};

}  // namespace addend::index
