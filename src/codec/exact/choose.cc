// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/choose.h"

#include <array>

#include "base/bits.h"
#include "codec/exact/sketch.h"

namespace addend::exact {
namespace {

// Seconds per dense-side byte at which one core codes, relative to the copy that dense needs as
// well. Figures of `addend bench` on 2022 server cores; only their ratios matter, and only where
// the network is as fast as the codec.
constexpr double kCopySecondsPerByte = 1.0 / 10e9;
constexpr double kPackedCopies = 1.2;
constexpr double kTwoLevelCopies = 1.5;
constexpr double kReproducibleSecondsPerValue = 12e-9;
constexpr double kSketchSecondsPerKey = 45e-9;

}  // namespace

double Cost::seconds(const NetworkHint& network) const {
  // A bandwidth-optimal all-reduce moves every byte twice.
  return rounds * network.latency_us * 1e-6 + 2 * wire_bytes * 8 / (network.gbit_per_s * 1e9) +
         codec_seconds;
}

Cost estimate(Mode mode, const Layout& layout, const Options& options, const Observation& seen) {
  const auto count = static_cast<double>(layout.count);
  const double dense_bytes = count * dtype_bytes(layout.dtype);
  const auto keys = static_cast<double>(seen.nonzeros);
  const bool reproducible = options.values == Values::kReproducible;
  const double value_bytes = keys * (reproducible ? 8 : dtype_bytes(layout.dtype));
  const double copy = dense_bytes * kCopySecondsPerByte;
  Cost cost;
  switch (mode) {
    case Mode::kDense:
      return {1, dense_bytes, copy};
    case Mode::kPacked:
      cost = {2, count / 8 + value_bytes, kPackedCopies * copy};
      break;
    case Mode::kTwoLevel:
      cost = {seen.element_bits > 0 ? 3u : 2u,
              2 * static_cast<double>(ceil_div(layout.count, options.block)) / 8 +
                  static_cast<double>(seen.element_bits) / 8 + value_bytes,
              kTwoLevelCopies * copy};
      break;
    case Mode::kSketch: {
      const SketchShape shape = SketchShape::plan(seen.nonzeros, options.lanes, 1, 0);
      cost = {reproducible ? 2u : 1u,
              count / 8 + count / 512 + 8 * static_cast<double>(shape.cells()),
              kPackedCopies * copy + keys * kSketchSecondsPerKey};
      break;
    }
    case Mode::kAuto:
      break;
  }
  if (reproducible) cost.codec_seconds += keys * kReproducibleSecondsPerValue;
  return cost;
}

Mode choose(const Layout& layout, const Options& options, const Observation& seen) {
  if (options.mode == Mode::kSketch && seen.nonzeros == Observation::kUnknown) return Mode::kPacked;
  if (options.mode != Mode::kAuto) return options.mode;
  if (seen.nonzeros == Observation::kUnknown || seen.dense_steps >= kProbeInterval) {
    return Mode::kPacked;
  }
  Mode best = Mode::kPacked;
  double least = estimate(best, layout, options, seen).seconds(layout.network);
  for (const Mode mode : std::array{Mode::kDense, Mode::kTwoLevel, Mode::kSketch}) {
    // Float sums of a dense round depend on the order of addition, which reproducible values
    // exclude.
    if (mode == Mode::kDense && options.values == Values::kReproducible) continue;
    if (mode == Mode::kTwoLevel && seen.live_blocks == Observation::kUnknown) continue;
    const double seconds = estimate(mode, layout, options, seen).seconds(layout.network);
    if (seconds < least) {
      least = seconds;
      best = mode;
    }
  }
  return best;
}

}  // namespace addend::exact
