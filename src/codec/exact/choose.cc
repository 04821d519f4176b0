// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/choose.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "base/bits.h"
#include "codec/exact/sketch.h"

namespace addend::exact {
namespace {

// Seconds per dense-side byte at which one core codes, relative to the copy that dense needs as
// well. Figures of `addend bench` on 2022 server cores; only their ratios matter, and only where
// the network is as fast as the codec.
constexpr double kCopySecondsPerByte = 1.0 / 10e9;
constexpr double kPackedCopies = 1.2;
constexpr double kBlockScanCopies = 0.6;  // dead blocks are read, and that is all
constexpr double kLiveBlockCopies = 1.2;  // live ones are read again, gathered and scattered
constexpr double kBloomCopies = 1.7;      // packed's, and what a filter holds is found
constexpr double kBloomSecondsPerKey = 15e-9;
constexpr double kReproducibleSecondsPerValue = 12e-9;
constexpr double kSketchSecondsPerKey = 45e-9;

// Another mode must be estimated below this share of dense's seconds. The codec takes cores from
// training, which the estimate does not charge for, and a mode that gains little on paper loses in
// practice; nor should a plan flip between modes that cost the same.
constexpr double kLeaveDense = 0.85;

// And an index of another form must be below this share of the last one's.
constexpr double kLeaveForm = 0.97;

uint32_t value_bytes(const Layout& layout, const Options& options) {
  return options.values == Values::kReproducible ? 8 : dtype_bytes(layout.dtype);
}

}  // namespace

double Cost::seconds(const NetworkHint& network) const {
  // A bandwidth-optimal all-reduce moves every byte twice.
  return rounds * network.latency_us * 1e-6 + 2 * wire_bytes * 8 / (network.gbit_per_s * 1e9) +
         codec_seconds;
}

index::BloomShape plan_filter(const Layout& layout, const Options& options, const Observation& seen,
                              uint64_t seed) {
  const uint64_t keys = (seen.nonzeros + seen.capacity) / 2;
  return index::BloomShape::plan(keys, layout.count, 8 * value_bytes(layout, options), seed);
}

bool pays_to_ask(const Layout& layout, const Options& options, uint64_t found,
                 double false_positions) {
  const double saved = false_positions * value_bytes(layout, options);
  const Cost with{1, static_cast<double>(found) / 8, 0}, without{0, saved, 0};
  return with.seconds(layout.network) < without.seconds(layout.network);
}

Cost estimate(Mode mode, const Layout& layout, const Options& options, const Observation& seen) {
  const auto count = static_cast<double>(layout.count);
  const double dense_bytes = count * dtype_bytes(layout.dtype);
  const auto keys = static_cast<double>(seen.nonzeros);
  const bool reproducible = options.values == Values::kReproducible;
  const double width = value_bytes(layout, options);
  const double values = keys * width;
  const double copy = dense_bytes * kCopySecondsPerByte;
  Cost cost;
  switch (mode) {
    case Mode::kDense:
      return {1, dense_bytes, copy};
    case Mode::kPacked:
      cost = {2, count / 8 + values, kPackedCopies * copy};
      break;
    case Mode::kTwoLevel: {
      const auto blocks = static_cast<double>(ceil_div(layout.count, seen.block));
      const double live = static_cast<double>(seen.live_blocks) / std::max(blocks, 1.0);
      cost = {seen.element_bits > 0 ? 3u : 2u,
              2 * blocks / 8 + static_cast<double>(seen.element_bits) / 8 + values,
              (kBlockScanCopies + kLiveBlockCopies * live) * copy};
      if (reproducible) cost.codec_seconds += kPackedCopies * copy;
      break;
    }
    case Mode::kSketch: {
      const SketchShape shape = SketchShape::plan(seen.capacity, options.lanes, 1, 0);
      // A union that outgrows the sketch is packed after all.
      const double beyond = std::max(keys - static_cast<double>(seen.capacity), 0.0);
      cost = {reproducible ? 2u : 1u,
              count / 8 + count / 512 + 8 * static_cast<double>(shape.cells()) + beyond * width,
              kPackedCopies * copy + keys * kSketchSecondsPerKey};
      break;
    }
    case Mode::kBloom: {
      const index::BloomShape shape = plan_filter(layout, options, seen, 0);
      const double passing = 1 / static_cast<double>(uint64_t{1} << shape.hashes);
      cost = {2, 8 * static_cast<double>(shape.words) + values + (count - keys) * passing * width,
              kBloomCopies * copy + keys * kBloomSecondsPerKey};
      break;
    }
    case Mode::kGather:
      // Each worker sends its message to all others, not twice to their n-th part.
      cost = {2, static_cast<double>(layout.world) * 8 * static_cast<double>(seen.own_lanes) / 2,
              kPackedCopies * copy};
      break;
    case Mode::kAuto:
      break;
  }
  if (reproducible) cost.codec_seconds += keys * kReproducibleSecondsPerValue;
  return cost;
}

namespace {

struct Candidate {
  Mode mode;
  double seconds;
};

double seconds_of(Mode mode, const Layout& layout, const Options& options,
                  const Observation& seen) {
  return estimate(mode, layout, options, seen).seconds(layout.network);
}

/// A filter is never larger than the bitmap that it stands for.
bool filter_fits(const Layout& layout, const Options& options, const Observation& seen) {
  return plan_filter(layout, options, seen, 0).words < words_for(layout.count);
}

bool may_gather(const Layout& layout, const Options& options) {
  return options.mode == Mode::kAuto && options.choice == Choice::kAll &&
         options.values == Values::kFloat && layout.world > 1 && layout.network.gathers;
}

/// The best of the modes that look for zeros, or the last one if that is nearly as good.
Candidate cheapest_sparse(const Layout& layout, const Options& options, const Observation& seen) {
  Candidate best{Mode::kPacked, seconds_of(Mode::kPacked, layout, options, seen)}, last = best;
  for (const Mode mode : std::array{Mode::kTwoLevel, Mode::kSketch, Mode::kBloom, Mode::kGather}) {
    if (mode != Mode::kTwoLevel && options.choice == Choice::kDevice) continue;
    if (mode == Mode::kTwoLevel && seen.live_blocks == Observation::kUnknown) continue;
    if (mode == Mode::kBloom && !filter_fits(layout, options, seen)) continue;
    if (mode == Mode::kGather &&
        (!may_gather(layout, options) || seen.own_lanes == Observation::kUnknown))
      continue;
    const Candidate tried{mode, seconds_of(mode, layout, options, seen)};
    if (tried.seconds < best.seconds) best = tried;
    if (mode == seen.mode) last = tried;
  }
  return last.mode == seen.mode && best.seconds >= kLeaveForm * last.seconds ? last : best;
}

}  // namespace

Mode choose(const Layout& layout, const Options& options, const Observation& seen) {
  const bool sized = options.mode == Mode::kSketch || options.mode == Mode::kBloom;
  if ((sized || options.mode == Mode::kAuto) && seen.nonzeros == Observation::kUnknown)
    return Mode::kPacked;
  if (options.mode == Mode::kBloom && !filter_fits(layout, options, seen)) return Mode::kPacked;
  if (options.mode != Mode::kAuto) return options.mode;
  const Candidate sparse = cheapest_sparse(layout, options, seen);
  // Float sums of a dense round depend on the order of addition, which reproducible values exclude.
  if (options.values == Values::kReproducible) return sparse.mode;
  const double enough = kLeaveDense * seconds_of(Mode::kDense, layout, options, seen);
  if (sparse.seconds < enough) return sparse.mode;
  if (seen.dense_steps < std::min(seen.look_after, options.probe)) return Mode::kDense;
  Observation empty = seen;
  empty.nonzeros = empty.capacity = empty.live_blocks = empty.element_bits = empty.own_lanes = 0;
  const bool may_pay = cheapest_sparse(layout, options, empty).seconds < enough;
  return may_pay ? Mode::kPacked : Mode::kDense;
}

bool counts_own(Mode mode, const Layout& layout, const Options& options, const Observation& seen) {
  const bool has_room = mode == Mode::kPacked || mode == Mode::kTwoLevel || mode == Mode::kBloom;
  return has_room && may_gather(layout, options) &&
         (seen.own_lanes == Observation::kUnknown || (seen.steps + 1) % 16 == 0);
}

std::span<const uint64_t> surveyed_sizes(const Options& options) {
  if (chooses_block(options)) return kBlockSizes;
  return {&options.block, 1};
}

void choose_block(const Layout& layout, const Options& options, std::span<const BlockCounts> counts,
                  Observation& seen) {
  const std::span<const uint64_t> sizes = surveyed_sizes(options);
  Observation best = seen;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    Observation tried = seen;
    tried.block = sizes[s];
    tried.live_blocks = counts[s].live;
    tried.element_bits = counts[s].element_bits;
    const double seconds = seconds_of(Mode::kTwoLevel, layout, options, tried);
    if (seconds < least) best = tried;
    least = std::min(least, seconds);
  }
  seen = best;
}

void survey_blocks(const Layout& layout, const Options& options, const uint64_t* bitmap,
                   Observation& seen) {
  const std::span<const uint64_t> sizes = surveyed_sizes(options);
  std::array<BlockCounts, kBlockSizes.size()> counts;
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    Observation counted;
    counted.block = sizes[s];
    count_blocks(bitmap, layout.count, counted);
    counts[s] = {counted.live_blocks, counted.element_bits};
  }
  choose_block(layout, options, counts, seen);
}

void count_blocks(const uint64_t* bitmap, uint64_t count, Observation& seen) {
  seen.live_blocks = seen.element_bits = 0;
  for (uint64_t begin = 0; begin < count; begin += seen.block) {
    const uint64_t length = std::min(seen.block, count - begin);
    bool live = false, full = true;
    for_each_piece(begin, begin + length, [&](uint64_t at, uint64_t bits) {
      const uint64_t piece = read_bits(bitmap, at, bits);
      live |= piece != 0;
      full &= piece == low_mask(bits);
    });
    seen.live_blocks += live ? 1 : 0;
    seen.element_bits += live && !full ? length : 0;
  }
}

}  // namespace addend::exact
