// SPDX-License-Identifier: Apache-2.0
// What users may set on the exact codec, and what it may know.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "addend/codec.h"
#include "codec/options.h"

namespace addend::exact {

enum class Mode : uint8_t { kAuto, kPacked, kTwoLevel, kSketch, kDense, kBloom, kGather };
enum class Values : uint8_t { kFloat, kReproducible };

/// What auto may choose from.
enum class Choice : uint8_t { kAll, kDevice };

constexpr std::string_view mode_name(Mode mode) {
  constexpr std::string_view kNames[] = {"auto",  "packed", "two-level", "sketch",
                                         "dense", "bloom",  "gather"};
  return kNames[static_cast<uint8_t>(mode)];
}

/// Elements of a block of the two-level index where nobody says otherwise.
inline constexpr uint64_t kDefaultBlock = 64;

struct Options {
  Mode mode = Mode::kAuto;
  Values values = Values::kFloat;
  double tolerance = 0;  ///< reproducible: largest error of a summed element, relative to its
                         ///< block's largest magnitude
  uint64_t block = 0;    ///< elements of a block of the two-level index; 0: not given
  double density = -1;   ///< expected union density; negative: learn it from the first step
  uint32_t lanes = 1;    ///< sketch: elements hashed together
  Choice choice = Choice::kAll;
  uint64_t probe = 128;  ///< auto: most dense steps in a row before the union is looked at
};

const std::vector<OptionHelp>& exact_options();
Result<Options> read_options(const CodecSpec& spec);

}  // namespace addend::exact
