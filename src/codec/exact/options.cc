// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/options.h"

#include <bit>

namespace addend::exact {

namespace {

// In the order of the option's values.
constexpr Mode kModes[] = {Mode::kAuto,   Mode::kPacked, Mode::kTwoLevel,
                           Mode::kSketch, Mode::kBloom,  Mode::kGather};

}  // namespace

const std::vector<OptionHelp>& exact_options() {
  static const std::vector<OptionHelp> options = {
      {"mode", "auto|packed|two-level|sketch|bloom|gather",
       "how the index travels; auto also considers dense"},
      {"values", "float|reproducible",
       "the engine's float sums, or integer sums equal on all ranks"},
      {"tolerance", "NUMBER",
       "reproducible: error allowed relative to a block's largest value (0)"},
      {"block", "NUMBER",
       "elements of a block of the two-level index (auto: 64, 128 or 256; else 64)"},
      {"density", "NUMBER", "expected union density, if known before the first step"},
      {"lanes", "NUMBER", "sketch: elements hashed together, a power of two (1)"},
      {"probe", "NUMBER", "auto: most dense steps in a row before the union is looked at (128)"},
      {"choice", "all|device",
       "auto: modes to choose from; device: packed, two-level and dense, where some workers are on "
       "devices"},
  };
  return options;
}

Result<Options> read_options(const CodecSpec& spec) {
  const std::vector<OptionHelp>& help = exact_options();
  ADDEND_TRY(check_options(spec, help));
  const auto mode = read_choice(spec, help[0], 0);
  ADDEND_TRY(mode);
  const auto values = read_choice(spec, help[1], 0);
  ADDEND_TRY(values);
  const auto tolerance = read_number(spec, "tolerance", 0, 0, 0.5);
  ADDEND_TRY(tolerance);
  const auto block = read_integer(spec, "block", 0, 1, uint64_t{1} << 32);
  ADDEND_TRY(block);
  const auto density = read_number(spec, "density", -1, 0, 1);
  ADDEND_TRY(density);
  const auto lanes = read_integer(spec, "lanes", 1, 1, 1024);
  ADDEND_TRY(lanes);
  const auto probe = read_integer(spec, "probe", Options{}.probe, 0, uint64_t{1} << 32);
  ADDEND_TRY(probe);
  const auto choice = read_choice(spec, help[7], 0);
  ADDEND_TRY(choice);
  if (!std::has_single_bit(*lanes)) {
    return make_error(Errc::kInvalidArgument, "codec 'exact': lanes must be a power of two");
  }
  if (*tolerance > 0 && *values == 0) {
    return make_error(Errc::kInvalidArgument,
                      "codec 'exact': tolerance only applies to values=reproducible");
  }
  if (kModes[*mode] == Mode::kGather && *values != 0) {
    return make_error(Errc::kInvalidArgument,
                      "codec 'exact': mode=gather adds floats in the order of workers, and has no "
                      "values=reproducible");
  }
  Options options;
  options.mode = kModes[*mode];
  options.values = static_cast<Values>(*values);
  options.tolerance = *tolerance;
  options.block = *block;
  options.density = *density;
  options.lanes = static_cast<uint32_t>(*lanes);
  options.probe = *probe;
  options.choice = static_cast<Choice>(*choice);
  return options;
}

}  // namespace addend::exact
