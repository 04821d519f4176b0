// SPDX-License-Identifier: Apache-2.0
// A server whose jobs a switch folds: what the switch is told, what workers are told, and what is
// refused.
#include "tests/support/registry_fixture.h"

namespace addend::service {
namespace {

class SwitchTest : public RegistryTest {
 protected:
  SwitchOptions options() {
    SwitchOptions in_switch;
    in_switch.publish = [this](std::span<const uint8_t> text) {
      published_.assign(text.begin(), text.end());
      return status_;
    };
    in_switch.payload_bytes = 48;
    in_switch.slots = 16;
    return in_switch;
  }
  Status come(ConnectionId from, const char* job, uint32_t worker, uint32_t slots = 8,
              const char* identity = "one") {
    ADDEND_TRY(front_.join(from, identity, peer_, message(job, worker, 2, slots), {}));
    return front_.path(from, {64, 0});
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> all;
    for (std::size_t at = 0; at < published_.size();) {
      const std::size_t end = published_.find('\n', at);
      all.push_back(published_.substr(at, end - at));
      at = end + 1;
    }
    return all;
  }

  std::string published_;
  Status status_;
  Registry front_{tenants(), 77, threads_, sink_, [](auto&&...) {}, {}, nullptr, options()};
};

TEST_F(SwitchTest, ASwitchIsToldOfAnEpochBeforeItsWorkersAre) {
  ASSERT_TRUE(come(10, "ring", 0));
  EXPECT_EQ(published_, "");
  ASSERT_TRUE(come(11, "ring", 1));
  const auto welcome = sink_.of(ADDEND_CONTROL_WELCOME).at(1).as<addend_control_welcome>();
  const std::string epoch = std::to_string(welcome.epoch);
  const auto text = lines();
  ASSERT_EQ(text.size(), 4u);
  EXPECT_EQ(text[0], "addend switch 1");
  const auto tag_of = [](const uint8_t(&secret)[ADDEND_CONTROL_KEY_BYTES]) {
    char hex[17];
    const auto key = auth::FrameKey::create(auth::Secret(secret), 48);
    std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(key->fixed_tag()));
    return std::string(hex);
  };
  EXPECT_EQ(text[1], "job " + epoch + " 77 2 0 8 48 " + tag_of(welcome.result_secret));
  EXPECT_EQ(text[2].substr(0, text[2].rfind(' ')), "worker " + epoch + " 0 10.1.2.3 5000");
  EXPECT_EQ(text[3], "worker " + epoch + " 1 10.1.2.3 5001 " + tag_of(welcome.worker_secret));
}

TEST_F(SwitchTest, WorkersLearnWhatASwitchCanDoAndTheServerFoldsNothing) {
  ASSERT_TRUE(come(10, "ring", 0));
  ASSERT_TRUE(come(11, "ring", 1));
  const auto welcome = sink_.of(ADDEND_CONTROL_WELCOME).at(0).as<addend_control_welcome>();
  EXPECT_EQ(welcome.flags, ADDEND_CONTROL_SWITCH);
  EXPECT_EQ(welcome.payload_bytes, 48u);
  EXPECT_EQ(welcome.ops, 1u << ADDEND_OP_SUM_I32 | 1u << ADDEND_OP_SUM_U8 |
                             1u << ADDEND_OP_SUM_U16 | 1u << ADDEND_OP_OR_U64 |
                             1u << ADDEND_OP_MAX_U32);
  EXPECT_EQ(threads_.part_ops, 0u);
}

TEST_F(SwitchTest, JobsHaveCellsOfTheirOwnAndGiveThemBack) {
  ASSERT_TRUE(come(10, "a", 0));
  ASSERT_TRUE(come(11, "a", 1));
  ASSERT_TRUE(come(20, "b", 0, 8, "two"));
  ASSERT_TRUE(come(21, "b", 1, 8, "two"));
  EXPECT_NE(published_.find(" 77 2 8 8 48 "), std::string::npos);
  // No room for a third; all its workers are told, not the last one alone.
  ASSERT_TRUE(come(12, "c", 0));
  const Status full = come(13, "c", 1);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Errc::kCapacity);
  ASSERT_EQ(sink_.of(ADDEND_CONTROL_FAILED).size(), 1u);
  EXPECT_EQ(sink_.of(ADDEND_CONTROL_FAILED)[0].to, 12u);
  front_.leave(10);
  EXPECT_EQ(lines().size(), 7u);
  front_.leave(11);
  EXPECT_EQ(lines().size(), 4u);
  ASSERT_TRUE(come(12, "c", 0));
  ASSERT_TRUE(come(13, "c", 1));
  EXPECT_NE(published_.find(" 77 2 0 8 48 "), std::string::npos);
  front_.lost(12);
  EXPECT_EQ(lines().size(), 4u);
}

TEST_F(SwitchTest, WhatASwitchCannotDoIsRefusedByName) {
  const auto refusal = [&](addend_control_join join, const char* peer = "10.1.2.3") {
    const Status status = front_.join(10, "two", *net::resolve(peer, 1), join, {});
    EXPECT_FALSE(status);
    return status ? std::string() : status.error().message;
  };
  addend_control_join join = message("odd", 0, 2, 12);
  EXPECT_NE(refusal(join).find("powers of two"), std::string::npos);
  join = message("many", 0, 33, 8);
  EXPECT_NE(refusal(join).find("at most 32 workers"), std::string::npos);
  join = message("patient", 0, 2, 8);
  join.job.patience_ns = 1000;
  EXPECT_NE(refusal(join).find("no clock"), std::string::npos);
  join = message("six", 0, 2, 8);
  EXPECT_NE(refusal(join, "fd00::1").find("IPv4"), std::string::npos);
  EXPECT_TRUE(front_.empty());
}

TEST_F(SwitchTest, ATenantIsChargedForTwoBanksOfWhatASwitchCarries) {
  addend_control_job job = message("long", 0, 2, 8).job;
  job.payload_bytes = 1408;
  // Two banks of 48 bytes and their headers, two keys, positions.
  TenantOptions small;
  small.name = "small";
  small.max_memory_bytes = 8 * 2 * (48 + 64) + 2 * 48 + 2 * 8 * 2 * sizeof(uint32_t);
  const auto quiet = [](LogLevel, std::string_view, std::span<const LogField>) {};
  Registry with{{small}, 77, threads_, sink_, quiet, {}, nullptr, options()};
  EXPECT_TRUE(with.create("small", job));
  Registry without{{small}, 77, threads_, sink_, quiet};
  const Status refused = without.create("small", job);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::kCapacity);
  --small.max_memory_bytes;
  Registry less{{small}, 77, threads_, sink_, quiet, {}, nullptr, options()};
  EXPECT_FALSE(less.create("small", job));
}

TEST_F(SwitchTest, NobodyIsWelcomedWhereTheSwitchWasNotTold) {
  ASSERT_TRUE(come(10, "ring", 0));
  status_ = make_error(Errc::kIo, "the disk is full");
  EXPECT_FALSE(come(11, "ring", 1));
  EXPECT_TRUE(sink_.of(ADDEND_CONTROL_WELCOME).empty());
  EXPECT_EQ(sink_.of(ADDEND_CONTROL_FAILED).size(), 1u);
  EXPECT_TRUE(front_.empty());
}

}  // namespace
}  // namespace addend::service
