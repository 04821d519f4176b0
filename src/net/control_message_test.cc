// SPDX-License-Identifier: Apache-2.0
#include "net/control_message.h"

#include "gtest/gtest.h"

namespace addend::net {
namespace {

TEST(ControlMessage, ComesBackAsItWent) {
  addend_control_join join{};
  put_text(join.job.name, "ring");
  join.worker = 3;
  join.positions = 2;
  const uint32_t positions[] = {7, 8};
  std::vector<uint8_t> bytes;
  append_control(bytes, ADDEND_CONTROL_JOIN, join, positions);
  append_control(bytes, ADDEND_CONTROL_LEAVE);

  ControlMessage message;
  const auto first = parse_control(bytes, message);
  ASSERT_TRUE(first);
  EXPECT_EQ(message.type, ADDEND_CONTROL_JOIN);
  EXPECT_EQ(get_text(message.as<addend_control_join>().job.name), "ring");
  EXPECT_EQ(message.numbers(), (std::vector<uint32_t>{7, 8}));
  const auto second = parse_control(std::span(bytes).subspan(*first), message);
  ASSERT_TRUE(second);
  EXPECT_EQ(message.type, ADDEND_CONTROL_LEAVE);
  EXPECT_EQ(*first + *second, bytes.size());
}

TEST(ControlMessage, WaitsUntilItIsWhole) {
  std::vector<uint8_t> bytes;
  append_control(bytes, ADDEND_CONTROL_TABLE, addend_control_table{});
  ControlMessage message;
  for (std::size_t have = 0; have < bytes.size(); ++have) {
    const auto taken = parse_control(std::span(bytes).first(have), message);
    ASSERT_TRUE(taken);
    EXPECT_EQ(*taken, 0u);
  }
  EXPECT_EQ(*parse_control(bytes, message), bytes.size());
}

TEST(ControlMessage, RefusesWrongLengthsBeforeWaitingForThem) {
  ControlMessage message;
  const auto refused = [&](addend_control_header header) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&header);
    return !parse_control({bytes, sizeof(header)}, message);
  };
  EXPECT_TRUE(refused({1, ADDEND_CONTROL_LEAVE, 1}));
  EXPECT_TRUE(refused({0, ADDEND_CONTROL_LEAVE, 2}));
  EXPECT_TRUE(refused({0, 99, 1}));
  EXPECT_TRUE(refused({0, ADDEND_CONTROL_JOIN, 1}));
  EXPECT_TRUE(refused({sizeof(addend_control_join) + 2, ADDEND_CONTROL_JOIN, 1}));
  EXPECT_TRUE(refused({sizeof(addend_control_join) + 4 * 65537, ADDEND_CONTROL_JOIN, 1}));
  EXPECT_TRUE(refused({~0u, ADDEND_CONTROL_JOIN, 1}));
  EXPECT_FALSE(refused({sizeof(addend_control_join) + 4 * 65536, ADDEND_CONTROL_JOIN, 1}));
}

TEST(ControlMessage, TextIsCutToItsField) {
  char field[4];
  put_text(field, "abcdef");
  EXPECT_EQ(get_text(field), "abc");
  const char full[] = {'x', 'y'};
  EXPECT_EQ(get_text(full), "xy");
}

}  // namespace
}  // namespace addend::net
