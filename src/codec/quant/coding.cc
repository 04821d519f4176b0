// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/coding.h"

#include <algorithm>
#include <string>

namespace addend::quant {
namespace {

// Uniform levels without rotation cover the whole range; with it, this share is clipped (spec of
// the published scheme: 2 * 1e-4).
constexpr double kUniformClipped = 2e-4;

// Sums that some table leaves whole on a narrow way back are left whole; otherwise the adder's 16
// bits are the limit.
uint64_t narrow_limit(uint32_t bits, uint32_t down, uint32_t world) {
  const uint64_t whole = (1u << down) - 1, least = (1u << bits) - 1;
  return world * least <= whole ? whole : lane_limit(Lane::kU16);
}

Result<TableChoice> pick_table(uint32_t bits, const Options& options, uint32_t world) {
  TableChoice choice;
  Result<Table> table = published_table();
  if (options.levels == Levels::kUniform) {
    table = uniform_table(bits, kUniformClipped);
  } else if (options.levels == Levels::kTable) {
    const bool correlated = options.rounding == Rounding::kCorrelated;
    const auto planned =
        options.down == 0
            ? choose_table(bits, world, correlated)
            : choose_table_within(bits, world, correlated, narrow_limit(bits, options.down, world));
    ADDEND_TRY(planned);
    if (options.granularity == 0 && options.clipped == 0) return planned;
    const uint32_t granularity =
        options.granularity != 0 ? options.granularity : planned->table.granularity;
    table = optimal_table(bits, granularity,
                          options.clipped != 0 ? options.clipped : planned->table.clipped);
  }
  ADDEND_TRY(table);
  const Result<Lane> lane = narrowest_lane(table->granularity, world);
  ADDEND_TRY(lane);
  return TableChoice{*table, options.down == 0 ? *lane : std::max(*lane, Lane::kU16)};
}

// One more width for one block.
struct Upgrade {
  double gain;  // error energy saved per bit
  uint32_t block;
  uint8_t step;
};

}  // namespace

Op lane_op(Lane lane, const Options& options) {
  if (options.down != 0) {
    constexpr Op kOps[][2] = {{Op::kNarrowSum14, Op::kNarrowSum18},
                              {Op::kNarrowSum24, Op::kNarrowSum28},
                              {Op::kNarrowSum34, Op::kNarrowSum38},
                              {Op::kNarrowSum44, Op::kNarrowSum48},
                              {Op::kNarrowSum84, Op::kNarrowSum88}};
    return kOps[std::min(options.bits, 5u) - 1][options.down == 8 ? 1 : 0];
  }
  if (options.carrier == Carrier::kIndices)
    return lane == Lane::kU8 ? Op::kTableSumU8 : Op::kTableSumU16;
  return lane == Lane::kU8 ? Op::kSumU8 : lane == Lane::kU16 ? Op::kSumU16 : Op::kSumI32;
}

Result<Coding> Coding::make(uint32_t bits, const Options& options, uint32_t world) {
  Result<TableChoice> choice = pick_table(bits, options, world);
  ADDEND_TRY(choice);
  Coding coding;
  coding.table = std::move(choice->table);
  coding.lane = choice->lane;
  const std::vector<uint32_t>& levels = coding.table.levels;
  if (coding.table.granularity > 255) {
    return make_error(Errc::kInvalidArgument, "codec 'quant': levels above 255 are not supported");
  }
  if (options.carrier == Carrier::kIndices && coding.lane == Lane::kI32) {
    return make_error(Errc::kCapacity, "codec 'quant': table sums of " + std::to_string(world) +
                                           " workers do not fit 16-bit lanes; use carrier=levels");
  }
  coding.error = rounding_weight(world, options.rounding == Rounding::kCorrelated) *
                     coding.table.rounding_error +
                 coding.table.clipping_error;
  std::size_t k = 0;
  for (uint32_t cell = 0; cell < coding.table.granularity; ++cell) {
    while (k + 2 < levels.size() && levels[k + 1] <= cell)
      ++k;
    coding.lower[cell] = static_cast<float>(levels[k]);
    coding.gap[cell] = static_cast<float>(levels[k + 1] - levels[k]);
    coding.index[cell] = static_cast<float>(k);
  }
  // The end of the range is a cell of its own: the last level, with nothing above it.
  coding.lower[coding.table.granularity] = static_cast<float>(coding.table.granularity);
  coding.index[coding.table.granularity] = static_cast<float>(levels.size() - 1);
  for (std::size_t i = 0; i < 16; ++i) {
    const uint32_t level = levels[std::min(i, levels.size() - 1)];
    coding.levels8[i] = static_cast<uint8_t>(level);
    coding.levels16[i] = static_cast<uint16_t>(level);
  }
  return coding;
}

// Each further width of a block saves less per bit than the one before, so taking the best savings
// first, until the budget is spent, is optimal but for the last block.
std::vector<uint8_t> allocate_widths(std::span<const float> norms,
                                     std::span<const uint32_t> elements,
                                     std::span<const Coding> codings, double budget) {
  std::vector<uint8_t> widths(norms.size(), 0);
  std::vector<Upgrade> upgrades;
  double spent = 0, total = 0;
  for (uint32_t b = 0; b < norms.size(); ++b) {
    if (norms[b] == 0) continue;  // does not travel
    spent += static_cast<double>(elements[b]) * kWidths[0];
    total += elements[b];
    const double energy = static_cast<double>(norms[b]) * static_cast<double>(norms[b]);
    for (uint8_t step = 0; energy > 0 && step + 1u < kWidths.size(); ++step) {
      const double bits = static_cast<double>(elements[b]) * (kWidths[step + 1u] - kWidths[step]);
      upgrades.push_back(
          {energy * (codings[step].error - codings[step + 1u].error) / bits, b, step});
    }
  }
  std::sort(upgrades.begin(), upgrades.end(), [](const Upgrade& a, const Upgrade& b) {
    if (a.gain != b.gain) return a.gain > b.gain;
    return a.block != b.block ? a.block < b.block : a.step < b.step;
  });
  const double limit = budget * total;
  for (const Upgrade& upgrade : upgrades) {
    if (widths[upgrade.block] != upgrade.step)
      continue;  // a cheaper width of this block did not fit
    const double bits = static_cast<double>(elements[upgrade.block]) *
                        (kWidths[upgrade.step + 1u] - kWidths[upgrade.step]);
    if (spent + bits > limit) continue;
    spent += bits;
    widths[upgrade.block] = static_cast<uint8_t>(upgrade.step + 1);
  }
  return widths;
}

}  // namespace addend::quant
