// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/options.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "codec/quant/block.h"
#include "codec/quant/table.h"

namespace addend::quant {
namespace {

constexpr uint64_t kMostBlock = 16384;

Error refuse(const std::string& why) {
  return make_error(Errc::kInvalidArgument, "codec 'quant': " + why);
}

// "auto" or "whole" stand for 0; everything else must be a number in the range.
Result<uint64_t> read_or_word(const CodecSpec& spec, std::string_view key, std::string_view word,
                              uint64_t fallback, uint64_t least, uint64_t most) {
  for (const auto& option : spec.options) {
    if (option.first == key && option.second == word) return uint64_t{0};
  }
  return read_integer(spec, key, fallback, least, most);
}

bool gives(const CodecSpec& spec, std::string_view key) {
  return std::any_of(spec.options.begin(), spec.options.end(),
                     [&](const auto& option) { return option.first == key; });
}

// The most bits that cost no more than four: what fits the lane that four need. Where that is 16
// bits wide, sums that are narrowed to eight cost half of it, if whoever adds can do that; they are
// table sums, so a spec that names indices may have them, too. With feedback they are whole: nobody
// would keep what narrowing loses.
Status fill_lane(Options& options, const Layout& layout, const CodecSpec& spec) {
  const Result<Lane> lane = narrowest_lane((1u << options.bits) - 1, layout.world);
  ADDEND_TRY(lane);
  const bool indices = options.carrier == Carrier::kIndices;
  const bool narrow = *lane == Lane::kU16 && layout.network.narrows && !gives(spec, "down") &&
                      (indices || !gives(spec, "carrier")) && options.feedback == Feedback::kNone;
  if (indices && !narrow) return {};
  while (options.bits < kMaxBits &&
         layout.world * ((uint64_t{2} << options.bits) - 1) <= lane_limit(*lane))
    ++options.bits;
  if (narrow) {
    options.carrier = Carrier::kIndices;
    options.down = 8;
  }
  return {};
}

// Levels of one to three bits take a byte, their indices half of one. As narrow sums they take what
// they say, and sums that fit eight bits come back whole: the result is the same.
bool fits_narrow_sums(const Options& options, const Layout& layout, const CodecSpec& spec) {
  const bool free =
      !gives(spec, "down") && (options.carrier == Carrier::kIndices || !gives(spec, "carrier"));
  const uint64_t most = std::max((1u << options.bits) - 1, options.granularity);
  return free && layout.network.narrows && options.bits >= 1 && options.bits <= 3 &&
         layout.world * most <= lane_limit(Lane::kU8);
}

uint64_t largest_segment(const Layout& layout) {
  uint64_t largest = layout.segments.empty() ? layout.count : 0;
  for (const Segment& segment : layout.segments)
    largest = std::max(largest, segment.count);
  return largest;
}

Status check(const Options& options, const Layout& layout) {
  if (options.block != 0 && !std::has_single_bit(options.block))
    return refuse("block must be a power of two or whole");
  if (options.block == 0 && largest_segment(layout) > (uint64_t{1} << 30))
    return refuse("block=whole takes at most 2^30 elements");
  if (options.down != 0 && options.bits == 0) return refuse("down needs a fixed number of bits");
  if (options.down == 0 && options.carrier == Carrier::kIndices &&
      (options.bits == 0 || options.bits > 4)) {
    return refuse("carrier=indices packs 4-bit indices: it needs bits=1 to 4, or down");
  }
  if (options.index != Index::kNone && options.feedback == Feedback::kByte)
    return refuse("index keeps its residual by position: it needs feedback=none or float");
  if (options.norms == Norms::kAhead && options.feedback == Feedback::kNone)
    return refuse("norms=ahead clips what outgrew the last step's norm: it needs feedback");
  if (options.norms == Norms::kAhead && (options.bits == 0 || options.index != Index::kNone))
    return refuse("norms=ahead needs a fixed number of bits and no index");
  if (options.levels != Levels::kTable && options.bits == 0)
    return refuse("bits=auto needs levels=table");
  if (options.levels == Levels::kPublished && options.bits != 4)
    return refuse("levels=published has 4 bits");
  if (options.levels != Levels::kTable && (options.granularity != 0 || options.clipped != 0)) {
    return refuse("granularity and clipped only apply to levels=table");
  }
  if ((options.granularity != 0 || options.clipped != 0) && options.bits == 0) {
    return refuse("granularity and clipped need a fixed number of bits");
  }
  return {};
}

}  // namespace

const std::vector<OptionHelp>& quant_options() {
  static const std::vector<OptionHelp> options = {
      {"bits", "auto|1..8",
       "bits per element (as many as fit four bits' lane); auto chooses per block, from norms"},
      {"budget", "NUMBER", "bits=auto: mean bits per element (4.0)"},
      {"levels", "table|uniform|published",
       "optimal table, equally spaced, or THC's default table"},
      {"granularity", "NUMBER", "table: largest level, instead of the planner's"},
      {"clipped", "NUMBER",
       "table: expected fraction of clipped elements, instead of the planner's"},
      {"rotate", "block|none", "randomised Hadamard rotation of blocks, or none"},
      {"block", "whole|64..16384", "elements rotated together, a power of two (2048)"},
      {"rounding", "correlated|independent",
       "thresholds spread over the workers, or drawn by each"},
      {"feedback", "none|float|byte", "error feedback: residual kept in 4 or 1 bytes an element"},
      {"carrier", "levels|indices", "planes of level sums for any engine, or 4-bit table sums"},
      {"nonfinite", "nan|error", "a block with NaN or Inf becomes NaN on all ranks, or an error"},
      {"index", "none|auto|packed|two-level",
       "sparse gradients: where the union is travels first, then only its values"},
      {"down", "full|8|4",
       "bits of a sum on the way back, rounded without bias if it needs more; takes indices"},
      {"norms", "step|ahead",
       "scales of this step, in a round before, or of the last, with head-room: one round a step"},
  };
  return options;
}

Result<Options> read_options(const CodecSpec& spec, const Layout& layout) {
  const std::vector<OptionHelp>& help = quant_options();
  ADDEND_TRY(check_options(spec, help));
  const auto bits = read_or_word(spec, "bits", "auto", 4, 1, kMaxBits);
  ADDEND_TRY(bits);
  const auto budget = read_number(spec, "budget", 4, 2, 8);
  ADDEND_TRY(budget);
  const auto levels = read_choice(spec, help[2], 0);
  ADDEND_TRY(levels);
  const auto granularity = read_integer(spec, "granularity", 0, 1, 255);
  ADDEND_TRY(granularity);
  const auto clipped = read_number(spec, "clipped", 0, 1e-9, 0.5);
  ADDEND_TRY(clipped);
  const auto rotation = read_choice(spec, help[5], 0);
  ADDEND_TRY(rotation);
  const auto block = read_or_word(spec, "block", "whole", 2048, kLeastBlock, kMostBlock);
  ADDEND_TRY(block);
  const auto rounding = read_choice(spec, help[7], 0);
  ADDEND_TRY(rounding);
  const auto feedback = read_choice(spec, help[8], 0);
  ADDEND_TRY(feedback);
  const auto carrier = read_choice(spec, help[9], 0);
  ADDEND_TRY(carrier);
  const auto non_finite = read_choice(spec, help[10], 0);
  ADDEND_TRY(non_finite);
  const auto index = read_choice(spec, help[11], 0);
  ADDEND_TRY(index);
  Options options;
  options.bits = static_cast<uint32_t>(*bits);
  options.budget = *budget;
  options.levels = static_cast<Levels>(*levels);
  options.granularity = static_cast<uint32_t>(*granularity);
  options.clipped = *clipped;
  options.rotation = static_cast<Rotation>(*rotation);
  options.block = *block;
  options.rounding = static_cast<Rounding>(*rounding);
  options.feedback = static_cast<Feedback>(*feedback);
  options.carrier = static_cast<Carrier>(*carrier);
  options.non_finite = static_cast<NonFinite>(*non_finite);
  options.index = static_cast<Index>(*index);
  const auto down = read_choice(spec, help[12], 0);
  ADDEND_TRY(down);
  if (*down != 0 && gives(spec, "carrier") && options.carrier == Carrier::kLevels)
    return refuse("down narrows sums of indices: it needs carrier=indices");
  if (*down != 0) options.carrier = Carrier::kIndices;
  options.down = std::array<uint32_t, 3>{0, 8, 4}[*down];
  const auto norms = read_choice(spec, help[13], 0);
  ADDEND_TRY(norms);
  options.norms = static_cast<Norms>(*norms);
  const bool open =
      !gives(spec, "bits") && options.levels == Levels::kTable && options.granularity == 0;
  options.fills_lane = open && options.carrier == Carrier::kLevels;
  if (open) ADDEND_TRY(fill_lane(options, layout, spec));
  if (fits_narrow_sums(options, layout, spec)) {
    options.fills_carrier = options.carrier == Carrier::kLevels;
    options.carrier = Carrier::kIndices;
    options.down = 8;
  }
  ADDEND_TRY(check(options, layout));
  return options;
}

}  // namespace addend::quant
