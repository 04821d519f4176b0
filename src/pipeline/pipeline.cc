// SPDX-License-Identifier: Apache-2.0
// Three threads in a row: encode (begin and the first round), reduce (all rounds of a bucket, and
// what is encoded between them), decode. Only the middle one talks to the reducer, one bucket after
// the other: the order of rounds on the communicator is the order of submission on every worker,
// whatever the timing.
#include "addend/pipeline.h"

#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "pipeline/queue.h"

namespace addend {
namespace {

// A bucket on its way. Owned by one stage at a time.
struct Bucket {
  Ticket ticket = 0;
  Codec* codec = nullptr;
  void* gradient = nullptr;
  Round round;
  bool has_round = false;
  bool begun = false;
  Status status;
};

class ThreadedPipeline final : public Pipeline {
 public:
  ThreadedPipeline(Reducer& reducer, const PipelineOptions& options)
      : reducer_(reducer),
        options_(options),
        encoder_([this] { run(to_encode_, to_reduce_, &ThreadedPipeline::encode); }),
        reducer_thread_([this] { run(to_reduce_, to_decode_, &ThreadedPipeline::reduce); }),
        decoder_([this] { run_decoder(); }) {}

  // Waits for the buckets in flight: each ends, if only by its deadline.
  ~ThreadedPipeline() override {
    to_encode_.close();
    encoder_.join();
    to_reduce_.close();
    reducer_thread_.join();
    to_decode_.close();
    decoder_.join();
  }

  Result<Ticket> submit(Codec& codec, void* gradient) override {
    std::unique_lock lock(mutex_);
    if (codecs_in_flight_.contains(&codec)) {
      return make_error(Errc::kInvalidArgument,
                        "this codec is in flight already: wait for its ticket first");
    }
    if (codec.layout().world != reducer_.world()) {
      return make_error(Errc::kInvalidArgument,
                        "the codec was made for " + std::to_string(codec.layout().world) +
                            " workers, the reducer has " + std::to_string(reducer_.world()));
    }
    if (codec.layout().worker != reducer_.worker()) {
      return make_error(Errc::kInvalidArgument,
                        "the codec was made for worker " + std::to_string(codec.layout().worker) +
                            ", the reducer is worker " + std::to_string(reducer_.worker()));
    }
    changed_.wait(lock, [&] { return codecs_in_flight_.size() < options_.depth; });
    Bucket bucket;
    bucket.ticket = next_ticket_++;
    bucket.codec = &codec;
    bucket.gradient = gradient;
    const Ticket ticket = bucket.ticket;
    codecs_in_flight_.insert(&codec);
    waiting_.insert(ticket);
    to_encode_.push(std::move(bucket));
    return ticket;
  }

  Status wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    if (waiting_.erase(ticket) == 0) {
      return make_error(Errc::kInvalidArgument, "ticket " + std::to_string(ticket) +
                                                    " is unknown or was waited for already");
    }
    changed_.wait(lock, [&] { return results_.contains(ticket); });
    Status status = std::move(results_.extract(ticket).mapped());
    return status;
  }

 private:
  void run(Queue<Bucket>& from, Queue<Bucket>& to, void (ThreadedPipeline::*stage)(Bucket&)) {
    while (std::optional<Bucket> bucket = from.pop()) {
      (this->*stage)(*bucket);
      to.push(std::move(*bucket));
    }
  }

  void encode(Bucket& bucket) {
    bucket.status = bucket.codec->begin(bucket.gradient);
    if (!bucket.status) return;
    bucket.begun = true;
    next(bucket);
  }

  // Encodes the next round; the codec has cancelled itself if that fails.
  static void next(Bucket& bucket) {
    const Result<bool> more = bucket.codec->next_round(bucket.round);
    bucket.has_round = more && *more;
    if (!more) {
      bucket.status = more.error();
      bucket.begun = false;
    }
  }

  void reduce(Bucket& bucket) {
    if (failure_) {
      if (bucket.status) bucket.status = behind(*failure_);
    } else {
      // A bucket that failed to decode on this worker alone: the others learn it from the next
      // bucket's first message.
      if (const std::optional<Error> decode = take_decode_failure(); decode && bucket.status) {
        bucket.status = behind(*decode);
      }
      reduce_rounds(bucket);
      if (!bucket.status) failure_ = bucket.status.error();
    }
    if (!bucket.status && bucket.begun) {
      bucket.codec->cancel();
      bucket.begun = false;
    }
  }

  static Error behind(const Error& error) {
    return make_error(error.code, "an earlier bucket failed: " + error.message);
  }

  std::optional<Error> take_decode_failure() {
    const std::lock_guard lock(mutex_);
    return decode_failure_;
  }

  // Workers that come or go during a step make all of them begin it again; each of them can go
  // only once in a step.
  void reduce_rounds(Bucket& bucket) {
    const Deadline deadline = std::chrono::steady_clock::now() + options_.deadline;
    while (!try_rounds(bucket, deadline)) {
      if (!bucket.status) continue;  // what the others have not heard yet
      bucket.codec->cancel();
      bucket.begun = false;
      bucket.has_round = false;
      encode(bucket);
    }
  }

  // False if the step must begin again.
  bool try_rounds(Bucket& bucket, Deadline deadline) {
    // The first message of a bucket. A worker that cannot go on says so here, so that the others do
    // not wait for it.
    const std::array<Reducer::Claim, 3> claims = {{
        {"whether all can go on", bucket.status ? uint64_t{0} : uint64_t{1}},
        {"the order of submission", bucket.ticket},
        {"the plan or layout", bucket.codec->fingerprint()},
    }};
    Status status = reducer_.agree(claims, deadline);
    if (!status && status.error().code == Errc::kChanged) return false;
    if (!bucket.status) return true;
    if (status) status = bucket.codec->set_missing(reducer_.missing());
    while (status && bucket.has_round) {
      status = reducer_.reduce(bucket.round, deadline);
      if (!status) break;
      next(bucket);
      if (!bucket.status) return true;
    }
    if (!status && status.error().code == Errc::kChanged) return false;
    if (!status) bucket.status = named(bucket, status.error());
    return true;
  }

  static Error named(const Bucket& bucket, const Error& error) {
    return make_error(error.code, "bucket " + std::to_string(bucket.codec->layout().bucket) +
                                      " (submission " + std::to_string(bucket.ticket) +
                                      "): " + error.message);
  }

  void run_decoder() {
    while (std::optional<Bucket> bucket = to_decode_.pop()) {
      if (bucket->status) bucket->status = bucket->codec->finish(bucket->gradient);
      const std::lock_guard lock(mutex_);
      if (!bucket->status && !decode_failure_) decode_failure_ = bucket->status.error();
      codecs_in_flight_.erase(bucket->codec);
      results_.emplace(bucket->ticket, std::move(bucket->status));
      changed_.notify_all();
    }
  }

  Reducer& reducer_;
  const PipelineOptions options_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Ticket next_ticket_ = 0;
  std::set<Codec*> codecs_in_flight_;
  std::set<Ticket> waiting_;
  std::map<Ticket, Status> results_;

  std::optional<Error> decode_failure_;  // under mutex_
  std::optional<Error> failure_;         // of the reduce thread alone

  Queue<Bucket> to_encode_, to_reduce_, to_decode_;
  std::thread encoder_, reducer_thread_, decoder_;
};

}  // namespace

Result<std::unique_ptr<Pipeline>> create_pipeline(Reducer& reducer,
                                                  const PipelineOptions& options) {
  if (options.depth == 0) return make_error(Errc::kInvalidArgument, "the depth must be at least 1");
  if (options.deadline <= std::chrono::nanoseconds::zero()) {
    return make_error(Errc::kInvalidArgument, "the deadline must be positive");
  }
  return std::unique_ptr<Pipeline>(std::make_unique<ThreadedPipeline>(reducer, options));
}

}  // namespace addend
