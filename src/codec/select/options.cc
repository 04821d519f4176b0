// SPDX-License-Identifier: Apache-2.0
#include "codec/select/options.h"

#include <algorithm>
#include <cmath>

namespace addend::select {
namespace {

constexpr OptionHelp kDensity = {
    "density", "NUMBER",
    "share of each segment's elements that travel (0.01); topk:0.01 says the same", true};
constexpr OptionHelp kIndex = {
    "index", "auto|packed|two-level|sketch|bloom|gather",
    "how the union of their positions travels: the modes of exact (auto)"};
constexpr OptionHelp kValues = {"values", "float|reproducible",
                                "the engine's float sums, or integer sums equal on all ranks"};

constexpr double kLeastDensity = 1e-6;
// Warm-up goes down from a quarter, by a quarter a stage.
constexpr uint64_t kStages = 5;
constexpr double kStage = 0.25;

Selector selector_of(std::string_view name) {
  constexpr Selector kAll[] = {Selector::kTopk,    Selector::kThreshold, Selector::kDgc,
                               Selector::kRedsync, Selector::kRandom,    Selector::kLeader};
  return *std::find_if(std::begin(kAll), std::end(kAll),
                       [&](Selector selector) { return selector_name(selector) == name; });
}

const std::vector<OptionHelp>& help_of(Selector selector) {
  if (selector == Selector::kDgc) return dgc_options();
  return agrees_on_positions(selector) ? agreed_options() : select_options();
}

// What exact has an option of its own for, in its words.
Result<CodecSpec> read_carrier(const CodecSpec& spec) {
  CodecSpec carrier{"exact", {}};
  for (const OptionHelp& option : {kIndex, kValues}) {
    ADDEND_TRY(read_choice(spec, option, 0));
    for (const auto& [key, value] : spec.options) {
      if (key == option.key) carrier.options.emplace_back(key == "index" ? "mode" : key, value);
    }
  }
  return carrier;
}

}  // namespace

const std::vector<OptionHelp>& select_options() {
  static const std::vector<OptionHelp> options = {kDensity, kIndex, kValues};
  return options;
}

const std::vector<OptionHelp>& dgc_options() {
  static const std::vector<OptionHelp> options = {
      kDensity,
      kIndex,
      kValues,
      {"momentum", "NUMBER", "added up before the selection, instead of in the optimizer (0.9)"},
      {"clip", "NUMBER", "most norm of a segment's gradient, all workers together (0: any)"},
      {"warmup", "NUMBER", "steps in which the density goes down from 0.25 (0)"},
  };
  return options;
}

const std::vector<OptionHelp>& agreed_options() {
  static const std::vector<OptionHelp> options = {kDensity};
  return options;
}

Result<Options> read_options(const CodecSpec& spec) {
  Options options;
  options.selector = selector_of(spec.name);
  ADDEND_TRY(check_options(spec, help_of(options.selector)));
  const auto density = read_number(spec, "density", options.density, kLeastDensity, 1);
  ADDEND_TRY(density);
  options.density = *density;
  if (agrees_on_positions(options.selector)) {
    options.carrier = {"dense", {}};
    return options;
  }
  Result<CodecSpec> carrier = read_carrier(spec);
  ADDEND_TRY(carrier);
  options.carrier = std::move(*carrier);
  if (options.selector != Selector::kDgc) return options;
  const auto momentum = read_number(spec, "momentum", 0.9, 0, 0.9999);
  ADDEND_TRY(momentum);
  const auto clip = read_number(spec, "clip", 0, 0, 1e30);
  ADDEND_TRY(clip);
  const auto warmup = read_integer(spec, "warmup", 0, 0, uint64_t{1} << 32);
  ADDEND_TRY(warmup);
  options.momentum = *momentum;
  options.clip = *clip;
  options.warmup = *warmup;
  return options;
}

uint64_t kept_of(const Options& options, uint64_t count, uint64_t step) {
  double density = options.density;
  if (step < options.warmup) {
    double stage = kStage;
    for (uint64_t s = kStages * step / options.warmup; s > 0; --s)
      stage *= kStage;
    density = std::max(density, stage);
  }
  const auto kept = static_cast<uint64_t>(std::ceil(density * static_cast<double>(count)));
  return std::min(kept, count);
}

}  // namespace addend::select
