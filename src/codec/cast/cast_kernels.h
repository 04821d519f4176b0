// SPDX-License-Identifier: Apache-2.0
// The passes of cast on a device: the bytes of the CPU's, payloads of NaNs aside. Everything is
// enqueued on the stream.
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "cuda/memory.h"

namespace addend::cast {

/// What one worker puts in, and how it travels.
struct SendCall {
  DType from;
  const void* gradient;
  const float* owed;  ///< null: no feedback
  float* next;        ///< what is owed after the step
  float scale;
  DType to;
  uint64_t count;
  void* sent;
};

/// Of a stretch of elements that the report samples.
struct Sample {
  double energy;
  double error;
};

/// Stretches first, first + every, ... of `length` elements.
struct SampleCall {
  uint64_t first, every, length;
  Sample* samples;  ///< one a stretch; the host's
};

struct CastKernels {
  static constexpr const char* kPart = "cast";
  static constexpr uint32_t kVersion = 1;

  int (*send)(const SendCall& call, void* stream);
  /// The letter says that the samples are there.
  int (*sample)(const SendCall& call, const SampleCall& which, cuda::Mail* mail, uint64_t sequence,
                void* stream);
  /// gradient[i] = sums[i] in another type, or the same.
  int (*take)(DType from, const void* sums, uint64_t count, DType to, void* gradient, void* stream);
  /// values[i] *= factor in binary64; what is not finite becomes 0.
  int (*multiply)(float* values, uint64_t count, double factor, void* stream);
};

}  // namespace addend::cast
