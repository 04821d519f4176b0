// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/codecs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace addend::cli {

namespace {

/// The option's value, or `fallback` if it is not given.
std::string option(const CodecSpec& spec, std::string_view key, const char* fallback) {
  for (const auto& [name, value] : spec.options) {
    if (name == key) return value;
  }
  return fallback;
}

/// REQUIRES: the codec was created from `spec`, so that numbers are numbers.
double number(const CodecSpec& spec, std::string_view key, const char* fallback) {
  return std::strtod(option(spec, key, fallback).c_str(), nullptr);
}

/// Rotated elements are like normal ones, and levels reach at most four deviations to either side:
/// gaps of 8 / (2^bits - 1) deviations on average, where unbiased rounding adds at most (gap / 2)^2
/// to the variance. Averaging over workers only helps. Twice that leaves room for uneven gaps and
/// for what is clipped.
double most_nmse(const CodecSpec& spec) {
  const std::string asked = option(spec, "bits", "4");
  const double bits =
      asked == "auto" ? std::floor(number(spec, "budget", "4")) : number(spec, "bits", "4");
  double most = 2 * std::pow(4 / (std::exp2(bits) - 1), 2);
  // The difference of two residuals.
  if (option(spec, "feedback", "none") != "none") most *= 4;
  // The user's own clipping may lose everything, but not more.
  if (!option(spec, "clipped", "").empty()) most += 1;
  return most;
}

/// Without rotation a few large elements may dwarf the rest, so only the range bounds the error:
/// that of the largest magnitude, which error feedback makes up to three times as large.
double most_range(const CodecSpec& spec) {
  return option(spec, "feedback", "none") == "none" ? 2 : 4;
}

/// Each worker rounds its addend to half a unit, and each addition rounds a partial sum, which may
/// be as large as all addends together. Feedback adds what was rounded away before. What lies below
/// the type's smallest step, or above its range, is lost.
workload::Tolerance cast_tolerance(const CodecSpec& spec, uint32_t world) {
  const bool bf16 = option(spec, "to", "bf16") == "bf16";
  const double rounded = (bf16 ? 0x1p-9 : 0x1p-12) * world;
  workload::Tolerance tolerance;
  tolerance.lossy = true;
  tolerance.nmse = std::pow(rounded, 2);
  if (option(spec, "feedback", "none") != "none") tolerance.nmse *= 4;
  tolerance.step = bf16 ? 0x1p-133 : 0x1p-24;
  return tolerance;
}

/// An element waits for its turn while others are larger, or drawn: where gradients repeat, about
/// as many steps as the share that travels is small, and comes with all of their gradients. What is
/// not finite may show in another place of its segment.
workload::Tolerance select_tolerance(const CodecSpec& spec) {
  workload::Tolerance tolerance;
  tolerance.lossy = true;
  tolerance.nmse = 4 / std::pow(number(spec, "density", "0.01"), 2);
  tolerance.block = std::numeric_limits<uint32_t>::max();
  return tolerance;
}

bool selects(std::string_view name) {
  constexpr std::string_view kSelectors[] = {"topk",    "threshold", "dgc",
                                             "redsync", "random",    "leader"};
  return std::find(std::begin(kSelectors), std::end(kSelectors), name) != std::end(kSelectors);
}

/// What a projection leaves is no larger than what it got: a step may owe all of its gradient, and
/// the next one all of both, so what it gives is off by three gradients at the most. What is not
/// finite takes its matrix with it.
workload::Tolerance lowrank_tolerance() {
  workload::Tolerance tolerance;
  tolerance.lossy = true;
  tolerance.nmse = 9;
  tolerance.block = std::numeric_limits<uint32_t>::max();
  return tolerance;
}

}  // namespace

std::vector<std::string> sensible_codecs(bool matrix) {
  std::vector<std::string> codecs{"dense"};
  for (const std::string& name : codec_names()) {
    if (selects(name)) continue;  // how good one is shows over many steps
    if (name != "dense") codecs.push_back(name);
    if (name == "exact") {
      for (const char* options :
           {"mode=packed", "mode=two-level", "mode=sketch", "values=reproducible"}) {
        codecs.push_back(name + ":" + options);
      }
    }
    if (name == "cast") codecs.back() += ":to=bf16";
    if (name == "cast") codecs.push_back(name + ":to=f16");
    if (name == "lowrank") codecs.pop_back();
    if (name == "lowrank" && matrix) {
      for (const char* options : {"rank=1", "rank=4"})
        codecs.push_back(name + ":" + options);
    }
    if (name == "quant") {
      for (const char* options : {"carrier=indices", "index=auto"})
        codecs.push_back(name + ":" + options);
    }
  }
  return codecs;
}

CLI::Option* add_codec_option(CLI::App& command, std::vector<std::string>& codecs) {
  return command
      .add_option("-c,--codec", codecs,
                  "codec and options, e.g. exact:mode=sketch or quant:bits=4 (repeatable)")
      ->type_name("SPEC")
      ->allow_extra_args(false)
      ->capture_default_str();
}

Result<std::vector<CodecSpec>> parse_codecs(const std::vector<std::string>& codecs,
                                            const Layout& layout) {
  std::vector<CodecSpec> specs;
  for (const std::string& text : codecs) {
    auto spec = CodecSpec::parse(text);
    if (!spec) return spec.error();
    ADDEND_TRY(create_codec(*spec, layout));
    specs.push_back(*std::move(spec));
  }
  return specs;
}

workload::Tolerance tolerance(const CodecSpec& spec, uint32_t world) {
  if (spec.name == "cast") return cast_tolerance(spec, world);
  if (spec.name == "lowrank") return lowrank_tolerance();
  if (selects(spec.name)) return select_tolerance(spec);
  workload::Tolerance tolerance;
  if (spec.name != "quant") return tolerance;
  tolerance.lossy = true;
  tolerance.nmse = most_nmse(spec);
  if (option(spec, "rotate", "block") == "none") tolerance.range = most_range(spec);
  const bool whole = option(spec, "block", "2048") == "whole";
  tolerance.block = whole ? std::numeric_limits<uint32_t>::max()
                          : static_cast<uint64_t>(number(spec, "block", "2048"));
  return tolerance;
}

workload::Tolerance tolerance(const CodecSpec& spec, const Reducer& reducer, DType dtype) {
  constexpr double kRounding[] = {0x1p-24, 0x1p-8, 0x1p-11};  // of a sum, by type
  constexpr uint64_t kNeighbours = 256;
  workload::Tolerance allowed = tolerance(spec, reducer.world());
  const bool integers = spec.name == "quant" || option(spec, "values", "float") == "reproducible";
  if (integers || reducer.float_error() == 0) return allowed;
  allowed.lossy = true;
  allowed.range =
      reducer.float_error() / reducer.world() + kRounding[static_cast<std::size_t>(dtype)];
  if (spec.name == "cast") allowed.range += std::sqrt(allowed.nmse);
  allowed.block = kNeighbours;
  return allowed;
}

CLI::Option* add_dtype_option(CLI::App& command, std::string& dtype) {
  return command.add_option("-d,--dtype", dtype, "element type of the gradients")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
}

DType parse_dtype(const std::string& dtype) {
  if (dtype == "bf16") return DType::kBf16;
  return dtype == "f16" ? DType::kF16 : DType::kF32;
}

}  // namespace addend::cli
