// SPDX-License-Identifier: Apache-2.0
// A registry between messages that are kept and data threads that do nothing.
#pragma once

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "net/control_message.h"
#include "service/registry.h"
#include "tests/support/keys.h"

namespace addend::service {

struct SentMessage {
  ConnectionId to;
  addend_control_type type;
  std::vector<uint8_t> body;
  std::vector<uint32_t> numbers;
  template <typename T>
  T as() const {
    T value;
    std::memcpy(&value, body.data(), sizeof(T));
    return value;
  }
};

class SentMessages final : public MessageSink {
 public:
  void send(ConnectionId to, addend_control_type type, std::span<const uint8_t> body,
            std::span<const uint32_t> numbers) override {
    all.push_back({to, type, {body.begin(), body.end()}, {numbers.begin(), numbers.end()}});
  }
  std::vector<SentMessage> of(addend_control_type type) const {
    std::vector<SentMessage> some;
    for (const SentMessage& message : all) {
      if (message.type == type) some.push_back(message);
    }
    return some;
  }
  void cut(ConnectionId connection) override { cuts.push_back(connection); }
  std::vector<SentMessage> all;
  std::vector<ConnectionId> cuts;
};

class FakeDataThreads final : public DataThreads {
 public:
  uint32_t threads() const override { return 3; }
  uint16_t port(uint32_t thread) const override { return static_cast<uint16_t>(9000 + thread); }
  void start(std::shared_ptr<const JobEpoch> job, std::vector<aggregate::Slots> parts) override {
    live.insert(job->slots.epoch);
    uint32_t next = 0;
    for (const aggregate::Slots& part : parts) {
      EXPECT_EQ(part.options().first_slot, next);
      next += part.options().slots;
      part_ops = part.options().ops;
    }
    EXPECT_EQ(next, job->slots.slots);
    last = job;
  }
  void set_table(uint32_t, uint32_t number, const aggregate::Table&) override {
    tables.push_back(number);
  }
  void leave(uint32_t epoch, uint32_t worker) override {
    EXPECT_TRUE(live.count(epoch));
    left.push_back(worker);
  }
  void end(uint32_t epoch, addend_notice, uint32_t worker) override {
    EXPECT_TRUE(live.count(epoch));
    ended.push_back(worker);
    if (when_ended) when_ended();
  }
  void remove(uint32_t epoch) override { EXPECT_EQ(live.erase(epoch), 1u); }
  void expect(const std::shared_ptr<Probe>& probe) override { probes.push_back(probe); }
  std::function<void()> when_ended;
  std::vector<std::shared_ptr<Probe>> probes;
  std::set<uint32_t> live;
  std::vector<uint32_t> left, ended, tables;
  std::shared_ptr<const JobEpoch> last;
  uint32_t part_ops = 0;  // that the threads may fold
};

class RegistryTest : public ::testing::Test {
 protected:
  static std::vector<TenantOptions> tenants() {
    TenantOptions one, two, boss;
    one.name = "one";
    one.key = testing_support::key_of(1);
    one.max_jobs = 2;
    one.max_slots = 40;
    two.name = "two";
    two.key = testing_support::key_of(2);
    two.floats = false;
    boss.name = "boss";
    boss.sees_all = true;
    return {one, two, boss};
  }
  static addend_control_join message(const char* job, uint32_t worker, uint32_t world = 2,
                                     uint32_t slots = 10) {
    addend_control_join join{};
    net::put_text(join.job.name, job);
    join.job.world = world;
    join.job.slots = slots;
    join.job.payload_bytes = 64;
    join.worker = worker;
    join.udp_port = 5000 + worker;
    return join;
  }
  static addend_control_drain which(const char* name, const char* tenant = "") {
    addend_control_drain drain{};
    net::put_text(drain.name, name);
    net::put_text(drain.tenant, tenant);
    return drain;
  }
  // Joins, and says that the path carries so much.
  Status come(ConnectionId from, const char* identity, const addend_control_join& join,
              std::vector<uint32_t> positions, uint32_t payload_bytes = 64) {
    ADDEND_TRY(registry_.join(from, identity, peer_, join, std::move(positions)));
    return registry_.path(from, {payload_bytes, 0});
  }
  Status join(ConnectionId from, uint32_t worker, std::vector<uint32_t> positions = {}) {
    addend_control_join join = message("ring", worker);
    join.positions = static_cast<uint32_t>(positions.size());
    return come(from, "one", join, std::move(positions));
  }
  void start_ring() {
    ASSERT_TRUE(join(10, 0));
    ASSERT_TRUE(join(11, 1));
    ASSERT_EQ(sink_.of(ADDEND_CONTROL_WELCOME).size(), 2u);
  }
  void start_ring_with_quorum(uint32_t quorum) {
    addend_control_join first = message("ring", 0), second = message("ring", 1);
    first.job.quorum = second.job.quorum = quorum;
    first.job.patience_ns = second.job.patience_ns = 1000;
    ASSERT_TRUE(come(10, "one", first, {}));
    ASSERT_TRUE(come(11, "one", second, {}));
  }

  SentMessages sink_;
  FakeDataThreads threads_;
  net::Address peer_ = *net::resolve("10.1.2.3", 1);
  Registry registry_{tenants(), 77, threads_, sink_,
                     [](LogLevel, std::string_view, std::span<const LogField>) {}};
};

}  // namespace addend::service
