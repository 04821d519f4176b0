// SPDX-License-Identifier: Apache-2.0
// The automatic choice of a mode: a pure function of what all workers know alike, so it needs no
// agreement.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "addend/codec.h"
#include "codec/exact/options.h"
#include "codec/index/bloom.h"

namespace addend::exact {

/// What earlier steps showed. Only sums may be written here: they are the same on all workers.
struct Observation {
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  uint64_t nonzeros = kUnknown;     ///< of the next union, as far as the last ones tell
  uint64_t capacity = kUnknown;     ///< non-zeros that a sketch would be sized for
  uint64_t block = kDefaultBlock;   ///< elements of a block, if the next step is two-level
  uint64_t live_blocks = kUnknown;  ///< blocks of that size with a non-zero
  uint64_t element_bits =
      kUnknown;                   ///< index bits that the two-level form needs inside live blocks
  uint64_t steps = 0;             ///< the number of the next step
  uint64_t dense_steps = 0;       ///< of them, dense ones since the union was last seen
  uint64_t look_after = 1;        ///< dense steps before the union is looked at again
  uint64_t own_lanes = kUnknown;  ///< of the longest message of one worker's own non-zeros
  Mode mode = Mode::kAuto;        ///< of the last step that looked for zeros
  int top = kNoTop;               ///< exponent of the largest addend's highest bit
  static constexpr int kNoTop = -1000;
};

/// Estimated cost of a step in one mode; the parts that the choice adds up.
struct Cost {
  uint32_t rounds = 0;
  double wire_bytes = 0;
  double codec_seconds = 0;
  double seconds(const NetworkHint& network) const;
};

/// REQUIRES: seen.nonzeros is known (and the block figures, for kTwoLevel; capacity, for kSketch
/// and kBloom; own_lanes, for kGather).
Cost estimate(Mode mode, const Layout& layout, const Options& options, const Observation& seen);

/// The mode of the next step. Without knowledge of the union this is packed, which gains it; a run
/// of `seen.look_after` dense steps, or `options.probe` if that is fewer, is interrupted by a
/// packed one, because dense steps do not show the union. Where even an empty union would not pay
/// there is nothing to look for.
Mode choose(const Layout& layout, const Options& options, const Observation& seen);

/// The filter for the next union, with half the head-room of a sketch: what outgrows it costs some
/// zeros, not another round. REQUIRES: seen.nonzeros and seen.capacity are known.
index::BloomShape plan_filter(const Layout& layout, const Options& options, const Observation& seen,
                              uint64_t seed);

/// Whether a round for one bit for each of `found` positions costs less than the values of the
/// false ones among them.
bool pays_to_ask(const Layout& layout, const Options& options, uint64_t found,
                 double false_positions);

/// Block sizes that the automatic choice compares unless the user gives one.
inline constexpr std::array<uint64_t, 3> kBlockSizes = {64, 128, 256};
constexpr bool chooses_block(const Options& options) {
  return options.mode == Mode::kAuto && options.block == 0;
}
/// Those that a survey of these options compares.
std::span<const uint64_t> surveyed_sizes(const Options& options);

/// Of a union that is cut into blocks of one size.
struct BlockCounts {
  uint64_t live = 0;          ///< blocks with a non-zero
  uint64_t element_bits = 0;  ///< index bits that the two-level form needs inside them
};
/// Sets the block size, of those surveyed, at which the two-level form would cost least, and what
/// was counted at it. `counts` are in the order of surveyed_sizes.
void choose_block(const Layout& layout, const Options& options, std::span<const BlockCounts> counts,
                  Observation& seen);

/// Counts the live blocks of `seen.block` elements and their element bits in a union.
void count_blocks(const uint64_t* bitmap, uint64_t count, Observation& seen);

/// The same at every surveyed size, and chooses one.
void survey_blocks(const Layout& layout, const Options& options, const uint64_t* bitmap,
                   Observation& seen);

/// Whether a step in this mode should also ask how long messages of own non-zeros would be.
bool counts_own(Mode mode, const Layout& layout, const Options& options, const Observation& seen);

/// Whether a step should also count blocks, to learn whether two levels would pay.
constexpr bool surveys_blocks(const Options& options, const Observation& seen) {
  return options.mode == Mode::kAuto &&
         (seen.live_blocks == Observation::kUnknown || seen.steps % 16 == 0);
}

}  // namespace addend::exact
