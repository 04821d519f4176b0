// SPDX-License-Identifier: Apache-2.0
// What one rank of `addend perf` does. The same code runs on a thread of a local group and as an
// MPI process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "addend/codec.h"
#include "addend/reduce.h"
#include "addend/result.h"
#include "apps/workload/gradient.h"

namespace addend::cli {

struct PerfPlan {
  std::vector<CodecSpec> codecs;
  std::vector<uint64_t> sizes;  ///< bytes of the dense gradient
  uint32_t warmup = 2;
  uint32_t iterations = 10;
  uint64_t piece_bytes = 0;  ///< a gradient travels in pieces of at most this; 0: whole
  uint32_t threads = 0;      ///< that encode and decode one gradient; 0: PipelineOptions' choice
  NetworkHint network;
  workload::GradientSpec gradient;  ///< count is set for each size
};

/// One line of the table: one codec at one size.
struct PerfRow {
  uint64_t bytes = 0;
  uint64_t count = 0;
  std::string codec;
  std::string mode;  ///< this and the next two: of the first piece
  std::string fallback;
  uint32_t rounds = 0;
  double union_density = 0;
  uint64_t wire_bytes = 0;
  double time_us = 0;   ///< median over iterations of the slowest rank's time
  double mean_us = 0;   ///< mean over iterations of the same, stalls and all
  double algbw = 0;     ///< GB/s: dense bytes / time
  double busbw = 0;     ///< algbw * 2 (n - 1) / n
  double vs_dense = 0;  ///< dense's time / this time, in the same run
  double nmse = 0;      ///< squared error of the mean / mean squared norm of the gradients
  uint64_t wrong = 0;   ///< over all ranks
};

/// Runs the whole sweep. Collective: every rank calls it with an equal plan. `emit` is called on
/// every rank with the same numbers as rows are done.
Status run_perf_rank(Reducer& reducer, const PerfPlan& plan,
                     const std::function<void(const PerfRow&)>& emit);

}  // namespace addend::cli
