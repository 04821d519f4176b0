// SPDX-License-Identifier: Apache-2.0
// The C ABI over the C++ API. Every entry point checks its handles.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "addend/addend.h"
#include "addend/codec.h"
#include "addend/fold.h"
#include "addend/pipeline.h"
#include "addend/reduce.h"
#include "capi/convert.h"
#include "capi/guard.h"
#include "capi/handles.h"

struct addend_reducer {
  std::unique_ptr<addend::Reducer> reducer;
};
struct addend_pipeline {
  std::unique_ptr<addend::Pipeline> pipeline;
};

namespace {

using addend::Errc;
using addend::Error;
using addend::Round;
using addend::Status;

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

// A reducer made of the caller's function.
class CustomReducer final : public addend::Reducer {
 public:
  CustomReducer(uint32_t world, uint32_t worker, addend_reduce_function function, void* context)
      : world_(world), worker_(worker), reduce_(function), context_(context) {}
  uint32_t world() const override { return world_; }
  uint32_t worker() const override { return worker_; }

  Status reduce(Round& round, addend::Deadline deadline) override {
    const auto left = deadline - std::chrono::steady_clock::now();
    const auto left_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
    addend_round planes = addend::to_c(round);
    t_last_error = "the reduce function gave no message";
    const addend_status status =
        reduce_(context_, &planes, left_ns > 0 ? static_cast<uint64_t>(left_ns) : 0);
    if (status == ADDEND_OK) return {};
    const bool known = status > ADDEND_OK && status <= ADDEND_CHANGED;
    return addend::make_error(known ? static_cast<Errc>(status) : Errc::kUnavailable, t_last_error);
  }

 private:
  uint32_t world_, worker_;
  addend_reduce_function reduce_;
  void* context_;
};

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
  if (!is_op(op) || addend::is_table_sum(static_cast<addend::Op>(op))) {
    return invalid("addend_fold: not a plain plane operation");
  }
  if (lanes > 0 && (acc == nullptr || in == nullptr)) return invalid("addend_fold: null lanes");
  addend::fold(static_cast<addend::Op>(op), acc, in, lanes);
  return ADDEND_OK;
}

addend_status addend_fold_table(addend_op op, void* acc, const uint8_t* indices, const void* table,
                                uint64_t lanes) {
  if (!is_op(op) || !addend::is_table_sum(static_cast<addend::Op>(op))) {
    return invalid("addend_fold_table: not a table sum");
  }
  if (table == nullptr || (lanes > 0 && (acc == nullptr || indices == nullptr))) {
    return invalid("addend_fold_table: null lanes or table");
  }
  addend::fold_table(static_cast<addend::Op>(op), acc, indices, table, lanes);
  return ADDEND_OK;
}

void addend_layout_init(addend_layout* layout, size_t size) {
  if (layout == nullptr || size < sizeof(uint32_t)) return;
  const addend_layout known = addend::default_layout(size);
  // A caller from another time has a shorter or a longer struct: fill what both know, clear the
  // rest.
  std::memset(layout, 0, size);
  std::memcpy(layout, &known, std::min(size, sizeof(known)));
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

addend_status addend_local_create(uint32_t world, addend_reducer** reducers) {
  return guarded([&] {
    if (reducers == nullptr) return invalid("addend_local_create: null argument");
    auto group = addend::create_local_group(world);
    if (!group) return fail(group.error());
    std::vector<std::unique_ptr<addend_reducer>> made;
    for (uint32_t w = 0; w < world; ++w) {
      made.push_back(std::make_unique<addend_reducer>());
      made.back()->reducer = (*group)->reducer(w);
    }
    for (uint32_t w = 0; w < world; ++w)
      reducers[w] = made[w].release();
    return ADDEND_OK;
  });
}

addend_status addend_mpi_create(addend_reducer** reducer) {
  return guarded([&] {
    if (reducer == nullptr) return invalid("addend_mpi_create: null argument");
    *reducer = nullptr;
    auto made = addend::create_mpi_reducer();
    if (!made) return fail(made.error());
    *reducer = new addend_reducer{std::move(*made)};
    return ADDEND_OK;
  });
}

void addend_service_options_init(addend_service_options* options, size_t size) {
  if (options == nullptr || size < sizeof(uint32_t)) return;
  const addend::ServiceReducerOptions defaults;
  addend_service_options known{};
  known.size = static_cast<uint32_t>(size);
  known.world = defaults.world;
  known.slots = defaults.slots;
  known.payload_bytes = defaults.payload_bytes;
  known.join_timeout_ns =
      static_cast<uint64_t>(std::chrono::nanoseconds(defaults.join_timeout).count());
  std::memset(options, 0, size);
  std::memcpy(options, &known, std::min(size, sizeof(known)));
}

addend_status addend_service_create(const addend_service_options* options,
                                    addend_reducer** reducer) {
  return guarded([&] {
    if (options == nullptr || reducer == nullptr || options->size < sizeof(*options) ||
        options->aggregator == nullptr) {
      return invalid("addend_service_create: null argument, or options that were not initialised");
    }
    *reducer = nullptr;
    const auto milliseconds = [](uint64_t ns) {
      return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(ns));
    };
    const auto text = [](const char* value, const char* fallback) {
      return std::string(value != nullptr ? value : fallback);
    };
    addend::ServiceReducerOptions cpp;
    cpp.access.aggregator = options->aggregator;
    cpp.access.identity = text(options->identity, "default");
    cpp.access.certificates = {text(options->authority, ""), text(options->certificate, ""),
                               text(options->certificate_key, "")};
    if (options->key != nullptr) {
      std::copy_n(options->key, cpp.access.key.bytes.size(), cpp.access.key.bytes.begin());
    }
    cpp.job = text(options->job, "default");
    cpp.world = options->world;
    cpp.worker = options->worker;
    cpp.slots = options->slots;
    cpp.payload_bytes = options->payload_bytes;
    cpp.quorum = options->quorum;
    cpp.patience = std::chrono::nanoseconds(options->patience_ns);
    cpp.join_timeout = milliseconds(options->join_timeout_ns);
    cpp.return_timeout = milliseconds(options->return_timeout_ns);
    auto made = addend::create_service_reducer(cpp);
    if (!made) return fail(made.error());
    *reducer = new addend_reducer{std::move(*made)};
    return ADDEND_OK;
  });
}

addend_status addend_fallback_create(addend_reducer* primary, addend_reducer* fallback,
                                     addend_reducer** reducer) {
  return guarded([&] {
    if (primary == nullptr || fallback == nullptr || reducer == nullptr || primary == fallback)
      return invalid("addend_fallback_create: null argument, or a reducer twice");
    *reducer = nullptr;
    const addend::Reducer &one = *primary->reducer, &other = *fallback->reducer;
    if (one.world() != other.world() || one.worker() != other.worker())
      return invalid("addend_fallback_create: not the same worker in both groups");
    auto handle = std::make_unique<addend_reducer>();
    auto made =
        addend::create_fallback_reducer(std::move(primary->reducer), std::move(fallback->reducer));
    if (!made) return fail(made.error());
    handle->reducer = std::move(*made);
    delete primary;
    delete fallback;
    *reducer = handle.release();
    return ADDEND_OK;
  });
}

addend_status addend_custom_create(uint32_t world, uint32_t worker, addend_reduce_function reduce,
                                   void* context, addend_reducer** reducer) {
  return guarded([&] {
    if (reduce == nullptr || reducer == nullptr)
      return invalid("addend_custom_create: null argument");
    *reducer = nullptr;
    if (world == 0 || worker >= world)
      return invalid("addend_custom_create: worker is not below world");
    *reducer = new addend_reducer{std::make_unique<CustomReducer>(world, worker, reduce, context)};
    return ADDEND_OK;
  });
}

addend_status addend_reducer_reduce(addend_reducer* reducer, addend_round* round,
                                    uint64_t timeout_ns) {
  return guarded([&] {
    if (reducer == nullptr || round == nullptr)
      return invalid("addend_reducer_reduce: null argument");
    auto planes = addend::to_cpp(*round);
    if (!planes) return fail(planes.error());
    const auto limit = std::chrono::nanoseconds(
        std::min<uint64_t>(timeout_ns, std::chrono::nanoseconds(std::chrono::hours(24)).count()));
    return to_status(reducer->reducer->reduce(*planes, std::chrono::steady_clock::now() + limit));
  });
}
void addend_reducer_begin_step(addend_reducer* reducer) {
  if (reducer != nullptr) reducer->reducer->begin_step();
}
uint32_t addend_reducer_quorum(const addend_reducer* reducer) {
  return reducer == nullptr ? 0 : reducer->reducer->quorum();
}
uint64_t addend_reducer_missing(const addend_reducer* reducer) {
  return reducer == nullptr ? 0 : reducer->reducer->missing();
}
uint32_t addend_reducer_world(const addend_reducer* reducer) {
  return reducer == nullptr ? 0 : reducer->reducer->world();
}
uint32_t addend_reducer_worker(const addend_reducer* reducer) {
  return reducer == nullptr ? 0 : reducer->reducer->worker();
}
void addend_reducer_destroy(addend_reducer* reducer) { delete reducer; }

addend_status addend_pipeline_create(addend_reducer* reducer, uint32_t depth, uint64_t deadline_ns,
                                     addend_pipeline** pipeline) {
  return guarded([&] {
    if (reducer == nullptr || pipeline == nullptr)
      return invalid("addend_pipeline_create: null argument");
    *pipeline = nullptr;
    addend::PipelineOptions options;
    if (depth > 0) options.depth = depth;
    if (deadline_ns > 0) {
      // A century is as good as for ever and does not overflow a clock.
      constexpr uint64_t kCentury = 3155760000ull * 1000000000ull;
      options.deadline = std::chrono::nanoseconds(std::min(deadline_ns, kCentury));
    }
    auto made = addend::create_pipeline(*reducer->reducer, options);
    if (!made) return fail(made.error());
    *pipeline = new addend_pipeline{std::move(*made)};
    return ADDEND_OK;
  });
}

addend_status addend_pipeline_submit(addend_pipeline* pipeline, addend_codec* codec, void* gradient,
                                     uint64_t* ticket) {
  if (pipeline == nullptr || codec == nullptr || ticket == nullptr) {
    return invalid("addend_pipeline_submit: null argument");
  }
  return guarded([&] {
    const auto submitted = pipeline->pipeline->submit(*codec->codec, gradient);
    if (!submitted) return fail(submitted.error());
    *ticket = *submitted;
    return ADDEND_OK;
  });
}

addend_status addend_pipeline_wait(addend_pipeline* pipeline, uint64_t ticket) {
  if (pipeline == nullptr) return invalid("addend_pipeline_wait: null pipeline");
  return guarded([&] { return to_status(pipeline->pipeline->wait(ticket)); });
}

void addend_pipeline_destroy(addend_pipeline* pipeline) { delete pipeline; }

}  // extern "C"
