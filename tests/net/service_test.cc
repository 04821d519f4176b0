// SPDX-License-Identifier: Apache-2.0
// Workers and an aggregation server over loopback, as threads of this process.
#include "addend/service.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <latch>
#include <thread>

#include "addend/addend.h"
#include "addend/codec.h"
#include "addend/pipeline.h"
#include "addend/reduce.h"
#include "gtest/gtest.h"
#include "tests/support/keys.h"
#include "tests/support/service_workers.h"
#include "tests/support/spawn.h"
#include "wire/frame.h"
#include "wire/hash.h"

namespace addend {
namespace {

using testing_support::check_operations;
using testing_support::far;
using testing_support::key_of;
using testing_support::sum_by;
using testing_support::work_together;

/// A job at as many servers as the parameter says.
class ServiceTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  using Servers = std::vector<std::unique_ptr<Server>>;

  std::unique_ptr<Server> start_server(uint16_t port, uint32_t threads) {
    ServerOptions options;
    options.address = "127.0.0.1";
    options.control_port = port;
    options.threads = threads;
    options.http = false;
    options.tenants.resize(1);
    options.tenants[0].name = "lab";
    options.tenants[0].key = key_of(1);
    auto server =
        Server::start(options, [](LogLevel, std::string_view, std::span<const LogField>) {});
    EXPECT_TRUE(server) << (server ? "" : server.error().message);
    return *std::move(server);
  }
  /// The second time at the ports of the first.
  Servers start_servers(uint32_t threads = 2) {
    ports_.resize(GetParam());
    Servers servers;
    for (uint16_t& port : ports_) {
      servers.push_back(start_server(port, threads));
      port = servers.back()->control_port();
    }
    return servers;
  }
  std::string name_of(std::size_t server) const {
    return "127.0.0.1:" + std::to_string(ports_[server]);
  }
  ServiceReducerOptions options_for(uint32_t worker, uint32_t world) const {
    std::string names = name_of(0);
    for (std::size_t i = 1; i < ports_.size(); ++i)
      names += "," + name_of(i);
    ServiceReducerOptions options;
    options.access = {names, "lab", key_of(1), {}};
    options.job = "ring";
    options.world = world;
    options.worker = worker;
    options.slots = 64;
    options.join_timeout = std::chrono::seconds(30);
    return options;
  }
  /// Runs `body` on `world` workers, each with its reducer.
  void work(uint32_t world, const std::function<void(Reducer&)>& body) {
    work_together(
        world, [&](uint32_t worker) { return options_for(worker, world); }, body);
  }

  std::vector<uint16_t> ports_;
};
INSTANTIATE_TEST_SUITE_P(Servers, ServiceTest, ::testing::Values(1, 2),
                         ::testing::PrintToStringParamName());

/// What only several servers can show.
class SeveralServersTest : public ServiceTest {};
INSTANTIATE_TEST_SUITE_P(Servers, SeveralServersTest, ::testing::Values(2),
                         ::testing::PrintToStringParamName());

uint64_t number(uint32_t worker, Op op, uint64_t i) {
  return addend_random(worker * 100 + static_cast<uint64_t>(op), i);
}

TEST_P(ServiceTest, EveryOperationGivesWhatFoldGives) {
  const auto servers = start_servers();
  constexpr uint32_t kWorld = 3;
  work(kWorld, [&](Reducer& reducer) { check_operations(reducer, 12345); });
}

TEST_P(ServiceTest, FloatsAreTheSameBitsOnAllWorkers) {
  const auto servers = start_servers();
  constexpr uint32_t kWorld = 4;
  std::vector<std::vector<float>> results(kWorld, std::vector<float>(5000));
  work(kWorld, [&](Reducer& reducer) {
    std::vector<float>& mine = results[reducer.worker()];
    for (std::size_t i = 0; i < mine.size(); ++i)
      mine[i] = 1.0f / static_cast<float>(number(reducer.worker(), Op::kSumF32, i) % 1000 + 1);
    Round round;
    round.add({Op::kSumF32, mine.size(), mine.data(), nullptr, nullptr});
    ASSERT_TRUE(reducer.reduce(round, far()));
  });
  for (uint32_t w = 1; w < kWorld; ++w)
    EXPECT_EQ(results[w], results[0]);
}

TEST_P(ServiceTest, CodecsRunOverItUnchanged) {
  const auto servers = start_servers();
  constexpr uint32_t kWorld = 3;
  for (const char* spec :
       {"exact:values=reproducible", "quant:carrier=indices", "quant", "dense"}) {
    std::vector<std::vector<float>> results(kWorld, std::vector<float>(20000, 0.0f));
    work(kWorld, [&](Reducer& reducer) {
      std::vector<float>& gradient = results[reducer.worker()];
      for (std::size_t i = reducer.worker(); i < gradient.size(); i += 17)
        gradient[i] = static_cast<float>(number(reducer.worker(), Op::kSumF32, i) % 100) - 50;
      Layout layout;
      layout.count = gradient.size();
      layout.world = kWorld;
      layout.worker = reducer.worker();
      auto codec = create_codec(*CodecSpec::parse(spec), layout);
      ASSERT_TRUE(codec);
      auto pipeline = create_pipeline(reducer, {});
      ASSERT_TRUE(pipeline);
      for (int step = 0; step < 3; ++step) {
        auto ticket = (*pipeline)->submit(**codec, gradient.data());
        ASSERT_TRUE(ticket);
        const Status status = (*pipeline)->wait(*ticket);
        ASSERT_TRUE(status) << spec << ": " << status.error().message;
      }
    });
    for (uint32_t w = 1; w < kWorld; ++w)
      EXPECT_EQ(results[w], results[0]) << spec;
  }
}

// What a local group gives, bit for bit: who came first, and how planes were cut, does not matter.
TEST_P(ServiceTest, NarrowSumsOfCodecsAreThoseOfALocalGroup) {
  const auto servers = start_servers();
  constexpr uint32_t kWorld = 4;
  constexpr uint64_t kCount = 50000;
  const auto gradient_of = [&](uint32_t worker) {
    std::vector<float> gradient(kCount);
    for (std::size_t i = 0; i < kCount; ++i)
      gradient[i] = static_cast<float>(number(worker, Op::kNarrowSum44, i) % 1000) - 500;
    return gradient;
  };
  for (const char* spec : {"quant:bits=1,down=4", "quant:bits=3,down=8", "quant:bits=4,down=4",
                           "quant:bits=8,down=8"}) {
    std::vector<std::vector<float>> results(kWorld), expected(kWorld);
    const auto sum = [&](Reducer& reducer, std::vector<std::vector<float>>& all) {
      all[reducer.worker()] = gradient_of(reducer.worker());
      sum_by(spec, reducer, DType::kF32, kCount, all[reducer.worker()].data());
    };
    work(kWorld, [&](Reducer& reducer) { sum(reducer, results); });
    const auto group = create_local_group(kWorld);
    ASSERT_TRUE(group);
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < kWorld; ++w)
      threads.emplace_back([&, w] { sum(*(*group)->reducer(w), expected); });
    for (std::thread& thread : threads)
      thread.join();
    EXPECT_EQ(results, expected) << spec;
  }
}

TEST_P(ServiceTest, NarrowSumsOfPartsOfAByteAreRefusedByName) {
  const auto servers = start_servers();
  std::latch joined(2);  // whoever is refused leaves, and one that still joins would hear of that
  work(2, [&](Reducer& reducer) {
    joined.arrive_and_wait();
    std::vector<uint8_t> levels(12), sums(64);
    Round round;
    round.add({Op::kNarrowSum88, levels.size(), levels.data(), nullptr, sums.data()});
    const Status status = reducer.reduce(round, far());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kUnsupported);
    EXPECT_NE(status.error().message.find("narrow_sum_8_8 of 12 lanes"), std::string::npos)
        << status.error().message;
  });
}

TEST_P(ServiceTest, ManyRoundsOfAllSizes) {
  const auto servers = start_servers();
  work(4, [](Reducer& reducer) {
    for (uint64_t lanes : {0, 1, 351, 352, 353, 64 * 352, 64 * 352 + 1, 200000, 5}) {
      std::vector<int32_t> data(lanes);
      for (uint64_t i = 0; i < lanes; ++i)
        data[i] = static_cast<int32_t>(i * (reducer.worker() + 1));
      Round round;
      round.add({Op::kSumI32, lanes, data.data(), nullptr, nullptr});
      const Status status = reducer.reduce(round, far());
      ASSERT_TRUE(status) << status.error().message;
      for (uint64_t i = 0; i < lanes; ++i)
        ASSERT_EQ(data[i], static_cast<int32_t>(i * 10)) << lanes << " lanes, lane " << i;
    }
  });
}

TEST_P(ServiceTest, AServerThatRestartsDoesNotChangeTheSum) {
  auto servers = start_servers(1);
  constexpr uint32_t kWorld = 3;
  constexpr uint64_t kLanes = 3'000'000;
  std::atomic<uint32_t> steps{0};
  std::thread killer([&] {
    for (const uint32_t enough : {7, 20, 31}) {
      while (steps < enough)
        std::this_thread::yield();
      servers.back().reset();
      servers.back() = start_server(ports_.back(), 1);
    }
  });
  work(kWorld, [&](Reducer& reducer) {
    for (int step = 0; step < 20; ++step) {
      std::vector<int32_t> data(kLanes);
      for (uint64_t i = 0; i < kLanes; ++i)
        data[i] = static_cast<int32_t>(i + reducer.worker() + static_cast<uint64_t>(step));
      Round round;
      round.add({Op::kSumI32, kLanes, data.data(), nullptr, nullptr});
      const Status status = reducer.reduce(round, far());
      ASSERT_TRUE(status) << "worker " << reducer.worker() << ": " << status.error().message;
      for (uint64_t i = 0; i < kLanes; ++i)
        ASSERT_EQ(data[i], static_cast<int32_t>(3 * i + 3 + 3 * static_cast<uint64_t>(step)));
      ++steps;
    }
  });
  killer.join();
}

// The server comes back, and worker 1 does not, for it is asked for nothing.
TEST_P(ServiceTest, WaitingForOthersToComeBackCanBeInterrupted) {
  auto servers = start_servers(1);
  std::latch joined(2), failed(2);
  work_together(
      2,
      [&](uint32_t worker) {
        ServiceReducerOptions options = options_for(worker, 2);
        options.return_timeout = std::chrono::seconds(15);  // then it would be a timeout
        return options;
      },
      [&](Reducer& reducer) {
        joined.arrive_and_wait();
        if (reducer.worker() == 1) return failed.arrive_and_wait();
        servers.back().reset();
        servers.back() = start_server(ports_.back(), 1);
        std::promise<void> returned;
        const std::future<void> ended = returned.get_future();
        std::thread interrupter([&] {
          constexpr std::chrono::milliseconds kPause{10};
          ServiceAccess access = options_for(0, 2).access;
          access.aggregator = name_of(ports_.size() - 1);
          // Each question is a connection, so they come one by one, until reduce() has returned.
          bool waits = false;
          while (!waits && ended.wait_for(kPause) == std::future_status::timeout) {
            const auto jobs = list_jobs(access);
            waits = jobs && !jobs->empty() && jobs->front().joined == 1;
          }
          reducer.interrupt();
        });
        std::vector<int32_t> lanes(100'000);
        Round round;
        round.add({Op::kSumI32, lanes.size(), lanes.data(), nullptr, nullptr});
        const Status status = reducer.reduce(round, far());
        returned.set_value();
        interrupter.join();
        failed.arrive_and_wait();
        ASSERT_FALSE(status);
        EXPECT_EQ(status.error().code, Errc::kUnavailable) << status.error().message;
        EXPECT_NE(status.error().message.find("interrupted"), std::string::npos)
            << status.error().message;
      });
}

TEST_P(ServiceTest, SurvivorsLearnWhoIsGone) {
  const auto servers = start_servers();
  std::latch joined(3), failed(2);
  work(3, [&](Reducer& reducer) {
    joined.arrive_and_wait();
    if (reducer.worker() == 1) return;
    uint64_t lane = 1;
    Round round;
    round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
    // Saying goodbye in the middle of a job is not taken for being slow.
    const Status status = reducer.reduce(round, far());
    failed.arrive_and_wait();  // a worker that goes earlier would be named too
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kUnavailable);
    EXPECT_NE(status.error().message.find("worker 1 left the job"), std::string::npos)
        << status.error().message;
    EXPECT_FALSE(reducer.reduce(round, far()));
  });
}

TEST_P(ServiceTest, PatienceNamesTheMissingWorkerOnAllSurvivors) {
  const auto servers = start_servers();
  std::latch survivors(2);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < 3; ++w) {
    threads.emplace_back([&, w] {
      ServiceReducerOptions options = options_for(w, 3);
      // Joining takes its turns too: a busy machine must not run out of it there.
      options.patience = std::chrono::seconds(5);
      auto reducer = create_service_reducer(options);
      if (!reducer && w != 2) survivors.count_down();
      ASSERT_TRUE(reducer) << reducer.error().message;
      uint64_t lane = 1;
      Round round;
      round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
      if (w == 2) return survivors.wait();  // it is there, but stalls
      const Status status = (*reducer)->reduce(round, far());
      survivors.arrive_and_wait();
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kTimeout);
      EXPECT_NE(status.error().message.find("worker 2"), std::string::npos)
          << status.error().message;
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

TEST_P(ServiceTest, AnotherShapeIsAMismatchOnAllWorkers) {
  const auto servers = start_servers();
  std::latch joined(3), failed(3);
  work(3, [&](Reducer& reducer) {
    joined.arrive_and_wait();
    std::vector<uint64_t> lanes(reducer.worker() == 1 ? 3 : 2);
    Round round;
    round.add({Op::kOrU64, lanes.size(), lanes.data(), nullptr, nullptr});
    const Status status = reducer.reduce(round, far());
    failed.arrive_and_wait();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kMismatch) << status.error().message;
  });
}

// Sums of so many lanes, as the first round of a step of which all must know the same.
Status sum_step(Reducer& reducer, uint64_t lanes, uint64_t plan) {
  std::vector<int32_t> data(lanes, static_cast<int32_t>(reducer.worker() + 1));
  Round round;
  round.add({Op::kSumI32, lanes, data.data(), nullptr, nullptr});
  const Reducer::Claim claims[] = {{"the plan", plan}};
  ADDEND_TRY(reducer.reduce_step(claims, round, far()));
  const std::vector<int32_t> expected(lanes, 6);
  return data == expected ? Status() : make_error(Errc::kUndecodable, "a wrong sum");
}

TEST_P(ServiceTest, StepsThatRepeatDoNotWaitForTheirClaims) {
  const auto servers = start_servers();
  std::latch told(3);
  work(3, [&](Reducer& reducer) {
    constexpr std::array<uint64_t, 5> kSizes = {5, 70'000, 5, 0, 800};
    for (uint64_t step = 0; step < 4 * kSizes.size(); ++step) {
      const Status status = sum_step(reducer, kSizes[step % kSizes.size()], step);
      ASSERT_TRUE(status) << step << ": " << status.error().message;
    }
    const bool other = reducer.worker() == 1;
    const Status status = sum_step(reducer, other ? 6 : 5, other ? 1 : 0);
    told.arrive_and_wait();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kMismatch);
    EXPECT_NE(status.error().message.find("the plan"), std::string::npos) << status.error().message;
    // Those who expected this step have planes under way that worker 1 will not bring. Over several
    // servers claims go first.
    if (GetParam() > 1 || other) return;
    const Status after = sum_step(reducer, 5, 0);
    ASSERT_FALSE(after);
    EXPECT_EQ(after.error().code, Errc::kUnavailable) << after.error().message;
  });
}

// A caller who tries again on the same reducer.
TEST_P(ServiceTest, AServerThatStaysAwaySaysSoAgainToAStepThatWasExpected) {
  auto servers = start_servers();
  ServiceReducerOptions options = options_for(0, 1);
  options.return_timeout = std::chrono::milliseconds(100);
  const auto reducer = create_service_reducer(options);
  ASSERT_TRUE(reducer) << reducer.error().message;
  const auto step = [&] {
    uint64_t lane = 1;
    Round round;
    round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
    return (*reducer)->reduce_step({}, round, far());
  };
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(step());
  servers.clear();
  EXPECT_EQ(step().error().code, Errc::kTimeout);
  const Status again = step();
  EXPECT_EQ(again.error().code, Errc::kUnavailable);
  EXPECT_NE(again.error().message.find("an earlier round failed"), std::string::npos)
      << again.error().message;
}

TEST_P(ServiceTest, ClaimsThatOneFrameDoesNotHoldAreAllCompared) {
  const auto servers = start_servers();
  const auto options = [&](uint32_t worker) {
    ServiceReducerOptions small = options_for(worker, 3);
    small.payload_bytes = 64;
    small.slots = 1;  // so that they come one after the other
    return small;
  };
  std::latch told(3);
  work_together(3, options, [&](Reducer& reducer) {
    for (uint64_t step = 0; step < 6; ++step) {
      std::vector<int32_t> data(5);
      Round round;
      round.add({Op::kSumI32, data.size(), data.data(), nullptr, nullptr});
      std::array<Reducer::Claim, Reducer::kMaxClaims> claims;
      claims.fill({"the plan", 1});
      claims.back().value = step == 5 ? reducer.worker() : 1;
      const Status status = reducer.reduce_step(claims, round, far());
      EXPECT_EQ(static_cast<bool>(status), step < 5) << step;
    }
    told.arrive_and_wait();
  });
}

TEST_P(ServiceTest, TheCAbiJoinsAndReduces) {
  const auto servers = start_servers();
  const std::string aggregator = options_for(0, 1).access.aggregator;
  const ServiceKey key = key_of(1);
  addend_service_options options;
  addend_service_options_init(&options, sizeof(options));
  options.aggregator = aggregator.c_str();
  options.identity = "lab";
  options.key = key.bytes.data();
  addend_reducer* reducer = nullptr;
  ASSERT_EQ(addend_service_create(&options, &reducer), ADDEND_OK) << addend_last_error();
  EXPECT_EQ(addend_reducer_world(reducer), 1u);
  addend_reducer_destroy(reducer);
  options.size = 4;
  EXPECT_EQ(addend_service_create(&options, &reducer), ADDEND_INVALID_ARGUMENT);
}

TEST_P(ServiceTest, AWrongKeyDoesNotJoin) {
  const auto servers = start_servers();
  ServiceReducerOptions options = options_for(0, 1);
  options.access.key = key_of(7);
  const auto reducer = create_service_reducer(options);
  ASSERT_FALSE(reducer);
  EXPECT_EQ(reducer.error().code, Errc::kUnavailable);
}

TEST_P(ServiceTest, WorkersThatDoNotComeAreATimeout) {
  const auto servers = start_servers();
  ServiceReducerOptions options = options_for(0, 2);
  options.join_timeout = std::chrono::seconds(2);  // enough to get in, whoever else is busy
  const auto reducer = create_service_reducer(options);
  ASSERT_FALSE(reducer);
  EXPECT_EQ(reducer.error().code, Errc::kTimeout);
}

TEST_P(ServiceTest, AWorkerWaitsForAServerThatIsNotUpYet) {
  start_servers().clear();  // ports that were free a moment ago
  std::latch waiting(1);
  std::thread worker([&] {
    waiting.count_down();
    auto reducer = create_service_reducer(options_for(0, 1));
    EXPECT_TRUE(reducer) << reducer.error().message;
  });
  waiting.wait();
  const auto servers = start_servers();
  worker.join();
}

TEST_P(ServiceTest, AServerThatDoesNotComeUpIsNamed) {
  start_servers().clear();
  ServiceReducerOptions options = options_for(0, 1);
  options.join_timeout = std::chrono::milliseconds(300);
  const auto reducer = create_service_reducer(options);
  ASSERT_FALSE(reducer);
  EXPECT_EQ(reducer.error().code, Errc::kUnavailable);
  EXPECT_NE(reducer.error().message.find("no server came up at 127.0.0.1:"), std::string::npos)
      << reducer.error().message;
}

// One lane in every share, and a sum that each worker can check.
Status sum_of_all(Reducer& reducer, Deadline deadline) {
  std::vector<int32_t> lanes(100'000, static_cast<int32_t>(reducer.worker() + 1));
  Round round;
  round.add({Op::kSumI32, lanes.size(), lanes.data(), nullptr, nullptr});
  ADDEND_TRY(reducer.reduce(round, deadline));
  const auto world = static_cast<int32_t>(reducer.world());
  for (const int32_t lane : lanes)
    EXPECT_EQ(lane, world * (world + 1) / 2);
  return {};
}

TEST_P(SeveralServersTest, OneThatIsLostIsNamedOnAllWorkers) {
  for (const std::size_t lost : {0, 1}) {
    ports_.clear();  // connections of the first time may still hold those
    auto servers = start_servers();
    std::latch summed(3), gone(1), failed(3);
    std::thread killer([&] {
      summed.wait();
      servers[lost].reset();
      gone.count_down();
    });
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < 3; ++w) {
      threads.emplace_back([&, w] {
        ServiceReducerOptions options = options_for(w, 3);
        options.return_timeout = std::chrono::milliseconds(200);
        auto reducer = create_service_reducer(options);
        ASSERT_TRUE(reducer) << reducer.error().message;
        ASSERT_TRUE(sum_of_all(**reducer, far()));
        summed.count_down();
        gone.wait();
        const Status status = sum_of_all(**reducer, far());
        failed.arrive_and_wait();  // a worker that goes earlier would be named too
        ASSERT_FALSE(status);
        EXPECT_EQ(status.error().code, Errc::kTimeout);
        EXPECT_EQ(status.error().message.rfind("aggregator " + name_of(lost) + ": ", 0), 0u)
            << status.error().message;
      });
    }
    for (std::thread& thread : threads)
      thread.join();
    killer.join();
  }
}

TEST_P(SeveralServersTest, OneThatIsLostLeavesTheSumsToTheFallback) {
  constexpr uint32_t kWorld = 3;
  auto servers = start_servers();
  const auto group = create_local_group(kWorld);
  ASSERT_TRUE(group);
  std::atomic<uint32_t> steps{0};
  std::thread killer([&] {
    while (steps < 5)
      std::this_thread::yield();
    servers[0].reset();
  });
  std::atomic<uint32_t> switched{0};
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < kWorld; ++w) {
    threads.emplace_back([&, w] {
      ServiceReducerOptions options = options_for(w, kWorld);
      options.return_timeout = std::chrono::milliseconds(200);
      auto service = create_service_reducer(options);
      ASSERT_TRUE(service) << service.error().message;
      auto reducer = create_fallback_reducer(*std::move(service), (*group)->reducer(w),
                                             [&](const Error&) { ++switched; });
      ASSERT_TRUE(reducer);
      // As many as it takes for all to have gone over, and to go on there.
      for (uint32_t after = 0; after < 3;) {
        const Status status = sum_of_all(**reducer, far());
        ASSERT_TRUE(status) << status.error().message;
        ++steps;
        uint32_t all = switched == kWorld ? 1 : 0;
        Round round;
        round.add({Op::kMaxU32, 1, &all, nullptr, nullptr});
        ASSERT_TRUE((*reducer)->reduce(round, far()));
        after += all;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  killer.join();
}

TEST_P(SeveralServersTest, WorkersThatListThemInAnotherOrderAreAMismatch) {
  const auto servers = start_servers();
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < 2; ++w) {
    threads.emplace_back([&, w] {
      ServiceReducerOptions options = options_for(w, 2);
      if (w == 1) options.access.aggregator = name_of(1) + "," + name_of(0);
      const auto reducer = create_service_reducer(options);
      ASSERT_FALSE(reducer);
      EXPECT_EQ(reducer.error().code, Errc::kMismatch);
      EXPECT_NE(reducer.error().message.find("the order of their aggregators"), std::string::npos)
          << reducer.error().message;
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

TEST_P(SeveralServersTest, ListsThatCannotBeAreRefusedByName) {
  const auto servers = start_servers();
  const auto refused = [&](const std::string& list, uint32_t quorum, Errc code,
                           const std::string& why) {
    ServiceReducerOptions options = options_for(0, 1);
    options.access.aggregator = list;
    options.quorum = quorum;
    const auto reducer = create_service_reducer(options);
    ASSERT_FALSE(reducer);
    EXPECT_EQ(reducer.error().code, code);
    EXPECT_NE(reducer.error().message.find(why), std::string::npos) << reducer.error().message;
  };
  refused(name_of(0) + "," + name_of(0), 0, Errc::kInvalidArgument, "is listed twice");
  refused(name_of(0) + ",", 0, Errc::kInvalidArgument, "has no name");
  refused(options_for(0, 1).access.aggregator, 1, Errc::kUnsupported,
          "a job with a quorum has one aggregator");
  // Also if it was an operator who wanted one.
  ServiceAccess operator_access = options_for(0, 1).access;
  operator_access.aggregator = name_of(1);
  JobOptions job;
  job.name = "ring";
  job.world = job.quorum = 1;
  job.patience = std::chrono::seconds(5);
  ASSERT_TRUE(create_job(operator_access, job));
  refused(options_for(0, 1).access.aggregator, 0, Errc::kUnsupported,
          "aggregator " + name_of(1) + ": a job with a quorum has one aggregator");
}

}  // namespace
}  // namespace addend
