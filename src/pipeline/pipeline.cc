// SPDX-License-Identifier: Apache-2.0
// Three roles: one encodes, one talks to the reducer, one decodes. Each has a thread; where nothing
// else is under way, the thread that calls `run` takes all three.
//
// The states of a bucket, by where it is kept. It stays in in_order_ until its last round is
// started, and only the first bucket there may start rounds:
//
//   submit
//     |
//     v
//   to_encode_ --encode--> encoded --start: its turn, and nobody talks to the reducer--> under_way_
//     ^                                (the first round carries what all must agree on)     |
//     |                                                                                     |
//     |--- all sums are here, and there are rounds to come ---------------------------------|
//     |--- workers came or went (a quorum): the step begins again --------------------------|
//                                                                                           |
//   result <--decode-- to_decode_ <--- all sums are here, and it was the last round (tails_) '
//                          ^
//                          '--- it failed, or one before it did, or `stop`: from every state
//
// A bucket whose last round has been started makes way for the next one: its tail travels while the
// next bucket's first round does. Rounds are started bucket after bucket, so in one order on every
// worker, whatever the timing. Where workers may come and go (a quorum) a step may have to begin
// again, and buckets do not overlap: the order would depend on who noticed when.
#include "addend/pipeline.h"

#include <algorithm>
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
#include <utility>

#include "base/quiet_thread.h"
#include "pipeline/bucket.h"

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;

// So often a gradient is looked for that is not there: about what a device takes to do something.
constexpr auto kLookAgain = std::chrono::microseconds(20);

Error behind(const Error& error) {
  return make_error(error.code, "an earlier bucket failed: " + error.message);
}

// What a bucket failed with first, here or at the reducer.
Error blame(const Bucket& bucket, const Error& error) {
  if (!bucket.status) return bucket.status.error();
  const Job& job = bucket.job();
  const uint64_t number = job.what.parts.front().codec->layout().bucket;
  return make_error(error.code, "bucket " + std::to_string(number) + " (submission " +
                                    std::to_string(job.ticket) + "): " + error.message);
}

uint32_t threads_of(const Reducer& reducer, const PipelineOptions& options) {
  if (options.threads > 0) return options.threads;
  return reducer.local_workers() == 0 ? 1 : default_threads(reducer.local_workers());
}

class ThreadedPipeline final : public Pipeline {
 public:
  ThreadedPipeline(Reducer& reducer, const PipelineOptions& options)
      : reducer_(reducer),
        options_(options),
        repeats_(reducer.quorum() > 0),
        pool_(threads_of(reducer, options)) {}

  // Waits for the buckets in flight: each ends, if only by its deadline.
  ~ThreadedPipeline() override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    wake_all();
    for (std::thread& thread : threads_)
      thread.join();
  }

  Result<Ticket> submit(Submission submission) override {
    ADDEND_TRY(check(submission));
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return in_flight_ < options_.depth; });
    open_threads();
    const bool tells = submission.done != nullptr;
    const Ticket ticket = queue(std::move(submission));
    if (!tells) waiting_.insert(ticket);
    lock.unlock();  // or whoever wakes would sleep again
    encoder_.notify_one();
    return ticket;
  }

  Status wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    if (waiting_.erase(ticket) == 0) {
      return make_error(Errc::kInvalidArgument, "ticket " + std::to_string(ticket) +
                                                    " is unknown or was waited for already");
    }
    ended_.wait(lock, [&] { return results_.contains(ticket); });
    Status status = std::move(results_.extract(ticket).mapped());
    return status;
  }

  Result<bool> run(Submission submission, Outcome& outcome) override {
    outcome = {};
    ADDEND_TRY(check(submission));
    std::unique_lock lock(mutex_);
    // Pieces are there for one to be encoded and another decoded while a third travels.
    const bool pieces = submission.pieces && submission.parts.size() > 1;
    if (in_flight_ > 0 || network_busy_ || inline_ || pieces || submission.ready ||
        !reducer_.can_wake()) {
      lock.unlock();
      const Result<Ticket> ticket = submit(std::move(submission));
      if (!ticket) return ticket.error();
      outcome.ticket = *ticket;
      return false;
    }
    inline_ = true;
    outcome.ticket = queue(std::move(submission));
    inline_outcome_ = &outcome;
    handed_over_ = false;
    while (inline_outcome_ != nullptr && !handed_over_)
      do_something(lock);
    const bool ended = inline_outcome_ == nullptr;
    inline_outcome_ = nullptr;
    inline_ = false;
    if (!ended && !jobs_.at(outcome.ticket)->what.done) waiting_.insert(outcome.ticket);
    if (in_flight_ > 0) {  // others came meanwhile, or this one is not done
      open_threads();
      wake_all();
    }
    return ended;
  }

  void stop(const Error& why) override {
    {
      const std::lock_guard lock(mutex_);
      if (!stopped_) stopped_ = why;
    }
    wake_all();
    reducer_.interrupt();
  }

  Position position() const override {
    const std::lock_guard lock(mutex_);
    return position_;
  }

 private:
  using Owned = std::unique_ptr<Bucket>;
  using Lock = std::unique_lock<std::mutex>;

  // ---- submitting

  Status check(const Submission& submission) const {
    if (submission.parts.empty()) return make_error(Errc::kInvalidArgument, "nothing to submit");
    if (submission.claims.size() > Submission::kMaxClaims) {
      return make_error(Errc::kInvalidArgument, "a submission has at most 5 claims");
    }
    for (const Part& part : submission.parts) {
      if (part.codec == nullptr) {
        return make_error(Errc::kInvalidArgument, "a part without a codec");
      }
      const Layout& layout = part.codec->layout();
      // What was decoded before one fails is put back by the host.
      if (submission.pieces && submission.parts.size() > 1 &&
          layout.execution.device != Execution::Device::kCpu) {
        return make_error(Errc::kUnsupported, "pieces of a gradient on a device: submit it whole");
      }
      if (layout.world != reducer_.world()) {
        return make_error(Errc::kInvalidArgument,
                          "the codec was made for " + std::to_string(layout.world) +
                              " workers, the reducer has " + std::to_string(reducer_.world()));
      }
      if (layout.worker != reducer_.worker()) {
        return make_error(Errc::kInvalidArgument,
                          "the codec was made for worker " + std::to_string(layout.worker) +
                              ", the reducer is worker " + std::to_string(reducer_.worker()));
      }
    }
    return {};
  }

  void open_threads() {
    if (!threads_.empty()) return;
    threads_.push_back(quiet_thread("addend encode",
                                    [this] { run_role(&ThreadedPipeline::encode_one, encoder_); }));
    // It has much to do, and whoever submits has more: backward.
    leave_waker_its_core(threads_.back());
    threads_.push_back(quiet_thread(
        "addend network", [this] { run_role(&ThreadedPipeline::network_one, network_); }));
    threads_.push_back(quiet_thread("addend decode",
                                    [this] { run_role(&ThreadedPipeline::decode_one, decoder_); }));
  }

  Ticket queue(Submission submission) {
    auto job = std::make_unique<Job>();
    job->ticket = next_ticket_++;
    job->what = std::move(submission);
    if (repeats_) job->what.in_place = false;
    const std::vector<Part>& parts = job->what.parts;
    const std::size_t step = job->what.pieces ? 1 : parts.size();
    for (std::size_t i = 0; i < parts.size(); i += step) {
      in_order_.push_back(std::make_unique<Bucket>(*job, std::span(parts).subspan(i, step), i == 0,
                                                   i + step == parts.size()));
      to_encode_.push_back(in_order_.back().get());
    }
    ++in_flight_;
    const Ticket ticket = job->ticket;
    jobs_.emplace(ticket, std::move(job));
    return ticket;
  }

  // ---- roles: each does one thing if it can, and says whether

  using Role = bool (ThreadedPipeline::*)(Lock&);

  // Each sleeps at a place of its own: a thread that is woken for nothing takes a core from whoever
  // submits, and that is the time of backward.
  void run_role(Role role, std::condition_variable& work) {
    const bool encodes = role == &ThreadedPipeline::encode_one;
    Lock lock(mutex_);
    for (;;) {
      work.wait(lock, [&] { return !inline_; });
      if ((this->*role)(lock)) continue;
      if (closed_ && in_flight_ == 0) return;
      if (inline_) continue;
      if (encodes && looks_again_) {
        work.wait_for(lock, kLookAgain);
      } else {
        work.wait(lock);
      }
    }
  }

  void wake_all() {
    for (std::condition_variable* one : {&encoder_, &network_, &decoder_})
      one->notify_all();
  }

  // All roles in the thread of a caller, the one closest to the end first.
  void do_something(Lock& lock) {
    if (decode_one(lock) || encode_one(lock)) return;
    network_one(lock);
  }

  bool encode_one(Lock& lock) {
    looks_again_ = false;
    if (to_encode_.empty() || !may_encode(*to_encode_.front())) return false;
    Bucket* bucket = to_encode_.front();
    looks_again_ = !is_there(*bucket, lock);
    if (looks_again_) return false;
    if (bucket != to_encode_.front()) return true;  // a later round came meanwhile, and goes first
    to_encode_.pop_front();
    for (const Part& part : bucket->parts())
      busy_[part.codec] = bucket;
    lock.unlock();
    {
      const ThreadPool::Use use(pool_);
      bucket->encode();
    }
    lock.lock();
    bucket->encoded = bucket->job().prepared = true;
    // Started here, if that is possible: where all cores are busy, a thread that is woken for it
    // comes milliseconds later.
    start_one(lock);
    network_.notify_one();                           // for the sums of what was started
    if (!to_encode_.empty()) encoder_.notify_one();  // if it was not the encoder who did this
    // With the lock held: a wake that came after the bucket's end would reach whoever runs next.
    if (network_busy_) reducer_.wake();
    return true;
  }

  // Whether a bucket's gradients are. Asked without the lock, because a device may take its time to
  // answer; by one thread, and nobody takes the bucket meanwhile.
  bool is_there(const Bucket& bucket, Lock& lock) {
    if (asked_ == &bucket) return false;
    if (stopped_ || !bucket.has_to_ask()) return true;
    asked_ = &bucket;
    lock.unlock();
    const bool there = bucket.job().what.ready();
    lock.lock();
    asked_ = nullptr;
    return there;
  }

  // A codec does one step at a time; the bucket that has it is before this one, and ends without
  // it.
  bool may_encode(const Bucket& bucket) const {
    // Two threads encode: a later piece may come up while the first is still prepared.
    if (!bucket.is_prepared()) return false;
    return std::all_of(bucket.parts().begin(), bucket.parts().end(), [&](const Part& part) {
      const auto found = busy_.find(part.codec);
      return found == busy_.end() || found->second == &bucket;
    });
  }

  bool network_one(Lock& lock) {
    if (network_busy_) return false;
    if (stopped_ && !failure_) {
      talk(lock, [this] { fail(*stopped_); });
    } else if (!start_one(lock)) {
      if (under_way_.empty()) return encode_front(lock);
      talk(lock, [this] { wait_for_oldest(); });
    }
    return true;
  }

  // What is done with the reducer, by one thread at a time, without the lock.
  template <typename Function>
  void talk(Lock& lock, Function function) {
    network_busy_ = true;
    lock.unlock();
    function();
    lock.lock();
    network_busy_ = false;
  }

  // Starts the round whose turn it is, if it is encoded and nobody talks to the reducer.
  bool start_one(Lock& lock) {
    if (network_busy_ || (stopped_ && !failure_)) return false;
    Owned bucket = take_encoded();
    if (!bucket) return false;
    talk(lock, [&] { advance(std::move(bucket)); });
    return true;
  }

  // With nothing to move, whichever of two threads is awake first encodes what comes next: waking
  // one after the other takes milliseconds where all cores are busy. Not what comes behind that,
  // which would hold it up.
  bool encode_front(Lock& lock) {
    const bool front = !to_encode_.empty() && to_encode_.front() == in_order_.front().get();
    return front && encode_one(lock);
  }

  // The bucket whose turn it is, if it is encoded.
  Owned take_encoded() {
    const bool overlaps = under_way_.empty() || reducer_.quorum() == 0;
    if (in_order_.empty() || !in_order_.front()->encoded || !overlaps) return nullptr;
    Owned bucket = std::move(in_order_.front());
    in_order_.pop_front();
    return bucket;
  }

  void put_back(Owned bucket) {
    const std::lock_guard lock(mutex_);
    in_order_.push_front(std::move(bucket));
  }

  // ---- the network role: under_way_, tails_ and failure_ are its own

  // Starts the round that was encoded, or ends the bucket if there is none.
  void advance(Owned bucket) {
    if (failure_) {
      if (bucket->status) bucket->status = *failure_;
      return end(std::move(bucket));
    }
    if (bucket->announced() && !bucket->status) {
      reducer_.abandon();  // others are in a round that this worker will not start
      return end(std::move(bucket));
    }
    if (bucket->announced() && !bucket->has_round()) return end(std::move(bucket));
    if (!bucket->announced()) {
      if (const std::optional<Error> decode = decode_failure(); decode && bucket->status) {
        bucket->status = behind(*decode);
      }
    }
    const Status started = bucket->start(reducer_);
    if (!started) {
      reducer_.abandon();  // some of it may be under way
      bucket->status = blame(*bucket, started.error());
      fail(behind(bucket->status.error()));
      return end(std::move(bucket));
    }
    under_way_.push_back(bucket.get());
    show_position();
    if (bucket->is_last_round()) {
      tails_.push_back(std::move(bucket));
      return;
    }
    bucket->encoded = false;  // not before its sums are here
    put_back(std::move(bucket));
  }

  void show_position() {
    if (under_way_.empty()) return;
    const Bucket& oldest = *under_way_.front();
    const std::lock_guard lock(mutex_);
    position_ = {oldest.job().ticket, oldest.rounds()};
  }

  // Sums of the bucket in front are worth more than those of tails before it: it has rounds to
  // encode. REQUIRES: they have ended well. Tails end in order.
  bool take_front_first() {
    Bucket& youngest = *under_way_.back();
    if (under_way_.size() < 2 || youngest.is_last_round() || !youngest.has_ended(reducer_))
      return false;
    under_way_.pop_back();
    const Result<bool> done = youngest.wait(reducer_, Clock::now() + options_.deadline);
    Owned bucket = take_front();
    const Status status = done ? bucket->set_missing(reducer_.missing()) : done.error();
    if (!status) bucket->status = blame(*bucket, status.error());
    to_encode(std::move(bucket));
    return true;
  }

  // The deadline of a bucket runs from when it is its turn: with its predecessors' sums here.
  void wait_for_oldest() {
    Bucket& oldest = *under_way_.front();
    show_position();
    if (!oldest.deadline) oldest.deadline = Clock::now() + options_.deadline;
    const std::array<uint64_t, 2> numbers = {oldest.next_number(),
                                             under_way_.back()->next_number()};
    const bool several = under_way_.size() > 1;
    Result<bool> done =
        reducer_.wait_any(std::span(numbers).first(several ? 2 : 1), *oldest.deadline);
    if (done && *done && take_front_first()) return;
    if (done && *done) done = oldest.wait(reducer_, *oldest.deadline);
    if (done && !*done) {  // something new may be encoded; in a caller's thread it was a signal
      const std::lock_guard lock(mutex_);
      handed_over_ = inline_ && !stopped_;
      return;
    }
    under_way_.pop_front();
    const bool tail = !tails_.empty() && tails_.front().get() == &oldest;
    Owned bucket = tail ? take_tail() : take_front();
    if (!done && done.error().code == Errc::kChanged) return begin_again(std::move(bucket));
    Status status = done ? Status() : done.error();
    if (status && bucket->status) status = bucket->set_missing(reducer_.missing());
    if (!status) bucket->status = blame(*bucket, status.error());
    const std::optional<Error> stopped = stop_reason();
    if (stopped) bucket->status = *stopped;  // a round that was cut short may look done
    if (!bucket->status) {
      if (bucket->is_under_way()) reducer_.abandon();
      const Error rest = stopped ? *stopped : behind(bucket->status.error());
      end(std::move(bucket));  // before those behind it: its job ends with the last of them
      return fail(rest);
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

  // Later rounds come before buckets that have not begun. Whoever has no other sums to wait for
  // encodes them next.
  void to_encode(Owned bucket) {
    const std::lock_guard lock(mutex_);
    to_encode_.push_front(bucket.get());
    in_order_.push_front(std::move(bucket));
    if (!under_way_.empty()) encoder_.notify_one();
  }

  // Workers that come or go during a step make all of them begin it again; each of them can go only
  // once in a step. What this worker had to say the others have not heard yet.
  void begin_again(Owned bucket) {
    const bool failed = !bucket->status;
    bucket->cancel();
    ++bucket->job().repeats;
    if (failed) return put_back(std::move(bucket));
    bucket->encoded = false;
    to_encode(std::move(bucket));
  }

  // The first failure ends the pipeline; `rest`: what the other buckets end with. Rounds of later
  // buckets that are under way stay without an answer: others may have heard of the failure before
  // they started them. They are younger than the one that failed, so none of them is with the
  // encoder. REQUIRES: what failed is in no queue.
  void fail(const Error& rest) {
    failure_ = rest;
    const std::set<const Bucket*> waited(under_way_.begin(), under_way_.end());
    if (!under_way_.empty()) reducer_.abandon();
    under_way_.clear();
    while (!tails_.empty()) {
      Owned tail = take_tail();
      if (tail->status) tail->status = rest;
      end(std::move(tail));
    }
    // One that waited for sums will not get them.
    const std::lock_guard lock(mutex_);
    if (!in_order_.empty() && waited.contains(in_order_.front().get()))
      in_order_.front()->encoded = true;
  }

  void end(Owned bucket) {
    if (!bucket->status) {
      bucket->cancel();
      if (!failure_) failure_ = behind(bucket->status.error());
    }
    {
      const std::lock_guard lock(mutex_);
      to_decode_.push_back(std::move(bucket));
    }
    decoder_.notify_one();
  }

  std::optional<Error> stop_reason() {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }

  std::optional<Error> decode_failure() {
    const std::lock_guard lock(mutex_);
    return decode_failure_;
  }

  // ---- the decoder

  bool decode_one(Lock& lock) {
    if (to_decode_.empty()) return false;
    Owned bucket = std::move(to_decode_.front());
    to_decode_.pop_front();
    Job& job = bucket->job();
    lock.unlock();
    if (bucket->status && job.status) {
      const ThreadPool::Use use(pool_);
      bucket->decode(spare_);
    } else {
      if (bucket->status) bucket->status = job.status;
      bucket->cancel();
    }
    if (!bucket->status && job.status) job.status = bucket->status;
    job.spans.insert(job.spans.end(), bucket->spans().begin(), bucket->spans().end());
    lock.lock();
    if (!bucket->status && !decode_failure_) decode_failure_ = bucket->status.error();
    std::vector<const Codec*> codecs;
    for (const Part& part : bucket->parts())
      codecs.push_back(part.codec);
    if (bucket->is_last_of_job()) end_job(job.ticket, lock);
    // Not before: whoever is told may look at what the codec has.
    for (const Codec* codec : codecs)
      busy_.erase(codec);
    if (!to_encode_.empty()) encoder_.notify_one();  // for one of these codecs, perhaps
    if (closed_ && in_flight_ == 0) wake_all();
    return true;
  }

  void end_job(Ticket ticket, Lock& lock) {
    const std::unique_ptr<Job> job = std::move(jobs_.extract(ticket).mapped());
    const bool ours = inline_outcome_ != nullptr && inline_outcome_->ticket == ticket;
    lock.unlock();
    job->status ? job->forget_saved(spare_) : job->restore(spare_);
    Outcome outcome{ticket, std::move(job->status), std::move(job->spans), job->repeats};
    if (!ours && job->what.done) job->what.done(outcome);
    lock.lock();
    if (ours) {
      *std::exchange(inline_outcome_, nullptr) = std::move(outcome);
    } else if (!job->what.done) {
      results_.emplace(ticket, std::move(outcome.status));
    }
    --in_flight_;
    ended_.notify_all();
  }

  Reducer& reducer_;
  const PipelineOptions options_;
  const bool repeats_;  // steps may begin again, and need gradients as they were
  ThreadPool pool_;     // for encoding and decoding

  mutable std::mutex mutex_;
  std::condition_variable encoder_, network_, decoder_;  // for roles
  std::condition_variable ended_;                        // for callers
  Ticket next_ticket_ = 0;
  std::size_t in_flight_ = 0;  // jobs
  std::map<Ticket, std::unique_ptr<Job>> jobs_;
  std::set<Ticket> waiting_;
  std::map<Ticket, Status> results_;
  std::map<const Codec*, const Bucket*> busy_;
  std::deque<Owned> in_order_;  // submitted, last round not started; the first may start rounds
  std::deque<Bucket*> to_encode_;
  std::deque<Owned> to_decode_;
  std::optional<Error> decode_failure_, stopped_;
  Position position_;
  bool closed_ = false;
  bool looks_again_ = false;           // the encoder, for a gradient that is not there
  const Bucket* asked_ = nullptr;      // whose gradients are looked for at this moment
  bool network_busy_ = false;          // its thread may be about to leave what it did last
  bool inline_ = false;                // a caller's thread has all roles
  bool handed_over_ = false;           // and shall leave them to the others
  Outcome* inline_outcome_ = nullptr;  // where it wants to know how its own bucket ended

  // Of the network role.
  std::deque<Bucket*> under_way_;  // with a round at the reducer, the oldest first
  std::deque<Owned> tails_;        // of them, those whose last round it is
  std::optional<Error> failure_;

  std::vector<Buffer> spare_;  // of the decoder
  std::vector<std::thread> threads_;
};

}  // namespace

Result<std::unique_ptr<Pipeline>> create_pipeline(Reducer& reducer,
                                                  const PipelineOptions& options) {
  if (options.depth == 0) return make_error(Errc::kInvalidArgument, "the depth must be at least 1");
  if (options.deadline <= std::chrono::nanoseconds::zero()) {
    return make_error(Errc::kInvalidArgument, "the deadline must be positive");
  }
  if (options.threads > ThreadPool::kMostThreads) {
    return make_error(Errc::kInvalidArgument, "threads: " + std::to_string(options.threads) +
                                                  " are more than the most, " +
                                                  std::to_string(ThreadPool::kMostThreads));
  }
  return std::unique_ptr<Pipeline>(std::make_unique<ThreadedPipeline>(reducer, options));
}

}  // namespace addend
