// SPDX-License-Identifier: Apache-2.0
// The reducers of the C ABI.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "addend/addend.h"
#include "addend/reduce.h"
#include "capi/convert.h"
#include "capi/guard.h"
#include "capi/handles.h"

namespace {

using addend::Error;
using addend::Round;
using addend::Status;

using addend::capi::fail;
using addend::capi::guarded;
using addend::capi::invalid;
using addend::capi::t_last_error;
using addend::capi::to_status;

addend::Deadline deadline_after(uint64_t timeout_ns) {
  constexpr uint64_t kDay = std::chrono::nanoseconds(std::chrono::hours(24)).count();
  return std::chrono::steady_clock::now() + std::chrono::nanoseconds(std::min(timeout_ns, kDay));
}

uint64_t left_ns(addend::Deadline deadline) {
  const auto left = deadline - std::chrono::steady_clock::now();
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  return ns > 0 ? static_cast<uint64_t>(ns) : 0;
}

addend_status hand_over(addend::Result<std::unique_ptr<addend::Reducer>> made,
                        addend_reducer** reducer) {
  if (!made) return fail(made.error());
  *reducer = new addend_reducer{std::move(*made)};
  return ADDEND_OK;
}

// call(round, where, timeout_ns) is the caller's function.
template <typename Call>
addend_status create_custom(const addend::CustomOptions& options, Call call,
                            addend_reducer** reducer) {
  auto made = addend::create_custom_reducer(
      options, [call](Round& round, addend::Deadline deadline) -> Status {
        addend_round planes = addend::to_c(round);
        t_last_error = "the reduce function gave no message";
        const addend_status status = call(&planes, round.execution, left_ns(deadline));
        if (status == ADDEND_OK) return {};
        return addend::capi::error_of(status, t_last_error);
      });
  return hand_over(std::move(made), reducer);
}

}  // namespace

extern "C" {

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
    return hand_over(addend::create_mpi_reducer(), reducer);
  });
}

void addend_service_options_init(addend_service_options* options, size_t size) {
  const addend::ServiceReducerOptions defaults;
  addend_service_options known{};
  known.world = defaults.world;
  known.slots = defaults.slots;
  known.payload_bytes = defaults.payload_bytes;
  known.join_timeout_ns =
      static_cast<uint64_t>(std::chrono::nanoseconds(defaults.join_timeout).count());
  addend::fill(options, size, known);
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
    return hand_over(addend::create_service_reducer(cpp), reducer);
  });
}

void addend_mesh_options_init(addend_mesh_options* options, size_t size) {
  addend_mesh_options known{};
  known.listener = -1;
  known.join_timeout_ns =
      static_cast<uint64_t>(std::chrono::nanoseconds(addend::MeshOptions().join_timeout).count());
  addend::fill(options, size, known);
}

addend_status addend_mesh_create(const addend_mesh_options* options, addend_reducer** reducer) {
  return guarded([&] {
    if (options == nullptr || reducer == nullptr || options->size < sizeof(*options) ||
        options->peers == nullptr || (options->token == nullptr && options->token_bytes > 0)) {
      return invalid("addend_mesh_create: null argument, or options that were not initialised");
    }
    *reducer = nullptr;
    addend::MeshOptions cpp;
    cpp.peers.assign(options->peers, options->peers + options->world);
    cpp.worker = options->worker;
    cpp.listener = options->listener;
    if (options->token_bytes > 0)
      cpp.token.assign(reinterpret_cast<const char*>(options->token), options->token_bytes);
    cpp.join_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::nanoseconds(options->join_timeout_ns));
    return hand_over(addend::create_mesh_reducer(cpp), reducer);
  });
}

addend_status addend_fallback_create(addend_reducer* primary, addend_reducer* fallback,
                                     addend_switch_function on_switch, void* context,
                                     addend_reducer** reducer) {
  return guarded([&] {
    if (primary == nullptr || fallback == nullptr || reducer == nullptr || primary == fallback)
      return invalid("addend_fallback_create: null argument, or a reducer twice");
    *reducer = nullptr;
    const addend::Reducer &one = *primary->reducer, &other = *fallback->reducer;
    if (one.world() != other.world() || one.worker() != other.worker())
      return invalid("addend_fallback_create: not the same worker in both groups");
    std::function<void(const Error&)> tell;
    if (on_switch != nullptr)
      tell = [=](const Error& why) { on_switch(context, why.message.c_str()); };
    auto handle = std::make_unique<addend_reducer>();
    auto made = addend::create_fallback_reducer(std::move(primary->reducer),
                                                std::move(fallback->reducer), std::move(tell));
    if (!made) return fail(made.error());
    handle->reducer = std::move(*made);
    delete primary;
    delete fallback;
    *reducer = handle.release();
    return ADDEND_OK;
  });
}

addend_status addend_staged_create(addend_reducer* host, uint64_t chunk_bytes,
                                   addend_reducer** reducer) {
  return guarded([&] {
    if (host == nullptr || reducer == nullptr)
      return invalid("addend_staged_create: null argument");
    *reducer = nullptr;
    addend::StagedOptions options;
    if (chunk_bytes != 0) options.chunk_bytes = chunk_bytes;
    if (options.chunk_bytes < addend::StagedOptions::kLeastBytes)
      return invalid("addend_staged_create: a chunk has at least 4096 bytes");
    auto handle = std::make_unique<addend_reducer>();
    auto made = addend::create_staged_reducer(std::move(host->reducer), options);
    if (!made) return fail(made.error());
    handle->reducer = std::move(*made);
    delete host;
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
    const auto call = [=](addend_round* round, const addend::Execution&, uint64_t timeout_ns) {
      return reduce(context, round, timeout_ns);
    };
    return create_custom({world, worker, false}, call, reducer);
  });
}

addend_status addend_custom_create_for_devices(uint32_t world, uint32_t worker,
                                               addend_device_reduce_function reduce, void* context,
                                               addend_reducer** reducer) {
  return guarded([&] {
    if (reduce == nullptr || reducer == nullptr)
      return invalid("addend_custom_create_for_devices: null argument");
    *reducer = nullptr;
    const auto call = [=](addend_round* round, const addend::Execution& where,
                          uint64_t timeout_ns) {
      return reduce(context, round, static_cast<uint32_t>(where.device), where.stream, timeout_ns);
    };
    return create_custom({world, worker, true}, call, reducer);
  });
}

addend_status addend_reducer_reduce(addend_reducer* reducer, addend_round* round,
                                    uint64_t timeout_ns) {
  return guarded([&] {
    if (reducer == nullptr || round == nullptr)
      return invalid("addend_reducer_reduce: null argument");
    auto planes = addend::to_cpp(*round);
    if (!planes) return fail(planes.error());
    return to_status(reducer->reducer->reduce(*planes, deadline_after(timeout_ns)));
  });
}
addend_status addend_reducer_measure_link(addend_reducer* reducer, uint64_t timeout_ns,
                                          addend_link* link) {
  return guarded([&] {
    if (reducer == nullptr || link == nullptr)
      return invalid("addend_reducer_measure_link: null argument");
    const auto measured = addend::measure_link(*reducer->reducer, deadline_after(timeout_ns));
    if (!measured) return fail(measured.error());
    *link = {measured->latency_us, measured->gbit_per_s};
    return ADDEND_OK;
  });
}
addend_status addend_reducer_set_link(addend_reducer* reducer, const addend_link* link) {
  if (reducer == nullptr || link == nullptr)
    return invalid("addend_reducer_set_link: null argument");
  if (!(link->latency_us >= 0) || !(link->gbit_per_s > 0))
    return invalid("addend_reducer_set_link: a link has a latency and a speed");
  reducer->reducer->set_link({link->latency_us, link->gbit_per_s});
  return ADDEND_OK;
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

}  // extern "C"
