// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "addend/fold.h"
#include "addend/reduce.h"
#include "gtest/gtest.h"
#include "tests/support/spawn.h"
#include "wire/hash.h"

namespace addend {
namespace {

using testing_support::far;
using testing_support::past;
using testing_support::spawn_workers;

Plane plane_of(Op op, std::vector<uint64_t>& storage, uint64_t lanes) {
  return {op, lanes, storage.data(), nullptr, nullptr};
}

TEST(LocalReducer, FoldsEveryOperationOverAllWorkersInEveryOrder) {
  for (const FoldOrder order : {FoldOrder::kSequential, FoldOrder::kPermuted, FoldOrder::kTree}) {
    for (const uint32_t world : {1u, 2u, 3u, 7u, 16u, 33u}) {
      for (const uint64_t lanes : {0ull, 1ull, 2047ull, 2049ull, 20000ull}) {
        for (const Op op :
             {Op::kSumI32, Op::kSumI64, Op::kSumU8, Op::kSumU16, Op::kOrU64, Op::kMaxU32}) {
          std::vector<std::vector<uint64_t>> data(world, std::vector<uint64_t>(lanes + 1));
          for (uint32_t w = 0; w < world; ++w) {
            for (uint64_t i = 0; i <= lanes; ++i)
              data[w][i] = addend_random(w + 1, i);
          }
          std::vector<uint64_t> expected = data[0];
          for (uint32_t w = 1; w < world; ++w)
            fold(op, expected.data(), data[w].data(), lanes);
          spawn_workers(world, {order, 5}, [&](uint32_t w, Reducer& reducer) {
            Round round;
            round.add(plane_of(op, data[w], lanes));
            const Status status = reducer.reduce(round, far());
            EXPECT_TRUE(status);
          });
          const auto bytes = static_cast<std::size_t>(op_bytes(op, lanes));
          for (uint32_t w = 0; w < world; ++w) {
            ASSERT_EQ(0, std::memcmp(data[w].data(), expected.data(), bytes))
                << op_name(op) << " world " << world;
          }
        }
      }
    }
  }
}

TEST(LocalReducer, TableSumsEqualSumsOfLevels) {
  constexpr uint32_t kWorld = 5;
  constexpr uint64_t kLanes = 5001;
  for (const FoldOrder order : {FoldOrder::kSequential, FoldOrder::kTree}) {
    uint8_t table[16];
    std::iota(table, table + 16, uint8_t{1});
    std::vector<std::vector<uint8_t>> indices(kWorld, std::vector<uint8_t>(kLanes / 2 + 1));
    std::vector<std::vector<uint8_t>> sums(kWorld, std::vector<uint8_t>(kLanes));
    std::vector<uint8_t> expected(kLanes, 0);
    for (uint32_t w = 0; w < kWorld; ++w) {
      for (uint64_t i = 0; i < indices[w].size(); ++i)
        indices[w][i] = static_cast<uint8_t>(addend_random(w, i));
      for (uint64_t i = 0; i < kLanes; ++i) {
        const auto level = static_cast<uint8_t>(1 + ((indices[w][i / 2] >> (i % 2 * 4)) & 15));
        expected[i] = static_cast<uint8_t>(expected[i] + level);
      }
    }
    spawn_workers(kWorld, {order, 2}, [&](uint32_t w, Reducer& reducer) {
      Round round;
      round.add({Op::kTableSumU8, kLanes, indices[w].data(), table, sums[w].data()});
      EXPECT_TRUE(reducer.reduce(round, far()));
    });
    for (uint32_t w = 0; w < kWorld; ++w)
      ASSERT_EQ(sums[w], expected);
  }
}

TEST(LocalReducer, SeededOrdersGiveTheSameFloatsAgain) {
  const auto run = [](uint64_t seed) {
    std::vector<std::vector<float>> data(8, std::vector<float>(999));
    for (uint32_t w = 0; w < 8; ++w) {
      for (uint64_t i = 0; i < 999; ++i)
        data[w][i] = 1.0f / static_cast<float>(1 + addend_random(w, i) % 1000);
    }
    spawn_workers(8, {FoldOrder::kTree, seed}, [&](uint32_t w, Reducer& reducer) {
      Round round;
      round.add({Op::kSumF32, 999, data[w].data(), nullptr, nullptr});
      EXPECT_TRUE(reducer.reduce(round, far()));
    });
    return data[0];
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST(LocalReducer, DifferentShapesAreANamedErrorOnEveryWorkerAndTheGroupLivesOn) {
  std::atomic<int> mismatches{0}, successes{0};
  spawn_workers(3, {}, [&](uint32_t w, Reducer& reducer) {
    std::vector<uint64_t> lanes(8, w);
    Round round;
    round.add(plane_of(Op::kSumI64, lanes, w == 1 ? 4 : 8));
    const Status status = reducer.reduce(round, far());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kMismatch);
    EXPECT_NE(status.error().message.find("worker 1"), std::string::npos) << status.error().message;
    EXPECT_EQ(lanes[0], w) << "planes must be untouched";
    ++mismatches;
    Round again;
    again.add(plane_of(Op::kSumI64, lanes, 8));
    successes += reducer.reduce(again, far()) ? 1 : 0;
    EXPECT_EQ(lanes[7], 3u);
  });
  EXPECT_EQ(mismatches, 3);
  EXPECT_EQ(successes, 3);
}

TEST(LocalReducer, AMissingWorkerIsNamedWhenTheDeadlinePasses) {
  std::atomic<int> named{0};
  spawn_workers(3, {}, [&](uint32_t w, Reducer& reducer) {
    if (w == 2) return;
    uint64_t lane = 1;
    Round round;
    round.add({Op::kSumI64, 1, &lane, nullptr, nullptr});
    const Status status = reducer.reduce(round, past());
    ASSERT_FALSE(status);
    const std::string& message = status.error().message;
    named += message.find("worker 2") != std::string::npos ? 1 : 0;
    EXPECT_FALSE(reducer.reduce(round, past())) << "a broken group stays broken";
  });
  EXPECT_EQ(named, 2);
}

TEST(LocalReducer, AWorkerThatLeavesEndsEveryonesRounds) {
  for (const bool interrupted : {false, true}) {
    spawn_workers(3, {}, [&](uint32_t w, Reducer& reducer) {
      if (w == 2) return interrupted ? reducer.interrupt() : reducer.abandon();
      uint64_t lane = 1;
      Round round;
      round.add({Op::kSumI64, 1, &lane, nullptr, nullptr});
      const Status status = reducer.reduce(round, far());
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, Errc::kUnavailable);
      EXPECT_EQ(status.error().message, "worker 2 left the group");
      EXPECT_EQ(lane, 1u);
    });
  }
}

TEST(LocalReducer, AgreeSucceedsOnlyIfAllWordsAreEqualOnAllWorkers) {
  for (const uint64_t odd : {uint64_t{7}, uint64_t{7} << 40, ~uint64_t{0}, uint64_t{0}}) {
    std::atomic<int> same{0}, different{0};
    spawn_workers(4, {}, [&](uint32_t w, Reducer& reducer) {
      const Reducer::Claim claims[] = {{"a", 1}, {"b", 0xFFFFFFFF00000000ull}, {"c", 42}};
      same += reducer.agree(claims, far()) ? 1 : 0;
      const Reducer::Claim mine[] = {{"the plan", 1}, {"the order", w == 3 ? odd : 5}};
      const Status status = reducer.agree(mine, far());
      EXPECT_NE(status.error().message.find("the order"), std::string::npos);
      different += !status && status.error().code == Errc::kMismatch ? 1 : 0;
    });
    EXPECT_EQ(same, 4);
    EXPECT_EQ(different, 4) << odd;
  }
}

}  // namespace
}  // namespace addend
