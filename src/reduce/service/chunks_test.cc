// SPDX-License-Identifier: Apache-2.0
#include "reduce/service/chunks.h"

#include <vector>

#include "gtest/gtest.h"
#include "wire/frame.h"

namespace addend::service_client {
namespace {

TEST(Chunks, CoverEveryLaneOfEveryPlaneOnceAndInOrder) {
  for (uint64_t lanes : {0, 1, 7, 176, 352, 353, 704, 705, 5000}) {
    std::vector<uint8_t> data(lanes * 8 + 8), sums(lanes * 2 + 2);
    for (std::size_t op = 0; op < kOpCount; ++op) {
      Round round;
      round.add({static_cast<Op>(op), lanes, data.data(), nullptr, sums.data()});
      round.add({Op::kOrU64, 3, data.data(), nullptr, nullptr});
      const Chunks chunks(round, {1408, false});
      uint64_t next = 0, i = 0;
      for (; i < chunks.size(); ++i) {
        const Chunk chunk = chunks.at(i);
        if (chunk.plane != &round.planes[0]) break;
        EXPECT_EQ(chunk.first_lane, next);
        EXPECT_LE(chunk.contribution().size(), 1408u);
        EXPECT_LE(chunk.sums().size(), 1408u);
        EXPECT_GT(chunk.lanes, 0u);
        EXPECT_EQ(chunk.first_lane % (is_narrow_sum(chunk.plane->op) ? 512 : 1), 0u);
        next += chunk.lanes;
      }
      EXPECT_EQ(next, lanes) << op_name(static_cast<Op>(op));
      ASSERT_EQ(i + 1, chunks.size());
      EXPECT_EQ(chunks.at(i).lanes, 3u);
    }
  }
}

TEST(Chunks, APaddedTableSumStillFits) {
  EXPECT_EQ(lanes_per_chunk(Op::kTableSumU8, {1408, false}), 1408u);
  EXPECT_EQ(lanes_per_chunk(Op::kTableSumU16, {1408, true}), 704u);
  EXPECT_EQ(lanes_per_chunk(Op::kSumI32, {1408, false}), 352u);
  EXPECT_EQ(lanes_per_chunk(Op::kOrU64, {8, true}), 1u);
}

TEST(Chunks, NarrowSumsHaveRoomToGrowAndToBeSentOn) {
  EXPECT_EQ(lanes_per_chunk(Op::kNarrowSum48, {1408, false}), 1024u);
  EXPECT_EQ(lanes_per_chunk(Op::kNarrowSum14, {1408, false}), 1024u);
  EXPECT_EQ(lanes_per_chunk(Op::kNarrowSum88, {8832, false}), 8704u);
  EXPECT_EQ(lanes_per_chunk(Op::kNarrowSum48, {1408, true}), 512u);  // 1024 bytes of u16
  EXPECT_EQ(lanes_per_chunk(Op::kNarrowSum44, {512, false}), 512u);
  EXPECT_EQ(lanes_per_chunk(Op::kNarrowSum48, {512, false}), 0u);  // 517 bytes of sums
  EXPECT_EQ(lanes_per_chunk(Op::kNarrowSum44, {1016, true}), 0u);
}

TEST(SwapLanes, TurnsEachLaneAroundAndLeavesBytes) {
  const std::vector<uint8_t> bytes = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto swapped = [&](Op op) {
    std::vector<uint8_t> lanes = bytes;
    swap_lanes(op, lanes);
    return lanes;
  };
  EXPECT_EQ(swapped(Op::kSumU8), bytes);
  EXPECT_EQ(swapped(Op::kSumU16), (std::vector<uint8_t>{2, 1, 4, 3, 6, 5, 8, 7}));
  EXPECT_EQ(swapped(Op::kSumI32), (std::vector<uint8_t>{4, 3, 2, 1, 8, 7, 6, 5}));
  EXPECT_EQ(swapped(Op::kOrU64), (std::vector<uint8_t>{8, 7, 6, 5, 4, 3, 2, 1}));
}

}  // namespace
}  // namespace addend::service_client
