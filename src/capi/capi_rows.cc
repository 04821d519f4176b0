// SPDX-License-Identifier: Apache-2.0
// Sparse rows of the C ABI.
#include <cstddef>

#include "addend/addend.h"
#include "addend/rows.h"
#include "capi/convert.h"
#include "capi/guard.h"
#include "capi/handles.h"

namespace {

using addend::Errc;
using addend::RowElement;
using addend::RowGradient;
using addend::RowLayout;
using addend::capi::fail;
using addend::capi::guarded;
using addend::capi::invalid;

// A C caller's gradient reaches the codec as it is.
static_assert(sizeof(addend_row_gradient) == sizeof(RowGradient));
static_assert(offsetof(addend_row_gradient, rows) == offsetof(RowGradient, rows));
static_assert(offsetof(addend_row_gradient, values) == offsetof(RowGradient, values));
static_assert(offsetof(addend_row_gradient, count) == offsetof(RowGradient, count));
static_assert(ADDEND_ROW_F32 == static_cast<int>(RowElement::kF32));
static_assert(ADDEND_ROW_F64 == static_cast<int>(RowElement::kF64));
static_assert(ADDEND_ROW_U8 == static_cast<int>(RowElement::kU8));

addend_row_layout default_row_layout() {
  const RowLayout defaults;
  addend_row_layout layout{};
  layout.width = defaults.width;
  layout.world = defaults.world;
  layout.scale = defaults.scale;
  layout.network_latency_us = defaults.network.latency_us;
  layout.network_gbit_per_s = defaults.network.gbit_per_s;
  return layout;
}

RowLayout to_cpp(const addend_row_layout& layout) {
  RowLayout cpp;
  cpp.element = static_cast<RowElement>(layout.element);
  cpp.width = layout.width;
  cpp.world = layout.world;
  cpp.worker = layout.worker;
  cpp.seed = layout.seed;
  cpp.id = layout.id;
  cpp.scale = layout.scale;
  cpp.first_step = layout.first_step;
  cpp.network = {layout.network_latency_us, layout.network_gbit_per_s};
  return cpp;
}

}  // namespace

extern "C" {

void addend_row_layout_init(addend_row_layout* layout, size_t size) {
  addend::fill(layout, size, default_row_layout());
}

addend_status addend_row_codec_create(const char* spec, const addend_row_layout* layout,
                                      addend_codec** codec) {
  return guarded([&] {
    if (spec == nullptr || layout == nullptr || codec == nullptr)
      return invalid("addend_row_codec_create: null argument");
    *codec = nullptr;
    if (layout->size < sizeof(*layout))
      return invalid(
          "addend_row_codec_create: layout.size is too small; call addend_row_layout_init first");
    if (addend::sets_unknown(*layout)) {
      return fail(addend::make_error(Errc::kUnsupported,
                                     "addend_row_codec_create: the layout uses a newer ABI"));
    }
    if (static_cast<unsigned>(layout->element) > ADDEND_ROW_U8)
      return invalid("addend_row_codec_create: unknown element type");
    const auto parsed = addend::CodecSpec::parse(spec);
    if (!parsed) return fail(parsed.error());
    auto made = addend::create_row_codec(*parsed, to_cpp(*layout));
    if (!made) return fail(made.error());
    *codec = new addend_codec{std::move(*made)};
    return ADDEND_OK;
  });
}

addend_status addend_row_codec_result(const addend_codec* codec, const int64_t** rows,
                                      const void** sums, uint64_t* count) {
  return guarded([&] {
    if (codec == nullptr) return invalid("addend_row_codec_result: null codec");
    const auto* made = dynamic_cast<const addend::RowCodec*>(codec->codec.get());
    if (made == nullptr) return invalid("addend_row_codec_result: not a codec of sparse rows");
    if (rows != nullptr) *rows = made->rows().data();
    if (sums != nullptr) *sums = made->sums();
    if (count != nullptr) *count = made->rows().size();
    return ADDEND_OK;
  });
}

}  // extern "C"
