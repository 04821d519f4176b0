// SPDX-License-Identifier: Apache-2.0
#include "reduce/service/session.h"

#include <string>

#include "addend/plane.h"
#include "gtest/gtest.h"
#include "wire/frame.h"

namespace addend::service_client {
namespace {

constexpr uint32_t kAll = (1u << ADDEND_OP_COUNT) - 1;

std::string refusal(uint32_t before, uint32_t now) {
  const Status status = check_operations(before, now);
  if (status) return "";
  EXPECT_EQ(status.error().code, Errc::kMismatch);
  return status.error().message;
}

TEST(CheckOperations, AServerThatComesBackWithLessNamesWhatItDoesNotAddAnyMore) {
  EXPECT_EQ(refusal(kAll, kAll), "");
  EXPECT_EQ(refusal(kAll | 1u << ADDEND_OP_COUNT, kAll), "") << "a newer server's";
  for (uint32_t op = 0; op < ADDEND_OP_COUNT; ++op) {
    if (op == ADDEND_OP_SUM_F32) continue;
    const std::string message = refusal(kAll, kAll & ~(1u << op));
    EXPECT_NE(message.find(op_name(static_cast<Op>(op))), std::string::npos) << message;
  }
}

TEST(CheckOperations, MoreThanBeforeIsNoTroubleUnlessItIsFloats) {
  constexpr uint32_t kFloats = 1u << ADDEND_OP_SUM_F32;
  EXPECT_EQ(refusal(1u << ADDEND_OP_SUM_I32, kAll & ~kFloats), "");
  EXPECT_NE(refusal(kAll & ~kFloats, kAll).find("may sum floats now"), std::string::npos);
  EXPECT_NE(refusal(kAll, kAll & ~kFloats).find("may not sum floats"), std::string::npos);
}

}  // namespace
}  // namespace addend::service_client
