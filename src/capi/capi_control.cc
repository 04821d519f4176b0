// SPDX-License-Identifier: Apache-2.0
// Controllers of the C ABI.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "addend/addend.h"
#include "addend/control.h"
#include "capi/guard.h"

namespace {

using addend::Errc;
using addend::Result;
using addend::capi::fail;
using addend::capi::guarded;
using addend::capi::invalid;
using addend::control::Controller;
using addend::control::Decision;
using addend::control::Loss;
using addend::control::Observation;
using addend::control::Options;
using addend::control::Setup;
using addend::control::Trace;

static_assert(ADDEND_LOSS_NONE == static_cast<uint32_t>(Loss::kNone));
static_assert(ADDEND_LOSS_UNBIASED == static_cast<uint32_t>(Loss::kUnbiased));
static_assert(ADDEND_LOSS_BIASED == static_cast<uint32_t>(Loss::kBiased));

constexpr uint64_t kMostTraceBytes = uint64_t{64} << 20;
constexpr double kBytesPerGbit = 1.25e8;

Result<Setup> to_cpp(const addend_control_setup& c) {
  auto options = Options::parse(c.options == nullptr ? "" : c.options);
  ADDEND_TRY(options);
  Setup setup;
  setup.options = *options;
  setup.world = c.world;
  setup.latency_s = c.latency_us * 1e-6;
  setup.bytes_per_s = c.gbit_per_s * kBytesPerGbit;
  for (uint64_t i = 0; i < c.candidate_count; ++i) {
    const addend_candidate& one = c.candidates[i];
    if (one.spec == nullptr || one.loss > ADDEND_LOSS_BIASED)
      return addend::make_error(Errc::kInvalidArgument,
                                "addend_controller_create: a candidate without spec, or an "
                                "unknown loss");
    setup.candidates.push_back(
        {one.spec, static_cast<Loss>(one.loss), one.factor, one.bits, one.union_bits, one.rounds});
  }
  for (uint64_t i = 0; i < c.bucket_count; ++i)
    setup.buckets.push_back({c.bucket_elements[i], c.bucket_bytes[i]});
  return setup;
}

}  // namespace

struct addend_controller {
  std::unique_ptr<Controller> controller;
  Trace trace;
  uint64_t trace_bytes = 0;
  Decision latest;
  std::vector<const char*> why;

  uint64_t signals() const {
    return Observation::size(trace.setup.buckets.size(), trace.setup.candidates.size());
  }

  Observation reduced(const double* signals_of_ranks, uint32_t ranks) const {
    std::vector<Observation> all;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      all.push_back(Observation::from({signals_of_ranks + rank * signals(), signals()},
                                      trace.setup.buckets.size(), trace.setup.candidates.size()));
    }
    return addend::control::reduce(all);
  }

  // The beginning of a trace replays without its end.
  void record(Observation seen) {
    if (trace_bytes > kMostTraceBytes) return;
    trace_bytes += signals() * sizeof(double) + latest.probe.size() + sizeof(Trace::Window);
    trace.windows.push_back({std::move(seen), latest});
  }

  addend_decision to_c(uint32_t size) {
    why.clear();
    for (const auto reason : latest.why)
      why.push_back(addend::control::reason_name(reason));
    return {size,
            latest.steps,
            latest.reference_steps,
            0,
            latest.window,
            latest.plan.data(),
            why.data(),
            latest.probe.data(),
            latest.realised_s,
            latest.foreseen_s,
            latest.predicted_s,
            latest.predicted_dense_s,
            latest.phi,
            latest.latency_s * 1e6,
            latest.bytes_per_s / kBytesPerGbit};
  }
};

extern "C" {

addend_status addend_controller_create(const addend_control_setup* setup,
                                       addend_controller** controller) {
  return guarded([&] {
    if (setup == nullptr || controller == nullptr || setup->size < sizeof(*setup) ||
        (setup->candidate_count > 0 && setup->candidates == nullptr) ||
        (setup->bucket_count > 0 &&
         (setup->bucket_elements == nullptr || setup->bucket_bytes == nullptr)))
      return invalid("addend_controller_create: null argument, or no size");
    auto cpp = to_cpp(*setup);
    if (!cpp) return fail(cpp.error());
    auto made = addend::control::create_controller(*cpp);
    if (!made) return fail(made.error());
    *controller = new addend_controller{*std::move(made), {*std::move(cpp), {}}, 0, {}, {}};
    return ADDEND_OK;
  });
}

void addend_controller_destroy(addend_controller* controller) { delete controller; }

uint32_t addend_controller_first_steps(const addend_controller* controller) {
  return controller == nullptr ? 0 : controller->controller->first_steps();
}

uint64_t addend_controller_signals(const addend_controller* controller) {
  return controller == nullptr ? 0 : controller->signals();
}

uint32_t addend_controller_rate_changed(const addend_controller* controller, double learning_rate) {
  return controller != nullptr && controller->controller->rate_changed(learning_rate) ? 1 : 0;
}

addend_status addend_controller_decide(addend_controller* controller, const double* signals,
                                       uint32_t ranks, addend_decision* decision) {
  return guarded([&] {
    if (controller == nullptr || signals == nullptr || ranks == 0 || decision == nullptr ||
        decision->size < sizeof(uint32_t))
      return invalid("addend_controller_decide: null argument, no ranks, or no size");
    Observation seen = controller->reduced(signals, ranks);
    auto made = controller->controller->decide(seen);
    if (!made) return fail(made.error());
    controller->latest = *std::move(made);
    controller->record(std::move(seen));
    const addend_decision known = controller->to_c(decision->size);
    std::memcpy(decision, &known, std::min<std::size_t>(decision->size, sizeof(known)));
    return ADDEND_OK;
  });
}

addend_status addend_controller_trace(const addend_controller* controller, void* text,
                                      uint64_t capacity, uint64_t* size) {
  return guarded([&] {
    if (controller == nullptr || size == nullptr)
      return invalid("addend_controller_trace: null argument");
    const std::string json = controller->trace.to_json();
    *size = json.size();
    if (text == nullptr) return ADDEND_OK;
    if (capacity < json.size()) {
      return fail(addend::make_error(Errc::kCapacity, "the buffer is too small: the trace has " +
                                                          std::to_string(*size) + " bytes"));
    }
    std::memcpy(text, json.data(), json.size());
    return ADDEND_OK;
  });
}

addend_status addend_control_factors(const char* options, double* factors, uint64_t capacity,
                                     uint64_t* count) {
  return guarded([&] {
    if (count == nullptr || (capacity > 0 && factors == nullptr))
      return invalid("addend_control_factors: null argument");
    const auto parsed = Options::parse(options == nullptr ? "" : options);
    if (!parsed) return fail(parsed.error());
    const std::vector<double> all = addend::control::factors(*parsed);
    *count = all.size();
    std::copy_n(all.begin(), std::min<std::size_t>(capacity, all.size()), factors);
    return ADDEND_OK;
  });
}

}  // extern "C"
