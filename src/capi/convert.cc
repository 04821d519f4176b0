// SPDX-License-Identifier: Apache-2.0
#include "capi/convert.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace addend {
namespace {

static_assert(ADDEND_MAX_PLANES == Round::kMaxPlanes);
static_assert(sizeof(addend_report::round_bytes) == sizeof(Report::round_bytes));

// The structs as they were in the first release of this ABI version: what every caller has.
constexpr std::size_t kLeastLayout = offsetof(addend_layout, scale);
constexpr std::size_t kLeastReport = offsetof(addend_report, sampled_energy);

template <std::size_t kSize>
void copy_text(std::string_view text, char (&out)[kSize]) {
  const std::size_t length = std::min(text.size(), kSize - 1);
  std::memset(out, 0, kSize);
  std::memcpy(out, text.data(), length);
}

}  // namespace

addend_round to_c(const Round& round) {
  addend_round out{};
  out.plane_count = static_cast<uint32_t>(round.size);
  out.last = round.last ? 1 : 0;
  for (std::size_t i = 0; i < round.size; ++i) {
    const Plane& plane = round.planes[i];
    out.planes[i] = {static_cast<addend_op>(plane.op), plane.lanes, plane.data, plane.table,
                     plane.sums};
  }
  return out;
}

Result<Plane> to_cpp(const addend_plane& plane) {
  if (static_cast<unsigned>(plane.op) >= ADDEND_OP_COUNT)
    return make_error(Errc::kInvalidArgument, "not a plane operation");
  const auto op = static_cast<Op>(plane.op);
  const bool whole = !is_table_sum(op) ||
                     ((plane.table != nullptr || op_table_bytes(op) == 0) && plane.sums != nullptr);
  if (plane.lanes > 0 && (plane.data == nullptr || !whole))
    return make_error(Errc::kInvalidArgument, "a plane without its memory");
  return Plane{op, plane.lanes, plane.data, plane.table, plane.sums};
}

Result<Round> to_cpp(const addend_round& round) {
  if (round.plane_count > Round::kMaxPlanes)
    return make_error(Errc::kInvalidArgument, "a round has at most 4 planes");
  Round out;
  out.last = round.last != 0;
  for (uint32_t i = 0; i < round.plane_count; ++i) {
    const auto plane = to_cpp(round.planes[i]);
    if (!plane) return plane.error();
    out.add(*plane);
  }
  return out;
}

addend_layout default_layout() {
  const Layout defaults;
  addend_layout layout{};
  layout.dtype = static_cast<addend_dtype>(defaults.dtype);
  layout.world = defaults.world;
  layout.network_latency_us = defaults.network.latency_us;
  layout.network_gbit_per_s = defaults.network.gbit_per_s;
  layout.scale = defaults.scale;
  return layout;
}

Result<Layout> to_cpp(const addend_layout* from) {
  if (from->size < kLeastLayout) {
    return make_error(
        Errc::kInvalidArgument,
        "addend_codec_create: layout.size is too small; call addend_layout_init first");
  }
  if (sets_unknown(*from))
    return make_error(Errc::kUnsupported, "addend_codec_create: the layout uses a newer ABI");
  addend_layout layout = default_layout();
  std::memcpy(&layout, from, std::min<std::size_t>(from->size, sizeof(layout)));
  if (static_cast<unsigned>(layout.dtype) > ADDEND_DTYPE_F16) {
    return make_error(Errc::kInvalidArgument, "addend_codec_create: unknown element type");
  }
  Layout cpp;
  cpp.dtype = static_cast<DType>(layout.dtype);
  cpp.count = layout.count;
  cpp.world = layout.world;
  cpp.worker = layout.worker;
  cpp.seed = layout.seed;
  cpp.bucket = layout.bucket;
  cpp.network = {layout.network_latency_us, layout.network_gbit_per_s, layout.network_gathers != 0,
                 layout.network_narrows != 0};
  cpp.scale = layout.scale;
  cpp.first_step = layout.first_step;
  if (layout.device > ADDEND_DEVICE_CUDA || layout.reserved != 0)
    return make_error(Errc::kInvalidArgument, "addend_codec_create: unknown device");
  cpp.execution.device = static_cast<Execution::Device>(layout.device);
  cpp.execution.stream = layout.stream;
  if (layout.segments == nullptr && layout.segment_count > 0) {
    return make_error(Errc::kInvalidArgument, "addend_codec_create: layout.segments is null");
  }
  for (uint64_t s = 0; s < layout.segment_count; ++s) {
    const uint64_t rows = layout.segment_rows == nullptr ? 0 : layout.segment_rows[s];
    cpp.segments.push_back({layout.segments[s].id, layout.segments[s].count, rows});
  }
  return cpp;
}

Status to_c(const Report& report, addend_report* out) {
  if (out->size < kLeastReport) {
    return make_error(Errc::kInvalidArgument,
                      "addend_codec_report: set report.size to sizeof(addend_report)");
  }
  addend_report full{};
  full.size = out->size;
  full.rounds = report.rounds;
  full.wire_bytes = report.wire_bytes;
  full.dense_bytes = report.dense_bytes;
  std::copy(report.round_bytes.begin(), report.round_bytes.end(), full.round_bytes);
  full.local_nonzeros = report.local_nonzeros;
  full.union_nonzeros = report.union_nonzeros;
  full.cells = report.cells;
  full.stuck_keys = report.stuck_keys;
  full.escaped_values = report.escaped_values;
  copy_text(report.mode, full.mode);
  copy_text(report.fallback, full.fallback);
  full.sampled_energy = report.sampled_energy;
  full.sampled_error = report.sampled_error;
  full.nonfinite = report.nonfinite;
  full.contributors = report.contributors;
  full.missing = report.missing;
  std::memcpy(out, &full, std::min<std::size_t>(out->size, sizeof(full)));
  return {};
}

}  // namespace addend
