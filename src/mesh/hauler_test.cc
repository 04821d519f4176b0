// SPDX-License-Identifier: Apache-2.0
#include "mesh/hauler.h"

#include <array>
#include <random>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "addend/fold.h"
#include "tests/support/wires.h"

namespace addend {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<Hauler> hauler_of(const Wires& wires, uint32_t rank) {
  return *Hauler::create(wires.ends(rank), rank, wires.bell(rank), wires.ringer(rank));
}

template <typename Body>
void on_all(uint32_t world, Body body) {
  Wires wires(world);
  wires.on_all([&](uint32_t rank) { body(rank, *hauler_of(wires, rank)); });
}

void expect_done(Hauler& hauler, uint64_t haul) {
  for (;;) {
    const auto done = hauler.wait(haul, 60s);
    ASSERT_TRUE(done) << done.error().message;
    if (*done) return;  // else another haul rang
  }
}

// A plane with memory of its own, and what all ranks' sums are.
struct Lanes {
  Lanes(Op op_, uint64_t lanes_, uint32_t rank, uint64_t seed) : op(op_), lanes(lanes_) {
    std::mt19937_64 random(seed * 1000 + rank);
    data.resize(op_bytes(op, lanes) + 8);
    for (uint8_t& byte : data)
      byte = static_cast<uint8_t>(random() & 0x3F);  // floats of it are finite
    table.resize(32);
    for (std::size_t i = 0; i < table.size(); ++i)
      table[i] = static_cast<uint8_t>(is_table_sum(op) && op == Op::kTableSumU16 && i % 2 ? 0 : i);
    sums.resize(op_sum_bytes(op, lanes) + 8, 0xEE);
  }
  Plane plane() {
    if (is_table_sum(op)) return {op, lanes, data.data(), table.data(), sums.data()};
    return {op, lanes, data.data(), nullptr, nullptr};
  }
  std::vector<uint8_t> result() const {
    const auto& from = is_table_sum(op) ? sums : data;
    return {from.begin(), from.begin() + static_cast<std::ptrdiff_t>(op_sum_bytes(op, lanes))};
  }

  Op op;
  uint64_t lanes;
  std::vector<uint8_t> data, table, sums;
};

std::vector<uint8_t> expected(Op op, uint64_t lanes, uint32_t world, uint64_t seed) {
  Lanes total(op, lanes, 0, seed);
  if (is_table_sum(op)) {
    std::fill(total.sums.begin(), total.sums.end(), 0);
    for (uint32_t rank = 0; rank < world; ++rank) {
      const Lanes one(op, lanes, rank, seed);
      fold_table(op, total.sums.data(), one.data.data(), one.table.data(), lanes);
    }
  } else {
    for (uint32_t rank = 1; rank < world; ++rank)
      fold(op, total.data.data(), Lanes(op, lanes, rank, seed).data.data(), lanes);
  }
  return total.result();
}

TEST(Hauler, SumsEveryOperationOfEveryLength) {
  for (const uint32_t world : {1u, 2u, 3u, 5u}) {
    SCOPED_TRACE(world);
    on_all(world, [&](uint32_t rank, Hauler& hauler) {
      for (const uint64_t lanes : {0u, 1u, 2u, 15u, 16u, 17u, 97u, 1009u, 100'003u}) {
        std::vector<Lanes> all;
        std::vector<Plane> planes;
        for (std::size_t op = 0; op < kOpCount; ++op)
          all.emplace_back(static_cast<Op>(op), lanes, rank, lanes + op);
        for (Lanes& one : all)
          planes.push_back(one.plane());
        expect_done(hauler, *hauler.start(planes));
        for (std::size_t op = 0; op < kOpCount; ++op) {
          EXPECT_EQ(all[op].result(), expected(static_cast<Op>(op), lanes, world, lanes + op))
              << op << " " << lanes;
        }
      }
    });
  }
}

TEST(Hauler, AHaulMayHaveMorePlanesThanACallTakes) {
  on_all(2, [](uint32_t rank, Hauler& hauler) {
    std::vector<Lanes> all;
    std::vector<Plane> planes;
    for (uint64_t i = 0; i < 2500; ++i)
      all.emplace_back(Op::kSumI32, 40, rank, i);
    for (Lanes& one : all)
      planes.push_back(one.plane());
    expect_done(hauler, *hauler.start(planes));
    for (uint64_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(all[i].result(), expected(Op::kSumI32, 40, 2, i));
  });
}

TEST(Hauler, HaulsOverlapAndAreAskedForInAnyOrder) {
  on_all(3, [](uint32_t rank, Hauler& hauler) {
    std::vector<Lanes> all;
    for (uint64_t i = 0; i < 6; ++i)
      all.emplace_back(Op::kTableSumU8, 200'000 + 1000 * i, rank, i);
    std::vector<uint64_t> hauls;
    for (Lanes& one : all)
      hauls.push_back(*hauler.start(std::array{one.plane()}));
    for (const std::size_t i : {5u, 0u, 3u, 1u, 4u, 2u}) {
      expect_done(hauler, hauls[i]);
      EXPECT_EQ(all[i].result(), expected(Op::kTableSumU8, all[i].lanes, 3, i));
      EXPECT_FALSE(hauler.wait(hauls[i], 0s));  // it is forgotten
    }
  });
}

TEST(Hauler, ARankMayBeFarAhead) {
  Wires wires(2);
  std::vector<Lanes> first, second;
  const auto ahead = hauler_of(wires, 0), behind = hauler_of(wires, 1);
  for (uint64_t i = 0; i < 4; ++i) {
    first.emplace_back(Op::kSumI32, 300'000, 0, i);
    second.emplace_back(Op::kSumI32, 300'000, 1, i);
  }
  for (Lanes& one : first)
    ASSERT_TRUE(ahead->start(std::array{one.plane()}));
  EXPECT_FALSE(*ahead->wait(0, 1ms));
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_EQ(*behind->start(std::array{second[i].plane()}), i);
    expect_done(*behind, i);
    expect_done(*ahead, i);
    EXPECT_EQ(first[i].result(), expected(Op::kSumI32, 300'000, 2, i));
    EXPECT_EQ(second[i].result(), first[i].result());
  }
}

TEST(Hauler, ARankThatEndsIsNamed) {
  Wires wires(3);
  Lanes lanes(Op::kSumI32, 1000, 0, 1);
  const auto hauler = hauler_of(wires, 0);
  const uint64_t haul = *hauler->start(std::array{lanes.plane()});
  wires.cut(2);
  for (;;) {
    const auto done = hauler->wait(haul, 60s);
    if (done && !*done) continue;
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, Errc::kUnavailable);
    EXPECT_NE(done.error().message.find("rank 2"), std::string::npos) << done.error().message;
    break;
  }
  EXPECT_FALSE(hauler->start(std::array{lanes.plane()}));
}

TEST(Hauler, ARankThatHasAllItNeedsMayGo) {
  Wires wires(2);
  Lanes a(Op::kSumI32, 1000, 0, 1), b(Op::kSumI32, 1000, 1, 1);
  auto first = hauler_of(wires, 0), second = hauler_of(wires, 1);
  ASSERT_TRUE(first->start(std::array{a.plane()}));
  ASSERT_TRUE(second->start(std::array{b.plane()}));
  expect_done(*second, 0);
  second.reset();
  wires.cut(1);
  expect_done(*first, 0);
  EXPECT_EQ(a.result(), b.result());
  // But the next haul needs it.
  const auto next = first->start(std::array{a.plane()});
  for (bool failed = !next; !failed;) {
    const auto done = first->wait(*next, 60s);
    ASSERT_FALSE(done && *done);
    failed = !done;
  }
}

TEST(Hauler, AbandonedHaulsTouchNothing) {
  Wires wires(2);
  auto lanes = std::make_unique<Lanes>(Op::kSumI32, 3'000'000, 0, 1);
  Lanes theirs(Op::kSumI32, 3'000'000, 1, 1);
  const auto hauler = hauler_of(wires, 0), other = hauler_of(wires, 1);
  const uint64_t haul = *hauler->start(std::array{lanes->plane()});
  ASSERT_TRUE(other->start(std::array{theirs.plane()}));
  hauler->abandon();
  lanes.reset();  // address sanitizer sees whoever comes here after that
  EXPECT_FALSE(hauler->wait(haul, 0s));
  EXPECT_FALSE(hauler->start({}));
  hauler->abandon();
}

TEST(Hauler, ABellEndsAWait) {
  Wires wires(2);
  Lanes lanes(Op::kSumI32, 1000, 0, 1);
  const auto hauler = hauler_of(wires, 0);
  const uint64_t haul = *hauler->start(std::array{lanes.plane()});
  ASSERT_EQ(write(wires.ringer(0), "x", 1), 1);
  EXPECT_FALSE(*hauler->wait(haul, 3600s));
}

TEST(Hauler, StrangeBytesBreakIt) {
  Wires wires(2);
  Lanes lanes(Op::kSumI32, 1000, 0, 1);
  const auto hauler = hauler_of(wires, 0);
  const uint64_t haul = *hauler->start(std::array{lanes.plane()});
  const std::vector<uint8_t> strange(24, 0);  // haul 0, a share, but of no lanes
  ASSERT_EQ(write(wires.ends(1)[0], strange.data(), strange.size()), 24);
  for (;;) {
    const auto done = hauler->wait(haul, 60s);
    if (done && !*done) continue;
    ASSERT_FALSE(done);
    EXPECT_NE(done.error().message.find("something else"), std::string::npos);
    break;
  }
}

TEST(Hauler, AForkedChildLeavesItAlone) {
  Wires wires(2);
  auto hauler = hauler_of(wires, 0);
  const pid_t child = fork();
  if (child == 0) {
    hauler.reset();
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Hauler, RefusesAStrangerAsRank) {
  const int none[2] = {-1, -1};
  EXPECT_FALSE(Hauler::create(none, 2, -1, -1));
  EXPECT_FALSE(Hauler::create(none, 0, -1, -1));
}

}  // namespace
}  // namespace addend
