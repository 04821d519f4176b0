// SPDX-License-Identifier: Apache-2.0
// A worker's life of a bucket: encode, reduce, decode, several buckets in flight, strictly in
// submission order.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "addend/codec.h"
#include "addend/reduce.h"
#include "addend/result.h"

namespace addend {

struct PipelineOptions {
  /// Buckets between submit and decoded; submit blocks beyond that.
  uint32_t depth = 4;
  /// Time one bucket may spend in its rounds, from when the one before it has its sums.
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

/// What a piece should measure: large enough that its rounds are not all latency, small enough that
/// little is left to encode before the first travels and to decode after the last.
inline constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

/// Cuts a large gradient into pieces of at most `piece_bytes`, one after the other in memory. With
/// a codec for each, all submitted before the first is waited for, one piece is encoded and another
/// decoded while a third travels. Pieces are buckets of their own, numbered from layout.bucket:
/// leave room for them. A failure leaves pieces that were done before it summed. kInvalidArgument
/// for a layout with segments, whose state does not follow a cut, and for pieces below 16 KiB.
Result<std::vector<Layout>> cut_into_pieces(const Layout& layout,
                                            uint64_t piece_bytes = kPieceBytes);

}  // namespace addend
