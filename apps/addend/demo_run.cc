// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/demo_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "apps/addend/codecs.h"

namespace addend::cli {

namespace {

constexpr uint64_t kAlignment = 64;  // of buckets inside a worker's buffer

}  // namespace

double DemoOutcome::time_us() const {
  if (step_us.size() < 2) return step_us.empty() ? 0 : step_us.front();
  return median({step_us.begin() + 1, step_us.end()});
}

uint64_t DemoOutcome::dense_bytes() const {
  uint64_t total = 0;
  for (const BucketOutcome& bucket : buckets)
    total += bucket.dense_bytes;
  return total;
}

Result<ModelRun> ModelRun::create(const workload::Model& model, const DemoSettings& settings) {
  ModelRun run(model, settings);
  uint64_t end = 0;
  for (const workload::Bucket& bucket : model.buckets) {
    run.offsets_.push_back(end);
    end += bucket.count * dtype_bytes(settings.dtype);
    end = (end + kAlignment - 1) / kAlignment * kAlignment;
  }
  run.offsets_.push_back(end);
  for (uint32_t i = 0; i < settings.workers; ++i) {
    for (std::vector<PageBuffer>* buffers : {&run.inputs_, &run.sums_}) {
      auto pages = PageBuffer::create(end);
      if (!pages) return pages.error();
      buffers->push_back(*std::move(pages));
    }
  }
  return run;
}

Result<DemoOutcome> ModelRun::run(const CodecSpec& spec,
                                  const std::function<void(uint32_t)>& on_step) {
  std::vector<WorkerOutcome> outcomes(settings_.workers);
  ADDEND_TRY(run_workers(settings_.workers, [&](Reducer& reducer) {
    return work(reducer, spec, on_step, outcomes[reducer.worker()]);
  }));
  return join(spec, outcomes);
}

void* ModelRun::bucket_data(const PageBuffer& buffer, std::size_t bucket) const {
  return static_cast<char*>(buffer.data()) + offsets_[bucket];
}

std::vector<Layout> ModelRun::layouts() const {
  std::vector<Layout> layouts;
  for (const workload::Bucket& bucket : model_.buckets) {
    Layout layout;
    layout.dtype = settings_.dtype;
    layout.count = bucket.count;
    layout.world = settings_.workers;
    layout.seed = settings_.seed;
    layout.bucket = layouts.size();
    layout.network = settings_.network;
    layouts.push_back(layout);
  }
  return layouts;
}

void ModelRun::draw(uint32_t worker, uint32_t step) {
  for (std::size_t i = 0; i < model_.buckets.size(); ++i) {
    draw_bucket(model_.buckets[i], {worker, step}, settings_.dtype,
                bucket_data(inputs_[worker], i));
  }
}

Status ModelRun::work(Reducer& reducer, const CodecSpec& spec,
                      const std::function<void(uint32_t)>& on_step, WorkerOutcome& outcome) {
  const uint32_t index = reducer.worker();
  auto worker = Worker::create(reducer, spec, layouts());
  if (!worker) return worker.error();
  outcome.checks.resize(model_.buckets.size());
  for (uint32_t step = 0; step < settings_.steps; ++step) {
    if (index == 0) on_step(step);
    draw(index, step);
    ADDEND_TRY(one_step(**worker, index, outcome));
  }
  for (std::size_t i = 0; i < (*worker)->buckets(); ++i) {
    outcome.reports.push_back((*worker)->codec(i).report());
  }
  (*worker)->close();
  return time_phases(reducer, **worker, outcome.phases);
}

Status ModelRun::one_step(Worker& worker, uint32_t index, WorkerOutcome& outcome) {
  std::memcpy(sums_[index].data(), inputs_[index].data(), inputs_[index].bytes());
  std::vector<void*> gradients;
  for (std::size_t i = 0; i < worker.buckets(); ++i) {
    gradients.push_back(bucket_data(sums_[index], i));
  }
  ADDEND_TRY(worker.barrier());
  const double start = now_us();
  ADDEND_TRY(worker.all_reduce(gradients));
  outcome.step_us.push_back(now_us() - start);
  // Nobody checks while another still computes, and nobody draws while another still checks.
  ADDEND_TRY(worker.barrier());
  check(index, outcome);
  uint64_t wire_bytes = 0;
  for (std::size_t i = 0; i < worker.buckets(); ++i) {
    wire_bytes += worker.codec(i).report().wire_bytes;
  }
  outcome.step_wire_bytes.push_back(wire_bytes);
  return worker.barrier();
}

void ModelRun::check(uint32_t index, WorkerOutcome& outcome) const {
  uint64_t hash = 0;
  for (std::size_t i = 0; i < model_.buckets.size(); ++i) {
    std::vector<const void*> inputs;
    for (const PageBuffer& buffer : inputs_)
      inputs.push_back(bucket_data(buffer, i));
    const void* sum = bucket_data(sums_[index], i);
    const uint64_t count = model_.buckets[i].count;
    outcome.checks[i].merge(workload::check_sum(settings_.dtype, inputs, sum, count));
    hash = hash * 31 + workload::digest(settings_.dtype, sum, count);
  }
  outcome.digests.push_back(hash);
}

/// The last step a few times more, bucket by bucket without a pipeline, to know what the codec
/// alone costs. The smallest time counts: what disturbs a measurement only ever adds to it.
Status ModelRun::time_phases(Reducer& reducer, Worker& worker, PhaseTimes& phases) {
  constexpr int kRepeats = 3;
  const PageBuffer& input = inputs_[reducer.worker()];
  const PageBuffer& sum = sums_[reducer.worker()];
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    std::memcpy(sum.data(), input.data(), input.bytes());
    PhaseTimes total;
    for (std::size_t i = 0; i < worker.buckets(); ++i) {
      auto times = all_reduce_by_hand(worker.codec(i), reducer, bucket_data(sum, i));
      if (!times) return times.error();
      total.encode_us += times->encode_us;
      total.reduce_us += times->reduce_us;
      total.decode_us += times->decode_us;
    }
    const double before = phases.encode_us + phases.decode_us;
    if (repeat == 0 || total.encode_us + total.decode_us < before) phases = total;
  }
  return {};
}

DemoOutcome ModelRun::join(const CodecSpec& spec, const std::vector<WorkerOutcome>& workers) const {
  DemoOutcome outcome;
  const workload::Tolerance allowed = tolerance(spec, static_cast<uint32_t>(workers.size()));
  outcome.codec = spec.to_string();
  outcome.lossy = allowed.lossy;
  outcome.step_us = workers.front().step_us;
  outcome.step_wire_bytes = workers.front().step_wire_bytes;
  outcome.digests = workers.front().digests;
  for (const WorkerOutcome& worker : workers) {
    for (std::size_t i = 0; i < worker.step_us.size(); ++i) {
      outcome.step_us[i] = std::max(outcome.step_us[i], worker.step_us[i]);
    }
    for (const workload::SumCheck& bucket : worker.checks) {
      outcome.check.merge(bucket);
      outcome.wrong += bucket.wrong_within(allowed);
    }
    outcome.phases.encode_us = std::max(outcome.phases.encode_us, worker.phases.encode_us);
    outcome.phases.reduce_us = std::max(outcome.phases.reduce_us, worker.phases.reduce_us);
    outcome.phases.decode_us = std::max(outcome.phases.decode_us, worker.phases.decode_us);
    if (worker.digests != outcome.digests) {
      outcome.replicas_identical = false;
      if (allowed.lossy) outcome.wrong += model_.count();
    }
  }
  for (std::size_t i = 0; i < model_.buckets.size(); ++i) {
    const Report& report = workers.front().reports[i];
    const workload::SumCheck& check = workers.front().checks[i];
    const double elements = static_cast<double>(std::max<uint64_t>(check.elements, 1));
    outcome.buckets.push_back({model_.buckets[i].name, model_.buckets[i].count,
                               static_cast<double>(check.union_nonzeros) / elements,
                               std::string(report.mode), std::string(report.fallback),
                               report.rounds, report.wire_bytes, report.dense_bytes});
  }
  return outcome;
}

}  // namespace addend::cli
