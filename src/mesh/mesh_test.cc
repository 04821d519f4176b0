// SPDX-License-Identifier: Apache-2.0
#include "mesh/mesh.h"

#include <random>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "addend/fold.h"
#include "tests/support/wires.h"

namespace addend {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<Mesh> mesh_of(const Wires& wires, uint32_t rank, int bell = -1) {
  return *Mesh::create(wires.ends(rank), rank, bell);
}

std::vector<uint8_t> bytes(uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> made(count);
  for (uint8_t& byte : made)
    byte = static_cast<uint8_t>(random());
  return made;
}

uint64_t start(Mesh& mesh, const std::vector<std::vector<uint8_t>>& pieces) {
  std::vector<std::span<const uint8_t>> spans(pieces.begin(), pieces.end());
  return *mesh.start(spans);
}

std::vector<uint8_t> message(const Mesh& mesh, uint64_t exchange, uint32_t rank) {
  const auto found = *mesh.message(exchange, rank);
  return {found.begin(), found.end()};
}

// Runs `body(mesh)` for every rank in a thread of its own.
template <typename Body>
void on_all(uint32_t world, Body body) {
  Wires wires(world);
  wires.on_all([&](uint32_t rank) { body(*mesh_of(wires, rank)); });
}

TEST(Mesh, EveryRankHasEveryMessage) {
  for (const uint32_t world : {1u, 2u, 3u, 7u}) {
    on_all(world, [&](Mesh& mesh) {
      for (uint64_t round = 0; round < 20; ++round) {
        // Lengths differ between ranks and rounds; some are larger than a socket's buffer.
        const auto length = [&](uint32_t rank) {
          return std::size_t{(rank * 7919 + round * 104729) % (round % 5 == 0 ? 900'001 : 301)};
        };
        const auto made = [&](uint32_t rank) { return bytes(rank * 100 + round, length(rank)); };
        const uint64_t exchange = start(mesh, {made(mesh.rank())});
        EXPECT_TRUE(*mesh.wait(exchange, 60s));
        for (uint32_t rank = 0; rank < world; ++rank) {
          EXPECT_EQ(message(mesh, exchange, rank), made(rank));
        }
        EXPECT_TRUE(mesh.release(exchange));
      }
    });
  }
}

TEST(Mesh, ExchangesOverlapAndEndInAnyOrder) {
  on_all(3, [](Mesh& mesh) {
    std::vector<uint64_t> exchanges;
    for (uint64_t i = 0; i < 4; ++i) {
      exchanges.push_back(start(mesh, {bytes(mesh.rank() * 10 + i, 200'000)}));
    }
    for (const std::size_t i : {3u, 0u, 2u, 1u}) {
      EXPECT_TRUE(*mesh.wait(exchanges[i], 60s));
      for (uint32_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(message(mesh, exchanges[i], rank), bytes(rank * 10 + i, 200'000));
      }
      EXPECT_TRUE(mesh.release(exchanges[i]));
      EXPECT_FALSE(mesh.message(exchanges[i], 0));
      EXPECT_FALSE(mesh.release(exchanges[i]));
    }
  });
}

TEST(Mesh, MemoryIsUsedAgainBehindAnExchangeThatIsKept) {
  on_all(2, [](Mesh& mesh) {
    const uint64_t kept = start(mesh, {bytes(1, 10)});
    EXPECT_TRUE(*mesh.wait(kept, 60s));
    std::set<const uint8_t*> places;
    for (uint64_t i = 0; i < 300; ++i) {
      const uint64_t exchange = start(mesh, {bytes(i, 100'000)});
      EXPECT_TRUE(*mesh.wait(exchange, 60s));
      for (uint32_t rank = 0; rank < 2; ++rank)
        places.insert(mesh.message(exchange, rank)->data());
      EXPECT_TRUE(mesh.release(exchange));
    }
    EXPECT_EQ(places.size(), 2u);  // one for each rank's message
    EXPECT_EQ(message(mesh, kept, 0), bytes(1, 10));
  });
}

TEST(Mesh, AnExchangeThatNobodyWaitsForEndsByItself) {
  on_all(3, [](Mesh& mesh) {
    std::set<const uint8_t*> places;
    for (uint64_t i = 0; i < 300; ++i) {
      const uint64_t left = start(mesh, {bytes(i, 50'000 * mesh.rank())});
      EXPECT_TRUE(mesh.release(left));
      EXPECT_FALSE(mesh.wait(left, 0s));
      const uint64_t exchange = start(mesh, {bytes(i + mesh.rank(), 70'000)});
      EXPECT_TRUE(*mesh.wait(exchange, 60s));
      for (uint32_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(message(mesh, exchange, rank), bytes(i + rank, 70'000));
        places.insert(mesh.message(exchange, rank)->data());
      }
      EXPECT_TRUE(mesh.release(exchange));
    }
    EXPECT_LE(places.size(), 12u);  // two exchanges, whose messages have grown once
  });
}

TEST(Mesh, RefusesExchangesThatPileUp) {
  on_all(2, [](Mesh& mesh) {
    for (uint32_t i = 0; i < Mesh::kMaxExchanges; ++i) {
      ASSERT_TRUE(*mesh.wait(start(mesh, {bytes(i, 10)}), 60s));
    }
    const auto refused = mesh.start({});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::kCapacity);
    EXPECT_NE(refused.error().message.find("not released"), std::string::npos);
    EXPECT_TRUE(mesh.release(17));
    EXPECT_TRUE(*mesh.wait(start(mesh, {bytes(1, 10)}), 60s));
  });
}

TEST(Mesh, PiecesBeginAligned) {
  on_all(2, [](Mesh& mesh) {
    const uint64_t exchange = start(mesh, {bytes(1, 3), {}, bytes(2, 65), bytes(3, 1)});
    EXPECT_TRUE(*mesh.wait(exchange, 60s));
    const auto got = message(mesh, exchange, 1 - mesh.rank());
    ASSERT_EQ(got.size(), 193u);
    EXPECT_EQ(std::vector<uint8_t>(got.begin() + 64, got.begin() + 129), bytes(2, 65));
    EXPECT_EQ(got[3], 0);  // nothing of what lay in memory travels along
    EXPECT_EQ(got[192], bytes(3, 1)[0]);
  });
}

TEST(Mesh, SumsPlanesInTheOrderOfRanks) {
  for (std::size_t op = 0; op < kOpCount; ++op) {
    on_all(3, [&](Mesh& mesh) {
      const auto kind = static_cast<Op>(op);
      const uint64_t lanes = 1000;
      const auto table = bytes(77, 32);
      const auto lanes_of = [&](uint32_t rank) { return bytes(rank, op_bytes(kind, lanes)); };
      std::vector<uint8_t> expected = lanes_of(0);
      if (is_table_sum(kind)) expected.assign(op_sum_bytes(kind, lanes), 0);
      for (uint32_t rank = 0; rank < 3; ++rank) {
        const auto given = lanes_of(rank);
        if (is_table_sum(kind)) {
          fold_table(kind, expected.data(), given.data(), table.data(), lanes);
        } else if (rank > 0) {
          fold(kind, expected.data(), given.data(), lanes);
        }
      }
      auto data = lanes_of(mesh.rank());
      std::vector<uint8_t> sums(op_sum_bytes(kind, lanes), 0xff);
      const uint64_t exchange = start(mesh, {bytes(5, 10), data});
      EXPECT_TRUE(*mesh.wait(exchange, 60s));
      Plane plane{kind, lanes, data.data(), table.data(), sums.data()};
      ASSERT_TRUE(mesh.sum(exchange, 10, {&plane, 1}));
      EXPECT_EQ(is_table_sum(kind) ? sums : data, expected) << op_name(kind);
    });
  }
}

TEST(Mesh, RefusesSumsOfOtherLengths) {
  on_all(2, [](Mesh& mesh) {
    std::vector<uint8_t> data(mesh.rank() == 0 ? 64 : 128);
    const uint64_t exchange = start(mesh, {data});
    EXPECT_TRUE(*mesh.wait(exchange, 60s));
    Plane plane{Op::kSumI32, data.size() / 4, data.data(), nullptr, nullptr};
    const Status status = mesh.sum(exchange, 0, {&plane, 1});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kUnavailable);
    EXPECT_NE(status.error().message.find("rank " + std::to_string(1 - mesh.rank())),
              std::string::npos);
  });
}

TEST(Mesh, NamesALostRank) {
  Wires wires(3);
  const auto mesh = mesh_of(wires, 0);
  const auto other = mesh_of(wires, 1);
  const uint64_t exchange = start(*mesh, {bytes(1, 10)});
  start(*other, {bytes(1, 10)});
  EXPECT_FALSE(*mesh->wait(exchange, 0s));
  wires.cut(2);
  const auto waited = mesh->wait(exchange, 60s);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, Errc::kUnavailable);
  EXPECT_NE(waited.error().message.find("rank 2"), std::string::npos) << waited.error().message;
  EXPECT_FALSE(mesh->start({}));  // and stays so
}

TEST(Mesh, RefusesWhatIsNoMessage) {
  Wires wires(2);
  const auto mesh = mesh_of(wires, 0);
  const auto noise = bytes(3, 16);
  ASSERT_EQ(write(wires.ends(1)[0], noise.data(), noise.size()), 16);
  const uint64_t exchange = start(*mesh, {bytes(1, 10)});
  const auto waited = mesh->wait(exchange, 60s);
  ASSERT_FALSE(waited);
  EXPECT_NE(waited.error().message.find("rank 1"), std::string::npos);
}

TEST(Mesh, TheBellEndsAWait) {
  Wires wires(2);
  const auto mesh = mesh_of(wires, 0, wires.bell(0));
  const uint64_t exchange = start(*mesh, {bytes(1, 10)});
  std::thread ringer([&] { EXPECT_EQ(write(wires.ringer(0), "x", 1), 1); });
  EXPECT_FALSE(*mesh->wait(exchange, 1h));
  ringer.join();
}

TEST(Mesh, RefusesBadArguments) {
  const int sockets[] = {-1, -1};
  EXPECT_FALSE(Mesh::create(sockets, 2, -1));
  EXPECT_FALSE(Mesh::create(sockets, 0, -1));
  Wires wires(2);
  const auto mesh = mesh_of(wires, 0);
  EXPECT_FALSE(mesh->wait(0, 0s));
  const uint64_t exchange = start(*mesh, {bytes(1, 10)});
  EXPECT_FALSE(mesh->message(exchange, 1));
  EXPECT_FALSE(mesh->release(exchange + 1));
}

}  // namespace
}  // namespace addend
