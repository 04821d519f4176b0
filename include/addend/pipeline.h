// SPDX-License-Identifier: Apache-2.0
// A worker's life of a bucket: encode, reduce, decode, several buckets in flight, strictly in
// submission order. The only engine: everything that sums gradients submits them here.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "addend/codec.h"
#include "addend/reduce.h"
#include "addend/result.h"
#include "addend/threads.h"

namespace addend {

struct PipelineOptions {
  /// Buckets between submit and decoded; submit blocks beyond that.
  uint32_t depth = 4;
  /// Time one bucket may spend in its rounds, from when the one before it has its sums.
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);
  /// Threads that encode and decode one gradient at once, at most ThreadPool::kMostThreads; results
  /// do not depend on it. 0: default_threads, where the reducer knows how many workers share this
  /// host, else 1.
  uint32_t threads = 0;
};

using Ticket = uint64_t;

/// What a bucket spends its time with.
enum class Stage : uint8_t {
  kEncode,
  kAgree,   ///< the first round, which also shows that all workers bring the same
  kReduce,  ///< later rounds
  kDecode,
};

struct Span {
  Stage stage = Stage::kEncode;
  std::chrono::steady_clock::time_point begin, end;
};

/// How a bucket ended, and when it did what.
struct Outcome {
  Ticket ticket = 0;
  Status status;
  std::vector<Span> spans;
  uint32_t repeats = 0;  ///< how often it began again because workers came or went
};

/// A gradient, or a part of one, and who encodes it.
struct Part {
  Codec* codec = nullptr;
  void* gradient = nullptr;
};

/// An in-place all-reduce (sum). Codecs and gradients must live until it has ended. A codec that is
/// still in flight for an earlier bucket encodes this one after that.
struct Submission {
  std::vector<Part> parts;
  /// Parts are pieces of one large gradient and travel one after the other, so that one is encoded
  /// and another decoded while a third is under way; otherwise round k of all of them travels at
  /// once. A failure leaves all of them as they were (of parts that travel at once, those before
  /// one whose sums turn out to be damaged are sums).
  bool pieces = false;
  /// Contents are given up if the bucket fails: saves dense rounds a copy in each direction.
  bool in_place = false;
  /// What else must be the same on all workers, at most kMaxClaims; texts outlive the pipeline.
  std::vector<Reducer::Claim> claims;
  static constexpr std::size_t kMaxClaims = Reducer::kMaxClaims - 3;
  /// Whether gradients are there, asked again and again, by one thread at a time; meanwhile later
  /// rounds of other buckets are encoded. Must be true at last, or the pipeline be stopped. Null:
  /// they are.
  std::function<bool()> ready;
  /// Called by the thread that encodes, before it reads a gradient.
  std::function<Status()> prepare;
  /// Called once, by the thread that decodes, in the order of submission; the ticket is then not
  /// waited for. Must not submit: that may wait for this very thread.
  std::function<void(const Outcome&)> done;
};

/// All rounds of all buckets run in submission order on one communicator: workers must submit the
/// same buckets in the same order. Encoding of the next bucket and decoding of the last overlap
/// with the reduction of the current one. With its first round all workers compare a bucket's
/// fingerprint and claims; a difference is kMismatch on every worker. After a failure the bucket's
/// gradient is untouched and every bucket behind it fails with the same error. Where the reducer
/// goes on without workers that are late, the codec's report says who was missing, and codecs that
/// need every worker fail with kUnsupported. Calls may come from any thread, one submitter at a
/// time.
class Pipeline {
 public:
  virtual ~Pipeline() = default;

  virtual Result<Ticket> submit(Submission submission) = 0;
  Result<Ticket> submit(Codec& codec, void* gradient) {
    Submission one;
    one.parts.push_back({&codec, gradient});
    return submit(std::move(one));
  }

  /// Blocks until the bucket is decoded, or returns why it could not be. Once per ticket.
  virtual Status wait(Ticket ticket) = 0;

  /// Submits, and does the work in this thread if nothing else is under way, but for pieces: saves
  /// the hand-overs between threads. True: it has ended, as `outcome` says. False: other threads do
  /// it, or the rest of it after a signal came, and it ends as after submit.
  virtual Result<bool> run(Submission submission, Outcome& outcome) = 0;

  /// Ends what is under way, and whatever is submitted later, with an error. From any thread; the
  /// first counts.
  virtual void stop(const Error& why) = 0;

  /// Where this worker is: the bucket whose sums it waits for, and how many of its rounds it has
  /// started. From any thread.
  struct Position {
    Ticket ticket = 0;
    uint32_t rounds = 0;
  };
  virtual Position position() const = 0;
};

/// `reducer` must outlive the pipeline, which makes all calls on it from now on.
Result<std::unique_ptr<Pipeline>> create_pipeline(Reducer& reducer,
                                                  const PipelineOptions& options = {});

/// What a piece should measure: large enough that its rounds are not all latency, small enough that
/// little is left to encode before the first travels and to decode after the last.
inline constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

/// Cuts a large gradient into pieces of at most `piece_bytes`, one after the other in memory, each
/// for a codec of its own (Submission::pieces). Pieces are numbered from layout.bucket: leave room
/// for them. kInvalidArgument for a layout with segments, whose state does not follow a cut, and
/// for pieces below 16 KiB.
Result<std::vector<Layout>> cut_into_pieces(const Layout& layout,
                                            uint64_t piece_bytes = kPieceBytes);

}  // namespace addend
