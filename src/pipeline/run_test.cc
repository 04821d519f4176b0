// SPDX-License-Identifier: Apache-2.0
// Who does the work of a pipeline, and how it is stopped.
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sched.h>

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

constexpr PipelineOptions kPatient{4, std::chrono::minutes(5)};
constexpr uint64_t kCount = 3000;

// A gradient, its codec and the reducer of one of two workers of a mesh.
struct End {
  End(Wires& wires, uint32_t w, const char* spec = "exact")
      : reducer(*MeshReducer::create(wires.take(w), {w, 1000})),
        pipeline(*create_pipeline(*reducer, kPatient)),
        codec(make_codec(spec, kCount, 2, 0, w)),
        other(make_codec("dense", kCount, 2, 1, w)),
        worker(w) {}
  Submission submission() {
    gradient = gradient_of(worker, 0, kCount);
    Submission made;
    made.parts.push_back({codec.get(), gradient.data()});
    made.prepare = [this]() -> Status {
      encoded_by = std::this_thread::get_id();
      return {};
    };
    return made;
  }
  Submission another() {
    second = gradient_of(worker, 1, kCount);
    Submission made;
    made.parts.push_back({other.get(), second.data()});
    return made;
  }
  std::unique_ptr<MeshReducer> reducer;
  std::unique_ptr<Pipeline> pipeline;
  std::unique_ptr<Codec> codec, other;
  uint32_t worker;
  std::vector<float> gradient, second;
  std::thread::id encoded_by;
};

void nothing(int) {}

// Whether `end` waits for sums of the bucket.
void wait_until_waiting(const End& end, Ticket ticket) {
  while (end.pipeline->position().ticket != ticket || end.pipeline->position().rounds == 0)
    std::this_thread::yield();
}

TEST(Run, WorksInTheCallersThreadIfNothingElseIsUnderWay) {
  Wires wires(2);
  std::vector<End> ends;
  ends.reserve(2);
  for (uint32_t w = 0; w < 2; ++w)
    ends.emplace_back(wires, w);
  wires.on_all([&](uint32_t w) {
    End& end = ends[w];
    for (Ticket step = 0; step < 20; ++step) {
      Outcome outcome;
      const auto ended = end.pipeline->run(end.submission(), outcome);
      ASSERT_TRUE(ended && *ended);
      ASSERT_TRUE(outcome.status) << outcome.status.error().message;
      EXPECT_EQ(outcome.ticket, step);
      EXPECT_EQ(end.encoded_by, std::this_thread::get_id());
      EXPECT_EQ(end.gradient, sum_of(2, 0, kCount));
      EXPECT_FALSE(end.pipeline->wait(outcome.ticket)) << "it has ended already";
    }
  });
}

// A wake-up that was meant for the pipeline's threads must not send a caller's bucket there.
// Whether the threads have come to rest is theirs to say, so some of these runs are submissions.
TEST(Run, AfterBucketsOfOtherThreadsOneThatStartsHereEndsHere) {
  Wires wires(2);
  wires.on_all([&](uint32_t w) {
    End end(wires, w);
    for (int step = 0; step < 100; ++step) {
      const auto ticket = end.pipeline->submit(end.another());
      ASSERT_TRUE(end.pipeline->wait(*ticket));
      Outcome outcome;
      end.encoded_by = {};
      const auto ended = end.pipeline->run(end.submission(), outcome);
      ASSERT_TRUE(ended);
      if (!*ended) {
        ASSERT_TRUE(end.pipeline->wait(outcome.ticket));
      }
      EXPECT_EQ(*ended, end.encoded_by == std::this_thread::get_id()) << "handed over";
      ASSERT_EQ(end.gradient, sum_of(2, 0, kCount));
    }
  });
}

TEST(Run, LeavesItToTheThreadsIfSomethingIsUnderWay) {
  Wires wires(2);
  wires.on_all([&](uint32_t w) {
    End end(wires, w);
    std::promise<void> go;
    Submission blocked = end.another();
    blocked.prepare = [gate = go.get_future().share()]() -> Status {
      gate.wait();
      return {};
    };
    const auto first = end.pipeline->submit(std::move(blocked));
    Outcome outcome;
    outcome.repeats = 7;  // of an earlier call
    const auto ended = end.pipeline->run(end.submission(), outcome);
    ASSERT_TRUE(ended);
    EXPECT_FALSE(*ended);
    EXPECT_EQ(outcome.ticket, *first + 1);
    EXPECT_EQ(outcome.repeats, 0u);
    go.set_value();
    EXPECT_TRUE(end.pipeline->wait(outcome.ticket));
    EXPECT_TRUE(end.pipeline->wait(*first));
    EXPECT_NE(end.encoded_by, std::this_thread::get_id());
    EXPECT_EQ(end.gradient, sum_of(2, 0, kCount));
    EXPECT_EQ(end.second, sum_of(2, 1, kCount));
  });
}

TEST(Run, ABucketThatIsSubmittedMeanwhileFollows) {
  Wires wires(2);
  End here(wires, 0), there(wires, 1);
  std::thread runner([&] {
    Outcome outcome;
    const auto ended = here.pipeline->run(here.submission(), outcome);
    ASSERT_TRUE(ended && *ended);
    EXPECT_TRUE(outcome.status);
  });
  wait_until_waiting(here, 0);  // for a worker that has not come yet
  const auto second = here.pipeline->submit(here.another());
  const auto a = there.pipeline->submit(there.submission());
  const auto b = there.pipeline->submit(there.another());
  EXPECT_TRUE(there.pipeline->wait(*a));
  EXPECT_TRUE(there.pipeline->wait(*b));
  EXPECT_TRUE(here.pipeline->wait(*second));
  runner.join();
  EXPECT_EQ(here.gradient, sum_of(2, 0, kCount));
  EXPECT_EQ(here.second, sum_of(2, 1, kCount));
}

TEST(Run, ASignalHandsTheRestToTheThreads) {
  struct sigaction action {
  }, before{};
  action.sa_handler = nothing;  // without SA_RESTART
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  for (const bool with_done : {false, true}) {
    Wires wires(2);
    End here(wires, 0), there(wires, 1);
    std::atomic<bool> returned{false};
    std::atomic<int> done{0};
    std::thread runner([&] {
      Submission submission = here.submission();
      if (with_done) submission.done = [&](const Outcome& one) { done += one.status ? 1 : 100; };
      Outcome outcome;
      const auto ended = here.pipeline->run(std::move(submission), outcome);
      returned = true;
      ASSERT_TRUE(ended);
      EXPECT_FALSE(*ended);
      EXPECT_EQ(here.encoded_by, std::this_thread::get_id());
      EXPECT_EQ(here.pipeline->wait(outcome.ticket).has_value(), !with_done);
    });
    while (!returned) {  // it may not sleep yet when the first comes
      pthread_kill(runner.native_handle(), SIGUSR1);
      std::this_thread::yield();
    }
    const auto ticket = there.pipeline->submit(there.submission());
    EXPECT_TRUE(there.pipeline->wait(*ticket));
    runner.join();
    here.pipeline.reset();
    EXPECT_EQ(done, with_done ? 1 : 0);
    EXPECT_EQ(here.gradient, sum_of(2, 0, kCount));
  }
  sigaction(SIGUSR1, &before, nullptr);
}

// ---- Stopping

const Error kWhy = make_error(Errc::kIo, "the operator said so");

void expect_stopped(const Status& status) {
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, kWhy.code);
  EXPECT_EQ(status.error().message, kWhy.message);
}

// Two buckets of which a peer never starts any.
void stop_under_way(Reducer& reducer) {
  auto pipeline = create_pipeline(reducer, kPatient);
  const auto codec = make_codec("exact", kCount, 2, 0, 0), other = make_codec("dense", 50, 2, 1, 0);
  std::vector<float> gradient = gradient_of(0, 0, kCount), second(50, 1.0f);
  const auto a = (*pipeline)->submit(*codec, gradient.data());
  const auto b = (*pipeline)->submit(*other, second.data());
  while ((*pipeline)->position().rounds == 0)
    std::this_thread::yield();
  (*pipeline)->stop(kWhy);
  (*pipeline)->stop(make_error(Errc::kTimeout, "the first counts"));
  expect_stopped((*pipeline)->wait(*a));
  expect_stopped((*pipeline)->wait(*b));
  EXPECT_EQ(gradient, gradient_of(0, 0, kCount));
  EXPECT_EQ(second, std::vector<float>(50, 1.0f));
  const auto late = (*pipeline)->submit(*other, second.data());
  expect_stopped((*pipeline)->wait(*late));
}

TEST(Stop, EndsBucketsWhosePeerNeverComesOnAMesh) {
  Wires wires(2);
  const auto here = *MeshReducer::create(wires.take(0), {0, 1000});
  stop_under_way(*here);
}

TEST(Stop, EndsBucketsWhosePeerNeverComesInALocalGroup) {
  const auto group = *create_local_group(2);
  stop_under_way(*group->reducer(0));
}

TEST(Stop, EndsBucketsWhosePeerNeverComesBehindAFallback) {
  const auto one = *create_local_group(2), other = *create_local_group(2);
  std::atomic<int> switched{0};
  const auto both = *create_fallback_reducer(one->reducer(0), other->reducer(0),
                                             [&](const Error&) { ++switched; });
  stop_under_way(*both);
  EXPECT_EQ(switched, 0) << "a reducer that was interrupted is not gone";
}

TEST(Stop, BeforeASubmissionEndsItWithoutARound) {
  Wires wires(2);
  End end(wires, 0);
  end.pipeline->stop(kWhy);
  Outcome outcome;
  const auto ended = end.pipeline->run(end.submission(), outcome);
  ASSERT_TRUE(ended && *ended);
  expect_stopped(outcome.status);
  expect_stopped(end.pipeline->wait(*end.pipeline->submit(end.another())));
  EXPECT_EQ(end.gradient, gradient_of(0, 0, kCount));
  EXPECT_EQ(end.pipeline->position().rounds, 0u);
}

TEST(Stop, EndsARunInItsThread) {
  Wires wires(2);
  End end(wires, 0);
  std::thread runner([&] {
    Outcome outcome;
    const auto ended = end.pipeline->run(end.submission(), outcome);
    ASSERT_TRUE(ended && *ended);
    expect_stopped(outcome.status);
  });
  wait_until_waiting(end, 0);
  end.pipeline->stop(kWhy);
  runner.join();
  EXPECT_EQ(end.gradient, gradient_of(0, 0, kCount));
}

// A backend that was cut off while it added may say that it is done, with anything in its planes.
TEST(Stop, TakesNoSumOfARoundThatItCutShort) {
  Pipeline* stopped = nullptr;
  const auto reducer = *create_custom_reducer({1, 0, false}, [&](Round& round, Deadline) -> Status {
    if (!round.last) return {};
    std::memset(round.planes[0].data, 0x55, 1);
    stopped->stop(kWhy);
    return {};
  });
  const auto pipeline = *create_pipeline(*reducer, kPatient);
  stopped = pipeline.get();
  const auto codec = make_codec("dense", kCount, 1, 0, 0);
  std::vector<float> gradient = gradient_of(0, 0, kCount);
  expect_stopped(pipeline->wait(*pipeline->submit(*codec, gradient.data())));
  EXPECT_EQ(gradient, gradient_of(0, 0, kCount));
}

TEST(Stop, TellsTheOtherWorkers) {
  spawn_workers(2, {}, [](uint32_t w, Reducer& reducer) {
    auto pipeline = create_pipeline(reducer, kPatient);
    const auto codec = make_codec("dense", 10, 2, 0, w);
    std::vector<float> gradient(10, 1.0f);
    if (w == 0) (*pipeline)->stop(kWhy);
    const Status status = (*pipeline)->wait(*(*pipeline)->submit(*codec, gradient.data()));
    ASSERT_FALSE(status);
    if (w == 1) {
      EXPECT_EQ(status.error().code, Errc::kUnavailable);
      EXPECT_NE(status.error().message.find("worker 0 left"), std::string::npos);
    }
    EXPECT_EQ(gradient, std::vector<float>(10, 1.0f));
  });
}

int policy_of(const std::string& thread) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == thread) return sched_getscheduler(std::stoi(task.path().filename()));
  }
  return -1;
}

// Otherwise a hook's time is that of the encoding that it asked for, where all cores are busy.
TEST(Pipeline, TheEncoderDoesNotTakeTheCoreOfWhoeverSubmits) {
  spawn_workers(1, {}, [](uint32_t w, Reducer& reducer) {
    const auto pipeline = *create_pipeline(reducer, kPatient);
    const auto codec = make_codec("dense", kCount, 1, 0, w);
    std::vector<float> gradient = gradient_of(w, 0, kCount);
    ASSERT_TRUE(pipeline->wait(*pipeline->submit(*codec, gradient.data())));
    EXPECT_EQ(policy_of("addend encode"), SCHED_BATCH);
    EXPECT_EQ(policy_of("addend network"), SCHED_OTHER);  // what it waits for is short
  });
}

TEST(Pipeline, APositionNamesTheBucketWhoseSumsAreMissing) {
  Wires wires(2);
  End here(wires, 0, "dense"), there(wires, 1, "dense");
  EXPECT_EQ(here.pipeline->position().rounds, 0u);
  const auto first = here.pipeline->submit(here.submission());
  const auto a = there.pipeline->submit(there.submission());
  EXPECT_TRUE(here.pipeline->wait(*first));
  EXPECT_TRUE(there.pipeline->wait(*a));
  const auto second = here.pipeline->submit(here.another());
  wait_until_waiting(here, *second);
  EXPECT_EQ(here.pipeline->position().rounds, 1u);
  const auto b = there.pipeline->submit(there.another());
  EXPECT_TRUE(here.pipeline->wait(*second));
  EXPECT_TRUE(there.pipeline->wait(*b));
}

}  // namespace
}  // namespace addend
