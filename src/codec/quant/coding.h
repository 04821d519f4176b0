// SPDX-License-Identifier: Apache-2.0
// A level table made ready for the kernels, and the widths of blocks when they may differ.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "addend/plane.h"
#include "addend/result.h"
#include "codec/quant/block.h"
#include "codec/quant/options.h"
#include "codec/quant/table.h"

namespace addend::quant {

/// One way to code a block. Immutable once made.
struct Coding {
  Table table;
  Lane lane = Lane::kU8;
  double error = 0;  ///< expected squared error of the mean, relative to a block's energy
  std::array<float, kTableCells> lower{}, gap{}, index{};
  /// The levels as an adder of indices wants them: 16 entries, the last repeated.
  std::array<uint8_t, 16> levels8{};
  std::array<uint16_t, 16> levels16{};

  static Result<Coding> make(uint32_t bits, const Options& options, uint32_t world);
};

/// The operation that sums a lane of levels, or of indices looked up by the adder.
Op lane_op(Lane lane, const Options& options);

/// Widths that blocks may have when they are chosen.
inline constexpr std::array<uint32_t, 5> kWidths = {2, 3, 4, 5, 8};

/// Gives every block one of kWidths (as a position in it) so that the expected squared error is
/// least while the mean over `elements` stays within `budget` bits. A function of its arguments
/// alone: all workers come to the same widths. Blocks of norm 0 do not travel and count for
/// nothing.
std::vector<uint8_t> allocate_widths(std::span<const float> norms,
                                     std::span<const uint32_t> elements,
                                     std::span<const Coding> codings, double budget);

}  // namespace addend::quant
