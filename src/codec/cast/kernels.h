// SPDX-License-Identifier: Apache-2.0
// The two passes of cast with error feedback. Scalar reference and Highway version write the same
// bytes, NaN payloads aside.
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "wire/element.h"

namespace addend::cast {

/// What one worker puts in, and how it travels.
struct Addends {
  DType from = DType::kF32;
  const void* gradient = nullptr;
  const float* residual = nullptr;
  float scale = 1;
  DType to = DType::kBf16;
};

/// sent[i] = (gradient[i] + residual[i]) * scale, rounded to the type that travels. All arithmetic
/// is f32, one operation at a time.
void send(const Addends& addends, uint64_t count, void* sent);

/// residual[i] = what send took: the addend less what was sent, in units of the gradient. Where
/// that is not finite (NaN, an infinity, or a sum of 16-bit floats that has become one) it stays.
/// REQUIRES: residual is that of `addends`.
void keep(const Addends& addends, uint64_t count, float* residual);

/// One element of both: what the addend is and what arrives of it.
struct Sent {
  float addend = 0;
  float arrived = 0;
};

inline Sent sent_at(const Addends& addends, uint64_t i) {
  const float addend = load_float(addends.from, addends.gradient, i) + addends.residual[i];
  float lane = 0;  // room for any type
  store_float(addends.to, &lane, 0, addend * addends.scale);
  return {addend, load_float(addends.to, &lane, 0) / addends.scale};
}

}  // namespace addend::cast
