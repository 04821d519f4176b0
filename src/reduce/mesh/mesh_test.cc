// SPDX-License-Identifier: Apache-2.0
#include "reduce/mesh/mesh.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "addend/fold.h"
#include "tests/support/spawn.h"
#include "tests/support/wires.h"

namespace addend {
namespace {

using mesh::MeshReducer;
using testing_support::far;
using testing_support::past;

constexpr uint64_t kNever = 0;  // exchanges
constexpr uint64_t kAlways = uint64_t{1} << 40;
constexpr uint64_t kSmaller = 400'000;  // the smaller of two rounds that differ

std::unique_ptr<MeshReducer> reducer_of(Wires& wires, uint32_t worker, uint64_t exchange_bytes) {
  return *MeshReducer::create(wires.take(worker), {worker, exchange_bytes});
}

void on_all(uint32_t world, uint64_t exchange_bytes,
            const std::function<void(MeshReducer&)>& body) {
  Wires wires(world);
  wires.on_all([&](uint32_t w) { body(*reducer_of(wires, w, exchange_bytes)); });
}

std::vector<uint8_t> bytes(uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> made(count);
  for (uint8_t& byte : made)
    byte = static_cast<uint8_t>(random());
  return made;
}

/// Planes of one worker with their memory, and what their sums must be.
struct Case {
  Case(Op op_, uint64_t lanes_, uint32_t world, uint32_t worker, uint64_t seed)
      : op(op_), lanes(lanes_), table(bytes(77, 32)), sums(op_sum_bytes(op, lanes), 0xff) {
    const auto lanes_of = [&](uint32_t w) { return bytes(seed * 100 + w, op_bytes(op, lanes)); };
    expected = lanes_of(0);
    if (is_table_sum(op)) expected.assign(op_sum_bytes(op, lanes), 0);
    std::vector<std::vector<uint8_t>> given;
    std::vector<const uint8_t*> sources;
    for (uint32_t w = 0; w < world; ++w) {
      given.push_back(lanes_of(w));
      sources.push_back(given.back().data());
      if (w > 0 && !is_table_sum(op)) fold(op, expected.data(), sources[w], lanes);
    }
    if (is_table_sum(op))
      fold_tables(op, expected.data(), sources.data(), world, table.data(), lanes);
    data = lanes_of(worker);
    round.add(plane());
  }
  Plane plane() { return {op, lanes, data.data(), table.data(), sums.data()}; }
  bool right() const { return (is_table_sum(op) ? sums : data) == expected; }

  Op op;
  uint64_t lanes;
  std::vector<uint8_t> table, data, sums, expected;
  Round round;
};

TEST(MeshReducer, FoldsEveryOperationOverAllWorkersBothWays) {
  for (const uint64_t way : {kNever, kAlways}) {
    for (const uint32_t world : {1u, 2u, 3u, 7u}) {
      on_all(world, way, [&](MeshReducer& reducer) {
        for (std::size_t op = 0; op < kOpCount; ++op) {
          for (const uint64_t lanes : {0ull, 1ull, 15ull, 1000ull, 20'011ull}) {
            Case one(static_cast<Op>(op), lanes, world, reducer.worker(), op + lanes);
            ASSERT_TRUE(reducer.reduce(one.round, far()));
            ASSERT_TRUE(one.right()) << op_name(one.op) << " " << lanes << " of " << world;
          }
        }
      });
    }
  }
}

// Two planes, the first of which does not end where the next may begin in memory: bytes of a share
// as it travels are not places where it lies.
TEST(Transfer, LanesOfAScatterAreFoldedAsSoonAsEverybodysAreHere) {
  constexpr uint32_t kWorld = 3, kWorker = 1;
  constexpr uint64_t kShare = 3 * 8192, kShareBytes = kShare * sizeof(int32_t);
  constexpr uint64_t kOdd = 1008;  // 16 divides shares, 64 does not divide this one
  constexpr uint64_t kAll = kOdd + kShareBytes;
  std::vector<uint8_t> odd(3 * 1001, 1);
  std::vector<int32_t> data(kWorld * kShare, 1);
  const uint8_t* own_odd = odd.data() + kOdd;
  const int32_t* own = data.data() + kShare;
  Round round;
  round.add({.op = Op::kSumU8, .lanes = odd.size(), .data = odd.data()});
  round.add({.op = Op::kSumI32, .lanes = data.size(), .data = data.data()});
  mesh::Transfer transfer;
  ASSERT_TRUE(transfer.begin(0, round, mesh::Way::kScatter, kWorld, kWorker));
  transfer.claim({});
  for (const uint32_t from : {0u, 2u}) {
    ASSERT_TRUE(transfer.accepts(from, transfer.frame(mesh::Kind::kShare, kAll)));
    mesh::Parts parts;
    transfer.lay_out(mesh::Kind::kShare, from, kWorker, parts);
    ASSERT_EQ(parts.left(), kAll);
    std::memset(parts.begin()[0].iov_base, 10, kOdd);
    auto* lanes = static_cast<int32_t*>(parts.begin()[1].iov_base);
    std::fill(lanes, lanes + kShare, 100);
  }
  transfer.came(0, kAll);
  EXPECT_EQ(own_odd[0], 1) << "worker 2 brought nothing yet";
  transfer.came(2, kOdd - 1);
  EXPECT_EQ(own_odd[kOdd - 1], 1) << "the first plane's last byte is missing";
  transfer.came(2, kOdd);
  EXPECT_EQ(own_odd[0], 21);
  EXPECT_EQ(own_odd[kOdd - 1], 21);
  EXPECT_EQ(own[0], 1);
  transfer.came(2, kAll - 1);
  EXPECT_EQ(own[0], 201);
  EXPECT_EQ(own[kShare - 1], 1) << "its last byte is missing";
  transfer.came(2, kAll);
  EXPECT_EQ(own[kShare - 1], 201);
  transfer.arrived(mesh::Kind::kShare, 0);
  EXPECT_FALSE(transfer.fold_if_ready());
  transfer.arrived(mesh::Kind::kShare, 2);
  EXPECT_EQ(transfer.fold_if_ready(), mesh::Kind::kSums);
  EXPECT_TRUE(std::all_of(own_odd, own_odd + kOdd, [](uint8_t lane) { return lane == 21; }));
  EXPECT_TRUE(std::all_of(own, own + kShare, [](int32_t lane) { return lane == 201; }));
  EXPECT_EQ(own_odd[kOdd], 1) << "worker 2's share";
}

// As engines wait: on a slow machine nothing may come for so long that wait looks up.
bool folded(MeshReducer& reducer, uint64_t number) {
  while (true) {
    const Result<bool> done = reducer.wait(number, far());
    if (!done) ADD_FAILURE() << done.error().message;
    if (!done || *done) return static_cast<bool>(done);
  }
}

TEST(MeshReducer, RoundsLargerThanSocketBuffersOverlapAndEndInAnyOrder) {
  for (const uint64_t way : {kNever, kAlways}) {
    on_all(3, way, [&](MeshReducer& reducer) {
      std::vector<std::unique_ptr<Case>> cases;
      std::vector<uint64_t> numbers;
      for (uint64_t i = 0; i < 5; ++i) {
        cases.push_back(std::make_unique<Case>(Op::kSumI32, 400'000, 3, reducer.worker(), i));
        const auto number = reducer.start(cases.back()->round);
        ASSERT_TRUE(number);
        numbers.push_back(*number);
      }
      for (const std::size_t i : {4u, 0u, 2u, 3u, 1u}) {
        ASSERT_TRUE(folded(reducer, numbers[i]));
        EXPECT_TRUE(cases[i]->right());
        EXPECT_FALSE(reducer.wait(numbers[i], far())) << "once for each number";
      }
    });
  }
}

// One worker starts everything before it waits, another waits for each: the first one's lanes of
// later rounds stand before what the second waits for.
TEST(MeshReducer, WorkersMayRunAheadOfEachOther) {
  for (const uint64_t way : {kNever, kAlways}) {
    on_all(3, way, [&](MeshReducer& reducer) {
      std::vector<std::unique_ptr<Case>> cases;
      std::vector<uint64_t> numbers;
      const bool eager = reducer.worker() == 0;
      const auto finish = [&](std::size_t i) {
        ASSERT_TRUE(folded(reducer, numbers[i]));
        EXPECT_TRUE(cases[i]->right());
      };
      for (uint64_t i = 0; i < 6; ++i) {
        cases.push_back(std::make_unique<Case>(Op::kOrU64, 100'000, 3, reducer.worker(), i));
        numbers.push_back(*reducer.start(cases.back()->round));
        if (!eager) finish(i);
      }
      for (std::size_t i = 0; eager && i < 6; ++i)
        finish(i);
    });
  }
}

TEST(MeshReducer, SeveralPlanesTravelInOneRound) {
  for (const uint64_t way : {kNever, kAlways}) {
    on_all(4, way, [&](MeshReducer& reducer) {
      Case a(Op::kMaxU32, 999, 4, reducer.worker(), 1),
          b(Op::kTableSumU8, 777, 4, reducer.worker(), 2),
          c(Op::kSumF32, 5, 4, reducer.worker(), 3);
      Round round;
      for (Case* one : {&a, &b, &c})
        round.add(one->plane());
      ASSERT_TRUE(reducer.reduce(round, far()));
      EXPECT_TRUE(a.right() && b.right() && c.right());
    });
  }
}

TEST(MeshReducer, OtherShapesAreANamedErrorOnEveryWorkerAndTheGroupLivesOn) {
  for (const uint64_t way : {kNever, kSmaller, kAlways}) {
    std::atomic<int> mismatches{0}, successes{0};
    on_all(3, way, [&](MeshReducer& reducer) {
      const uint32_t w = reducer.worker();
      std::vector<uint64_t> lanes(80'000, w);
      Round round;
      round.add({Op::kSumI64, w == 1 ? 40'000u : 80'000u, lanes.data(), nullptr, nullptr});
      const Status status = reducer.reduce(round, far());
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kMismatch) << status.error().message;
      EXPECT_NE(status.error().message.find("worker 1"), std::string::npos);
      EXPECT_EQ(lanes, std::vector<uint64_t>(80'000, w)) << "planes must be untouched";
      ++mismatches;
      Round again;
      again.add({Op::kSumI64, 80'000, lanes.data(), nullptr, nullptr});
      successes += reducer.reduce(again, far()) ? 1 : 0;
      EXPECT_EQ(lanes[7], 3u);
    });
    EXPECT_EQ(mismatches, 3);
    EXPECT_EQ(successes, 3);
  }
}

/// A plane of which every worker brings the lanes between its bounds.
struct Bounded {
  Bounded(const std::vector<uint64_t>& sizes, uint32_t worker, uint64_t seed) : bounds{2} {
    for (const uint64_t size : sizes)
      bounds.push_back(bounds.back() + size);
    std::mt19937_64 random(seed);
    expected.resize(bounds.back() + 3);  // lanes of nobody around them
    for (uint64_t lane = bounds.front(); lane < bounds.back(); ++lane)
      expected[lane] = random();
    data.resize(expected.size());
    std::copy_n(expected.begin() + bounds[worker], sizes[worker], data.begin() + bounds[worker]);
    round.add({Op::kOrU64, data.size(), data.data(), nullptr, nullptr, bounds.data()});
  }
  std::vector<uint64_t> bounds, expected, data;
  Round round;
};

std::vector<uint64_t> uneven(uint32_t world, uint64_t most) {
  std::vector<uint64_t> sizes;
  for (uint32_t w = 0; w < world; ++w)
    sizes.push_back(w % 3 == 1 ? 0 : most / (w + 1));
  return sizes;
}

TEST(MeshReducer, PlanesWithBoundsAreGatheredUnevenEmptyAndLarge) {
  for (const uint64_t way : {kNever, kAlways}) {
    for (const uint32_t world : {1u, 2u, 3u, 4u, 5u}) {
      on_all(world, way, [&](MeshReducer& reducer) {
        for (const uint64_t most : {0ull, 1ull, 100ull, 200'000ull}) {
          Bounded one(uneven(world, most), reducer.worker(), most), two(one);
          two.round.planes[0].data = two.data.data();
          one.round.add(
              {Op::kOrU64, two.data.size(), two.data.data(), nullptr, nullptr, two.bounds.data()});
          ASSERT_TRUE(reducer.reduce(one.round, far()));
          EXPECT_EQ(one.data, one.expected);
          EXPECT_EQ(two.data, one.expected);
        }
      });
    }
  }
}

TEST(MeshReducer, AGatherSendsNothingButAWorkersOwnLanes) {
  Wires wires(2);
  const int other = wires.ends(1)[0];
  const auto reducer = reducer_of(wires, 0, kNever);
  Bounded one({5, 7'000}, 0, 1);
  ASSERT_TRUE(reducer->start(one.round));
  std::vector<uint8_t> sent(1 << 16);
  EXPECT_EQ(recv(other, sent.data(), sent.size(), 0), ssize_t{sizeof(mesh::Frame) + 5 * 8});
}

TEST(MeshReducer, PlanesWithBoundsBesideOthersAreFoldedLikeThem) {
  for (const uint64_t way : {kNever, kAlways}) {
    on_all(3, way, [&](MeshReducer& reducer) {
      Bounded one(uneven(3, 1000), reducer.worker(), 1);
      Case other(Op::kSumI32, 1000, 3, reducer.worker(), 1);
      one.round.add(other.plane());
      ASSERT_TRUE(reducer.reduce(one.round, far()));
      EXPECT_EQ(one.data, one.expected);
      EXPECT_TRUE(other.right());
    });
  }
}

TEST(MeshReducer, GathersThatCameEarlyFindTheirPlaces) {
  on_all(3, kNever, [&](MeshReducer& reducer) {
    std::vector<std::unique_ptr<Bounded>> rounds;
    std::vector<uint64_t> numbers;
    const bool eager = reducer.worker() == 0;
    for (uint64_t i = 0; i < 6; ++i) {
      rounds.push_back(std::make_unique<Bounded>(uneven(3, 60'000), reducer.worker(), i));
      numbers.push_back(*reducer.start(rounds.back()->round));
      if (!eager) {
        ASSERT_TRUE(folded(reducer, numbers[i]));
      }
    }
    for (std::size_t i = 0; i < 6; ++i) {
      if (eager) {
        ASSERT_TRUE(folded(reducer, numbers[i]));
      }
      EXPECT_EQ(rounds[i]->data, rounds[i]->expected);
    }
  });
}

TEST(MeshReducer, OtherBoundsAreANamedErrorOnEveryWorkerAndPlanesAreAsBefore) {
  std::atomic<int> refused{0};
  for (const bool sorted : {true, false}) {
    on_all(3, kSmaller, [&](MeshReducer& reducer) {
      const uint32_t w = reducer.worker();
      const uint64_t moved = w == 1 && sorted ? 1 : 0;
      Bounded one({9'000 + moved, 9'000 - moved, 40'000}, w, 1);
      const auto before = one.data;
      if (w == 1 && !sorted) one.bounds[1] = one.bounds[3] + 1;
      const Status status = reducer.reduce(one.round, far());
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kMismatch) << status.error().message;
      EXPECT_NE(status.error().message.find("worker 1"), std::string::npos);
      EXPECT_EQ(one.data, before);
      Bounded again({9'000, 9'000, 40'000}, w, 2);
      refused += reducer.reduce(again.round, far()) && again.data == again.expected ? 1 : 0;
    });
  }
  EXPECT_EQ(refused, 6);
}

TEST(MeshReducer, OtherTablesAreAMismatch) {
  on_all(2, kAlways, [&](MeshReducer& reducer) {
    Case one(Op::kTableSumU16, 100, 2, reducer.worker(), 1);
    one.table[5] = static_cast<uint8_t>(reducer.worker());
    EXPECT_EQ(reducer.reduce(one.round, far()).error().code, Errc::kMismatch);
  });
}

TEST(MeshReducer, ClaimsTravelWithTheFirstRoundAndADifferenceIsNamed) {
  for (const uint64_t way : {kNever, kAlways}) {
    std::atomic<int> same{0}, different{0};
    on_all(3, way, [&](MeshReducer& reducer) {
      const uint32_t w = reducer.worker();
      Case one(Op::kSumI32, 5000, 3, w, 1), other(Op::kSumI32, w == 2 ? 1 : 5000, 3, w, 2);
      const Reducer::Claim claims[] = {{"the plan", 1}, {"the order", 5}};
      same += folded(reducer, *reducer.start_step(claims, one.round)) && one.right() ? 1 : 0;
      const Reducer::Claim mine[] = {{"the plan", 1}, {"the order", w == 2 ? 6u : 5u}};
      const auto got = reducer.wait(*reducer.start_step(mine, other.round), far());
      ASSERT_FALSE(got);
      EXPECT_NE(got.error().message.find("the order"), std::string::npos) << got.error().message;
      different += got.error().code == Errc::kMismatch ? 1 : 0;
    });
    EXPECT_EQ(same, 3);
    EXPECT_EQ(different, 3);
  }
}

TEST(MeshReducer, NamesALostWorkerAndStaysBroken) {
  Wires wires(3);
  const auto reducer = reducer_of(wires, 0, kAlways);
  const auto other = reducer_of(wires, 1, kAlways);
  Case one(Op::kSumI32, 100, 3, 0, 1), two(Op::kSumI32, 100, 3, 1, 1);
  const uint64_t number = *reducer->start(one.round);
  ASSERT_TRUE(other->start(two.round));
  reducer_of(wires, 2, kAlways).reset();
  const auto waited = reducer->wait(number, far());
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, Errc::kUnavailable);
  EXPECT_NE(waited.error().message.find("worker 2"), std::string::npos) << waited.error().message;
  EXPECT_FALSE(reducer->start(one.round));
}

TEST(MeshReducer, ALostWorkerFailsOnlyRoundsThatNeedIt) {
  Wires wires(2);
  const auto a = reducer_of(wires, 0, kNever);
  auto b = reducer_of(wires, 1, kNever);
  Case one(Op::kSumI32, 100, 2, 0, 1), two(Op::kSumI32, 100, 2, 0, 2),
      other(Op::kSumI32, 100, 2, 1, 1);
  const uint64_t first = *a->start(one.round), second = *a->start(two.round);
  std::thread worker([&] {
    EXPECT_TRUE(b->reduce(other.round, far()));
    b.reset();
  });
  EXPECT_TRUE(*a->wait(first, far()));
  EXPECT_TRUE(one.right());
  EXPECT_EQ(a->wait(second, far()).error().code, Errc::kUnavailable);
  worker.join();
}

TEST(MeshReducer, WhatAWorkerSentBeforeItWentCountsThoughNothingReachesItAnyMore) {
  Wires wires(2);
  const auto a = reducer_of(wires, 0, kAlways);
  auto b = reducer_of(wires, 1, kAlways);
  Case one(Op::kSumI32, 100, 2, 0, 1), two(Op::kSumI32, 100, 2, 0, 2),
      other(Op::kSumI32, 100, 2, 1, 1);
  const uint64_t first = *a->start(one.round);
  EXPECT_TRUE(b->reduce(other.round, far()));
  b.reset();
  const uint64_t second = *a->start(two.round);
  EXPECT_TRUE(a->wait(first, far()));
  EXPECT_TRUE(one.right());
  EXPECT_EQ(a->wait(second, far()).error().code, Errc::kUnavailable);
}

TEST(MeshReducer, AWorkerWithoutMemoryForARoundLeavesTheGroup) {
  Wires wires(2);
  const auto a = reducer_of(wires, 0, kNever), b = reducer_of(wires, 1, kNever);
  Case one(Op::kSumI32, 10, 2, 0, 1), two(Op::kSumI32, 10, 2, 1, 1);
  Round large;
  large.add({Op::kSumI64, uint64_t{1} << 50, one.data.data(), nullptr, nullptr});
  EXPECT_EQ(a->start(large).error().code, Errc::kOutOfMemory);
  EXPECT_EQ(a->start(one.round).error().code, Errc::kUnavailable);
  EXPECT_EQ(b->reduce(two.round, far()).error().code, Errc::kUnavailable) << "the others are told";
}

TEST(MeshReducer, AForkedChildDoesNotKeepAWorkersConnectionsOpen) {
  Wires wires(2);
  auto a = reducer_of(wires, 0, kAlways);
  const auto b = reducer_of(wires, 1, kAlways);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ASSERT_GT(child, 0);
  std::thread leaves([&] { a.reset(); });
  Case one(Op::kSumI32, 10, 2, 1, 1);
  const auto soon = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  EXPECT_EQ(b->reduce(one.round, soon).error().code, Errc::kUnavailable);
  leaves.join();
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

TEST(MeshReducer, AWorkerThatHasItsSumsMayGo) {
  on_all(3, kNever, [](MeshReducer& reducer) {
    Case one(Op::kSumI32, 300'000, 3, reducer.worker(), 1);
    ASSERT_TRUE(reducer.reduce(one.round, far()));
    EXPECT_TRUE(one.right());
  });  // whoever ends first closes its sockets
}

TEST(MeshReducer, AMissingWorkerIsNamedWhenTheDeadlinePasses) {
  Wires wires(3);
  const auto a = reducer_of(wires, 0, kAlways), b = reducer_of(wires, 1, kAlways);
  Case one(Op::kSumI32, 10, 3, 0, 1), two(Op::kSumI32, 10, 3, 1, 1);
  ASSERT_TRUE(b->start(two.round));
  const Status status = a->reduce(one.round, past());
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kTimeout);
  EXPECT_NE(status.error().message.find("workers: 2"), std::string::npos) << status.error().message;
}

TEST(MeshReducer, WakeEndsAWaitFromAnotherThread) {
  Wires wires(2);
  const auto reducer = reducer_of(wires, 0, kAlways);
  Case one(Op::kSumI32, 10, 2, 0, 1);
  const uint64_t number = *reducer->start(one.round);
  std::thread other([&] { reducer->wake(); });
  EXPECT_FALSE(*reducer->wait(number, far()));
  other.join();
}

TEST(MeshReducer, AnInterruptionEndsWhatIsUnderWayAndWhatComesLater) {
  Wires wires(2);
  const auto reducer = reducer_of(wires, 0, kAlways);
  Case one(Op::kSumI32, 10, 2, 0, 1);
  const auto before = one.data;
  std::thread other([&] { reducer->interrupt(); });
  EXPECT_EQ(reducer->reduce(one.round, far()).error().code, Errc::kUnavailable);
  other.join();
  EXPECT_EQ(reducer->reduce(one.round, far()).error().code, Errc::kUnavailable);
  EXPECT_EQ(one.data, before);
}

TEST(MeshReducer, AWakeBeforeARoundStartsDoesNotEndAWaitForIt) {
  Wires wires(2);
  const auto a = reducer_of(wires, 0, kAlways), b = reducer_of(wires, 1, kAlways);
  for (int i = 0; i < 20; ++i) {
    Case one(Op::kSumI32, 10, 2, 0, 1), two(Op::kSumI32, 10, 2, 1, 1);
    a->wake();
    const uint64_t number = *a->start(one.round);
    std::thread other([&] { EXPECT_TRUE(b->reduce(two.round, far())); });
    const auto done = a->wait(number, far());
    EXPECT_TRUE(done && *done);
    other.join();
  }
}

TEST(MeshReducer, AMeasuredLinkIsTheSameOnAllWorkersAndChoosesOneWay) {
  Wires wires(3);
  std::vector<Link> links(3);
  wires.on_all([&](uint32_t w) {
    const auto reducer = reducer_of(wires, w, kNever);
    const auto link = measure_link(*reducer, far());
    ASSERT_TRUE(link) << link.error().message;
    EXPECT_GT(link->latency_us, 0);
    EXPECT_GT(link->gbit_per_s, 0);
    links[w] = *link;
    for (const Link& set : {*link, Link{1e6, 100}, Link{0, 1}}) {
      reducer->set_link(set);
      for (const uint64_t lanes : {10u, 100'000u}) {
        Case one(Op::kSumI32, lanes, 3, w, lanes);
        const Status status = reducer->reduce(one.round, far());
        ASSERT_TRUE(status) << status.error().message;
        EXPECT_TRUE(one.right());
      }
    }
    // Workers that differ in it differ in the way, which is refused.
    reducer->set_link(w == 0 ? Link{1e6, 100} : Link{0, 1});
    Case one(Op::kSumI32, 1000, 3, w, 1);
    EXPECT_EQ(reducer->reduce(one.round, far()).error().code, Errc::kMismatch);
  });
  for (const Link& link : links) {
    EXPECT_EQ(link.latency_us, links[0].latency_us);
    EXPECT_EQ(link.gbit_per_s, links[0].gbit_per_s);
  }
}

// Of two workers an exchange sends no more than two steps do. Of four it sends twice as much, of
// eight four times: that may take a quarter of the hop that it saves.
TEST(MeshReducer, AnExchangeAddsFewBytesToALink) {
  const Link slow{400, 1}, fast{30, 20};
  EXPECT_GE(mesh::exchange_bytes(slow, 2), 1u << 20);
  for (const Link& link : {slow, fast}) {
    for (const uint32_t world : {3u, 4u, 8u, 16u}) {
      const auto bytes = static_cast<double>(mesh::exchange_bytes(link, world));
      const double added = bytes * (world - 1 - 2.0 * (world - 1) / world);
      EXPECT_LE(added * 8e-3 / link.gbit_per_s, link.latency_us / 4) << world;
      EXPECT_GE(added * 8e-3 / link.gbit_per_s, link.latency_us / 4.1) << world;
    }
  }
  // A factor of a 2048 x 2048 matrix, and counts of a few hundred blocks.
  Case factor(Op::kSumF32, 4096, 4, 0, 1), counts(Op::kMaxU32, 500, 4, 0, 1);
  EXPECT_EQ(mesh::choose_way(factor.round, mesh::exchange_bytes(slow, 4), 4), mesh::Way::kScatter);
  EXPECT_EQ(mesh::choose_way(counts.round, mesh::exchange_bytes(slow, 4), 4), mesh::Way::kExchange);
}

TEST(MeshReducer, AbandonedPlanesAreNotTouched) {
  Wires wires(2);
  const auto a = reducer_of(wires, 0, kNever), b = reducer_of(wires, 1, kNever);
  Case one(Op::kSumI32, 100'000, 2, 0, 1), two(Op::kSumI32, 100'000, 2, 1, 1);
  const auto before = one.data;
  ASSERT_TRUE(a->start(one.round));
  a->abandon();
  EXPECT_EQ(one.data, before);
  EXPECT_FALSE(a->start(one.round));
  EXPECT_EQ(b->reduce(two.round, far()).error().code, Errc::kUnavailable) << "the others are told";
}

TEST(MeshReducer, RefusesWhatIsNoRound) {
  Wires wires(2);
  const auto noise = bytes(3, 96);
  ASSERT_EQ(send(wires.ends(1)[0], noise.data(), noise.size(), 0), 96);
  const auto reducer = reducer_of(wires, 0, kAlways);
  Case one(Op::kSumI32, 10, 2, 0, 1);
  const Status status = reducer->reduce(one.round, far());
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("worker 1"), std::string::npos);
}

// ---- rendezvous

struct Listener {
  Listener() : socket(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket, 64), 0);
    EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port = ntohs(address.sin_port);
  }
  int socket;
  uint16_t port = 0;
};

std::vector<MeshOptions> meshes(uint32_t world) {
  std::vector<MeshOptions> made(world);
  for (uint32_t w = 0; w < world; ++w) {
    const Listener listener;
    made[w].worker = w;
    made[w].listener = listener.socket;
    for (MeshOptions& options : made)
      options.peers.push_back("127.0.0.1:" + std::to_string(listener.port));
  }
  return made;
}

void meet_all(const std::vector<MeshOptions>& all,
              const std::function<void(uint32_t, Result<std::unique_ptr<Reducer>>)>& body) {
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < all.size(); ++w)
    threads.emplace_back([&, w] { body(w, create_mesh_reducer(all[w])); });
  for (std::thread& thread : threads)
    thread.join();
}

void expect_a_round(const Result<std::unique_ptr<Reducer>>& reducer) {
  ASSERT_TRUE(reducer) << reducer.error().message;
  Case one(Op::kSumI32, 10, (*reducer)->world(), (*reducer)->worker(), 1);
  ASSERT_TRUE((*reducer)->reduce(one.round, far()));
  EXPECT_TRUE(one.right());
}

TEST(MeshRendezvous, WorkersThatKnowEachOthersAddressesGetAReducer) {
  for (const uint32_t world : {1u, 2u, 5u}) {
    auto all = meshes(world);
    for (MeshOptions& options : all)
      options.token = "only us";
    meet_all(all, [&](uint32_t w, Result<std::unique_ptr<Reducer>> reducer) {
      ASSERT_TRUE(reducer) << reducer.error().message;
      for (const uint64_t lanes : {10u, 300'000u}) {
        Case one(Op::kSumI32, lanes, world, w, lanes);
        ASSERT_TRUE((*reducer)->reduce(one.round, far()));
        EXPECT_TRUE(one.right());
      }
    });
  }
}

TEST(MeshRendezvous, WorkersKnowHowManyShareTheirHost) {
  meet_all(meshes(3), [](uint32_t, Result<std::unique_ptr<Reducer>> reducer) {
    expect_a_round(reducer);  // or one may go before all have met
    EXPECT_EQ((*reducer)->local_workers(), 3u);
  });
}

TEST(MeshRendezvous, StrangersAreDroppedAndNobodyWaitsForThem) {
  const auto all = meshes(3);
  std::vector<net::Descriptor> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.emplace_back(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(all[0].peers[0].substr(10))));
    ASSERT_EQ(connect(strangers.back().get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    const auto noise = bytes(static_cast<uint64_t>(i), 64);
    const std::size_t said = i % 2 == 0 ? 64 : 0;
    ASSERT_EQ(send(strangers.back().get(), noise.data(), said, 0), static_cast<ssize_t>(said));
  }
  meet_all(all, [](uint32_t, Result<std::unique_ptr<Reducer>> made) { expect_a_round(made); });
}

TEST(MeshRendezvous, AMissingWorkerIsNamed) {
  auto all = meshes(2);
  all[1].join_timeout = std::chrono::milliseconds(1);
  const auto reducer = create_mesh_reducer(all[1]);
  ASSERT_FALSE(reducer);
  EXPECT_EQ(reducer.error().code, Errc::kTimeout);
  EXPECT_NE(reducer.error().message.find("worker 0"), std::string::npos);
}

// A worker that restarts leaves connections behind, with or without a handshake.
TEST(MeshRendezvous, AConnectionThatEndedIsNobody) {
  auto all = meshes(2);
  all[1].join_timeout = std::chrono::milliseconds(200);
  ASSERT_FALSE(create_mesh_reducer(all[1])) << "it is called, but nobody answers yet";
  all[0].join_timeout = std::chrono::milliseconds(200);
  EXPECT_EQ(create_mesh_reducer(all[0]).error().code, Errc::kTimeout);
}

TEST(MeshRendezvous, AWorkerMayRestartBeforeAllHaveMet) {
  auto all = meshes(3);
  MeshOptions first_life = all[0];
  first_life.listener = dup(all[0].listener);
  first_life.join_timeout = std::chrono::milliseconds(200);
  std::thread waits([&] { expect_a_round(create_mesh_reducer(all[1])); });
  EXPECT_FALSE(create_mesh_reducer(first_life)) << "without worker 2";
  std::thread comes_last([&] { expect_a_round(create_mesh_reducer(all[2])); });
  all[0].join_timeout = std::chrono::seconds(20);
  expect_a_round(create_mesh_reducer(all[0]));
  waits.join();
  comes_last.join();
}

TEST(MeshRendezvous, OtherLinksDoNotMeet) {
  auto all = meshes(3);
  all[2].link.gbit_per_s = 100;
  for (MeshOptions& options : all)
    options.join_timeout = std::chrono::milliseconds(300);
  meet_all(all, [](uint32_t w, Result<std::unique_ptr<Reducer>> reducer) {
    ASSERT_FALSE(reducer);
    const bool named = reducer.error().message.find("link") != std::string::npos;
    EXPECT_EQ(named, w < 2) << reducer.error().message;
  });
}

// Where the system keeps IPv6 sockets from IPv4 unless they say otherwise.
TEST(MeshRendezvous, ListensAtIpv4AddressesWhateverTheSystemsDefault) {
  bool skipped = false;
  std::thread([&] {
    skipped = unshare(CLONE_NEWNET) != 0;
    if (skipped) return;
    std::ofstream("/proc/sys/net/ipv6/bindv6only") << 1;
    const net::Descriptor any(socket(AF_INET, SOCK_DGRAM, 0));
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    ASSERT_EQ(ioctl(any.get(), SIOCSIFFLAGS, &loopback), 0);
    std::vector<MeshOptions> all(2);
    for (uint32_t w = 0; w < 2; ++w) {
      all[w].peers = {"127.0.0.1:7000", "127.0.0.1:7001"};
      all[w].worker = w;
      all[w].join_timeout = std::chrono::seconds(20);
    }
    meet_all(all, [](uint32_t, Result<std::unique_ptr<Reducer>> made) { expect_a_round(made); });
  }).join();
  if (skipped) GTEST_SKIP() << "may not make a network namespace";
}

TEST(MeshRendezvous, OtherTokensAndListsDoNotMeet) {
  auto all = meshes(2);
  all[1].token = "not ours";
  for (MeshOptions& options : all)
    options.join_timeout = std::chrono::milliseconds(300);
  meet_all(all, [](uint32_t, Result<std::unique_ptr<Reducer>> reducer) {
    ASSERT_FALSE(reducer);
    EXPECT_EQ(reducer.error().code, Errc::kTimeout);
  });
}

TEST(MeshRendezvous, RefusesBadArguments) {
  MeshOptions options;
  EXPECT_FALSE(create_mesh_reducer(options));
  options.peers = {"127.0.0.1:1", "127.0.0.1:2"};
  options.worker = 2;
  EXPECT_EQ(create_mesh_reducer(options).error().code, Errc::kInvalidArgument);
  options.worker = 0;
  options.token = std::string(33, 'x');
  EXPECT_EQ(create_mesh_reducer(options).error().code, Errc::kInvalidArgument);
  options.token.clear();
  options.peers[0] = "nonsense";
  EXPECT_FALSE(create_mesh_reducer(options));
}

}  // namespace
}  // namespace addend
