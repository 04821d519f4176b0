// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/gradient.h"

#include <algorithm>
#include <string>

#include "apps/workload/half.h"
#include "apps/workload/random.h"

namespace addend::workload {

namespace {

constexpr uint64_t kPositions = 1;
constexpr uint64_t kMagnitudes = 2;
constexpr double kLog2E = 1.4426950408889634;

/// Which rows are live: those whose random word falls into [first, first + width) of 2^53.
struct Positions {
  Stream stream;
  uint64_t first;
  uint64_t width;

  Positions(const GradientSpec& spec, const Draw& draw)
      : stream({spec.seed, kPositions, draw.step,
                spec.overlap == Overlap::kRandom ? draw.worker + uint64_t{1} : 0}),
        first(0),
        width(static_cast<uint64_t>(spec.density * 0x1p53)) {
    // Disjoint slices of the same word make disjoint positions.
    if (spec.overlap == Overlap::kNone) first = width * draw.worker;
  }
  bool live(uint64_t row) const { return (stream.bits(row) >> 11) - first < width; }
};

float draw_value(const GradientSpec& spec, uint64_t word) {
  switch (spec.values) {
    case Values::kNormal:
      return static_cast<float>(spec.scale * to_normal(word));
    case Values::kLognormal: {
      const double magnitude = portable_exp2(spec.sigma * kLog2E * to_normal(word));
      const bool negative = (mix(word + kGolden) & 1) != 0;
      return static_cast<float>(negative ? -spec.scale * magnitude : spec.scale * magnitude);
    }
    case Values::kIntegers: {
      const auto magnitude = static_cast<float>(1 + to_index(word, 127));
      return (word & 1) != 0 ? -magnitude : magnitude;
    }
  }
  return 0;
}

}  // namespace

Status validate(const GradientSpec& spec) {
  if (!(spec.density >= 0 && spec.density <= 1)) {
    return make_error(Errc::kInvalidArgument, "density must lie between 0 and 1");
  }
  if (spec.row == 0) return make_error(Errc::kInvalidArgument, "rows need at least one element");
  if (spec.world == 0) return make_error(Errc::kInvalidArgument, "there must be a worker");
  if (spec.overlap == Overlap::kNone && spec.density * spec.world > 1) {
    return make_error(Errc::kInvalidArgument,
                      "without overlap, density times workers cannot exceed 1 (here " +
                          std::to_string(spec.density * spec.world) + ")");
  }
  return {};
}

void generate(const GradientSpec& spec, const Draw& draw, const Range& range, void* out) {
  const Positions positions(spec, draw);
  const Stream magnitudes({spec.seed, kMagnitudes, draw.step, draw.worker});
  const uint64_t end = range.first + range.count;
  uint64_t index = range.first;
  while (index < end) {
    const uint64_t row = index / spec.row;
    const uint64_t row_end = std::min(end, (row + 1) * spec.row);
    const bool live = positions.live(row);
    for (; index < row_end; ++index) {
      const float value = live ? draw_value(spec, magnitudes.bits(index)) : 0.0f;
      store_element(spec.dtype, out, index - range.first, value);
    }
  }
}

}  // namespace addend::workload
