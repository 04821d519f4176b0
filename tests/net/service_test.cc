// SPDX-License-Identifier: Apache-2.0
// Workers and an aggregation server over loopback, as threads of this process.
#include "addend/service.h"

#include <atomic>
#include <cstring>
#include <functional>
#include <latch>
#include <thread>

#include "addend/addend.h"
#include "addend/codec.h"
#include "addend/fold.h"
#include "addend/pipeline.h"
#include "addend/reduce.h"
#include "gtest/gtest.h"
#include "tests/support/keys.h"
#include "tests/support/spawn.h"
#include "wire/hash.h"

namespace addend {
namespace {

using testing_support::far;
using testing_support::key_of;

class ServiceTest : public ::testing::Test {
 protected:
  std::unique_ptr<Server> start_server(uint16_t port = 0, uint32_t threads = 2) {
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
    port_ = (*server)->control_port();
    return *std::move(server);
  }
  ServiceReducerOptions options_for(uint32_t worker, uint32_t world) const {
    ServiceReducerOptions options;
    options.access = {"127.0.0.1:" + std::to_string(port_), "lab", key_of(1), {}};
    options.job = "ring";
    options.world = world;
    options.worker = worker;
    options.slots = 64;
    options.join_timeout = std::chrono::seconds(30);
    return options;
  }
  /// Runs `body` on `world` workers, each with its reducer.
  void work(uint32_t world, const std::function<void(Reducer&)>& body) {
    std::vector<std::thread> threads;
    for (uint32_t w = 0; w < world; ++w) {
      threads.emplace_back([&, w] {
        auto reducer = create_service_reducer(options_for(w, world));
        ASSERT_TRUE(reducer) << reducer.error().message;
        body(**reducer);
      });
    }
    for (std::thread& thread : threads)
      thread.join();
  }

  uint16_t port_ = 0;
};

uint64_t number(uint32_t worker, Op op, uint64_t i) {
  return addend_random(worker * 100 + static_cast<uint64_t>(op), i);
}

// A plane of small values, so that 8-bit sums stay in range.
std::vector<uint8_t> bytes_for(uint32_t worker, Op op, uint64_t lanes) {
  std::vector<uint8_t> bytes(op_bytes(op, lanes));
  for (uint64_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(number(worker, op, i) & 0x37);
  return bytes;
}

TEST_F(ServiceTest, EveryOperationGivesWhatFoldGives) {
  const auto server = start_server();
  constexpr uint32_t kWorld = 3;
  constexpr uint64_t kLanes = 12345;
  uint16_t table[16];
  uint8_t narrow[16];
  for (uint16_t i = 0; i < 16; ++i)
    narrow[i] = static_cast<uint8_t>(table[i] = static_cast<uint16_t>(i * 5));
  work(kWorld, [&](Reducer& reducer) {
    for (std::size_t o = 0; o < kOpCount; ++o) {
      const auto op = static_cast<Op>(o);
      if (o < 3) continue;  // floats: the order of arrival decides their last bits
      std::vector<uint8_t> data = bytes_for(reducer.worker(), op, kLanes);
      std::vector<uint8_t> sums(op_sum_bytes(op, kLanes)), expected(sums.size());
      const void* entries = op == Op::kTableSumU8 ? static_cast<const void*>(narrow) : table;
      for (uint32_t w = 0; w < kWorld; ++w) {
        const std::vector<uint8_t> theirs = bytes_for(w, op, kLanes);
        is_table_sum(op) ? fold_table(op, expected.data(), theirs.data(), entries, kLanes)
                         : fold(op, expected.data(), theirs.data(), kLanes);
      }
      Round round;
      round.add({op, kLanes, data.data(), entries, sums.data()});
      const Status status = reducer.reduce(round, far());
      ASSERT_TRUE(status) << status.error().message;
      EXPECT_EQ(is_table_sum(op) ? sums : data, expected) << op_name(op);
    }
  });
}

TEST_F(ServiceTest, FloatsAreTheSameBitsOnAllWorkers) {
  const auto server = start_server();
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

TEST_F(ServiceTest, CodecsRunOverItUnchanged) {
  const auto server = start_server();
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

TEST_F(ServiceTest, ManyRoundsOfAllSizes) {
  const auto server = start_server();
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

TEST_F(ServiceTest, AServerThatRestartsDoesNotChangeTheSum) {
  auto server = start_server(0, 1);
  constexpr uint32_t kWorld = 3;
  constexpr uint64_t kLanes = 3'000'000;
  std::atomic<uint32_t> steps{0};
  std::thread killer([&] {
    for (const uint32_t enough : {7, 20, 31}) {
      while (steps < enough)
        std::this_thread::yield();
      server.reset();
      server = start_server(port_, 1);
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

TEST_F(ServiceTest, SurvivorsLearnWhoIsGone) {
  const auto server = start_server();
  work(3, [](Reducer& reducer) {
    if (reducer.worker() == 1) return;
    uint64_t lane = 1;
    Round round;
    round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
    // Saying goodbye in the middle of a job is not taken for being slow.
    const Status status = reducer.reduce(round, far());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kUnavailable);
    EXPECT_EQ(status.error().message, "worker 1 left the job");
    EXPECT_FALSE(reducer.reduce(round, far()));
  });
}

TEST_F(ServiceTest, PatienceNamesTheMissingWorkerOnAllSurvivors) {
  const auto server = start_server();
  std::latch survivors(2);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < 3; ++w) {
    threads.emplace_back([&, w] {
      ServiceReducerOptions options = options_for(w, 3);
      options.patience = std::chrono::milliseconds(100);
      auto reducer = create_service_reducer(options);
      ASSERT_TRUE(reducer) << reducer.error().message;
      uint64_t lane = 1;
      Round round;
      round.add({Op::kOrU64, 1, &lane, nullptr, nullptr});
      if (w == 2) return survivors.wait();  // it is there, but stalls
      const Status status = (*reducer)->reduce(round, far());
      survivors.count_down();
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kTimeout);
      EXPECT_NE(status.error().message.find("worker 2"), std::string::npos)
          << status.error().message;
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

TEST_F(ServiceTest, AnotherShapeIsAMismatchOnAllWorkers) {
  const auto server = start_server();
  work(3, [](Reducer& reducer) {
    std::vector<uint64_t> lanes(reducer.worker() == 1 ? 3 : 2);
    Round round;
    round.add({Op::kOrU64, lanes.size(), lanes.data(), nullptr, nullptr});
    const Status status = reducer.reduce(round, far());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kMismatch) << status.error().message;
  });
}

TEST_F(ServiceTest, TheCAbiJoinsAndReduces) {
  const auto server = start_server();
  const std::string aggregator = "127.0.0.1:" + std::to_string(port_);
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

TEST_F(ServiceTest, AWrongKeyDoesNotJoin) {
  const auto server = start_server();
  ServiceReducerOptions options = options_for(0, 1);
  options.access.key = key_of(7);
  const auto reducer = create_service_reducer(options);
  ASSERT_FALSE(reducer);
  EXPECT_EQ(reducer.error().code, Errc::kUnavailable);
}

TEST_F(ServiceTest, WorkersThatDoNotComeAreATimeout) {
  const auto server = start_server();
  ServiceReducerOptions options = options_for(0, 2);
  options.join_timeout = std::chrono::milliseconds(100);
  const auto reducer = create_service_reducer(options);
  ASSERT_FALSE(reducer);
  EXPECT_EQ(reducer.error().code, Errc::kTimeout);
}

TEST_F(ServiceTest, AWorkerWaitsForAServerThatIsNotUpYet) {
  start_server().reset();  // a port that was free a moment ago
  std::latch waiting(1);
  std::thread worker([&] {
    waiting.count_down();
    auto reducer = create_service_reducer(options_for(0, 1));
    EXPECT_TRUE(reducer) << reducer.error().message;
  });
  waiting.wait();
  const auto server = start_server(port_);
  worker.join();
}

TEST_F(ServiceTest, AServerThatDoesNotComeUpIsNamed) {
  start_server().reset();
  ServiceReducerOptions options = options_for(0, 1);
  options.join_timeout = std::chrono::milliseconds(300);
  const auto reducer = create_service_reducer(options);
  ASSERT_FALSE(reducer);
  EXPECT_EQ(reducer.error().code, Errc::kUnavailable);
  EXPECT_NE(reducer.error().message.find("no server came up at 127.0.0.1:"), std::string::npos)
      << reducer.error().message;
}

}  // namespace
}  // namespace addend
