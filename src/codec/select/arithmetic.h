// SPDX-License-Identifier: Apache-2.0
// What happens to one element, or to one number of a segment: plain functions that a CPU and a
// device run alike. Both come to the same bits, but for cut_inside: it takes a logarithm, which
// each rounds in its own way (decision 0130).
#pragma once

#include <cmath>
#include <cstdint>

#include "addend/plane.h"
#include "wire/half.h"
#include "wire/hash.h"

namespace addend::select {

inline constexpr uint32_t kInfinity = 0x7F800000;

/// Where magnitudes of a segment are added up, each of its pieces has running sums, element i in
/// number i % kRunningSums, whose halves are added to each other; then pieces are added in order.
inline constexpr uint64_t kPieceElements = 16384;
inline constexpr uint32_t kRunningSums = 256;

/// So often a threshold is corrected at the most.
inline constexpr uint32_t kMostTries = 10;

/// The sum of value(i) of `count` elements in that order.
template <typename Value>
double add_by_pieces(uint64_t count, const Value& value) {
  double sum = 0;
  for (uint64_t begin = 0; begin < count; begin += kPieceElements) {
    const uint64_t end = count - begin < kPieceElements ? count : begin + kPieceElements;
    double sums[kRunningSums] = {};
    for (uint64_t i = begin; i < end; ++i)
      sums[i % kRunningSums] += value(i);
    for (uint32_t half = kRunningSums / 2; half > 0; half /= 2) {
      for (uint32_t l = 0; l < half; ++l)
        sums[l] += sums[l + half];
    }
    sum += sums[0];
  }
  return sum;
}

/// How many of a segment's elements are sampled to find a threshold for `about` of them.
ADDEND_HOST_DEVICE inline uint64_t sample_size(uint64_t count, uint64_t about) {
  constexpr uint64_t kEvery = 100, kLeastAbove = 64;  // elements of the sample above the threshold
  const uint64_t enough = kLeastAbove * (count / about + (count % about != 0 ? 1 : 0));
  const uint64_t size = enough > count / kEvery ? enough : count / kEvery;
  return size < count ? size : count;
}
/// Which one is number j of the sample.
ADDEND_HOST_DEVICE inline uint64_t sampled(uint64_t count, uint64_t size, uint64_t draw,
                                           uint64_t j) {
  const uint64_t every = count / size;
  return j * every + addend_random(draw, j) % every;
}
/// The how manieth largest of the sample is the threshold.
ADDEND_HOST_DEVICE inline uint64_t sample_rank(uint64_t count, uint64_t size, uint64_t about) {
  const double share = static_cast<double>(about) / static_cast<double>(count);
  const auto rank = static_cast<uint64_t>(std::ceil(share * static_cast<double>(size)));
  return rank < size ? rank : size;
}
/// A threshold that keeps more or fewer elements than so many times what it should is corrected by
/// as much.
inline constexpr double kTooMany = 1.3, kTooFew = 0.7;

ADDEND_HOST_DEVICE inline uint32_t magnitude_bits(float x) {
  return addend_f32_bits(x) & 0x7FFFFFFF;
}
ADDEND_HOST_DEVICE inline bool is_finite(float x) { return magnitude_bits(x) < kInfinity; }

/// What travels of an element: the nearest finite number of the type, where it is finite.
ADDEND_HOST_DEVICE inline float nearest(DType dtype, float element) {
  if (dtype == DType::kF32) return element;
  const bool bf16 = dtype == DType::kBf16;
  const float rounded = bf16 ? addend_f32_from_bf16(addend_bf16_from_f32(element))
                             : addend_f32_from_f16(addend_f16_from_f32(element));
  if (is_finite(rounded) || !is_finite(element)) return rounded;
  const float largest = bf16 ? addend_f32_from_bf16(0x7F7F) : addend_f32_from_f16(0x7BFF);
  return element < 0 ? -largest : largest;
}

/// What is owed of an element then.
ADDEND_HOST_DEVICE inline float left_of(float element, float travelled) {
  const float left = element - travelled;
  return is_finite(left) ? left : 0.0f;
}

/// Of `count` elements in `kept` equal parts: which one of part number j is drawn.
ADDEND_HOST_DEVICE inline uint64_t drawn(uint64_t count, uint64_t kept, uint64_t draw, uint64_t j) {
  const uint64_t length = count / kept, longer = count % kept;
  const uint64_t from = j * length + (j < longer ? j : longer);
  return from + addend_random(draw, j) % (length + (j < longer ? 1 : 0));
}

/// The magnitude, an f32 whose highest bits name a bin, from which on there are about `kept`
/// elements: `above` lie in higher bins, `inside` in this one. Inside a bin, what is larger falls
/// off like the powers of one number: tails do. `from`, `to`: the bin's edges.
ADDEND_HOST_DEVICE inline float cut_inside(double from, double to, uint64_t above, uint64_t inside,
                                           uint64_t kept) {
  const auto higher = static_cast<double>(above), wanted = static_cast<double>(kept);
  const double with_bin = higher + static_cast<double>(inside);
  const double part = above == 0 ? 1 - wanted / with_bin
                                 : std::log(with_bin / wanted) / std::log(with_bin / higher);
  return static_cast<float>(from + (to - from) * part);
}

}  // namespace addend::select
