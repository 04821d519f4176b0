// SPDX-License-Identifier: Apache-2.0
// Jobs in shared memory, without a kernel: what the server puts there and takes back.
#include "dataplane/xdp/driver_jobs.h"

#include <cstring>

#include "gtest/gtest.h"
#include "tests/support/frames.h"

namespace addend::dataplane {
namespace {

using testing_support::contribution;
using testing_support::deliver;

// As big as the kernel's, but nobody else looks at it.
struct Memory {
  std::unique_ptr<addend_xdp_directory> directory = std::make_unique<addend_xdp_directory>();
  std::vector<addend_xdp_job> jobs{ADDEND_XDP_JOBS};
  std::vector<addend_xdp_key> keys{ADDEND_XDP_JOBS * ADDEND_XDP_KEYS};
  std::vector<addend_xdp_slot> slots{ADDEND_XDP_SLOTS};
  DriverMemory view() { return {directory.get(), jobs.data(), keys.data(), slots.data()}; }
};

struct Epoch {
  explicit Epoch(uint32_t epoch, uint32_t slot_count = 4) {
    slots.epoch = epoch;
    slots.boot = 7;
    slots.world = 2;
    slots.slots = slot_count;
    slots.payload_bytes = 64;
    slots.ops = 1u << ADDEND_OP_SUM_I32;
    const auth::Secret secret;
    for (uint32_t w = 0; w < slots.world; ++w) {
      keys.push_back(*auth::FrameKey::create(*auth::derive_secret(secret, "worker", w), 64));
      workers.push_back(*net::resolve("10.0.0.1", static_cast<uint16_t>(7000 + w)));
    }
    result_key = *auth::FrameKey::create(*auth::derive_secret(secret, "result", 0), 64);
  }
  DriverJobOptions options() const {
    return {slots, keys, &result_key, workers, 0, {{0, slots.slots, 7701}}};
  }
  aggregate::SlotsOptions slots;
  std::vector<auth::FrameKey> keys;
  auth::FrameKey result_key;
  std::vector<net::Address> workers;
};

TEST(DriverJobs, ASlotComesBackWithWhatWasInIt) {
  Memory memory;
  DriverJobs jobs(memory.view());
  const Epoch epoch(5);
  auto parts = jobs.add(epoch.options());
  ASSERT_EQ(parts.size(), 1u);
  DriverPart& part = *parts[0];
  auto slots = *aggregate::Slots::create(epoch.slots);
  const auto frame = [&](uint32_t worker, uint32_t turn) {
    return contribution(epoch.slots, worker, 3, turn, Op::kSumI32,
                        {static_cast<uint8_t>(worker + 1), 0, 0, 0, 9, 0, 0, 0});
  };
  for (uint32_t turn = 0; turn < 3; ++turn) {
    deliver(slots, frame(0, turn), turn);
    deliver(slots, frame(1, turn), turn);
  }
  part.give_all(slots);
  // The server's copy is void now: another epoch's life in the same place must not show.
  auto other = *aggregate::Slots::create(epoch.slots);
  part.fetch(other, 3);
  const aggregate::Outcome again = deliver(other, frame(0, 2), 9);
  ASSERT_EQ(again.reply.audience, aggregate::Audience::kSender);
  EXPECT_EQ(again.reply.header.turn, 2u);
  EXPECT_EQ(again.reply.payload[0], 3);
  EXPECT_EQ(again.reply.payload[4], 18);
  EXPECT_EQ(deliver(other, frame(0, 1), 9).reply.header.turn, 1u);
  EXPECT_EQ(deliver(other, frame(1, 3), 9).refusal, ADDEND_REFUSAL_NONE);
}

TEST(DriverJobs, ATurnThatIsOpenStaysWithTheServer) {
  Memory memory;
  DriverJobs jobs(memory.view());
  const Epoch epoch(5);
  auto parts = jobs.add(epoch.options());
  auto slots = *aggregate::Slots::create(epoch.slots);
  deliver(slots, contribution(epoch.slots, 0, 1, 0, Op::kSumI32, {1, 0, 0, 0}), 0);
  parts[0]->give_all(slots);
  EXPECT_EQ(memory.slots[0].owner, ADDEND_XDP_DRIVER);
  EXPECT_EQ(memory.slots[1].owner, ADDEND_XDP_SERVER);
  deliver(slots, contribution(epoch.slots, 1, 1, 0, Op::kSumI32, {1, 0, 0, 0}), 0);
  parts[0]->give(slots, 1);
  EXPECT_EQ(memory.slots[1].owner, ADDEND_XDP_DRIVER);
}

TEST(DriverJobs, TurnsThatTheDriverOpenedExpireWithTheFirstThenInTheOrderOfTheirOpening) {
  Memory memory;
  DriverJobs jobs(memory.view());
  Epoch epoch(5);
  epoch.slots.patience_ns = 100;
  epoch.slots.quorum = 1;
  auto parts = jobs.add(epoch.options());
  auto slots = *aggregate::Slots::create(epoch.slots);
  parts[0]->give_all(slots);
  EXPECT_EQ(parts[0]->oldest_ns(), ~uint64_t{0});
  const uint64_t opened[] = {40, 20, 30};
  for (uint32_t s = 0; s < 3; ++s) {
    addend_xdp_bank& bank = memory.slots[s].banks[0];
    bank = {1, opened[s], 0, 8, 8, ADDEND_OP_SUM_I32, 0, ADDEND_XDP_OPEN, 0, 0};
  }
  EXPECT_EQ(parts[0]->oldest_ns(), 20u);
  EXPECT_EQ(parts[0]->first_wait(slots).opened_ns, 40u);
  EXPECT_EQ(parts[0]->first_wait(slots).workers, 2u);
  parts[0]->fetch_all(slots);
  aggregate::Reply reply;
  EXPECT_FALSE(slots.expire(139, reply));
  for (const uint32_t slot : {0u, 1u, 2u}) {
    ASSERT_TRUE(slots.expire(140, reply)) << slot;
    EXPECT_EQ(reply.header.slot, slot);
    EXPECT_EQ(reply.header.kind, ADDEND_FRAME_RESULT);
  }
}

TEST(DriverJobs, PartsHoldTheJobEachForItself) {
  Memory memory;
  DriverJobs jobs(memory.view());
  const Epoch epoch(5);
  DriverJobOptions options = epoch.options();
  options.parts = {{0, 2, 7701}, {2, 2, 7702}};
  auto parts = jobs.add(options);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(memory.slots[1].port, htons(7701));
  EXPECT_EQ(memory.slots[2].port, htons(7702));
  parts[0]->hold();
  parts[1]->hold();
  parts[0]->release();
  EXPECT_NE(memory.jobs[0].held, 0u);
  parts[1]->release();
  EXPECT_EQ(memory.jobs[0].held, 0u);
}

TEST(DriverJobs, WhatIsGivenBackIsForgottenAndUsedAgain) {
  Memory memory;
  DriverJobs jobs(memory.view());
  for (uint32_t round = 0; round < 3 * ADDEND_XDP_JOBS; ++round) {
    const Epoch epoch(round * 77 + 1, 1000);
    auto parts = jobs.add(epoch.options());
    ASSERT_EQ(parts.size(), 1u) << round;
    auto slots = *aggregate::Slots::create(epoch.slots);
    parts[0]->give_all(slots);
    parts.clear();
    for (const addend_xdp_slot& slot : memory.slots)
      ASSERT_EQ(slot.owner, ADDEND_XDP_SERVER);
    for (const addend_xdp_key& key : memory.keys)
      ASSERT_EQ(key.prf[0] | key.hash[0], 0u);
    for (const uint64_t entry : memory.directory->entries)
      ASSERT_EQ(entry, 0u);
  }
}

TEST(DriverJobs, WhatTheDriverCannotDoStaysWithTheServer) {
  Memory memory;
  DriverJobs jobs(memory.view());
  Epoch epoch(5);
  epoch.workers[1] = *net::resolve("fd00::1", 7001);
  EXPECT_TRUE(jobs.add(epoch.options()).empty());
  Epoch large(6);
  large.slots.payload_bytes = ADDEND_FRAME_MAX_PAYLOAD_BYTES;
  EXPECT_TRUE(jobs.add(large.options()).empty());
  const Epoch many(7, ADDEND_XDP_SLOTS), more(8, 1);
  auto all = jobs.add(many.options());
  EXPECT_EQ(all.size(), 1u);
  EXPECT_TRUE(jobs.add(more.options()).empty());
  all.clear();
  EXPECT_EQ(jobs.add(more.options()).size(), 1u);
}

}  // namespace
}  // namespace addend::dataplane
