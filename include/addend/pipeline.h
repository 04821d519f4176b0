// SPDX-License-Identifier: Apache-2.0
// A worker's life of a bucket: encode, reduce, decode, several buckets in flight, strictly in
// submission order.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "addend/codec.h"
#include "addend/reduce.h"
#include "addend/result.h"

namespace addend {

struct PipelineOptions {
  /// Buckets between submit and decoded; submit blocks beyond that.
  uint32_t depth = 4;
  /// Time one bucket may spend from the start of its first round to the end of its last.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
};

using Ticket = uint64_t;

/// All rounds of all buckets run in submission order on one communicator: workers must submit the
/// same buckets in the same order. Encoding of the next bucket and decoding of the last overlap
/// with the reduction of the current one. Before the rounds of a bucket all workers compare its
/// fingerprint; a difference is kMismatch on every worker. After a failure the bucket's gradient is
/// untouched and every bucket behind it fails with the same error. Where the reducer goes on
/// without workers that are late, the codec's report says who was missing, and codecs that need
/// every worker fail with kUnsupported. submit and wait may be called from any thread, one
/// submitter at a time.
class Pipeline {
 public:
  virtual ~Pipeline() = default;

  /// Queues an in-place all-reduce (sum). `codec` and `gradient` must live until the ticket is
  /// waited for, and a codec may be in flight once.
  virtual Result<Ticket> submit(Codec& codec, void* gradient) = 0;

  /// Blocks until the bucket is decoded, or returns why it could not be. Once per ticket.
  virtual Status wait(Ticket ticket) = 0;
};

/// `reducer` must outlive the pipeline, which makes all calls on it from now on.
Result<std::unique_ptr<Pipeline>> create_pipeline(Reducer& reducer,
                                                  const PipelineOptions& options = {});

}  // namespace addend
