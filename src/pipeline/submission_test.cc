// SPDX-License-Identifier: Apache-2.0
// Submissions of several parts, how they end, and in whose thread.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>

#include "addend/pipeline.h"
#include "gtest/gtest.h"
#include "reduce/mesh/mesh.h"
#include "tests/support/bucket_work.h"
#include "tests/support/spawn.h"
#include "tests/support/wires.h"

namespace addend {
namespace {

using mesh::MeshReducer;
using testing_support::gradient_of;
using testing_support::make_codec;
using testing_support::spawn_workers;
using testing_support::sum_of;

constexpr PipelineOptions kPatient{8, std::chrono::minutes(5)};

// ---- One worker whose rounds a test decides about

class ScriptedReducer final : public Reducer {
 public:
  uint32_t world() const override { return 1; }
  uint32_t worker() const override { return 0; }
  uint32_t quorum() const override { return quorum_; }
  Status reduce(Round&, Deadline) override { return {}; }
  Result<uint64_t> start(Round& round) override {
    const std::lock_guard lock(mutex_);
    log += 's';
    started_by = std::this_thread::get_id();
    rounds_.push_back(&round);
    changed_.notify_all();
    return rounds_.size() - 1;
  }
  Result<uint64_t> start_step(std::span<const Claim>, Round& round) override {
    return start(round);
  }
  // Sums are twice what this worker brings.
  Result<bool> wait(uint64_t number, Deadline) override {
    std::unique_lock lock(mutex_);
    const auto over = [&] { return std::exchange(wake_, false) || rounds_.size() >= needs_; };
    changed_.wait(lock, over);
    if (rounds_.size() < needs_) return false;
    log += 'w';
    for (Plane& plane : *rounds_[number]) {
      auto* lanes = static_cast<float*>(plane.data);
      if (plane.op == Op::kSumF32)
        std::for_each(lanes, lanes + plane.lanes, [](float& lane) { lane *= 2; });
    }
    if (number == changes_in_) return make_error(Errc::kChanged, "somebody went");
    if (number == fails_in_) return make_error(Errc::kUnavailable, "gone");
    return true;
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    wake_ = true;
    changed_.notify_all();
  }

  void abandon() override {
    const std::lock_guard lock(mutex_);
    log += 'a';
  }

  /// No round ends before so many have been started.
  ScriptedReducer& needs(std::size_t rounds) {
    needs_ = rounds;
    return *this;
  }
  ScriptedReducer& fails_in(uint64_t number) {
    fails_in_ = number;
    return *this;
  }
  ScriptedReducer& changes_in(uint64_t number) {
    quorum_ = 1;
    changes_in_ = number;
    return *this;
  }
  std::string log;  // s: a start, w: the end of a wait, a: abandoned
  std::thread::id started_by;

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Round*> rounds_;
  bool wake_ = false;
  std::size_t needs_ = 0;
  uint32_t quorum_ = 0;
  uint64_t fails_in_ = kNone, changes_in_ = kNone;
};

// What the done functions of submissions saw, in order.
class Endings {
 public:
  std::function<void(const Outcome&)> recorder() {
    return [this](const Outcome& outcome) {
      const std::lock_guard lock(mutex_);
      outcomes_.push_back(outcome);
      changed_.notify_all();
    };
  }
  const std::vector<Outcome>& wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return outcomes_.size() >= count; });
    return outcomes_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Outcome> outcomes_;
};

// Dense gradients of one worker, each with its codec.
struct Bench {
  explicit Bench(std::size_t count) : gradients(count, std::vector<float>(100, 1.0f)) {
    for (uint64_t b = 0; b < count; ++b)
      codecs.push_back(make_codec("dense", 100, 1, b, 0));
  }
  Submission all() {
    Submission made;
    for (std::size_t i = 0; i < codecs.size(); ++i)
      made.parts.push_back({codecs[i].get(), gradients[i].data()});
    return made;
  }
  Submission one(std::size_t i) {
    Submission made;
    made.parts.push_back({codecs[i].get(), gradients[i].data()});
    return made;
  }
  std::vector<std::unique_ptr<Codec>> codecs;
  std::vector<std::vector<float>> gradients;
};

Status submit_and_wait(Pipeline& pipeline, Submission submission) {
  const auto ticket = pipeline.submit(std::move(submission));
  return ticket ? pipeline.wait(*ticket) : Status(ticket.error());
}

// ---- Several parts

void sum_parts_at_once(uint32_t world, uint32_t w, Reducer& reducer) {
  const char* specs[] = {"exact:mode=two-level", "dense", "exact:values=reproducible",
                         "exact:mode=sketch", "dense"};
  const uint64_t counts[] = {5000, 0, 2000, 3000, 777};
  auto pipeline = create_pipeline(reducer, kPatient);
  std::vector<std::unique_ptr<Codec>> codecs;
  for (uint64_t b = 0; b < 5; ++b)
    codecs.push_back(make_codec(specs[b], counts[b], world, b, w));
  for (int step = 0; step < 4; ++step) {
    std::vector<std::vector<float>> gradients;
    Submission submission;
    submission.in_place = step % 2 == 1;
    for (uint64_t b = 0; b < 5; ++b)
      gradients.push_back(gradient_of(w, b, counts[b]));
    for (uint64_t b = 0; b < 5; ++b)
      submission.parts.push_back({codecs[b].get(), gradients[b].data()});
    const Status status = submit_and_wait(**pipeline, std::move(submission));
    ASSERT_TRUE(status) << status.error().message;
    for (uint64_t b = 0; b < 5; ++b)
      ASSERT_EQ(gradients[b], sum_of(world, b, counts[b])) << "part " << b << " step " << step;
  }
}

TEST(Submission, PartsOfSeveralCodecsSumExactlyOverALocalGroup) {
  spawn_workers(3, {}, [](uint32_t w, Reducer& reducer) { sum_parts_at_once(3, w, reducer); });
}

TEST(Submission, PartsOfSeveralCodecsSumExactlyOverAMesh) {
  for (const uint64_t exchange_bytes : {0, 1000}) {
    Wires wires(3);
    wires.on_all([&](uint32_t w) {
      const auto reducer = *MeshReducer::create(wires.take(w), {w, exchange_bytes});
      sum_parts_at_once(3, w, *reducer);
    });
  }
}

TEST(Submission, RoundsOfAllPartsAreUnderWayBeforeOneIsWaitedFor) {
  ScriptedReducer reducer;
  Bench bench(3);
  ASSERT_TRUE(submit_and_wait(**create_pipeline(reducer), bench.all()));
  EXPECT_EQ(reducer.log, "ssswww");
  EXPECT_EQ(bench.gradients, std::vector(3, std::vector<float>(100, 2.0f)));
}

TEST(Submission, AStepThatBeginsAgainEncodesWhatTheGradientsWereAlsoInPlace) {
  for (const bool in_place : {false, true}) {
    for (const uint64_t round : {0, 1, 2}) {
      ScriptedReducer reducer;
      reducer.changes_in(round);
      Bench bench(3);
      Endings endings;
      Submission submission = bench.all();
      submission.in_place = in_place;
      submission.done = endings.recorder();
      auto pipeline = create_pipeline(reducer);
      ASSERT_TRUE((*pipeline)->submit(std::move(submission)));
      const Outcome& outcome = endings.wait_for(1).front();
      ASSERT_TRUE(outcome.status);
      EXPECT_EQ(outcome.repeats, 1u);
      EXPECT_EQ(reducer.log, "ssswwwssswww");
      EXPECT_EQ(bench.gradients, std::vector(3, std::vector<float>(100, 2.0f)))
          << "in place: " << in_place << ", round " << round;
    }
  }
}

// The reducer has planes of the other parts until it is told: their codecs must not have them back.
TEST(Submission, APartThatFailsTakesTheOthersRoundsFromTheReducerBeforeTheJobEnds) {
  for (const uint64_t fails : {0, 1, 2}) {
    ScriptedReducer reducer;
    reducer.fails_in(fails);
    Bench bench(3);
    std::string then;
    Submission submission = bench.all();
    submission.done = [&](const Outcome& outcome) {
      EXPECT_FALSE(outcome.status);
      then = reducer.log;
    };
    {
      auto pipeline = create_pipeline(reducer);
      ASSERT_TRUE((*pipeline)->submit(std::move(submission)));
    }
    EXPECT_EQ(then, "sss" + std::string(fails + 1, 'w') + (fails < 2 ? "a" : ""));
    EXPECT_EQ(bench.gradients, std::vector(3, std::vector<float>(100, 1.0f))) << fails;
  }
}

// ---- Pieces

TEST(Submission, APieceThatFailsPutsBackThoseBeforeIt) {
  for (const uint64_t fails : {0, 1, 3}) {
    ScriptedReducer reducer;
    reducer.fails_in(fails);
    Bench bench(4);
    Submission submission = bench.all();
    submission.pieces = true;
    const Status status = submit_and_wait(**create_pipeline(reducer), std::move(submission));
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("gone"), std::string::npos);
    EXPECT_EQ(status.error().message.find("earlier"), std::string::npos)
        << "the job's own failure: " << status.error().message;
    EXPECT_EQ(bench.gradients, std::vector(4, std::vector<float>(100, 1.0f))) << fails;
  }
}

// The last piece is under way when the first fails; the job must not end before the first has.
TEST(Submission, AJobEndsOnceWhenItsFirstPieceFailsWithTheLastUnderWay) {
  ScriptedReducer reducer;
  reducer.needs(4).fails_in(0);
  Bench bench(4);
  Endings endings;
  Submission submission = bench.all();
  submission.pieces = true;
  submission.done = endings.recorder();
  {
    auto pipeline = create_pipeline(reducer);
    ASSERT_TRUE((*pipeline)->submit(std::move(submission)));
  }
  const std::vector<Outcome>& outcomes = endings.wait_for(1);
  ASSERT_EQ(outcomes.size(), 1u);
  ASSERT_FALSE(outcomes[0].status);
  EXPECT_EQ(outcomes[0].status.error().message, "bucket 0 (submission 0): gone");
  EXPECT_EQ(bench.gradients, std::vector(4, std::vector<float>(100, 1.0f)));
}

TEST(Submission, DoneIsCalledInTheOrderOfSubmissionAlsoAfterAFailure) {
  ScriptedReducer reducer;
  reducer.needs(4).fails_in(1);
  Bench bench(6);
  Endings endings;
  {
    auto pipeline = create_pipeline(reducer, kPatient);
    for (std::size_t i = 0; i < 6; ++i) {
      Submission submission = bench.one(i);
      submission.done = endings.recorder();
      ASSERT_TRUE((*pipeline)->submit(std::move(submission)));
    }
  }
  const std::vector<Outcome>& outcomes = endings.wait_for(6);
  ASSERT_EQ(outcomes.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(outcomes[i].ticket, i);
    EXPECT_EQ(outcomes[i].status.has_value(), i == 0);
    EXPECT_EQ(bench.gradients[i][0], i == 0 ? 2.0f : 1.0f);
  }
  EXPECT_EQ(outcomes[1].status.error().message, "bucket 1 (submission 1): gone");
  EXPECT_NE(outcomes[2].status.error().message.find("earlier bucket"), std::string::npos);
}

// ---- What all must agree on, and turns

TEST(Submission, AClaimThatDiffersIsNamedOnEveryWorker) {
  const auto differ = [](uint32_t w, Reducer& reducer) {
    const auto codec = make_codec("dense", 10, 2, 0, w);
    std::vector<float> gradient(10, 1.0f);
    Submission submission;
    submission.parts.push_back({codec.get(), gradient.data()});
    submission.claims = {{"the learning rate", 7}, {"the weather", w}};
    const Status status = submit_and_wait(**create_pipeline(reducer), std::move(submission));
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kMismatch);
    EXPECT_NE(status.error().message.find("the weather"), std::string::npos);
    EXPECT_EQ(gradient, std::vector<float>(10, 1.0f));
  };
  spawn_workers(2, {}, differ);
  Wires wires(2);
  wires.on_all([&](uint32_t w) { differ(w, **MeshReducer::create(wires.take(w), {w, 1000})); });
}

TEST(Submission, RefusesNothingATooLongListOfClaimsAndAPartWithoutACodec) {
  ScriptedReducer reducer;
  auto pipeline = create_pipeline(reducer);
  Bench bench(1);
  Outcome outcome;
  const auto refused = [&](const Submission& submission) {
    EXPECT_EQ((*pipeline)->submit(submission).error().code, Errc::kInvalidArgument);
    EXPECT_EQ((*pipeline)->run(submission, outcome).error().code, Errc::kInvalidArgument);
  };
  refused({});
  Submission claims = bench.one(0);
  claims.claims.assign(Submission::kMaxClaims + 1, {"one", 1});
  refused(claims);
  Submission nobody = bench.one(0);
  nobody.parts[0].codec = nullptr;
  refused(nobody);
  claims.claims.pop_back();
  EXPECT_TRUE(submit_and_wait(**pipeline, claims));
}

TEST(Submission, ACodecThatIsSubmittedAgainWaitsItsTurn) {
  Wires wires(2);
  wires.on_all([&](uint32_t w) {
    const auto reducer = *MeshReducer::create(wires.take(w), {w, 1000});
    auto pipeline = create_pipeline(*reducer, kPatient);
    const auto codec = make_codec("exact", 3000, 2, 0, w);
    std::vector<std::vector<float>> gradients;
    for (uint64_t b = 0; b < 6; ++b)
      gradients.push_back(gradient_of(w, b, 3000));
    std::vector<Ticket> tickets;
    for (std::vector<float>& gradient : gradients)
      tickets.push_back(*(*pipeline)->submit(*codec, gradient.data()));
    for (uint64_t b = 0; b < 6; ++b) {
      ASSERT_TRUE((*pipeline)->wait(tickets[b]));
      ASSERT_EQ(gradients[b], sum_of(2, b, 3000));
    }
  });
}

TEST(Submission, WhoIsToldMayLookAtTheCodecBeforeItHasAnotherBucket) {
  spawn_workers(1, {}, [](uint32_t w, Reducer& reducer) {
    const auto codec = make_codec("exact", 3000, 1, 0, w);
    std::vector<float> one = gradient_of(w, 0, 3000), other = gradient_of(w, 1, 3000);
    std::promise<void> begun;
    std::future<void> begins = begun.get_future();
    auto pipeline = create_pipeline(reducer);
    Endings endings;
    Submission first;
    first.parts.push_back({codec.get(), one.data()});
    first.done = [&](const Outcome& outcome) {
      // Long enough for an encoder that does not wait.
      EXPECT_EQ(begins.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
      endings.recorder()(outcome);
    };
    Submission second;
    second.parts.push_back({codec.get(), other.data()});
    second.prepare = [&]() -> Status {
      begun.set_value();
      return {};
    };
    second.done = endings.recorder();
    ASSERT_TRUE((*pipeline)->submit(std::move(first)));
    ASSERT_TRUE((*pipeline)->submit(std::move(second)));
    for (const Outcome& outcome : endings.wait_for(2))
      EXPECT_TRUE(outcome.status);
  });
}

TEST(Submission, SpansTellWhatABucketDidInOrder) {
  spawn_workers(2, {}, [](uint32_t w, Reducer& reducer) {
    const auto codec = make_codec("exact:mode=two-level", 5000, 2, 0, w);
    std::vector<float> gradient = gradient_of(w, 0, 5000);
    Endings endings;
    Submission submission;
    submission.parts.push_back({codec.get(), gradient.data()});
    submission.done = endings.recorder();
    auto pipeline = create_pipeline(reducer);
    ASSERT_TRUE((*pipeline)->submit(std::move(submission)));
    const Outcome& outcome = endings.wait_for(1).front();
    ASSERT_TRUE(outcome.status);
    const std::vector<Span>& spans = outcome.spans;
    ASSERT_GE(spans.size(), 3u);
    EXPECT_EQ(spans[0].stage, Stage::kEncode);
    EXPECT_EQ(spans[1].stage, Stage::kAgree);
    EXPECT_EQ(spans.back().stage, Stage::kDecode);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      EXPECT_LE(spans[i].begin, spans[i].end);
      if (i > 0) {
        EXPECT_LE(spans[i - 1].end, spans[i].begin);
      }
      if (i > 1 && i + 1 < spans.size()) {
        EXPECT_EQ(spans[i].stage, i % 2 == 0 ? Stage::kEncode : Stage::kReduce);
      }
    }
  });
}

TEST(Submission, ARoundIsStartedByWhoeverEncodedItIfNothingIsUnderWay) {
  for (int i = 0; i < 20; ++i) {
    // A new one each time: where a step was before, its wait may not be over for the network yet.
    ScriptedReducer reducer;
    Bench bench(1);
    const auto pipeline = *create_pipeline(reducer);
    std::thread::id encoded_by;
    Submission submission = bench.one(0);
    submission.prepare = [&]() -> Status {
      encoded_by = std::this_thread::get_id();
      return {};
    };
    ASSERT_TRUE(submit_and_wait(*pipeline, std::move(submission)));
    EXPECT_EQ(reducer.started_by, encoded_by);
    EXPECT_NE(reducer.started_by, std::this_thread::get_id());
  }
}

// ---- What comes before a gradient is read

// The bucket before it has two rounds, and ends while this one's gradient is not there.
TEST(Submission, AGradientThatIsNotThereHoldsUpNoRoundOfOthers) {
  spawn_workers(2, {}, [](uint32_t w, Reducer& reducer) {
    const auto first = make_codec("exact:mode=packed", 3000, 2, 0, w),
               second = make_codec("exact:mode=packed", 3000, 2, 1, w);
    std::vector<float> one = gradient_of(w, 0, 3000), other(3000, 0.0f);
    std::atomic<bool> there = false, prepared = false;
    Submission late;
    late.parts.push_back({second.get(), other.data()});
    late.ready = [&] { return there.load(); };
    late.prepare = [&]() -> Status {
      prepared = true;
      return {};
    };
    auto pipeline = create_pipeline(reducer);
    const auto before = (*pipeline)->submit(*first, one.data());
    const auto ticket = (*pipeline)->submit(std::move(late));
    ASSERT_TRUE(before && ticket);
    ASSERT_TRUE((*pipeline)->wait(*before));
    EXPECT_FALSE(prepared);
    std::ranges::copy(gradient_of(w, 1, 3000), other.begin());
    there = true;
    ASSERT_TRUE((*pipeline)->wait(*ticket));
    EXPECT_EQ(other, sum_of(2, 1, 3000));
  });
}

// A device that takes its time to answer holds up nobody who calls the pipeline.
TEST(Submission, WhoAsksForAGradientHoldsUpNoCaller) {
  spawn_workers(1, {}, [](uint32_t w, Reducer& reducer) {
    const auto codec = make_codec("dense", 10, 1, 0, w);
    std::vector<float> gradient(10, 1.0f);
    std::unique_ptr<Pipeline> pipeline = *create_pipeline(reducer);
    std::promise<void> asked, called;
    std::atomic<bool> first = true;
    bool in_time = false;
    Submission submission;
    submission.parts.push_back({codec.get(), gradient.data()});
    submission.ready = [&] {
      if (!first.exchange(false)) return true;
      asked.set_value();
      // Only a caller that is held up needs all of it.
      in_time = called.get_future().wait_for(std::chrono::seconds(5)) == std::future_status::ready;
      return true;
    };
    const auto ticket = pipeline->submit(std::move(submission));
    ASSERT_TRUE(ticket);
    asked.get_future().wait();
    (void)pipeline->position();
    called.set_value();
    ASSERT_TRUE(pipeline->wait(*ticket));
    EXPECT_TRUE(in_time);
  });
}

// Whichever thread takes the first piece, the others wait for what it prepares.
TEST(Submission, NoPieceIsEncodedBeforeTheJobIsPrepared) {
  spawn_workers(1, {}, [](uint32_t w, Reducer& reducer) {
    const auto first = make_codec("dense", 3000, 1, 0, w),
               second = make_codec("dense", 3000, 1, 0, w);
    auto pipeline = create_pipeline(reducer);
    for (int i = 1; i <= 300; ++i) {
      std::vector<float> gradient(6000, -1.0f);
      Submission submission;
      submission.pieces = true;
      submission.parts.push_back({first.get(), gradient.data()});
      submission.parts.push_back({second.get(), gradient.data() + 3000});
      submission.prepare = [&]() -> Status {
        for (int turn = 0; turn < 50; ++turn)
          std::this_thread::yield();
        std::ranges::fill(gradient, static_cast<float>(i));
        return {};
      };
      ASSERT_TRUE(submit_and_wait(**pipeline, std::move(submission)));
      ASSERT_EQ(gradient, std::vector<float>(6000, static_cast<float>(i))) << i;
    }
  });
}

TEST(Submission, AGradientThatNeverComesEndsWhenThePipelineIsStopped) {
  spawn_workers(1, {}, [](uint32_t w, Reducer& reducer) {
    const auto codec = make_codec("dense", 10, 1, 0, w);
    std::vector<float> gradient(10, 1.0f);
    Submission submission;
    submission.parts.push_back({codec.get(), gradient.data()});
    submission.ready = [] { return false; };
    auto pipeline = create_pipeline(reducer);
    const auto ticket = (*pipeline)->submit(std::move(submission));
    ASSERT_TRUE(ticket);
    (*pipeline)->stop(make_error(Errc::kUnavailable, "enough"));
    EXPECT_FALSE((*pipeline)->wait(*ticket));
  });
}

TEST(Submission, AWorkerWhosePreparationFailsFailsTheBucketOnAll) {
  for (const uint32_t who : {1u, 2u}) {  // 2: all of them
    spawn_workers(2, {}, [&](uint32_t w, Reducer& reducer) {
      const auto codec = make_codec("dense", 10, 2, 0, w);
      std::vector<float> gradient(10, 1.0f);
      Submission submission;
      submission.parts.push_back({codec.get(), gradient.data()});
      const bool fails = who == 2 || w == who;
      submission.prepare = [&]() -> Status {
        if (fails) return make_error(Errc::kIo, "no gradient");
        return {};
      };
      const Status status = submit_and_wait(**create_pipeline(reducer), std::move(submission));
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, fails ? Errc::kIo : Errc::kMismatch);
      EXPECT_EQ(gradient, std::vector<float>(10, 1.0f));
    });
  }
}

}  // namespace
}  // namespace addend
