// SPDX-License-Identifier: Apache-2.0
#include "addend/pipeline.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/chunks.h"
#include "gtest/gtest.h"
#include "reduce/mesh/mesh.h"
#include "tests/support/bucket_work.h"
#include "tests/support/spawn.h"
#include "tests/support/wires.h"

namespace addend {
namespace {

using testing_support::gradient_of;
using testing_support::make_codec;
using testing_support::spawn_workers;
using testing_support::sum_of;

void run_many_buckets(uint32_t world, uint32_t w, Reducer& reducer) {
  const char* specs[] = {"exact",
                         "dense",
                         "exact:mode=sketch",
                         "exact:mode=two-level",
                         "exact:values=reproducible",
                         "exact:mode=gather",
                         "exact:mode=bloom,density=0.01"};
  auto pipeline = create_pipeline(reducer, {3, std::chrono::minutes(5)});
  ASSERT_TRUE(pipeline);
  std::vector<std::unique_ptr<Codec>> codecs;
  for (uint64_t b = 0; b < 10; ++b)
    codecs.push_back(make_codec(specs[b % std::size(specs)], b * 997, world, b, w));
  for (int step = 0; step < 5; ++step) {
    std::vector<std::vector<float>> gradients;
    std::vector<Ticket> tickets;
    for (uint64_t b = 0; b < 10; ++b)
      gradients.push_back(gradient_of(w, b, b * 997));
    for (uint64_t b = 0; b < 10; ++b) {
      const auto ticket = (*pipeline)->submit(*codecs[b], gradients[b].data());
      ASSERT_TRUE(ticket);
      tickets.push_back(*ticket);
    }
    for (uint64_t b = 10; b-- > 0;) {  // waiting in another order than submitting is fine
      const Status status = (*pipeline)->wait(tickets[b]);
      ASSERT_TRUE(status) << status.error().message;
      ASSERT_EQ(gradients[b], sum_of(world, b, b * 997)) << "bucket " << b << " step " << step;
    }
  }
}

TEST(Pipeline, ManyBucketsInFlightOverManyStepsSumExactly) {
  spawn_workers(4, {FoldOrder::kPermuted, 1},
                [&](uint32_t w, Reducer& reducer) { run_many_buckets(4, w, reducer); });
}

TEST(Pipeline, TheSameOverAMeshWhereBucketsOverlap) {
  for (const uint64_t exchange_bytes : {0, 1000}) {
    Wires wires(4);
    wires.on_all([&](uint32_t w) {
      const auto reducer = *mesh::MeshReducer::create(wires.take(w), {w, exchange_bytes});
      run_many_buckets(4, w, *reducer);
    });
  }
}

// One worker's reducer, which a test keeps waiting.
class LoneReducer : public Reducer {
 public:
  uint32_t world() const override { return 1; }
  uint32_t worker() const override { return 0; }
  Status reduce(Round&, Deadline) override { return {}; }
  Result<uint64_t> start(Round&) override {
    const std::lock_guard lock(mutex_);
    return started_++;
  }
  Result<uint64_t> start_step(std::span<const Claim>, Round& round) override {
    return start(round);
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    wake_ = true;
    woken_.notify_all();
  }

 protected:
  std::mutex mutex_;
  std::condition_variable woken_;
  bool wake_ = false;
  uint64_t started_ = 0;
};

// A round ends only when another one has been started.
class OverlappingReducer final : public LoneReducer {
 public:
  Result<bool> wait(uint64_t number, Deadline) override {
    std::unique_lock lock(mutex_);
    // The last one that the test submits has nobody behind it.
    if (number + 1 < started_ || number + 1 == kBuckets) return true;
    woken_.wait(lock, [&] { return std::exchange(wake_, false); });
    return false;
  }
  static constexpr uint64_t kBuckets = 5;
};

void sum_buckets(Reducer& reducer, uint32_t buckets) {
  auto pipeline = create_pipeline(reducer, {buckets, std::chrono::hours(1)});
  std::vector<std::unique_ptr<Codec>> codecs;
  std::vector<std::vector<float>> gradients(buckets, std::vector<float>(100, 1.0f));
  std::vector<Ticket> tickets;
  for (uint32_t b = 0; b < buckets; ++b) {
    codecs.push_back(make_codec("dense", 100, 1, b, 0));
    tickets.push_back(*(*pipeline)->submit(*codecs.back(), gradients[b].data()));
  }
  for (const Ticket ticket : tickets)
    EXPECT_TRUE((*pipeline)->wait(ticket));
}

TEST(Pipeline, ABucketStartsWhenTheLastRoundOfTheOneBeforeItIsSent) {
  OverlappingReducer reducer;
  sum_buckets(reducer, OverlappingReducer::kBuckets);
}

class GoneReducer final : public Reducer {
 public:
  uint32_t world() const override { return 1; }
  uint32_t worker() const override { return 0; }
  Status reduce(Round&, Deadline) override {
    return make_error(Errc::kTimeout, "the server did not come back");
  }
};

// The first bucket finds the server gone and is compared on the fallback.
TEST(Pipeline, BucketsOverlapAgainOnceTheServerIsGone) {
  const auto reducer = create_fallback_reducer(std::make_unique<GoneReducer>(),
                                               std::make_unique<OverlappingReducer>());
  ASSERT_TRUE(reducer);
  sum_buckets(**reducer, 1 + OverlappingReducer::kBuckets);
}

// No worker can encode the first bucket, so they agree on that; some have started the second.
TEST(Pipeline, ABucketThatAllFailToEncodeEndsThoseThatAreUnderWayBehindIt) {
  OverlappingReducer reducer;
  auto pipeline = create_pipeline(reducer, {OverlappingReducer::kBuckets, std::chrono::hours(1)});
  std::vector<std::unique_ptr<Codec>> codecs;
  std::vector<float> gradient(100, 1.0f);
  std::vector<Ticket> tickets;
  for (uint64_t b = 0; b < OverlappingReducer::kBuckets; ++b) {
    codecs.push_back(make_codec("dense", 100, 1, b, 0));
    tickets.push_back(*(*pipeline)->submit(*codecs.back(), b == 0 ? nullptr : gradient.data()));
  }
  EXPECT_FALSE((*pipeline)->wait(tickets[0]));
  for (uint64_t b = 1; b < OverlappingReducer::kBuckets; ++b) {
    const Status status = (*pipeline)->wait(tickets[b]);
    ASSERT_FALSE(status) << b;
    EXPECT_NE(status.error().message.find("earlier bucket"), std::string::npos);
  }
}

// Two rounds of one lane, of which one worker cannot encode the second.
class TwoRounds : public Codec {
 public:
  TwoRounds(uint32_t world, uint32_t worker, bool fails) : fails_(fails) {
    layout_.world = world;
    layout_.worker = worker;
  }
  uint64_t fingerprint() const override { return 1; }
  std::string_view next_mode() const override { return "dense"; }
  Status begin(const void*) override {
    rounds_ = 0;
    return {};
  }
  Status begin_in_place(void*) override { return {}; }
  Result<bool> next_round(Round& round) override {
    round.clear();
    if (rounds_ == 1 && fails_) return make_error(Errc::kUndecodable, "no second round");
    round.add({Op::kSumI32, 1, &lane_, nullptr, nullptr});
    return rounds_++ < 2;
  }
  Status finish(void*) override { return {}; }
  void cancel() override {}
  Status skip_step() override { return {}; }
  Status set_missing(uint64_t) override { return {}; }
  Result<std::vector<uint8_t>> save_state() const override { return std::vector<uint8_t>(); }
  Status load_state(std::span<const uint8_t>) override { return {}; }
  Result<std::vector<uint8_t>> save_segment(uint64_t) const override { return save_state(); }
  Status load_segment(uint64_t, std::span<const uint8_t>) override { return {}; }
  Status scale_residual(double) override { return {}; }
  const Report& report() const override { return report_; }
  uint64_t memory_bytes() const override { return 0; }
  const Layout& layout() const override { return layout_; }

 private:
  bool fails_;
  int rounds_ = 0;
  int32_t lane_ = 1;
  Report report_;
  Layout layout_;
};

// The first round takes until two others have been started.
class LongTailReducer final : public LoneReducer {
 public:
  bool has_ended(uint64_t number) const override { return number > 0; }
  Result<bool> wait_any(std::span<const uint64_t> numbers, Deadline deadline) override {
    return numbers.back() > 0 ? Result<bool>(true) : wait(0, deadline);
  }
  Result<bool> wait(uint64_t number, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    if (number > 0 || started_ >= 3) return true;
    if (!woken_.wait_until(lock, deadline, [&] { return wake_; }))
      return make_error(Errc::kTimeout, "nobody came");
    wake_ = false;
    return false;
  }
};

TEST(Pipeline, ATailDoesNotKeepABucketFromItsNextRound) {
  LongTailReducer reducer;
  auto pipeline = create_pipeline(reducer, {4, std::chrono::seconds(20)});
  const auto dense = make_codec("dense", 100, 1, 0, 0);
  TwoRounds two(1, 0, false);
  std::vector<float> gradient(100, 1.0f);
  const Ticket first = *(*pipeline)->submit(*dense, gradient.data());
  const Ticket second = *(*pipeline)->submit(two, gradient.data());
  for (const Ticket ticket : {first, second}) {
    const Status status = (*pipeline)->wait(ticket);
    EXPECT_TRUE(status) << status.error().message;
  }
}

// What encodes and decodes could share its work with.
class CountsThreads final : public TwoRounds {
 public:
  CountsThreads() : TwoRounds(1, 0, false) {}
  Result<bool> next_round(Round& round) override {
    encoders = loop_threads();
    return TwoRounds::next_round(round);
  }
  Status finish(void*) override {
    decoders = loop_threads();
    return {};
  }
  uint32_t encoders = 0, decoders = 0;
};

TEST(Pipeline, EncodesAndDecodesWithTheThreadsItIsGiven) {
  const auto group = create_local_group(1);
  const auto reducer = (*group)->reducer(0);
  for (const uint32_t threads : {0u, 1u, 3u, 64u}) {
    auto pipeline = create_pipeline(*reducer, {.threads = threads});
    ASSERT_TRUE(pipeline);
    CountsThreads codec;
    float gradient = 0;
    ASSERT_TRUE((*pipeline)->wait(*(*pipeline)->submit(codec, &gradient)));
    // Alone on its host, as a local group of one is, a worker has all cores.
    const uint32_t expected = threads == 0 ? default_threads(1) : threads;
    EXPECT_EQ(codec.encoders, expected);
    EXPECT_EQ(codec.decoders, expected);
  }
  const auto refused = create_pipeline(*reducer, {.threads = 65});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kInvalidArgument);
}

class SomewhereReducer final : public Reducer {
 public:
  uint32_t world() const override { return 1; }
  uint32_t worker() const override { return 0; }
  Status reduce(Round&, Deadline) override { return {}; }
};

TEST(Pipeline, HasOneThreadWhereNobodyKnowsWhoSharesTheHost) {
  SomewhereReducer reducer;
  auto pipeline = create_pipeline(reducer);
  CountsThreads codec;
  float gradient = 0;
  ASSERT_TRUE((*pipeline)->wait(*(*pipeline)->submit(codec, &gradient)));
  EXPECT_EQ(codec.encoders, 1u);
}

TEST(Pipeline, AWorkerThatCannotEncodeALaterRoundDoesNotKeepTheOthersWaiting) {
  Wires wires(3);
  std::vector<std::unique_ptr<mesh::MeshReducer>> reducers;  // nobody leaves before the others
  for (uint32_t w = 0; w < 3; ++w)
    reducers.push_back(*mesh::MeshReducer::create(wires.take(w), {w, 1000}));
  wires.on_all([&](uint32_t w) {
    auto pipeline = create_pipeline(*reducers[w], {4, std::chrono::seconds(20)});
    TwoRounds codec(3, w, w == 1);
    float gradient = 1;
    const Status status = (*pipeline)->wait(*(*pipeline)->submit(codec, &gradient));
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, w == 1 ? Errc::kUndecodable : Errc::kUnavailable)
        << status.error().message;
  });
}

// A step that has to begin again once.
class ChangingReducer final : public Reducer {
 public:
  uint32_t world() const override { return 1; }
  uint32_t worker() const override { return 0; }
  uint32_t quorum() const override { return 1; }
  Status reduce(Round&, Deadline deadline) override {
    deadlines.push_back(deadline);
    if (deadlines.size() == 1) return make_error(Errc::kChanged, "somebody went");
    return {};
  }
  std::vector<Deadline> deadlines;
};

TEST(Pipeline, AStepThatBeginsAgainKeepsItsDeadline) {
  ChangingReducer reducer;
  TwoRounds codec(1, 0, false);
  float gradient = 1;
  auto pipeline = create_pipeline(reducer);
  EXPECT_TRUE((*pipeline)->wait(*(*pipeline)->submit(codec, &gradient)));
  ASSERT_GE(reducer.deadlines.size(), 2u);
  EXPECT_EQ(reducer.deadlines.front(), reducer.deadlines.back());
}

TEST(Pipeline, AFailureWithLaterRoundsUnderWayEndsEveryBucketAndLeavesGradientsAlone) {
  Wires wires(3);
  wires.on_all([&](uint32_t w) {
    const auto reducer = *mesh::MeshReducer::create(wires.take(w), {w, 0});
    auto pipeline = create_pipeline(*reducer);
    std::vector<std::unique_ptr<Codec>> codecs;
    std::vector<std::vector<float>> gradients(4, std::vector<float>(50'000, 1.0f));
    std::vector<Ticket> tickets;
    for (uint64_t b = 0; b < 4; ++b) {
      // Worker 1 has another plan for the second bucket.
      codecs.push_back(make_codec(b == 1 && w == 1 ? "exact" : "dense", 50'000, 3, b, w));
      tickets.push_back(*(*pipeline)->submit(*codecs.back(), gradients[b].data()));
    }
    EXPECT_TRUE((*pipeline)->wait(tickets[0]));
    for (uint64_t b = 1; b < 4; ++b) {
      const Status status = (*pipeline)->wait(tickets[b]);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kMismatch) << status.error().message;
      EXPECT_EQ(gradients[b], std::vector<float>(50'000, 1.0f));
    }
  });
}

// Runs one bucket per worker and returns the statuses; spec_of and count_of may differ by worker.
template <typename Make>
std::vector<Status> run_one(uint32_t world, Make make,
                            std::chrono::nanoseconds deadline = std::chrono::minutes(5)) {
  std::vector<Status> statuses(world);
  spawn_workers(world, {}, [&](uint32_t w, Reducer& reducer) {
    auto pipeline = create_pipeline(reducer, {4, deadline});
    const std::unique_ptr<Codec> codec = make(w);
    if (codec == nullptr) return;
    std::vector<float> gradient(codec->layout().count, static_cast<float>(w));
    const std::vector<float> before = gradient;
    const auto ticket = (*pipeline)->submit(*codec, gradient.data());
    ASSERT_TRUE(ticket);
    statuses[w] = (*pipeline)->wait(*ticket);
    if (!statuses[w]) {
      EXPECT_EQ(gradient, before) << "a failed bucket must leave the gradient alone";
    }
  });
  return statuses;
}

TEST(Pipeline, DifferentPlansAreANamedErrorOnEveryWorker) {
  const auto by_length =
      run_one(3, [](uint32_t w) { return make_codec("exact", w == 1 ? 100 : 101, 3, 0, w); });
  const auto by_spec =
      run_one(3, [](uint32_t w) { return make_codec(w == 2 ? "dense" : "exact", 100, 3, 0, w); });
  const auto by_bucket =
      run_one(3, [](uint32_t w) { return make_codec("exact", 100, 3, w == 0 ? 7 : 8, w); });
  for (const auto& statuses : {by_length, by_spec, by_bucket}) {
    for (const Status& status : statuses) {
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kMismatch);
      EXPECT_NE(status.error().message.find("bucket"), std::string::npos);
    }
  }
}

TEST(Pipeline, AWorkerThatNeverComesEndsInATimeoutThatNamesIt) {
  const auto statuses = run_one(
      3, [](uint32_t w) { return w == 0 ? nullptr : make_codec("exact", 100, 3, 0, w); },
      std::chrono::milliseconds(1));
  for (uint32_t w = 1; w < 3; ++w) {
    ASSERT_FALSE(statuses[w]);
    // Whoever comes after the other has given up finds the group broken.
    const Errc code = statuses[w].error().code;
    EXPECT_TRUE(code == Errc::kTimeout || code == Errc::kUnavailable) << errc_name(code);
    EXPECT_NE(statuses[w].error().message.find("worker 0"), std::string::npos)
        << statuses[w].error().message;
  }
}

TEST(Pipeline, AWorkerThatCannotEncodeFailsTheBucketOnAllAtOnce) {
  std::vector<Status> statuses(3);
  spawn_workers(3, {}, [&](uint32_t w, Reducer& reducer) {
    auto pipeline = create_pipeline(reducer);
    const auto codec = make_codec("exact", 50, 3, 0, w);
    std::vector<float> gradient(50, 1.0f);
    const auto ticket = (*pipeline)->submit(*codec, w == 1 ? nullptr : gradient.data());
    ASSERT_TRUE(ticket);
    statuses[w] = (*pipeline)->wait(*ticket);
    EXPECT_EQ(gradient, std::vector<float>(50, 1.0f));
  });
  EXPECT_EQ(statuses[1].error().code, Errc::kInvalidArgument);
  EXPECT_EQ(statuses[0].error().code, Errc::kMismatch);
  EXPECT_EQ(statuses[2].error().code, Errc::kMismatch);
}

TEST(Pipeline, TheSameOverAMeshWhereTheOthersRoundsAreLarge) {
  Wires wires(3);
  std::vector<std::unique_ptr<mesh::MeshReducer>> reducers;  // nobody leaves before the others
  for (uint32_t w = 0; w < 3; ++w)
    reducers.push_back(*mesh::MeshReducer::create(wires.take(w), {w, 1000}));
  wires.on_all([&](uint32_t w) {
    auto pipeline = create_pipeline(*reducers[w], {4, std::chrono::seconds(20)});
    const auto codec = make_codec("dense", 50'000, 3, 0, w);
    std::vector<float> gradient(50'000, 1.0f);
    const auto ticket = (*pipeline)->submit(*codec, w == 1 ? nullptr : gradient.data());
    const Status status = (*pipeline)->wait(*ticket);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, w == 1 ? Errc::kInvalidArgument : Errc::kMismatch)
        << status.error().message;
    EXPECT_EQ(gradient, std::vector<float>(50'000, 1.0f));
  });
}

TEST(Pipeline, BucketsBehindAFailureFailWithItAndLaterOnesToo) {
  spawn_workers(2, {}, [&](uint32_t w, Reducer& reducer) {
    auto pipeline = create_pipeline(reducer);
    const auto bad = make_codec("exact", 10 + w, 2, 0, w), good = make_codec("exact", 10, 2, 1, w);
    std::vector<float> a(11, 1.0f), b(10, 1.0f);
    const auto first = (*pipeline)->submit(*bad, a.data());
    const auto second = (*pipeline)->submit(*good, b.data());
    EXPECT_FALSE((*pipeline)->wait(*first));
    const Status behind = (*pipeline)->wait(*second);
    ASSERT_FALSE(behind);
    EXPECT_NE(behind.error().message.find("earlier bucket"), std::string::npos);
    EXPECT_EQ(b, std::vector<float>(10, 1.0f));
  });
}

TEST(Pipeline, RefusesACodecInFlightAWrongWorldAndAnUnknownTicket) {
  spawn_workers(1, {}, [&](uint32_t, Reducer& reducer) {
    auto pipeline = create_pipeline(reducer);
    const auto codec = make_codec("exact", 10, 2, 0, 0);
    std::vector<float> gradient(10, 1.0f);
    EXPECT_EQ((*pipeline)->submit(*codec, gradient.data()).error().code, Errc::kInvalidArgument);
    EXPECT_EQ((*pipeline)->wait(99).error().code, Errc::kInvalidArgument);
    const auto fits = make_codec("exact", 10, 1, 0, 0);
    const auto ticket = (*pipeline)->submit(*fits, gradient.data());
    ASSERT_TRUE((*pipeline)->wait(*ticket));
    EXPECT_EQ((*pipeline)->wait(*ticket).error().code, Errc::kInvalidArgument)
        << "a ticket is waited for once";
  });
  EXPECT_FALSE(
      create_pipeline(*(*create_local_group(1))->reducer(0), {0, std::chrono::seconds(1)}));
}

// A group that goes on without a worker, as a service with a quorum does: its planes count for
// nothing (0 is neutral for every operation that has no table), but it gets the sums.
class PartialReducer final : public Reducer {
 public:
  explicit PartialReducer(Reducer& all) : all_(all) {}
  uint32_t world() const override { return all_.world(); }
  uint32_t worker() const override { return all_.worker(); }
  void begin_step() override {
    ++steps_;
    rounds_ = 0;
  }
  uint64_t missing() const override { return missing_; }

  Status reduce(Round& round, Deadline deadline) override {
    if ((missing_ >> worker() & 1) != 0) {
      for (Plane& plane : round)
        std::memset(plane.data, 0, op_bytes(plane.op, plane.lanes));
    }
    ADDEND_TRY(all_.reduce(round, deadline));
    if (++rounds_ == goes_in_round_ && missing_ == 0) {
      missing_ = who_goes_;
      return make_error(Errc::kChanged, "somebody went");
    }
    return {};
  }

  /// These workers are missing now.
  void miss(uint64_t workers) { missing_ = workers; }
  /// They go in a round of the next step (1: agree).
  void miss_in_round(uint32_t round, uint64_t workers) {
    goes_in_round_ = round;
    who_goes_ = workers;
  }
  uint32_t steps() const { return steps_; }

 private:
  Reducer& all_;
  uint64_t missing_ = 0, who_goes_ = 0;
  uint32_t steps_ = 0, rounds_ = 0, goes_in_round_ = 0;
};

Status step(Pipeline& pipeline, Codec& codec, std::vector<float>& gradient) {
  const auto ticket = pipeline.submit(codec, gradient.data());
  return ticket ? pipeline.wait(*ticket) : Status(ticket.error());
}

TEST(Pipeline, AMissingWorkersGradientCountsOnceAsTheMeanOfTheOthers) {
  constexpr uint64_t kCount = 2048;
  spawn_workers(3, {}, [&](uint32_t w, Reducer& reducer) {
    PartialReducer partial(reducer);
    auto pipeline = create_pipeline(partial);
    const auto codec = make_codec("quant:bits=8,feedback=float", kCount, 3, 0, w);
    const auto value = static_cast<float>(w + 1);
    std::vector<float> gradient(kCount, value);
    partial.miss(4);
    ASSERT_TRUE(step(**pipeline, *codec, gradient));
    EXPECT_EQ(codec->report().missing, 4u);
    EXPECT_EQ(codec->report().contributors, 2u);
    EXPECT_NEAR(gradient[7], 1.5 * (1 + 2), 0.5) << "three times the mean of the two that came";
    auto total = static_cast<double>(gradient[7]);
    partial.miss(0);
    for (int later = 0; later < 6; ++later) {
      gradient.assign(kCount, 0.0f);
      ASSERT_TRUE(step(**pipeline, *codec, gradient));
      EXPECT_EQ(codec->report().missing, 0u);
      total += static_cast<double>(gradient[7]);
    }
    EXPECT_NEAR(total, 1.5 * (1 + 2), 0.05) << "and nothing comes later";
  });
}

TEST(Pipeline, AStepInWhichAWorkerGoesBeginsAgainWithoutIt) {
  constexpr uint64_t kCount = 2048;
  for (const uint32_t round : {1, 2, 3}) {
    spawn_workers(3, {}, [&](uint32_t w, Reducer& reducer) {
      PartialReducer partial(reducer);
      auto pipeline = create_pipeline(partial);
      const auto codec = make_codec("quant:bits=8", kCount, 3, 0, w);
      std::vector<float> gradient(kCount, static_cast<float>(w + 1));
      partial.miss_in_round(round, 1);
      const Status status = step(**pipeline, *codec, gradient);
      ASSERT_TRUE(status) << status.error().message;
      EXPECT_EQ(partial.steps(), 2u);
      EXPECT_EQ(codec->report().missing, 1u);
      EXPECT_NEAR(gradient[7], 1.5 * (2 + 3), 0.5);
    });
  }
}

TEST(Pipeline, CodecsThatNeedEveryWorkerSaySoAndLoseNothing) {
  for (const char* spec : {"dense", "exact", "exact:values=reproducible"}) {
    spawn_workers(3, {}, [&](uint32_t w, Reducer& reducer) {
      PartialReducer partial(reducer);
      const auto codec = make_codec(spec, 100, 3, 0, w);
      const std::vector<float> before = gradient_of(w, 0, 100);
      std::vector<float> gradient = before;
      partial.miss(2);
      const Status status = step(**create_pipeline(partial), *codec, gradient);
      ASSERT_FALSE(status) << spec;
      EXPECT_EQ(status.error().code, Errc::kUnsupported);
      EXPECT_NE(status.error().message.find("worker 1 is missing"), std::string::npos);
      EXPECT_EQ(gradient, before);
      // The group goes on, and so does the codec once everybody is there.
      partial.miss(0);
      ASSERT_TRUE(step(**create_pipeline(partial), *codec, gradient));
      EXPECT_EQ(gradient, sum_of(3, 0, 100));
    });
  }
}

TEST(Pipeline, ClosesWithBucketsInFlight) {
  spawn_workers(2, {}, [&](uint32_t w, Reducer& reducer) {
    std::vector<float> gradient(1000, static_cast<float>(w));
    const auto codec = make_codec("exact", 1000, 2, 0, w);
    auto pipeline = create_pipeline(reducer);
    ASSERT_TRUE((*pipeline)->submit(*codec, gradient.data()));
    pipeline->reset();
    EXPECT_EQ(gradient[0], 1.0f) << "submitted buckets are finished before the pipeline goes";
  });
}

TEST(Pieces, CoverTheGradientInOrderAndNameTheirBuckets) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{8192},
                                 uint64_t{8193}, uint64_t{1000003}}) {
      Layout layout;
      layout.dtype = dtype;
      layout.count = count;
      layout.world = 3;
      layout.worker = 2;
      layout.bucket = 7;
      layout.seed = 5;
      layout.scale = 0.25;
      const auto pieces = cut_into_pieces(layout, 40000);
      ASSERT_TRUE(pieces);
      uint64_t covered = 0;
      for (std::size_t p = 0; p < pieces->size(); ++p) {
        const Layout& piece = (*pieces)[p];
        EXPECT_EQ(covered % 4096, 0u) << "pieces begin where blocks do";
        EXPECT_EQ(piece.bucket, 7 + p);
        EXPECT_LE(piece.count * dtype_bytes(dtype), 40000u);
        EXPECT_TRUE(piece.count > 0 || count == 0);
        EXPECT_EQ(piece.world, 3u);
        EXPECT_EQ(piece.worker, 2u);
        EXPECT_EQ(piece.seed, 5u);
        EXPECT_EQ(piece.scale, 0.25);
        covered += piece.count;
      }
      EXPECT_EQ(covered, count);
    }
  }
  EXPECT_EQ(cut_into_pieces({})->size(), 1u);
}

TEST(Pieces, SumAsTheWholeGradientDoes) {
  constexpr uint32_t kWorld = 3;
  constexpr uint64_t kCount = 30001;
  for (const char* spec : {"exact", "dense", "exact:mode=two-level"}) {
    spawn_workers(kWorld, {FoldOrder::kPermuted, 2}, [&](uint32_t w, Reducer& reducer) {
      Layout layout;
      layout.worker = w;
      layout.count = kCount;
      layout.world = kWorld;
      const auto pieces = cut_into_pieces(layout, 16 << 10);
      ASSERT_TRUE(pieces);
      ASSERT_EQ(pieces->size(), 8u);
      std::vector<std::unique_ptr<Codec>> codecs;
      for (const Layout& piece : *pieces)
        codecs.push_back(std::move(*create_codec(*CodecSpec::parse(spec), piece)));
      auto pipeline = create_pipeline(reducer);
      for (int step = 0; step < 3; ++step) {
        std::vector<float> gradient = gradient_of(w, 1, kCount);
        std::vector<Ticket> tickets;
        float* at = gradient.data();
        for (const auto& codec : codecs) {
          const auto ticket = (*pipeline)->submit(*codec, at);
          ASSERT_TRUE(ticket);
          tickets.push_back(*ticket);
          at += codec->layout().count;
        }
        for (const Ticket ticket : tickets)
          ASSERT_TRUE((*pipeline)->wait(ticket));
        ASSERT_EQ(gradient, sum_of(kWorld, 1, kCount)) << spec << " step " << step;
      }
    });
  }
}

TEST(Pieces, RefuseSegmentsAndPiecesThatAreAllLatency) {
  Layout layout;
  layout.count = 10;
  EXPECT_EQ(cut_into_pieces(layout, 16383).error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(cut_into_pieces(layout, 16384));
  layout.segments = {{1, 4}, {2, 6}};
  EXPECT_EQ(cut_into_pieces(layout).error().code, Errc::kInvalidArgument);
}

}  // namespace
}  // namespace addend
