// SPDX-License-Identifier: Apache-2.0
#include "wire/frame.h"

#include <array>
#include <cstring>

#include "gtest/gtest.h"

namespace addend {
namespace {

TEST(FrameHeader, IsReadAndWrittenInNetworkByteOrder) {
  std::array<uint8_t, ADDEND_FRAME_HEADER_BYTES + 1> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(i * 37 + 11);
  const uint8_t* unaligned = bytes.data() + 1;
  addend_frame_header expected;
  std::memcpy(&expected, unaligned, sizeof(expected));
  addend_frame_swap(&expected);
  const addend_frame_header header = addend_frame_read(unaligned);
  EXPECT_EQ(std::memcmp(&header, &expected, sizeof(header)), 0);
  EXPECT_EQ(header.slot, unaligned[12] << 8 | unaligned[13]);
  std::array<uint8_t, ADDEND_FRAME_HEADER_BYTES + 1> again{bytes[0]};
  addend_frame_write(header, again.data() + 1);
  EXPECT_EQ(again, bytes);
}

TEST(FrameHeader, LengthsOfSumsAreThoseOfTheirLanes) {
  for (uint8_t op = 0; op < ADDEND_OP_COUNT; ++op) {
    for (const uint32_t length : {24u, 1392u, 8832u}) {
      EXPECT_EQ(addend_frame_sum_length(op, length),
                addend_op_sum_bytes(static_cast<addend_op>(op), addend_frame_lanes(op, length)));
      EXPECT_EQ(addend_op_bytes(static_cast<addend_op>(op), addend_frame_lanes(op, length)),
                length);
    }
  }
}

}  // namespace
}  // namespace addend
