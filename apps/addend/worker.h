// SPDX-License-Identifier: Apache-2.0
// What perf, try and demo share: workers as threads, a worker's pipeline over one or more buckets,
// and small exchanges between workers that use nothing but a reducer (so they work alike among
// threads and under MPI).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "addend/codec.h"
#include "addend/pipeline.h"
#include "addend/reduce.h"
#include "addend/result.h"

namespace addend::cli {

/// Wall clock in microseconds from an arbitrary origin, and CPU time of the calling thread.
double now_us();
double thread_cpu_us();

double median(std::vector<double> values);

/// Runs `work` on `world` threads, each with its end of a new local group; returns the first error.
Status run_workers(uint32_t world, const std::function<Status(Reducer&)>& work);

/// Element-wise over all workers; every worker gets the result. Values of reduce_max must not be
/// negative.
Status reduce_max(Reducer& reducer, std::span<float> values);
Status reduce_sum(Reducer& reducer, std::span<int64_t> values);
/// Whether all workers gave the same value.
Result<bool> all_equal(Reducer& reducer, uint64_t value);

/// Time spent in one all-reduce. Encoding and decoding are CPU time of the calling thread, so that
/// workers which share cores do not count each other's work; reducing is wall time and includes
/// waiting for the others.
struct PhaseTimes {
  double encode_us = 0;
  double reduce_us = 0;
  double decode_us = 0;
};

/// One in-place all-reduce without a pipeline.
Result<PhaseTimes> all_reduce_by_hand(Codec& codec, Reducer& reducer, void* gradient);

/// One worker: a codec per bucket and the pipeline they travel through. Not thread-safe.
class Worker {
 public:
  /// `layouts` have one entry a bucket; their worker is the reducer's. The pipeline owns `reducer`
  /// until close().
  /// `threads`: see PipelineOptions.
  static Result<std::unique_ptr<Worker>> create(Reducer& reducer, const CodecSpec& spec,
                                                std::span<const Layout> layouts,
                                                uint32_t threads = 0);

  /// Returns when all workers have come here.
  Status barrier();
  /// All-reduces one gradient a bucket, in place, all in flight together. As with other
  /// libraries' all-reduces, a failure leaves anything in them.
  Status all_reduce(std::span<void* const> gradients);
  /// Ends the pipeline: the reducer may be used directly from here on.
  void close() { pipeline_.reset(); }

  Codec& codec(std::size_t bucket) { return *codecs_[bucket]; }
  std::size_t buckets() const { return codecs_.size(); }

 private:
  Worker() = default;

  std::vector<std::unique_ptr<Codec>> codecs_;
  std::unique_ptr<Codec> barrier_codec_;
  float barrier_value_ = 0;
  std::unique_ptr<Pipeline> pipeline_;  // last: ends before what it works on
};

}  // namespace addend::cli
