// SPDX-License-Identifier: Apache-2.0
// The list of codecs. docs/adding-a-codec.md: a new codec is a folder and one line here.
#include <algorithm>
#include <array>
#include <cmath>

#include "addend/codec.h"
#include "base/float_environment.h"
#include "codec/cast/cast.h"
#include "codec/cast/device_cast.h"
#include "codec/dense/device_dense.h"
#include "codec/exact/device_exact.h"
#include "codec/exact/exact.h"
#include "codec/exact/fixed.h"
#include "codec/lowrank/lowrank.h"
#include "codec/quant/device_quant.h"
#include "codec/quant/quant.h"
#include "codec/select/device_select.h"
#include "codec/select/select.h"
#include "cuda/library.h"

namespace addend {
namespace {

struct Entry {
  std::string_view name;
  Result<std::unique_ptr<Codec>> (*create)(const CodecSpec&, const Layout&);
  const std::vector<OptionHelp>& (*options)();
  /// Null where no device runs it yet.
  Result<std::unique_ptr<Codec>> (*create_on_device)(const CodecSpec&, const Layout&);
};

constexpr std::array<Entry, 11> kCodecs{{
    {"dense", create_dense, dense_options, create_dense_on_device},
    {"cast", cast::create_cast, cast::cast_options, cast::create_cast_on_device},
    {"exact", exact::create_exact, exact::exact_options, exact::create_exact_on_device},
    {"quant", quant::create_quant, quant::quant_options, quant::create_quant_on_device},
    {"lowrank", lowrank::create_lowrank, lowrank::lowrank_options, nullptr},
    {"topk", select::create_select, select::select_options, select::create_select_on_device},
    {"threshold", select::create_select, select::select_options, select::create_select_on_device},
    {"dgc", select::create_select, select::dgc_options, select::create_select_on_device},
    {"redsync", select::create_select, select::select_options, select::create_select_on_device},
    {"random", select::create_select, select::agreed_options, select::create_select_on_device},
    {"leader", select::create_select, select::agreed_options, select::create_select_on_device},
}};

std::string known_names() {
  std::string names;
  for (const Entry& entry : kCodecs)
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  return names;
}

Status check_segments(const Layout& layout) {
  if (layout.segments.empty()) return {};
  std::vector<uint64_t> ids;
  uint64_t left = layout.count;
  bool fits = true;
  for (const Segment& segment : layout.segments) {
    fits = fits && segment.count <= left;
    left -= fits ? segment.count : 0;
    ids.push_back(segment.id);
    if (segment.rows != 0 && segment.count % segment.rows != 0) {
      return make_error(Errc::kInvalidArgument,
                        "segment " + std::to_string(segment.id) + ": " +
                            std::to_string(segment.count) + " elements are not " +
                            std::to_string(segment.rows) + " rows of one length");
    }
  }
  if (!fits || left > 0) {
    return make_error(Errc::kInvalidArgument, "the segments' counts do not add up to the layout's");
  }
  std::sort(ids.begin(), ids.end());
  const auto repeated = std::adjacent_find(ids.begin(), ids.end());
  if (repeated == ids.end()) return {};
  return make_error(Errc::kInvalidArgument, "two segments have the id " +
                                                std::to_string(*repeated) + ": ids must be unique");
}

Status check_layout(const Layout& layout) {
  if (layout.world == 0 || layout.world > exact::kMaxWorld) {
    return make_error(Errc::kInvalidArgument,
                      "world size " + std::to_string(layout.world) + " is not between 1 and 2^20");
  }
  if (layout.worker >= layout.world) {
    return make_error(Errc::kInvalidArgument, "worker " + std::to_string(layout.worker) +
                                                  " of a world of " + std::to_string(layout.world) +
                                                  ": numbers start at 0");
  }
  if (layout.dtype != DType::kF32 && layout.dtype != DType::kBf16 && layout.dtype != DType::kF16) {
    return make_error(Errc::kInvalidArgument, "unknown element type");
  }
  if (layout.count > (uint64_t{1} << 56)) {
    return make_error(Errc::kInvalidArgument, "more than 2^56 elements");
  }
  if (!(layout.scale > 0) || !std::isnormal(static_cast<float>(layout.scale))) {
    return make_error(Errc::kInvalidArgument,
                      "scale " + std::to_string(layout.scale) + " is not a positive normal f32");
  }
  if (!(layout.network.latency_us >= 0) || !(layout.network.gbit_per_s > 0)) {
    return make_error(Errc::kInvalidArgument,
                      "the network hint needs a latency of at least 0 and a speed above 0");
  }
  return check_segments(layout);
}

Result<std::unique_ptr<Codec>> create_where(const Entry& entry, const CodecSpec& spec,
                                            const Layout& layout) {
  if (layout.execution.device == Execution::Device::kCpu) return entry.create(spec, layout);
  ADDEND_TRY(cuda::runtime());
  if (entry.create_on_device != nullptr) return entry.create_on_device(spec, layout);
  return make_error(Errc::kUnsupported, spec.name + " does not run on a device yet");
}

}  // namespace

Result<std::unique_ptr<Codec>> create_codec(const CodecSpec& spec, const Layout& layout) {
  ADDEND_TRY(check_layout(layout));
  const FloatEnvironment ours;
  for (const Entry& entry : kCodecs) {
    if (entry.name == spec.name) return create_where(entry, spec, layout);
  }
  return make_error(Errc::kInvalidArgument,
                    "no codec named '" + spec.name + "'; there are: " + known_names());
}

std::string_view unnamed_option(std::string_view codec) {
  for (const Entry& entry : kCodecs) {
    if (entry.name != codec || entry.options().empty()) continue;
    return entry.options()[0].unnamed ? entry.options()[0].key : std::string_view();
  }
  return {};
}

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kCodecs)
    names.emplace_back(entry.name);
  return names;
}

std::vector<std::string> codec_option_help(std::string_view name) {
  std::vector<std::string> lines;
  for (const Entry& entry : kCodecs) {
    if (entry.name != name) continue;
    for (const OptionHelp& option : entry.options()) {
      lines.push_back(std::string(option.key) + "=" + std::string(option.values) + "  " +
                      std::string(option.text));
    }
  }
  return lines;
}

}  // namespace addend
