// SPDX-License-Identifier: Apache-2.0
// Without a device: rounds of the host in chunks. tests/cuda has the rest.
#include "reduce/staged.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "base/bits.h"

namespace addend {
namespace {

using std::chrono::seconds;

constexpr StagedOptions kSmall{4096};

Deadline soon() { return std::chrono::steady_clock::now() + seconds(60); }

TEST(StagedChunks, CoverEveryLaneOnceAndBeginAtGrains) {
  std::vector<uint8_t> memory(1);
  for (const uint64_t lanes : {0, 1, 4095, 4096, 4097, 100000}) {
    Round round;
    round.add({Op::kOrU64, static_cast<uint64_t>(lanes), memory.data(), nullptr, nullptr});
    round.add({Op::kTableSumU8, static_cast<uint64_t>(3 * lanes), memory.data(), memory.data(),
               memory.data()});
    round.add({Op::kSumI32, 1, memory.data(), nullptr, nullptr});
    std::array<uint64_t, 3> next{};
    for (const staged::Chunk& chunk : staged::cut(round, 1 << 14)) {
      for (std::size_t i = 0; i < chunk.size; ++i) {
        const staged::Piece& piece = chunk.pieces[i];
        EXPECT_EQ(piece.first, next[piece.plane]);
        EXPECT_EQ(piece.first % 4096, 0u);
        EXPECT_GT(piece.lanes, 0u);
        next[piece.plane] += piece.lanes;
      }
    }
    for (std::size_t p = 0; p < 3; ++p)
      EXPECT_EQ(next[p], round.planes[p].lanes);
  }
}

TEST(StagedChunks, ASmallRoundIsOneChunkAndALargeOneHasChunksOfTheSizeAskedFor) {
  Round round;
  round.add({Op::kSumF32, 1000, nullptr, nullptr, nullptr});
  round.add({Op::kSumU8, 24, nullptr, nullptr, nullptr});
  EXPECT_EQ(staged::cut(round, 1 << 20).size(), 1u);
  round.planes[0].lanes = 10 << 20;
  const auto chunks = staged::cut(round, 4 << 20);
  EXPECT_EQ(chunks.size(), 11u);  // the last has the 24 bytes
  const std::vector<uint64_t> bounds = {0, 10 << 20};
  round.planes[0] = {Op::kOrU64, 10 << 20, nullptr, nullptr, nullptr, bounds.data()};
  EXPECT_EQ(staged::cut(round, 4 << 20).size(), 1u);
}

// Each worker in a thread.
void on_all(uint32_t world, const std::function<void(uint32_t, std::unique_ptr<Reducer>)>& body) {
  auto group = create_local_group(world);
  ASSERT_TRUE(group);
  std::vector<std::thread> threads;
  for (uint32_t w = 0; w < world; ++w)
    threads.emplace_back([&, w] { body(w, (*group)->reducer(w)); });
  for (std::thread& thread : threads)
    thread.join();
}

TEST(StagedReducer, SumsRoundsOfTheHostInChunks) {
  on_all(3, [](uint32_t worker, std::unique_ptr<Reducer> host) {
    auto reducer = create_staged_reducer(std::move(host), kSmall);
    ASSERT_TRUE(reducer);
    EXPECT_EQ((*reducer)->worker(), worker);
    std::vector<uint32_t> sums(50000), most(70000);
    std::iota(sums.begin(), sums.end(), worker);
    std::iota(most.begin(), most.end(), 7 * worker);
    Round round, empty;
    round.add({Op::kSumI32, sums.size(), sums.data(), nullptr, nullptr});
    round.add({Op::kMaxU32, most.size(), most.data(), nullptr, nullptr});
    const Reducer::Claim claim{"the plan", 5};
    const auto first = (*reducer)->start_step(std::span(&claim, 1), round);
    const auto second = (*reducer)->start(empty);
    ASSERT_TRUE(first && second);
    EXPECT_TRUE(*(*reducer)->wait(*first, soon()));
    EXPECT_TRUE(*(*reducer)->wait(*second, soon()));
    for (uint32_t i = 0; i < sums.size(); ++i)
      ASSERT_EQ(sums[i], 3 * i + 3);
    for (uint32_t i = 0; i < most.size(); ++i)
      ASSERT_EQ(most[i], i + 14);
  });
}

void expect_mismatch(Reducer& reducer, uint32_t worker, Round& round) {
  const Reducer::Claim claim{"the plan", worker};
  const auto number = reducer.start_step(std::span(&claim, 1), round);
  ASSERT_TRUE(number);
  const auto done = reducer.wait(*number, soon());
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Errc::kMismatch);
  EXPECT_NE(done.error().message.find("the plan"), std::string::npos);
}

TEST(StagedReducer, ADifferenceIsToldToAllAndTheGroupGoesOn) {
  on_all(2, [](uint32_t worker, std::unique_ptr<Reducer> host) {
    auto reducer = create_staged_reducer(std::move(host), kSmall);
    ASSERT_TRUE(reducer);
    std::vector<uint32_t> lanes(1000, 1);
    Round round;
    round.add({Op::kSumI32, lanes.size(), lanes.data(), nullptr, nullptr});
    expect_mismatch(**reducer, worker, round);
    const Status again = (*reducer)->reduce(round, soon());
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(lanes[999], 2u);
  });
}

TEST(StagedReducer, ADifferenceIsToldToAllWithChunksUnderWay) {
  on_all(2, [](uint32_t worker, std::unique_ptr<Reducer> host) {
    auto reducer = create_staged_reducer(std::move(host), kSmall);
    ASSERT_TRUE(reducer);
    std::vector<uint32_t> lanes(20000, 1);
    Round round;
    round.add({Op::kSumI32, lanes.size(), lanes.data(), nullptr, nullptr});
    expect_mismatch(**reducer, worker, round);
  });
}

TEST(StagedReducer, HostReducersRefuseADevicesPlanesByName) {
  auto group = create_local_group(2);
  auto custom = create_custom_reducer({}, [](Round&, Deadline) { return Status(); });
  ASSERT_TRUE(group && custom);
  const auto local = (*group)->reducer(0);
  for (Reducer* reducer : {local.get(), custom->get()}) {
    uint32_t lane = 1;
    Round round;
    round.add({Op::kSumI32, 1, &lane, nullptr, nullptr});
    round.execution.device = Execution::Device::kCuda;
    const Status status = reducer->reduce(round, soon());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kUnsupported);
    EXPECT_NE(status.error().message.find("staged"), std::string::npos);
    EXPECT_EQ(lane, 1u);
  }
}

TEST(CustomReducer, OptionsThatMakeNoSenseAreRefused) {
  const ReduceFunction nothing = [](Round&, Deadline) { return Status(); };
  EXPECT_FALSE(create_custom_reducer({}, nullptr));
  EXPECT_FALSE(create_custom_reducer({0, 0, false}, nothing));
  EXPECT_FALSE(create_custom_reducer({2, 2, true}, nothing));
}

// Others may still be in the round that failed: what it was given next could be added to that.
TEST(CustomReducer, ItsFunctionIsNotCalledAgainOnceTheGroupIsOfNoUse) {
  enum class How { kFailed, kFailedInWait, kAbandoned };
  for (const How how : {How::kFailed, How::kFailedInWait, How::kAbandoned}) {
    SCOPED_TRACE(static_cast<int>(how));
    int calls = 0;
    const auto reducer = *create_custom_reducer({}, [&](Round&, Deadline) -> Status {
      return ++calls == 1 ? Status() : make_error(Errc::kTimeout, "no answer");
    });
    uint32_t lane = 1;
    Round round;
    round.add({Op::kSumI32, 1, &lane, nullptr, nullptr});
    ASSERT_TRUE(reducer->reduce(round, soon()));
    if (how == How::kAbandoned) {
      reducer->abandon();
    } else if (how == How::kFailed) {
      EXPECT_FALSE(reducer->reduce(round, soon()));
    } else {
      EXPECT_FALSE(reducer->wait(*reducer->start(round), soon()));
    }
    const int before = calls;
    EXPECT_EQ(reducer->reduce(round, soon()).error().code, Errc::kUnavailable);
    EXPECT_EQ(reducer->start(round).error().code, Errc::kUnavailable);
    EXPECT_EQ(calls, before);
  }
}

// It goes on after what says that nothing was lost.
TEST(CustomReducer, ItsFunctionIsCalledAgainAfterAMismatch) {
  int calls = 0;
  const auto reducer = *create_custom_reducer({}, [&](Round&, Deadline) -> Status {
    return ++calls > 1 ? Status() : make_error(Errc::kMismatch, "another plan");
  });
  uint32_t lane = 1;
  Round round;
  round.add({Op::kSumI32, 1, &lane, nullptr, nullptr});
  EXPECT_EQ(reducer->reduce(round, soon()).error().code, Errc::kMismatch);
  EXPECT_TRUE(reducer->reduce(round, soon()));
}

TEST(StagedReducer, ARoundThatCannotBeStartedLeavesNothingBehind) {
  auto host = create_custom_reducer(
      {}, [](Round&, Deadline) { return Status(make_error(Errc::kTimeout, "no answer")); });
  auto reducer = create_staged_reducer(std::move(*host), kSmall);
  ASSERT_TRUE(reducer);
  std::vector<uint32_t> lanes(20000, 1);
  Round round;
  round.add({Op::kSumI32, lanes.size(), lanes.data(), nullptr, nullptr});
  const auto number = (*reducer)->start(round);
  ASSERT_TRUE(number);
  EXPECT_EQ((*reducer)->wait(*number, soon()).error().code, Errc::kTimeout);
  for (uint64_t next = *number + 1; next < *number + 3; ++next) {
    EXPECT_EQ((*reducer)->start(round).error().code, Errc::kUnavailable);
    EXPECT_EQ((*reducer)->wait(next, soon()).error().code, Errc::kInvalidArgument) << "unknown";
  }
}

TEST(StagedReducer, OptionsThatMakeNoSenseAreRefused) {
  EXPECT_FALSE(create_staged_reducer(nullptr));
  auto group = create_local_group(1);
  EXPECT_FALSE(create_staged_reducer((*group)->reducer(0), {100}));
}

}  // namespace
}  // namespace addend
