// SPDX-License-Identifier: Apache-2.0
// The pipeline of the C ABI.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "addend/addend.h"
#include "addend/pipeline.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "cuda/memory.h"

struct addend_pipeline {
  std::unique_ptr<addend::Pipeline> pipeline;
};

namespace {

using addend::capi::error_of;
using addend::capi::fail;
using addend::capi::guarded;
using addend::capi::invalid;
using addend::capi::t_last_error;
using addend::capi::to_status;

uint64_t to_ns(std::chrono::steady_clock::time_point time) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

// `spans` is where the outcome's are kept.
addend_outcome to_c(const addend::Outcome& outcome, std::vector<addend_span>& spans) {
  spans.clear();
  for (const addend::Span& span : outcome.spans)
    spans.push_back({static_cast<addend_stage>(span.stage), to_ns(span.begin), to_ns(span.end)});
  const bool ok = outcome.status.has_value();
  return {outcome.ticket,
          ok ? ADDEND_OK : static_cast<addend_status>(outcome.status.error().code),
          ok ? "" : outcome.status.error().message.c_str(),
          spans.data(),
          static_cast<uint32_t>(spans.size()),
          outcome.repeats};
}

// As it was in the first release of this ABI version: what every caller has.
constexpr std::size_t kLeastSubmission = offsetof(addend_submission, ready_event);

addend::Status call_prepare(const addend_submission& from) {
  t_last_error = "the prepare function gave no message";
  const addend_status status = from.prepare(from.context);
  if (status == ADDEND_OK) return {};
  return error_of(status, t_last_error);
}

// What goes wrong on the device is said by whatever runs there next. Without our library for
// devices gradients are fetched by `prepare`, which waits.
std::function<bool()> ready_by(void* event, int32_t number) {
  const auto runtime = addend::cuda::runtime();
  if (!runtime) return nullptr;
  const addend::cuda::Device device{*runtime, number, nullptr};
  return [=] {
    const addend::cuda::OnDevice here(device);
    return device.runtime->query_event(event) != addend::cuda::RuntimeTable::kNotReady;
  };
}

addend::Result<addend::Submission> to_cpp(const addend_submission& from) {
  addend::Submission to;
  if ((from.parts == nullptr && from.part_count > 0) ||
      (from.claims == nullptr && from.claim_count > 0)) {
    return addend::make_error(addend::Errc::kInvalidArgument, "parts or claims are null");
  }
  for (uint32_t i = 0; i < from.part_count; ++i) {
    if (from.parts[i].codec == nullptr)
      return addend::make_error(addend::Errc::kInvalidArgument, "a part without a codec");
    to.parts.push_back({from.parts[i].codec->codec.get(), from.parts[i].gradient});
  }
  for (uint32_t i = 0; i < from.claim_count; ++i) {
    if (from.claims[i].what == nullptr)
      return addend::make_error(addend::Errc::kInvalidArgument, "a claim without a name");
    to.claims.push_back({from.claims[i].what, from.claims[i].value});
  }
  to.pieces = (from.flags & ADDEND_PIECES) != 0;
  to.in_place = (from.flags & ADDEND_IN_PLACE) != 0;
  if (from.ready_event != nullptr) {
    to.ready = ready_by(from.ready_event, from.ready_device);
    if (!to.ready && from.prepare == nullptr) {
      return addend::make_error(addend::Errc::kUnsupported,
                                "addend_pipeline_run: an event needs libaddend_cuda.so");
    }
  }
  if (from.prepare != nullptr) to.prepare = [from] { return call_prepare(from); };
  to.done = [from](const addend::Outcome& outcome) {
    std::vector<addend_span> spans;
    const addend_outcome c = to_c(outcome, spans);
    from.done(from.context, &c);
  };
  return to;
}

}  // namespace

extern "C" {

addend_status addend_pipeline_create(addend_reducer* reducer, uint32_t depth, uint64_t deadline_ns,
                                     addend_pipeline** pipeline) {
  const addend_pipeline_options options = {sizeof options, depth, deadline_ns, 0};
  return addend_pipeline_create_with(reducer, &options, pipeline);
}

addend_status addend_pipeline_create_with(addend_reducer* reducer,
                                          const addend_pipeline_options* options,
                                          addend_pipeline** pipeline) {
  return guarded([&] {
    if (reducer == nullptr || pipeline == nullptr || options == nullptr ||
        options->size < sizeof(*options)) {
      return invalid("addend_pipeline_create: null argument, or no size");
    }
    *pipeline = nullptr;
    addend::PipelineOptions cpp;
    cpp.threads = options->threads;
    if (options->depth > 0) cpp.depth = options->depth;
    if (options->deadline_ns > 0) {
      // A century is as good as for ever and does not overflow a clock.
      constexpr uint64_t kCentury = 3155760000ull * 1000000000ull;
      cpp.deadline = std::chrono::nanoseconds(std::min(options->deadline_ns, kCentury));
    }
    auto made = addend::create_pipeline(*reducer->reducer, cpp);
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

addend_status addend_pipeline_run(addend_pipeline* pipeline, const addend_submission* submission,
                                  int here, int* ended, addend_outcome* outcome) {
  return guarded([&] {
    if (pipeline == nullptr || submission == nullptr || ended == nullptr || outcome == nullptr ||
        submission->size < kLeastSubmission || submission->done == nullptr) {
      return invalid("addend_pipeline_run: null argument, or no size");
    }
    addend_submission whole{};
    std::memcpy(&whole, submission, std::min<std::size_t>(submission->size, sizeof(whole)));
    auto cpp = to_cpp(whole);
    if (!cpp) return fail(cpp.error());
    *ended = 0;
    *outcome = {};
    if (here == 0) {
      const auto ticket = pipeline->pipeline->submit(*std::move(cpp));
      if (!ticket) return fail(ticket.error());
      outcome->ticket = *ticket;
      return ADDEND_OK;
    }
    thread_local addend::Outcome t_outcome;
    thread_local std::vector<addend_span> t_spans;
    const auto done = pipeline->pipeline->run(*std::move(cpp), t_outcome);
    if (!done) return fail(done.error());
    *ended = *done ? 1 : 0;
    *outcome = to_c(t_outcome, t_spans);
    return ADDEND_OK;
  });
}

void addend_pipeline_stop(addend_pipeline* pipeline, addend_status why, const char* message) {
  if (pipeline == nullptr) return;
  (void)guarded([&] {
    pipeline->pipeline->stop(error_of(why, message == nullptr ? "stopped" : message));
    return ADDEND_OK;
  });
}

void addend_pipeline_position(const addend_pipeline* pipeline, uint64_t* ticket, uint32_t* rounds) {
  if (pipeline == nullptr || ticket == nullptr || rounds == nullptr) return;
  const addend::Pipeline::Position position = pipeline->pipeline->position();
  *ticket = position.ticket;
  *rounds = position.rounds;
}

void addend_pipeline_destroy(addend_pipeline* pipeline) { delete pipeline; }

}  // extern "C"
