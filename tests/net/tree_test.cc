// SPDX-License-Identifier: Apache-2.0
// A tree over loopback: a root, leaves, and their workers as threads of this process.
#include <atomic>
#include <functional>
#include <latch>
#include <thread>

#include "addend/reduce.h"
#include "addend/service.h"
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

ServerOptions server_options(uint16_t port) {
  ServerOptions options;
  options.address = "127.0.0.1";
  options.control_port = port;
  options.http = false;
  options.tenants.resize(1);
  options.tenants[0].name = "lab";
  options.tenants[0].key = key_of(1);
  return options;
}

std::unique_ptr<Server> start(const ServerOptions& options) {
  auto server =
      Server::start(options, [](LogLevel, std::string_view, std::span<const LogField>) {});
  EXPECT_TRUE(server) << (server ? "" : server.error().message);
  return *std::move(server);
}

class TreeTest : public ::testing::Test {
 protected:
  std::unique_ptr<Server> start_root() {
    ServerOptions options = server_options(root_port_);
    options.threads = 2;
    options.tenants[0].name = "racks";
    options.tenants[0].key = key_of(2);
    auto server = start(options);
    root_port_ = server->control_port();
    return server;
  }
  ServerOptions leaf_options(uint32_t leaf, uint32_t leaves) const {
    ServerOptions options = server_options(leaf < ports_.size() ? ports_[leaf] : uint16_t{0});
    options.upstream = {"127.0.0.1:" + std::to_string(root_port_), "racks", key_of(2), leaf,
                        leaves};
    return options;
  }
  void start_leaves(uint32_t leaves, bool floats = true) {
    for (uint32_t leaf = 0; leaf < leaves; ++leaf) {
      ServerOptions options = leaf_options(leaf, leaves);
      options.tenants[0].floats = floats;
      leaves_.push_back(start(options));
      ports_.push_back(leaves_.back()->control_port());
    }
  }
  ServiceReducerOptions options_for(uint32_t worker, uint32_t world) const {
    uint32_t leaf = 0;
    for (uint32_t l = 0; l < ports_.size(); ++l) {
      if (l * world / ports_.size() <= worker) leaf = l;
    }
    ServiceReducerOptions options;
    options.access = {"127.0.0.1:" + std::to_string(ports_[leaf]), "lab", key_of(1), {}};
    options.job = "ring";
    options.world = world;
    options.worker = worker;
    options.slots = 32;
    return options;
  }
  void work(uint32_t world, const std::function<void(Reducer&)>& body) {
    work_together(
        world, [&](uint32_t worker) { return options_for(worker, world); }, body);
  }

  uint16_t root_port_ = 0;
  std::vector<uint16_t> ports_;
  std::vector<std::unique_ptr<Server>> leaves_;
};

TEST_F(TreeTest, EveryOperationGivesWhatFoldGives) {
  const auto root = start_root();
  start_leaves(3);
  constexpr uint32_t kWorld = 7;  // leaves of 2, 2 and 3
  work(kWorld, [&](Reducer& reducer) {
    EXPECT_EQ(reducer.world(), kWorld);
    check_operations(reducer, 54321);
  });
}

TEST_F(TreeTest, CodecsRunOverItUnchangedAlsoWhereFloatsTravelAsIntegers) {
  const auto root = start_root();
  start_leaves(2, false);
  constexpr uint32_t kWorld = 4;
  for (const char* spec :
       {"exact:values=reproducible", "quant:carrier=indices", "quant:bits=4,down=8", "dense"}) {
    std::vector<std::vector<float>> results(kWorld, std::vector<float>(20000, 0.0f));
    work(kWorld, [&](Reducer& reducer) {
      EXPECT_GT(reducer.float_error(), 0);
      std::vector<float>& gradient = results[reducer.worker()];
      for (std::size_t i = reducer.worker(); i < gradient.size(); i += 5)
        gradient[i] = static_cast<float>(addend_random(reducer.worker(), i) % 100) - 50;
      sum_by(spec, reducer, DType::kF32, gradient.size(), gradient.data());
    });
    for (uint32_t w = 1; w < kWorld; ++w)
      EXPECT_EQ(results[w], results[0]) << spec;
    if (std::string(spec).starts_with("quant")) continue;
    for (std::size_t i = 0; i < results[0].size(); ++i) {
      float sum = 0;
      for (uint32_t w = 0; w < kWorld; ++w) {
        if (i >= w && (i - w) % 5 == 0) sum += static_cast<float>(addend_random(w, i) % 100) - 50;
      }
      ASSERT_EQ(results[0][i], sum) << spec << " element " << i;
    }
  }
}

// A sum that every worker can check.
Status sum_of_all(Reducer& reducer, int32_t step) {
  std::vector<int32_t> lanes(50'000, static_cast<int32_t>(reducer.worker() + 1) * (step + 1));
  Round round;
  round.add({Op::kSumI32, lanes.size(), lanes.data(), nullptr, nullptr});
  ADDEND_TRY(reducer.reduce(round, far()));
  const auto world = static_cast<int32_t>(reducer.world());
  for (const int32_t lane : lanes)
    EXPECT_EQ(lane, world * (world + 1) / 2 * (step + 1));
  return {};
}

TEST_F(TreeTest, ARootThatRestartsDoesNotChangeTheSum) {
  auto root = start_root();
  start_leaves(2);
  constexpr uint32_t kWorld = 4;
  std::atomic<uint32_t> steps{0};
  std::thread killer([&] {
    for (const uint32_t enough : {5, 30, 61}) {
      while (steps < enough)
        std::this_thread::yield();
      root.reset();
      root = start_root();
    }
  });
  work(kWorld, [&](Reducer& reducer) {
    for (int32_t step = 0; step < 30; ++step) {
      const Status status = sum_of_all(reducer, step);
      ASSERT_TRUE(status) << "worker " << reducer.worker() << ": " << status.error().message;
      ++steps;
    }
  });
  killer.join();
}

TEST_F(TreeTest, ALostLeafIsNamedOnTheWorkersOfTheOthersAndItsOwnWaitForIt) {
  const auto root = start_root();
  start_leaves(3);
  constexpr uint32_t kWorld = 6;
  std::latch summed(kWorld), gone(1), failed(kWorld);
  std::thread killer([&] {
    summed.wait();
    leaves_[1].reset();
    gone.count_down();
  });
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < kWorld; ++w) {
    threads.emplace_back([&, w] {
      ServiceReducerOptions options = options_for(w, kWorld);
      options.return_timeout = std::chrono::milliseconds(300);
      auto reducer = create_service_reducer(options);
      ASSERT_TRUE(reducer) << reducer.error().message;
      ASSERT_TRUE(sum_of_all(**reducer, 0));
      summed.count_down();
      gone.wait();
      const Status status = sum_of_all(**reducer, 1);
      failed.arrive_and_wait();
      ASSERT_FALSE(status);
      const bool own = w / 2 == 1;
      EXPECT_EQ(status.error().code, own ? Errc::kTimeout : Errc::kUnavailable);
      EXPECT_NE(status.error().message.find(own ? "could not join again" : "leaf 1 left the job"),
                std::string::npos)
          << status.error().message;
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  killer.join();
}

TEST_F(TreeTest, AWorkerThatLeavesIsNamedByItsNumberInTheTreeAndElsewhereByItsLeaf) {
  const auto root = start_root();
  start_leaves(2);
  constexpr uint32_t kWorld = 4;
  std::latch joined(kWorld), failed(kWorld - 1);
  work(kWorld, [&](Reducer& reducer) {
    joined.arrive_and_wait();
    if (reducer.worker() == 3) return;
    const Status status = sum_of_all(reducer, 0);
    failed.arrive_and_wait();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kUnavailable);
    EXPECT_EQ(status.error().message,
              reducer.worker() == 2 ? "worker 3 left the job" : "leaf 1 left the job");
  });
}

TEST_F(TreeTest, LeavesThatDifferInShapeAreAMismatch) {
  const auto root = start_root();
  start_leaves(2);
  constexpr uint32_t kWorld = 4;
  std::latch joined(kWorld), failed(kWorld);
  work(kWorld, [&](Reducer& reducer) {
    joined.arrive_and_wait();
    std::vector<uint64_t> lanes(reducer.worker() < 2 ? 3 : 2);
    Round round;
    round.add({Op::kOrU64, lanes.size(), lanes.data(), nullptr, nullptr});
    const Status status = reducer.reduce(round, far());
    failed.arrive_and_wait();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kMismatch) << status.error().message;
    EXPECT_EQ(status.error().message.rfind("leaf ", 0), 0u) << status.error().message;
  });
}

TEST_F(TreeTest, LeavesMayHaveLeaves) {
  const auto root = start_root();
  const uint16_t root_port = root_port_;
  std::vector<std::unique_ptr<Server>> middle;
  std::vector<uint16_t> middle_ports;
  for (uint32_t leaf = 0; leaf < 2; ++leaf) {
    ServerOptions options = leaf_options(9, 2);
    options.upstream.leaf = leaf;
    options.tenants[0].name = "racks";
    options.tenants[0].key = key_of(2);
    middle.push_back(start(options));
    middle_ports.push_back(middle.back()->control_port());
  }
  for (uint32_t leaf = 0; leaf < 4; ++leaf) {
    root_port_ = middle_ports[leaf / 2];
    leaves_.push_back(start(leaf_options(leaf, 4)));
    ports_.push_back(leaves_.back()->control_port());
  }
  root_port_ = root_port;
  work(8, [](Reducer& reducer) {
    for (int32_t step = 0; step < 3; ++step) {
      const Status status = sum_of_all(reducer, step);
      ASSERT_TRUE(status) << status.error().message;
    }
  });
}

TEST_F(TreeTest, WhatCannotBeIsRefusedByName) {
  const auto root = start_root();
  start_leaves(2);
  const auto refused = [&](uint32_t worker, uint32_t world, uint32_t quorum, Errc code,
                           const std::string& why) {
    ServiceReducerOptions options = options_for(0, 1);
    options.worker = worker;
    options.world = world;
    options.quorum = quorum;
    options.patience = std::chrono::seconds(quorum);
    const auto reducer = create_service_reducer(options);
    ASSERT_FALSE(reducer);
    EXPECT_EQ(reducer.error().code, code) << reducer.error().message;
    EXPECT_NE(reducer.error().message.find(why), std::string::npos) << reducer.error().message;
  };
  // All of these ask the second leaf.
  refused(1, 4, 0, Errc::kInvalidArgument,
          "worker 1 of 4 is not one of this leaf's (1 of 2), which are 2 to 3");
  refused(2, 4, 1, Errc::kUnsupported, "a job of a tree has none");
  refused(0, 1, 0, Errc::kInvalidArgument, "a tree of 2 leaves has at least one each");
  refused(200, 201, 0, Errc::kInvalidArgument, "1 to 64 workers");
  const auto no_server = [&](const std::function<void(ServerOptions&)>& bend, const char* why) {
    ServerOptions options = leaf_options(9, 2);
    options.upstream.leaf = 0;
    bend(options);
    const auto server =
        Server::start(options, [](LogLevel, std::string_view, std::span<const LogField>) {});
    ASSERT_FALSE(server);
    EXPECT_NE(server.error().message.find(why), std::string::npos) << server.error().message;
  };
  no_server([](ServerOptions& o) { o.xdp_interface = "lo"; }, "does not go with --xdp");
  no_server([](ServerOptions& o) { o.threads = 2; }, "does not go with several");
  no_server([](ServerOptions& o) { o.upstream.leaf = 2; }, "numbered from 0");
  no_server([](ServerOptions& o) { o.upstream.key = {}; }, "an identity and a key");
  no_server([](ServerOptions& o) { o.tenants[0].name = "lab.one"; }, "has a dot in its name");
}

TEST_F(TreeTest, TenantsOfALeafHaveNoDotInTheirNamesAfterAReloadEither) {
  const auto root = start_root();
  start_leaves(1);
  ServerOptions options = server_options(ports_[0]);  // that it is a leaf does not change
  options.tenants[0].name = "lab.one";
  const Status status = leaves_[0]->reload(options);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("has a dot in its name"), std::string::npos)
      << status.error().message;
}

// Of 4 workers and of 5, the first of two leaves has two.
TEST_F(TreeTest, WorkersThatDifferInHowManyThereAreAreAMismatch) {
  const auto root = start_root();
  start_leaves(2);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < 5; ++w) {
    threads.emplace_back([&, w] {
      const auto reducer = create_service_reducer(options_for(w, w < 2 ? 4 : 5));
      ASSERT_FALSE(reducer);
      EXPECT_EQ(reducer.error().code, Errc::kMismatch) << reducer.error().message;
      EXPECT_NE(reducer.error().message.find("the number of workers"), std::string::npos)
          << reducer.error().message;
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

TEST_F(TreeTest, PatienceNamesALeafThatIsSilentAsAWhole) {
  const auto root = start_root();
  start_leaves(2);
  std::latch survivors(2);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < 4; ++w) {
    threads.emplace_back([&, w] {
      ServiceReducerOptions options = options_for(w, 4);
      options.patience = std::chrono::seconds(3);  // joining takes a turn, too
      auto reducer = create_service_reducer(options);
      if (!reducer && w < 2) survivors.count_down();
      ASSERT_TRUE(reducer) << reducer.error().message;
      if (w >= 2) return survivors.wait();
      const Status status = sum_of_all(**reducer, 0);
      survivors.arrive_and_wait();
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kTimeout);
      EXPECT_EQ(status.error().message, "leaf 1 did not contribute in time");
    });
  }
  for (std::thread& thread : threads)
    thread.join();
}

TEST_F(TreeTest, AQuorumAtTheRootIsRefusedByName) {
  const auto root = start_root();
  start_leaves(1);
  JobOptions job;
  job.name = "lab.ring";
  job.world = job.quorum = 1;
  job.slots = 32;
  job.patience = std::chrono::seconds(5);
  ASSERT_TRUE(create_job({"127.0.0.1:" + std::to_string(root_port_), "racks", key_of(2), {}}, job));
  const auto reducer = create_service_reducer(options_for(0, 1));
  ASSERT_FALSE(reducer);
  EXPECT_EQ(reducer.error().code, Errc::kUnsupported);
  EXPECT_NE(reducer.error().message.find("has a quorum there"), std::string::npos)
      << reducer.error().message;
}

TEST_F(TreeTest, ALeafWithAWrongKeySaysSoToItsWorkers) {
  const auto root = start_root();
  ServerOptions options = leaf_options(0, 1);
  options.upstream.key = key_of(9);
  leaves_.push_back(start(options));
  ports_.push_back(leaves_.back()->control_port());
  const auto reducer = create_service_reducer(options_for(0, 1));
  ASSERT_FALSE(reducer);
  EXPECT_EQ(reducer.error().code, Errc::kUnavailable);
  EXPECT_EQ(reducer.error().message.rfind("next server: ", 0), 0u) << reducer.error().message;
}

TEST_F(TreeTest, AWorkerThatStartsAgainIsJoinedAnew) {
  const auto root = start_root();
  start_leaves(2);
  for (int run = 0; run < 3; ++run)
    work(4, [&](Reducer& reducer) { ASSERT_TRUE(sum_of_all(reducer, run)); });
}

}  // namespace
}  // namespace addend
