// SPDX-License-Identifier: Apache-2.0
// Runs of `addend demo`: one model through one codec, workers as threads of this process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "addend/codec.h"
#include "addend/result.h"
#include "apps/addend/page_buffer.h"
#include "apps/addend/worker.h"
#include "apps/workload/check.h"
#include "apps/workload/model.h"

namespace addend::cli {

struct DemoSettings {
  uint32_t workers = 4;
  uint32_t steps = 4;  ///< the first one warms up: its time is not counted
  DType dtype = DType::kF32;
  uint64_t seed = 1;
  NetworkHint network;
};

/// What a codec did with one bucket in the last step.
struct BucketOutcome {
  std::string name;
  uint64_t count = 0;
  double union_density = 0;
  std::string mode;
  std::string fallback;
  uint32_t rounds = 0;
  uint64_t wire_bytes = 0;
  uint64_t dense_bytes = 0;
};

/// What a codec did with a model.
struct DemoOutcome {
  std::string codec;
  std::vector<BucketOutcome> buckets;
  std::vector<double> step_us;            ///< of the slowest worker
  std::vector<uint64_t> step_wire_bytes;  ///< one worker's, all buckets
  PhaseTimes phases;               ///< all buckets one after the other; of the slowest worker
  workload::SumCheck check;        ///< all workers, steps and buckets
  bool lossy = false;              ///< judged by the codec's error instead of exactness
  uint64_t wrong = 0;              ///< elements, over all workers, steps and buckets
  std::vector<uint64_t> digests;   ///< of worker 0's result, one a step
  bool replicas_identical = true;  ///< every worker got the same bits in every step

  double time_us() const;  ///< of a step: median without the first
  uint64_t wire_bytes() const { return step_wire_bytes.empty() ? 0 : step_wire_bytes.back(); }
  uint64_t dense_bytes() const;
  /// What the codec adds to a step. Nothing for dense: the copies it makes here are not what an
  /// engine's own all-reduce, which works in place, would pay, and it is the baseline of every
  /// estimate.
  double codec_us() const { return codec == "dense" ? 0 : phases.encode_us + phases.decode_us; }
};

/// A model's gradients for all workers; codecs take turns on the same memory and see the same
/// gradients.
class ModelRun {
 public:
  static Result<ModelRun> create(const workload::Model& model, const DemoSettings& settings);

  /// `on_step` is called by one worker as steps begin.
  Result<DemoOutcome> run(const CodecSpec& spec, const std::function<void(uint32_t)>& on_step);

 private:
  struct WorkerOutcome {
    std::vector<double> step_us;
    std::vector<uint64_t> step_wire_bytes;
    std::vector<uint64_t> digests;
    std::vector<workload::SumCheck> checks;  ///< one a bucket
    std::vector<Report> reports;             ///< one a bucket, of the last step
    PhaseTimes phases;
  };

  ModelRun(const workload::Model& model, const DemoSettings& settings)
      : model_(model), settings_(settings) {}

  void* bucket_data(const PageBuffer& buffer, std::size_t bucket) const;
  std::vector<Layout> layouts() const;
  void draw(uint32_t worker, uint32_t step);
  Status work(Reducer& reducer, const CodecSpec& spec, const std::function<void(uint32_t)>& on_step,
              WorkerOutcome& outcome);
  Status one_step(Worker& worker, uint32_t index, WorkerOutcome& outcome);
  void check(uint32_t index, WorkerOutcome& outcome) const;
  Status time_phases(Reducer& reducer, Worker& worker, PhaseTimes& phases);
  DemoOutcome join(const CodecSpec& spec, const std::vector<WorkerOutcome>& workers) const;

  const workload::Model& model_;
  DemoSettings settings_;
  std::vector<uint64_t> offsets_;   ///< of buckets, in bytes, and the end
  std::vector<PageBuffer> inputs_;  ///< one a worker
  std::vector<PageBuffer> sums_;
};

}  // namespace addend::cli
