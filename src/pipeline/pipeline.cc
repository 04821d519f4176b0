// SPDX-License-Identifier: Apache-2.0
// Three threads: one encodes, one talks to the reducer, one decodes.
//
//   submit --> [encoder] --> in order: only the first bucket there starts rounds
//                 ^             |
//                 |             | start (the first round carries what all must agree on)
//                 |             v
//                 |          under way, the oldest is waited for
//                 |             |
//                 '-- more? ----+---- all rounds done ---> [decoder] --> result
//
// A bucket whose last round has been started makes way for the next one: its tail travels while the
// next bucket's first round does. Rounds are started bucket after bucket, so in one order on every
// worker, whatever the timing. Where workers may come and go (a quorum) a step may have to begin
// again, and buckets do not overlap: the order would depend on who noticed when.
#include "addend/pipeline.h"

#include <array>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/assert.h"
#include "pipeline/queue.h"

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;

// A bucket on its way. Of one thread at a time; `encoded` is under the pipeline's mutex.
struct Bucket {
  Ticket ticket = 0;
  Codec* codec = nullptr;
  void* gradient = nullptr;
  Round round;
  bool has_round = false;
  bool begun = false;
  bool encoded = false;    // the encoder has handed it on
  bool announced = false;  // its first round was started
  uint64_t number = 0;     // of the round under way
  std::optional<Deadline> deadline;
  Status status;
};

// Encodes the next round; the codec has cancelled itself if that fails.
void next_round(Bucket& bucket) {
  const Result<bool> more = bucket.codec->next_round(bucket.round);
  bucket.has_round = more && *more;
  if (!more) {
    bucket.status = more.error();
    bucket.begun = false;
  }
}

void encode(Bucket& bucket) {
  if (!bucket.begun) {
    bucket.status = bucket.codec->begin(bucket.gradient);
    if (!bucket.status) return;
    bucket.begun = true;
  }
  next_round(bucket);
}

void cancel(Bucket& bucket) {
  if (bucket.begun) bucket.codec->cancel();
  bucket.begun = bucket.has_round = bucket.announced = false;
}

Error behind(const Error& error) {
  return make_error(error.code, "an earlier bucket failed: " + error.message);
}

// What a bucket failed with first, here or at the reducer.
Error blame(const Bucket& bucket, const Error& error) {
  if (!bucket.status) return bucket.status.error();
  return make_error(error.code, "bucket " + std::to_string(bucket.codec->layout().bucket) +
                                    " (submission " + std::to_string(bucket.ticket) +
                                    "): " + error.message);
}

class ThreadedPipeline final : public Pipeline {
 public:
  ThreadedPipeline(Reducer& reducer, const PipelineOptions& options)
      : reducer_(reducer),
        options_(options),
        encoder_([this] { run_encoder(); }),
        network_([this] { run_network(); }),
        decoder_([this] { run_decoder(); }) {}

  // Waits for the buckets in flight: each ends, if only by its deadline.
  ~ThreadedPipeline() override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      changed_.notify_all();
    }
    network_.join();
    to_encode_.close();
    encoder_.join();
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
    auto bucket = std::make_unique<Bucket>();
    bucket->ticket = next_ticket_++;
    bucket->codec = &codec;
    bucket->gradient = gradient;
    const Ticket ticket = bucket->ticket;
    codecs_in_flight_.insert(&codec);
    waiting_.insert(ticket);
    to_encode_.push(bucket.get());
    in_order_.push_back(std::move(bucket));
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
  using Owned = std::unique_ptr<Bucket>;

  void run_encoder() {
    while (const std::optional<Bucket*> bucket = to_encode_.pop()) {
      encode(**bucket);
      {
        const std::lock_guard lock(mutex_);
        (*bucket)->encoded = true;
        changed_.notify_all();
      }
      reducer_.wake();
    }
  }

  void run_network() {
    for (;;) {
      if (Owned bucket = take_encoded()) {
        advance(std::move(bucket));
      } else if (!under_way_.empty()) {
        wait_for_oldest();
      } else {
        return;
      }
    }
  }

  // The bucket whose turn it is, once it is encoded. None: there is something else to wait for, or
  // nothing will come any more.
  Owned take_encoded() {
    std::unique_lock lock(mutex_);
    const auto ready = [&] {
      const bool overlaps = under_way_.empty() || reducer_.quorum() == 0;
      return !in_order_.empty() && in_order_.front()->encoded && overlaps;
    };
    // A bucket that waits for its own sums is not encoded, and others wait behind it.
    changed_.wait(lock,
                  [&] { return ready() || !under_way_.empty() || (closed_ && in_order_.empty()); });
    if (!ready()) return nullptr;
    Owned bucket = std::move(in_order_.front());
    in_order_.pop_front();
    return bucket;
  }

  void put_back(Owned bucket) {
    const std::lock_guard lock(mutex_);
    in_order_.push_front(std::move(bucket));
  }

  // Starts the round that was encoded, or ends the bucket if there is none.
  void advance(Owned bucket) {
    if (failure_) {
      if (bucket->status) bucket->status = behind(*failure_);
      return end(std::move(bucket));
    }
    if (bucket->announced && !bucket->status) {
      reducer_.abandon();  // others are in a round that this worker will not start
      return end(std::move(bucket));
    }
    if (bucket->announced && !bucket->has_round) return end(std::move(bucket));
    const Result<uint64_t> number = start(*bucket);
    if (!number) {
      bucket->status = blame(*bucket, number.error());
      fail(*bucket);
      return end(std::move(bucket));
    }
    bucket->number = *number;
    bucket->announced = true;
    under_way_.push_back(bucket.get());
    if (is_last(*bucket)) {
      tails_.push_back(std::move(bucket));
      return;
    }
    bucket->encoded = false;  // not before its sums are here
    put_back(std::move(bucket));
  }

  // Without a round to follow: the sums of this one decide nothing that others would wait for.
  static bool is_last(const Bucket& bucket) {
    return !bucket.status || !bucket.has_round || bucket.round.last;
  }

  // The first message of a bucket says whether this worker can go on, so that the others do not
  // wait for it. That may be for a bucket which failed to decode on this worker alone.
  Result<uint64_t> start(Bucket& bucket) {
    if (bucket.announced) return reducer_.start(bucket.round);
    if (const std::optional<Error> decode = decode_failure(); decode && bucket.status) {
      bucket.status = behind(*decode);
    }
    if (!bucket.status || !bucket.has_round) bucket.round.clear();
    const std::array<Reducer::Claim, 3> claims = {{
        {"whether all can go on", bucket.status ? uint64_t{1} : uint64_t{0}},
        {"the order of submission", bucket.ticket},
        {"the plan or layout", bucket.codec->fingerprint()},
    }};
    return reducer_.start_step(claims, bucket.round);
  }

  // The deadline of a bucket runs from when it is its turn: with its predecessors' sums here.
  void wait_for_oldest() {
    Bucket& oldest = *under_way_.front();
    if (!oldest.deadline) oldest.deadline = Clock::now() + options_.deadline;
    const Result<bool> done = reducer_.wait(oldest.number, *oldest.deadline);
    if (done && !*done) return;  // something new may be encoded
    under_way_.pop_front();
    const bool tail = !tails_.empty() && tails_.front().get() == &oldest;
    Owned bucket = tail ? take_tail() : take_front();
    if (!done && done.error().code == Errc::kChanged) return begin_again(std::move(bucket));
    Status status = done ? Status() : done.error();
    if (status && bucket->status) status = bucket->codec->set_missing(reducer_.missing());
    if (!status) bucket->status = blame(*bucket, status.error());
    if (!bucket->status) {
      fail(*bucket);
      return end(std::move(bucket));
    }
    if (tail) return end(std::move(bucket));
    to_encode(std::move(bucket));
  }

  Owned take_tail() {
    Owned bucket = std::move(tails_.front());
    tails_.pop_front();
    return bucket;
  }
  Owned take_front() {
    const std::lock_guard lock(mutex_);
    Owned bucket = std::move(in_order_.front());
    in_order_.pop_front();
    return bucket;
  }

  // Later rounds come before buckets that have not begun.
  void to_encode(Owned bucket) {
    Bucket* next = bucket.get();
    put_back(std::move(bucket));
    to_encode_.push_front(next);
  }

  // Workers that come or go during a step make all of them begin it again; each of them can go only
  // once in a step. What this worker had to say the others have not heard yet.
  void begin_again(Owned bucket) {
    bucket->announced = false;
    if (!bucket->status) return put_back(std::move(bucket));
    cancel(*bucket);
    bucket->encoded = false;
    to_encode(std::move(bucket));
  }

  // The first failure ends the pipeline. Rounds of later buckets that are under way stay without an
  // answer: others may have heard of the failure before they started them. They are younger than
  // the one that failed, so none of them is with the encoder. REQUIRES: bucket is in no queue.
  void fail(const Bucket& bucket) {
    failure_ = bucket.status.error();
    if (!under_way_.empty()) reducer_.abandon();
    under_way_.clear();
    while (!tails_.empty()) {
      Owned tail = take_tail();
      if (tail->status) tail->status = behind(*failure_);
      end(std::move(tail));
    }
    // One that waited for sums will not get them.
    const std::lock_guard lock(mutex_);
    if (!in_order_.empty() && in_order_.front()->announced) in_order_.front()->encoded = true;
  }

  void end(Owned bucket) {
    if (!bucket->status) {
      cancel(*bucket);
      if (!failure_) failure_ = bucket->status.error();
    }
    to_decode_.push(std::move(bucket));
  }

  std::optional<Error> decode_failure() {
    const std::lock_guard lock(mutex_);
    return decode_failure_;
  }

  void run_decoder() {
    while (std::optional<Owned> bucket = to_decode_.pop()) {
      Bucket& one = **bucket;
      if (one.status && one.has_round) next_round(one);  // takes in the last round's sums
      ADDEND_ASSERT(!one.status || !one.has_round);
      if (one.status) one.status = one.codec->finish(one.gradient);
      const std::lock_guard lock(mutex_);
      if (!one.status && !decode_failure_) decode_failure_ = one.status.error();
      codecs_in_flight_.erase(one.codec);
      results_.emplace(one.ticket, std::move(one.status));
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
  std::deque<Owned> in_order_;  // submitted, last round not started; the first may start rounds
  std::optional<Error> decode_failure_;
  bool closed_ = false;

  // Of the network thread alone.
  std::deque<Bucket*> under_way_;  // with a round at the reducer, the oldest first
  std::deque<Owned> tails_;        // of them, those whose last round it is
  std::optional<Error> failure_;

  Queue<Bucket*> to_encode_;
  Queue<Owned> to_decode_;
  std::thread encoder_, network_, decoder_;
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
