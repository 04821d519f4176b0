// SPDX-License-Identifier: Apache-2.0
#include "service/control.h"

#include <latch>

#include "auth/control_client.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/spawn.h"

namespace addend::service {
namespace {

using auth::ControlClient;
using testing_support::far;
using testing_support::key_of;

/// A control plane whose data threads do nothing.
class ControlTest : public RegistryTest {
 protected:
  void SetUp() override {
    const LogSink log = [](LogLevel, std::string_view, std::span<const LogField>) {};
    auto control = Control::start(
        {*net::resolve("127.0.0.1", 0), 16, std::nullopt},
        [&](MessageSink& sink) {
          return std::make_unique<Registry>(tenants(), 77, threads_, sink, log);
        },
        [](std::span<const JobView>, std::span<addend_control_status>) {}, log);
    ASSERT_TRUE(control) << control.error().message;
    control_ = *std::move(control);
  }
  std::unique_ptr<ControlClient> connect(const char* identity, uint8_t key) const {
    const std::string at = "127.0.0.1:" + std::to_string(control_->port());
    auto client = ControlClient::connect({at, identity, key_of(key), {}}, far());
    EXPECT_TRUE(client) << client.error().message;
    return *std::move(client);
  }
  static addend_control_type type_of_next(ControlClient& client) {
    const auto message = client.receive(far());
    EXPECT_TRUE(message) << message.error().message;
    return message ? message->type : ADDEND_CONTROL_FAILED;
  }
  /// The only worker of a job, in its epoch.
  static void join(ControlClient& client) {
    ASSERT_TRUE(client.send(ADDEND_CONTROL_JOIN, message("alone", 0, 1), {}, far()));
    ASSERT_EQ(type_of_next(client), ADDEND_CONTROL_PROBE);
    ASSERT_TRUE(client.send(ADDEND_CONTROL_PATH, addend_control_path{64, 0}, {}, far()));
    ASSERT_EQ(type_of_next(client), ADDEND_CONTROL_WELCOME);
  }
  static void list(ControlClient& client, int times) {
    for (int i = 0; i < times; ++i)
      ASSERT_TRUE(client.send(ADDEND_CONTROL_LIST, far()));
  }
  static void expect_lists(ControlClient& client, int times) {
    for (int i = 0; i < times;)
      i += type_of_next(client) == ADDEND_CONTROL_DONE ? 1 : 0;
  }

  std::unique_ptr<Control> control_;
};

TEST_F(ControlTest, WhatAConnectionCostsAsItEndsIsItsOwnTenants) {
  threads_.when_ended = [] {
    const auto until = worked() + std::chrono::milliseconds(400);
    while (worked() < until) {
    }
  };
  auto worker = connect("one", 1);
  join(*worker);
  const auto other = connect("two", 2), another = connect("one", 1);
  for (ControlClient* client : {other.get(), another.get()}) {
    list(*client, 1);
    expect_lists(*client, 1);
  }
  // All of it is there when the thread looks again.
  std::latch busy(1), free(1);
  control_->post([&](Registry&) {
    busy.count_down();
    free.wait();
  });
  busy.wait();
  list(*other, 2);
  list(*another, 2);
  worker.reset();
  free.count_down();
  expect_lists(*other, 2);
  // That tenant has to wait for several seconds now.
  const auto next = another->receive(std::chrono::steady_clock::now());
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().code, Errc::kTimeout) << next.error().message;
}

}  // namespace
}  // namespace addend::service
