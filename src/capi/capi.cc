// SPDX-License-Identifier: Apache-2.0
// The C ABI over the C++ API. Every entry point checks its handles.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "addend/addend.h"
#include "addend/codec.h"
#include "addend/fold.h"
#include "capi/convert.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "codec/readable_residual.h"

namespace {

using addend::Errc;
using addend::Error;
using addend::Round;

using addend::capi::fail;
using addend::capi::guarded;
using addend::capi::invalid;
using addend::capi::is_op;
using addend::capi::t_last_error;
using addend::capi::to_status;

// Writes a saved state if there is a buffer with room for it, and its size in any case.
addend_status hand_over(const addend::Result<std::vector<uint8_t>>& saved, void* state,
                        uint64_t capacity, uint64_t* size) {
  if (!saved) return fail(saved.error());
  *size = saved->size();
  if (state == nullptr) return ADDEND_OK;
  if (capacity < saved->size()) {
    return fail(addend::make_error(Errc::kCapacity, "the buffer is too small: the state has " +
                                                        std::to_string(*size) + " bytes"));
  }
  if (!saved->empty()) std::memcpy(state, saved->data(), saved->size());
  return ADDEND_OK;
}

addend_status refuse(const char* function, const char* why) {
  return invalid((std::string(function) + ": " + why).c_str());
}

addend_status check_fold(const char* function, addend_op op, const void* acc, const void* in,
                         uint64_t lanes) {
  if (!is_op(op) || addend::is_table_sum(static_cast<addend::Op>(op)))
    return refuse(function, "not a plain plane operation");
  if (lanes > 0 && (acc == nullptr || in == nullptr)) return refuse(function, "null lanes");
  return ADDEND_OK;
}

addend_status check_fold_tables(const char* function, addend_op op, const void* acc,
                                const uint8_t* const* indices, size_t sources, const void* table,
                                uint64_t lanes) {
  const auto known = static_cast<addend::Op>(op);
  if (!is_op(op) || !addend::is_table_sum(known)) return refuse(function, "not a table sum");
  bool missing = (table == nullptr && addend::op_table_bytes(known) > 0) ||
                 (lanes > 0 && (acc == nullptr || (sources > 0 && indices == nullptr)));
  for (size_t s = 0; !missing && lanes > 0 && s < sources; ++s)
    missing = indices[s] == nullptr;
  return missing ? refuse(function, "null lanes or table") : ADDEND_OK;
}

}  // namespace

extern "C" {

uint32_t addend_abi_version(void) { return ADDEND_ABI_VERSION; }
const char* addend_version(void) { return ADDEND_VERSION; }
const char* addend_status_name(addend_status status) {
  if (status < ADDEND_OK || status > ADDEND_CHANGED) return "unknown";
  return addend::errc_name(static_cast<Errc>(status));
}
const char* addend_last_error(void) { return t_last_error.c_str(); }
void addend_set_error(const char* message) {
  (void)guarded([&] {
    t_last_error = message == nullptr ? "" : message;
    return ADDEND_OK;
  });
}

addend_status addend_fold(addend_op op, void* acc, const void* in, uint64_t lanes) {
  const addend_status status = check_fold("addend_fold", op, acc, in, lanes);
  if (status == ADDEND_OK) addend::fold(static_cast<addend::Op>(op), acc, in, lanes);
  return status;
}

addend_status addend_fold_tables(addend_op op, void* acc, const uint8_t* const* indices,
                                 size_t sources, const void* table, uint64_t lanes) {
  const addend_status status =
      check_fold_tables("addend_fold_tables", op, acc, indices, sources, table, lanes);
  if (status == ADDEND_OK)
    addend::fold_tables(static_cast<addend::Op>(op), acc, indices, sources, table, lanes);
  return status;
}

addend_status addend_fold_on_device(addend_op op, void* acc, const void* in, uint64_t lanes,
                                    void* stream) {
  const addend_status status = check_fold("addend_fold_on_device", op, acc, in, lanes);
  if (status != ADDEND_OK || lanes == 0) return status;
  return guarded([&] {
    return to_status(addend::fold_on_device(static_cast<addend::Op>(op), acc, in, lanes, stream));
  });
}

addend_status addend_fold_tables_on_device(addend_op op, void* acc, const uint8_t* const* indices,
                                           size_t sources, const void* table, uint64_t lanes,
                                           void* stream) {
  const addend_status status =
      check_fold_tables("addend_fold_tables_on_device", op, acc, indices, sources, table, lanes);
  if (status != ADDEND_OK || lanes == 0) return status;
  return guarded([&] {
    return to_status(addend::fold_tables_on_device(static_cast<addend::Op>(op), acc, indices,
                                                   sources, table, lanes, stream));
  });
}

void addend_layout_init(addend_layout* layout, size_t size) {
  addend::fill(layout, size, addend::default_layout());
}

addend_status addend_codec_create(const char* spec, const addend_layout* layout,
                                  addend_codec** codec) {
  return guarded([&] {
    if (spec == nullptr || layout == nullptr || codec == nullptr) {
      return invalid("addend_codec_create: null argument");
    }
    *codec = nullptr;
    const auto cpp = addend::to_cpp(layout);
    if (!cpp) return fail(cpp.error());
    const auto parsed = addend::CodecSpec::parse(spec);
    if (!parsed) return fail(parsed.error());
    auto made = addend::create_codec(*parsed, *cpp);
    if (!made) return fail(made.error());
    *codec = new addend_codec{std::move(*made)};
    return ADDEND_OK;
  });
}

void addend_codec_destroy(addend_codec* codec) { delete codec; }

uint64_t addend_codec_fingerprint(const addend_codec* codec) {
  return codec == nullptr ? 0 : codec->codec->fingerprint();
}

const char* addend_codec_next_mode(const addend_codec* codec) {
  return codec == nullptr ? "" : codec->codec->next_mode().data();
}

addend_status addend_codec_begin(addend_codec* codec, const void* gradient) {
  if (codec == nullptr) return invalid("addend_codec_begin: null codec");
  return guarded([&] { return to_status(codec->codec->begin(gradient)); });
}

addend_status addend_codec_begin_in_place(addend_codec* codec, void* gradient) {
  if (codec == nullptr) return invalid("addend_codec_begin_in_place: null codec");
  return guarded([&] { return to_status(codec->codec->begin_in_place(gradient)); });
}

addend_status addend_codec_next_round(addend_codec* codec, addend_round* round) {
  if (codec == nullptr || round == nullptr)
    return invalid("addend_codec_next_round: null argument");
  return guarded([&] {
    *round = addend_round{};
    Round planes;
    const auto more = codec->codec->next_round(planes);
    if (!more) return fail(more.error());
    if (*more) *round = addend::to_c(planes);
    return ADDEND_OK;
  });
}

addend_status addend_codec_finish(addend_codec* codec, void* gradient) {
  if (codec == nullptr) return invalid("addend_codec_finish: null codec");
  return guarded([&] { return to_status(codec->codec->finish(gradient)); });
}

addend_status addend_codec_skip_step(addend_codec* codec) {
  if (codec == nullptr) return invalid("addend_codec_skip_step: null codec");
  return guarded([&] { return to_status(codec->codec->skip_step()); });
}

void addend_codec_cancel(addend_codec* codec) {
  if (codec != nullptr) codec->codec->cancel();
}

addend_status addend_codec_set_missing(addend_codec* codec, uint64_t workers) {
  if (codec == nullptr) return invalid("addend_codec_set_missing: null codec");
  return guarded([&] { return to_status(codec->codec->set_missing(workers)); });
}

addend_status addend_codec_save_state(const addend_codec* codec, void* state, uint64_t capacity,
                                      uint64_t* size) {
  if (codec == nullptr || size == nullptr) return invalid("addend_codec_save_state: null argument");
  return guarded([&] { return hand_over(codec->codec->save_state(), state, capacity, size); });
}

addend_status addend_codec_load_state(addend_codec* codec, const void* state, uint64_t size) {
  if (codec == nullptr || (state == nullptr && size > 0)) {
    return invalid("addend_codec_load_state: null argument");
  }
  return guarded([&] {
    return to_status(codec->codec->load_state(
        {static_cast<const uint8_t*>(state), static_cast<std::size_t>(size)}));
  });
}

addend_status addend_codec_save_segment(const addend_codec* codec, uint64_t segment, void* state,
                                        uint64_t capacity, uint64_t* size) {
  if (codec == nullptr || size == nullptr)
    return invalid("addend_codec_save_segment: null argument");
  return guarded(
      [&] { return hand_over(codec->codec->save_segment(segment), state, capacity, size); });
}

addend_status addend_codec_load_segment(addend_codec* codec, uint64_t segment, const void* state,
                                        uint64_t size) {
  if (codec == nullptr || (state == nullptr && size > 0))
    return invalid("addend_codec_load_segment: null argument");
  return guarded([&] {
    return to_status(codec->codec->load_segment(
        segment, {static_cast<const uint8_t*>(state), static_cast<std::size_t>(size)}));
  });
}

addend_status addend_codec_read_residual(const addend_codec* codec, float* residual) {
  return guarded([&] {
    if (codec == nullptr || residual == nullptr)
      return invalid("addend_codec_read_residual: null argument");
    const addend::Codec& own = *codec->codec;
    std::fill_n(residual, own.layout().count, 0.0f);
    if (const auto* readable = dynamic_cast<const addend::ReadableResidual*>(&own))
      return to_status(readable->add_residual(residual));
    const auto state = own.save_segment(0);
    if (!state) return fail(state.error());
    if (state->empty()) return ADDEND_OK;
    return fail(addend::make_error(
        Errc::kUnsupported, "this codec keeps its residual on a device, in other coordinates"));
  });
}

addend_status addend_codec_scale_residual(addend_codec* codec, double factor) {
  if (codec == nullptr) return invalid("addend_codec_scale_residual: null codec");
  return guarded([&] { return to_status(codec->codec->scale_residual(factor)); });
}

addend_status addend_codec_report(const addend_codec* codec, addend_report* report) {
  if (codec == nullptr || report == nullptr) return invalid("addend_codec_report: null argument");
  return guarded([&] { return to_status(addend::to_c(codec->codec->report(), report)); });
}

uint64_t addend_codec_memory_bytes(const addend_codec* codec) {
  return codec == nullptr ? 0 : codec->codec->memory_bytes();
}

}  // extern "C"
