// SPDX-License-Identifier: Apache-2.0
#include "pipeline/trip.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/wires.h"

namespace addend {
namespace {

using namespace std::chrono_literals;

constexpr uint32_t kWorld = 3;
constexpr uint64_t kCount = 20'000;

std::vector<float> gradient(uint32_t rank, uint64_t step) {
  std::vector<float> made(kCount, 0.0f);
  for (uint64_t i = rank; i < kCount; i += 97 + step)
    made[i] = static_cast<float>(i + rank);
  return made;
}

std::vector<float> sum(uint64_t step) {
  std::vector<float> total = gradient(0, step);
  for (uint32_t rank = 1; rank < kWorld; ++rank) {
    const auto one = gradient(rank, step);
    for (uint64_t i = 0; i < kCount; ++i)
      total[i] += one[i];
  }
  return total;
}

// `body(rank, mesh, codec)` in a thread for each rank.
template <typename Body>
void on_all(const std::string& spec, Body body) {
  Wires wires(kWorld);
  wires.on_all([&](uint32_t rank) {
    const auto mesh = *Mesh::create(wires.ends(rank), rank, -1);
    Layout layout;
    layout.count = kCount;
    layout.world = kWorld;
    layout.worker = rank;
    const auto codec = *create_codec(*CodecSpec::parse(spec), layout);
    body(rank, *mesh, *codec);
  });
}

const std::vector<uint8_t> kHeader(64, 7);

// The caller's way to reduce a round: through messages of its own.
void reduce_by_hand(Mesh& mesh, const Round& round) {
  Round planes = round;
  std::vector<std::span<const uint8_t>> pieces;
  for (const Plane& plane : planes) {
    pieces.push_back({static_cast<const uint8_t*>(plane.data), op_bytes(plane.op, plane.lanes)});
  }
  const uint64_t exchange = *mesh.start(pieces);
  ASSERT_TRUE(*mesh.wait(exchange, 60s));
  ASSERT_TRUE(mesh.sum(exchange, 0, {planes.begin(), planes.size}));
  ASSERT_TRUE(mesh.release(exchange));
}

TEST(Trip, SumsOverSeveralSteps) {
  for (const char* spec : {"dense", "exact", "exact:mode=packed", "exact:mode=sketch"}) {
    SCOPED_TRACE(spec);
    on_all(spec, [&](uint32_t rank, Mesh& mesh, Codec& codec) {
      Trip trip(mesh, codec);
      for (uint64_t step = 0; step < 5; ++step) {
        auto mine = gradient(rank, step);
        ASSERT_TRUE(trip.begin(mine.data(), kHeader, {false, 64, 1 << 30}));
        if (step % 2 == 0) {
          ASSERT_TRUE(trip.encode());
        }
        EXPECT_EQ(mine, gradient(rank, step));
        const auto state = trip.run(60s);
        ASSERT_TRUE(state) << state.error().message;
        ASSERT_EQ(*state, TripState::kSummed);
        EXPECT_GE(trip.round_number(), 1u);
        ASSERT_TRUE(codec.finish(mine.data()));
        EXPECT_EQ(mine, sum(step));
        ASSERT_FALSE(trip.spans().empty());
        EXPECT_EQ(trip.spans()[0].stage, step % 2 == 0 ? Stage::kAgree : Stage::kEncode);
      }
    });
  }
}

TEST(Trip, DecodesIfAsked) {
  on_all("exact", [&](uint32_t rank, Mesh& mesh, Codec& codec) {
    Trip trip(mesh, codec);
    for (uint64_t step = 0; step < 3; ++step) {
      auto mine = gradient(rank, step);
      ASSERT_TRUE(trip.begin(mine.data(), kHeader, {false, 64, 1 << 30, true}));
      const auto state = trip.run(60s);
      ASSERT_TRUE(state) << state.error().message;
      ASSERT_EQ(*state, TripState::kDecoded);
      EXPECT_EQ(mine, sum(step));
      EXPECT_EQ(trip.spans().front().stage, Stage::kEncode);
      EXPECT_EQ(trip.spans().back().stage, Stage::kDecode);
    }
  });
}

TEST(Trip, DecodesAfterARoundOfTheCallers) {
  on_all("exact:mode=packed", [&](uint32_t rank, Mesh& mesh, Codec& codec) {
    Trip trip(mesh, codec);
    auto mine = gradient(rank, 0);
    ASSERT_TRUE(trip.begin(mine.data(), kHeader, {false, 64, 0, true}));
    auto state = trip.run(60s);
    while (state && *state == TripState::kLarge) {
      reduce_by_hand(mesh, trip.round());
      trip.reduced();
      state = trip.run(60s);
    }
    ASSERT_TRUE(state) << state.error().message;
    EXPECT_EQ(*state, TripState::kDecoded);
    EXPECT_EQ(mine, sum(0));
  });
}

TEST(Trip, LeavesLargeRoundsToTheCaller) {
  for (const uint64_t most : {uint64_t{0}, uint64_t{2490}}) {
    on_all("exact:mode=packed", [&](uint32_t rank, Mesh& mesh, Codec& codec) {
      Trip trip(mesh, codec);
      for (uint64_t step = 0; step < 3; ++step) {
        auto mine = gradient(rank, step);
        ASSERT_TRUE(trip.begin(mine.data(), kHeader, {false, 64, most}));
        uint32_t large = 0;
        for (;;) {
          const auto state = trip.run(60s);
          ASSERT_TRUE(state) << state.error().message;
          if (*state == TripState::kSummed) break;
          ASSERT_EQ(*state, TripState::kLarge);
          EXPECT_GT(trip.round().bytes(), most);
          reduce_by_hand(mesh, trip.round());
          trip.reduced();
          ++large;
        }
        EXPECT_GE(large, most == 0 ? 2u : 1u);
        ASSERT_TRUE(codec.finish(mine.data()));
        EXPECT_EQ(mine, sum(step));
      }
    });
  }
}

TEST(Trip, SeesThatHeadersDiffer) {
  on_all("exact", [&](uint32_t rank, Mesh& mesh, Codec& codec) {
    Trip trip(mesh, codec);
    auto mine = gradient(rank, 0);
    auto header = kHeader;
    header[60] = static_cast<uint8_t>(rank);  // may differ
    ASSERT_TRUE(trip.begin(mine.data(), header, {false, 60, 1 << 30}));
    ASSERT_EQ(*trip.run(60s), TripState::kSummed);
    ASSERT_TRUE(codec.finish(mine.data()));
    if (rank == 1) header[5] = 8;
    ASSERT_TRUE(trip.begin(mine.data(), header, {false, 60, 1 << 30}));
    ASSERT_EQ(*trip.run(60s), TripState::kDifferent);
    EXPECT_EQ((*mesh.message(trip.exchange(), 1))[5], 8);
    trip.cancel();
    // And nothing is broken by it.
    mine = gradient(rank, 0);
    ASSERT_TRUE(trip.begin(mine.data(), kHeader, {false, 64, 1 << 30}));
    ASSERT_EQ(*trip.run(60s), TripState::kSummed);
    ASSERT_TRUE(codec.finish(mine.data()));
    EXPECT_EQ(mine, sum(0));
  });
}

TEST(Trip, AbandonedTripsLeaveNothingWithTheMesh) {
  on_all("dense", [&](uint32_t rank, Mesh& mesh, Codec& codec) {
    auto mine = gradient(rank, 0);
    const std::vector<uint8_t> header(64, static_cast<uint8_t>(rank));
    for (std::size_t i = 0; i <= Mesh::kMaxExchanges; ++i) {
      Trip waiting(mesh, codec);
      ASSERT_TRUE(waiting.begin(mine.data(), kHeader, {false, 64, 0}));
      ASSERT_TRUE(waiting.run(0s));
      waiting.cancel();
      Trip different(mesh, codec);  // all ranks go on together from here
      ASSERT_TRUE(different.begin(mine.data(), header, {false, 64, 0}));
      const auto state = different.run(60s);
      ASSERT_TRUE(state) << state.error().message;
      ASSERT_EQ(*state, TripState::kDifferent);
    }
    Trip trip(mesh, codec);
    ASSERT_TRUE(trip.begin(mine.data(), kHeader, {false, 64, 1 << 30}));
    ASSERT_EQ(*trip.run(60s), TripState::kSummed);
    ASSERT_TRUE(codec.finish(mine.data()));
    EXPECT_EQ(mine, sum(0));
  });
}

TEST(Trip, RefusesMisuse) {
  on_all("exact", [&](uint32_t rank, Mesh& mesh, Codec& codec) {
    Trip trip(mesh, codec);
    EXPECT_FALSE(trip.run(0s));
    auto mine = gradient(rank, 0);
    EXPECT_FALSE(trip.begin(mine.data(), kHeader, {false, 65, 0}));
    ASSERT_TRUE(trip.begin(mine.data(), kHeader, {false, 64, 1 << 30}));
    EXPECT_FALSE(trip.begin(mine.data(), kHeader, {false, 64, 1 << 30}));
    EXPECT_EQ(trip.round_number(), 0u);
  });
}

}  // namespace
}  // namespace addend
