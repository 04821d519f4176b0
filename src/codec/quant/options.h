// SPDX-License-Identifier: Apache-2.0
// What users may set on the quant codec.
#pragma once

#include <cstdint>
#include <vector>

#include "addend/codec.h"
#include "codec/options.h"
#include "codec/residual.h"

namespace addend::quant {

enum class Levels : uint8_t { kTable, kUniform, kPublished };
enum class Rotation : uint8_t { kBlock, kNone };
enum class Rounding : uint8_t { kCorrelated, kIndependent };
enum class Carrier : uint8_t { kLevels, kIndices };
enum class NonFinite : uint8_t { kNan, kError };
enum class Norms : uint8_t { kStep, kAhead };
enum class Index : uint8_t { kNone, kAuto, kPacked, kTwoLevel };

struct Options {
  uint32_t bits = 4;        ///< 0: chosen per block under `budget`
  bool fills_lane = false;  ///< bits were not given: they follow from the world
  double budget = 4;        ///< mean bits per element when bits are chosen per block
  Levels levels = Levels::kTable;
  uint32_t granularity = 0;  ///< 0: chosen by the planner
  double clipped = 0;        ///< 0: chosen by the planner
  Rotation rotation = Rotation::kBlock;
  uint64_t block = 2048;  ///< elements rotated together; 0: the whole gradient
  Rounding rounding = Rounding::kCorrelated;
  Feedback feedback = Feedback::kNone;
  Carrier carrier = Carrier::kLevels;
  bool fills_carrier = false;  ///< indices were not asked for: what travels follows the network
  uint32_t down = 0;           ///< bits of a sum on the way back; 0: as many as it needs
  NonFinite non_finite = NonFinite::kNan;
  Norms norms = Norms::kStep;  ///< kAhead: from the step before, with head-room
  Index index = Index::kNone;  ///< where the union is comes first; blocks are cut from its values
};

const std::vector<OptionHelp>& quant_options();
Result<Options> read_options(const CodecSpec& spec, const Layout& layout);

}  // namespace addend::quant
