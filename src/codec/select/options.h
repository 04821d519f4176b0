// SPDX-License-Identifier: Apache-2.0
// What users may set on the codecs that select.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "addend/codec.h"
#include "codec/options.h"

namespace addend::select {

enum class Selector : uint8_t { kTopk, kThreshold, kDgc, kRedsync, kRandom, kLeader };

/// The codec's name. The text ends in NUL.
constexpr std::string_view selector_name(Selector selector) {
  constexpr std::string_view kNames[] = {"topk", "threshold", "dgc", "redsync", "random", "leader"};
  return kNames[static_cast<uint8_t>(selector)];
}

/// Whether all workers' positions are the same, so that values alone travel for them.
constexpr bool agrees_on_positions(Selector selector) {
  return selector == Selector::kRandom || selector == Selector::kLeader;
}

struct Options {
  Selector selector = Selector::kTopk;
  double density = 0.01;  ///< of a segment's elements, those that travel
  CodecSpec carrier;      ///< what the selected elements are handed to
  // Of dgc.
  double momentum = 0;
  double clip = 0;      ///< most norm of all workers' gradients of a segment together; 0: any
  uint64_t warmup = 0;  ///< steps until the density is reached
};

const std::vector<OptionHelp>& select_options();
const std::vector<OptionHelp>& dgc_options();
const std::vector<OptionHelp>& agreed_options();

/// REQUIRES: the spec's name is that of a selector.
Result<Options> read_options(const CodecSpec& spec);

/// How many of a segment's elements travel in a step, about or exactly. At least one, if there are
/// any. Multiplications alone: the same on every machine.
uint64_t kept_of(const Options& options, uint64_t count, uint64_t step);

}  // namespace addend::select
