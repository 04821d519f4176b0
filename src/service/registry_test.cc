// SPDX-License-Identifier: Apache-2.0
#include "service/registry.h"

#include <cstring>

#include "tests/support/registry_fixture.h"

namespace addend::service {
namespace {

using testing_support::key_of;

TEST_F(RegistryTest, AnEpochBeginsWhenTheLastWorkerHasJoined) {
  ASSERT_TRUE(join(10, 0));
  EXPECT_TRUE(sink_.of(ADDEND_CONTROL_WELCOME).empty());
  ASSERT_TRUE(join(11, 1));
  const auto messages = sink_.of(ADDEND_CONTROL_WELCOME);
  ASSERT_EQ(messages.size(), 2u);
  const auto first = messages[0].as<addend_control_welcome>();
  const auto second = messages[1].as<addend_control_welcome>();
  EXPECT_EQ(first.epoch, second.epoch);
  EXPECT_EQ(first.boot, 77u);
  EXPECT_EQ(first.threads, 3u);
  EXPECT_EQ(first.port[2], 9002);
  EXPECT_NE(std::memcmp(first.worker_secret, second.worker_secret, 32), 0);
  EXPECT_EQ(std::memcmp(first.result_secret, second.result_secret, 32), 0);
  EXPECT_EQ(threads_.last->workers[1].to_string(), "10.1.2.3:5001");
}

TEST_F(RegistryTest, AJobOfItsWorkersGoesWhenTheyLeave) {
  start_ring();
  registry_.leave(10);
  EXPECT_EQ(threads_.left, (std::vector<uint32_t>{0}));
  EXPECT_EQ(threads_.live.size(), 1u);
  registry_.leave(11);
  EXPECT_TRUE(registry_.empty());
  EXPECT_TRUE(threads_.live.empty());
}

TEST_F(RegistryTest, ALostWorkerEndsTheEpochAndIsNamed) {
  start_ring();
  registry_.lost(11);
  EXPECT_EQ(threads_.ended, (std::vector<uint32_t>{1}));
  const auto messages = sink_.of(ADDEND_CONTROL_ENDED);
  ASSERT_FALSE(messages.empty());
  EXPECT_EQ(messages[0].to, 10u);
  EXPECT_EQ(messages[0].as<addend_control_ended>().worker, 1u);
}

TEST_F(RegistryTest, WithAQuorumTheOthersGoOn) {
  start_ring_with_quorum(1);
  registry_.lost(11);
  EXPECT_TRUE(threads_.ended.empty());
  EXPECT_EQ(threads_.live.size(), 1u);
}

TEST_F(RegistryTest, FewerThanAQuorumAreToldAtOnce) {
  start_ring_with_quorum(2);
  registry_.lost(11);
  EXPECT_EQ(threads_.ended.size(), 1u);
  const auto messages = sink_.of(ADDEND_CONTROL_ENDED);
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].to, 10u);
  EXPECT_EQ(messages[0].as<addend_control_ended>().worker, 1u);
}

// Whose machine no longer answers may be back soon, and whoever is told of an end fails.
TEST_F(RegistryTest, FewerThanAQuorumAreLetGoIfTheOthersMayComeBack) {
  start_ring_with_quorum(2);
  const uint32_t before = threads_.last->slots.epoch;
  registry_.lost(11, true);
  EXPECT_TRUE(sink_.of(ADDEND_CONTROL_ENDED).empty());
  EXPECT_EQ(sink_.cuts, (std::vector<ConnectionId>{10}));
  EXPECT_TRUE(threads_.live.empty());
  addend_control_join again = message("ring", 0);
  again.job.quorum = 2;
  again.job.patience_ns = 1000;
  ASSERT_TRUE(come(12, "one", again, std::vector<uint32_t>(10, 0)));
  again.worker = 1;
  ASSERT_TRUE(come(13, "one", again, std::vector<uint32_t>(10, 0)));
  EXPECT_NE(threads_.last->slots.epoch, before);
}

TEST_F(RegistryTest, WithoutAQuorumASilentWorkerIsNamed) {
  start_ring();
  registry_.lost(11, true);
  EXPECT_EQ(sink_.of(ADDEND_CONTROL_ENDED).size(), 1u);
  EXPECT_TRUE(sink_.cuts.empty());
}

TEST_F(RegistryTest, AWorkerThatComesBackDoesNotEndWhatAQuorumGoesOnWith) {
  start_ring_with_quorum(1);
  registry_.lost(11);
  const Status back = join(12, 1, std::vector<uint32_t>(10, 0));
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, Errc::kUnavailable);
  EXPECT_NE(back.error().message.find("worker 1 was left behind"), std::string::npos);
  EXPECT_TRUE(threads_.ended.empty());
  EXPECT_EQ(threads_.live.size(), 1u);
}

TEST_F(RegistryTest, AQuorumWithoutPatienceIsRefused) {
  addend_control_join first = message("ring", 0);
  first.job.quorum = 1;
  first.job.patience_ns = 0;
  EXPECT_FALSE(come(10, "one", first, {}));
}

TEST_F(RegistryTest, AWorkerThatIsThereIsNotPushedOut) {
  start_ring();
  EXPECT_EQ(registry_.holder_of(12, "one", message("ring", 1)), 11u);
  EXPECT_EQ(registry_.holder_of(11, "one", message("ring", 1)), 0u);
  EXPECT_EQ(registry_.holder_of(12, "two", message("ring", 1)), 0u);
  EXPECT_EQ(registry_.holder_of(12, "one", message("ring", 7)), 0u);
  const Status status = join(12, 1);
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("worker 1 of job ring is there already"),
            std::string::npos);
  EXPECT_TRUE(threads_.ended.empty());
  registry_.lost(12);
  EXPECT_TRUE(threads_.ended.empty());
}

TEST_F(RegistryTest, JoiningAgainAfterADeathGathersAnew) {
  start_ring();
  const uint32_t before = threads_.last->slots.epoch;
  registry_.lost(11);
  ASSERT_TRUE(join(12, 1));
  EXPECT_EQ(threads_.ended.size(), 1u);
  ASSERT_TRUE(join(10, 0));
  EXPECT_NE(threads_.last->slots.epoch, before);
  EXPECT_EQ(threads_.live.size(), 1u);
}

TEST_F(RegistryTest, WorkersGoOnWhereTheLastOfThemIs) {
  std::vector<uint32_t> ahead(10, 5), behind(10, 5);
  behind[3] = 4;
  ASSERT_TRUE(join(10, 0, ahead));
  ASSERT_TRUE(join(11, 1, behind));
  const auto messages = sink_.of(ADDEND_CONTROL_WELCOME);
  EXPECT_EQ(messages[0].numbers, behind);
  EXPECT_EQ(messages[0].as<addend_control_welcome>().flags, 0u);
}

TEST_F(RegistryTest, AWorkerWithoutAPlaceMakesAllStartAnew) {
  ASSERT_TRUE(join(10, 0, std::vector<uint32_t>(10, 5)));
  ASSERT_TRUE(join(11, 1));
  const auto messages = sink_.of(ADDEND_CONTROL_WELCOME);
  EXPECT_EQ(messages[0].as<addend_control_welcome>().flags, ADDEND_CONTROL_FRESH);
  EXPECT_TRUE(messages[0].numbers.empty());
}

TEST_F(RegistryTest, PlacesTooFarApartCannotBeJoined) {
  ASSERT_TRUE(join(10, 0, std::vector<uint32_t>(10, 5)));
  ASSERT_TRUE(join(11, 1, std::vector<uint32_t>(10, 3)));
  EXPECT_EQ(sink_.of(ADDEND_CONTROL_WELCOME)[0].as<addend_control_welcome>().flags,
            ADDEND_CONTROL_FRESH);
}

TEST_F(RegistryTest, PositionsOfAnotherNumberOfSlotsAreRefused) {
  ASSERT_TRUE(join(10, 0));
  const Status status = join(11, 1, std::vector<uint32_t>(65536, 5));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kMismatch);
  EXPECT_NE(status.error().message.find("10 slots"), std::string::npos);
}

TEST_F(RegistryTest, PositionsCountAgainstTheMemoryOfATenant) {
  // Few bytes of payload, so that a job of many workers is mostly their positions.
  addend_control_job job = message("wide", 0, 64, 8).job;
  job.payload_bytes = 8;
  uint32_t jobs = 0;
  TenantOptions small;
  small.name = "small";
  small.max_jobs = small.max_slots = 1000;
  small.max_memory_bytes = 1 << 16;
  Registry registry{
      {small}, 77, threads_, sink_, [](LogLevel, std::string_view, std::span<const LogField>) {}};
  for (; jobs < 1000; ++jobs) {
    net::put_text(job.name, "wide" + std::to_string(jobs));
    const Status status = registry.create("small", job);
    if (status) continue;
    EXPECT_EQ(status.error().code, Errc::kCapacity);
    break;
  }
  EXPECT_LE(jobs * 64 * 8 * 2 * sizeof(uint32_t), small.max_memory_bytes);
  EXPECT_GT(jobs, 5u);
}

TEST_F(RegistryTest, AJoinThatIsRefusedLeavesNoJob) {
  const auto refused = [&](ConnectionId from, const addend_control_join& join) {
    return !registry_.join(from, "one", peer_, join, std::vector<uint32_t>(join.positions));
  };
  EXPECT_TRUE(refused(10, message("a", 2)));
  addend_control_join bad = message("b", 0);
  bad.udp_port = 0;
  EXPECT_TRUE(refused(10, bad));
  bad.udp_port = 65536;
  EXPECT_TRUE(refused(10, bad));
  bad = message("c", 0);
  bad.positions = 11;
  EXPECT_TRUE(refused(10, bad));
  EXPECT_TRUE(registry_.empty());
  ASSERT_TRUE(join(10, 0));
  EXPECT_TRUE(refused(10, message("d", 0)));
  EXPECT_EQ(registry_.jobs().size(), 1u);
}

TEST_F(RegistryTest, TenantsHaveLimits) {
  const auto create = [&](const char* tenant, const char* name, uint32_t slots, uint32_t flags) {
    addend_control_job job = message(name, 0, 2, slots).job;
    job.flags = flags;
    const Status status = registry_.create(tenant, job);
    return status ? std::string("ok") : std::string(errc_name(status.error().code));
  };
  EXPECT_EQ(create("one", "a", 30, 0), "ok");
  EXPECT_EQ(create("one", "a", 1, 0), "invalid_argument");
  EXPECT_EQ(create("one", "b", 11, 0), "capacity");
  EXPECT_EQ(create("one", "b", 10, 0), "ok");
  EXPECT_EQ(create("one", "c", 1, 0), "capacity");
  EXPECT_EQ(create("two", "a", 1, ADDEND_CONTROL_FLOATS), "unsupported");
  EXPECT_EQ(create("two", "a", 1, 0), "ok");
  EXPECT_EQ(create("two", "no spaces", 1, 0), "invalid_argument");
  EXPECT_EQ(create("two", "", 1, 0), "invalid_argument");
  EXPECT_EQ(create("two", "z", 0, 0), "invalid_argument");
  EXPECT_EQ(create("one/a", "x", 1, 0), "unavailable");
  EXPECT_EQ(create("nobody", "x", 1, 0), "unavailable");
}

TEST_F(RegistryTest, WorkersWhoseTenantForbidsFloatsMakeAJobOfIntegers) {
  constexpr uint32_t kFloats =
      1u << ADDEND_OP_SUM_F32 | 1u << ADDEND_OP_SUM_BF16 | 1u << ADDEND_OP_SUM_F16;
  const auto ops = [&](const char* tenant, ConnectionId from) {
    addend_control_join join = message("solo", 0, 1);
    join.job.flags = ADDEND_CONTROL_FLOATS;
    EXPECT_TRUE(come(from, tenant, join, {}));
    return threads_.last->slots.ops;
  };
  EXPECT_EQ(ops("one", 10) & kFloats, kFloats);
  EXPECT_EQ(ops("two", 11) & kFloats, 0u);
  EXPECT_EQ(ops("two", 11) | kFloats, ops("one", 10));
}

TEST_F(RegistryTest, AJobsOwnKeyOpensThatJobOnly) {
  addend_control_job job = message("ring", 0).job;
  job.flags = ADDEND_CONTROL_OWN_KEY;
  std::memset(job.key, 9, sizeof(job.key));
  ASSERT_TRUE(registry_.create("one", job));
  const auto key = registry_.key_of("one/ring");
  ASSERT_TRUE(key);
  EXPECT_EQ(key->bytes()[0], 9);
  EXPECT_FALSE(registry_.key_of("one/other"));
  EXPECT_FALSE(registry_.key_of("two/ring"));
  EXPECT_FALSE(registry_.key_of("boss"));  // certificates only
  EXPECT_TRUE(come(10, "one/ring", message("ring", 0), {}));
  EXPECT_FALSE(come(11, "one/ring", message("other", 0), {}));
  // A job of the same name is another one under another tenant.
  EXPECT_TRUE(come(12, "two", message("ring", 0, 3), {}));
  EXPECT_EQ(registry_.jobs_of("two").size(), 1u);
  EXPECT_EQ(registry_.jobs_of("boss").size(), 2u);
}

TEST_F(RegistryTest, WorkersThatDisagreeOnTheirNumberAreToldSo) {
  ASSERT_TRUE(join(10, 0));
  const Status status = come(11, "one", message("ring", 1, 3), {});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, Errc::kMismatch);
}

TEST_F(RegistryTest, EqualTablesHaveOneNumber) {
  start_ring();
  addend_control_table table{};
  EXPECT_EQ(*registry_.table(10, table), 0u);
  EXPECT_EQ(*registry_.table(11, table), 0u);
  table.entries[3] = 7;
  EXPECT_EQ(*registry_.table(11, table), 1u);
  EXPECT_EQ(threads_.tables, (std::vector<uint32_t>{0, 1}));
  for (uint16_t i = 0; i < 14; ++i) {
    table.entries[0] = static_cast<uint16_t>(100 + i);
    ASSERT_TRUE(registry_.table(10, table));
  }
  table.entries[0] = 999;
  EXPECT_FALSE(registry_.table(10, table));
  EXPECT_FALSE(registry_.table(99, table));
}

TEST_F(RegistryTest, ADrainedJobTakesNobodyAndGoesWithItsLastWorker) {
  start_ring();
  EXPECT_FALSE(registry_.drain("two", which("ring")));
  EXPECT_FALSE(registry_.drain("boss", which("ring", "two")));
  EXPECT_TRUE(registry_.drain("boss", which("ring")));
  EXPECT_FALSE(join(12, 0));
  registry_.leave(10);
  registry_.leave(11);
  EXPECT_TRUE(registry_.empty());
}

TEST_F(RegistryTest, WhoSeesAllSaysWhoseJobIsDrained) {
  const auto make = [&](const char* tenant) {
    EXPECT_TRUE(registry_.create(tenant, message("ring", 0).job));
  };
  make("one");
  make("two");
  const Status unclear = registry_.drain("boss", which("ring"));
  ASSERT_FALSE(unclear);
  EXPECT_NE(unclear.error().message.find("one/ring or two/ring"), std::string::npos)
      << unclear.error().message;
  EXPECT_FALSE(registry_.drain("one", which("ring", "two")));
  EXPECT_TRUE(registry_.drain("boss", which("ring", "two")));
  ASSERT_EQ(registry_.jobs().size(), 1u);
  EXPECT_EQ(registry_.jobs()[0].tenant, "one");
  make("two");
  make("boss");
  EXPECT_TRUE(registry_.drain("boss", which("ring")));  // its own
  EXPECT_EQ(registry_.jobs().size(), 2u);
}

TEST_F(RegistryTest, ClosingEndsEverythingAndLeavesNothingBehind) {
  start_ring();
  ASSERT_TRUE(registry_.create("two", message("idle", 0).job));
  registry_.close();
  EXPECT_EQ(registry_.jobs().size(), 1u);
  EXPECT_FALSE(come(20, "two", message("late", 0), {}));
  registry_.end_all();
  EXPECT_TRUE(registry_.empty());
  EXPECT_TRUE(threads_.live.empty());
  EXPECT_EQ(sink_.of(ADDEND_CONTROL_ENDED).size(), 2u);
  registry_.lost(10);
}

// A registry whose jobs are kept, and one that takes them up.
class KeptJobsTest : public RegistryTest {
 protected:
  std::unique_ptr<Registry> make(std::vector<TenantOptions> tenants) {
    return std::make_unique<Registry>(
        std::move(tenants), 78, threads_, sink_,
        [](LogLevel, std::string_view, std::span<const LogField>) {},
        [this](std::span<const uint8_t> state) {
          if (!fails_) saved_.assign(state.begin(), state.end());
          return fails_ ? Status(make_error(Errc::kIo, "no room")) : Status{};
        });
  }
  std::vector<std::string> names_after_restart(std::vector<TenantOptions> tenants) {
    const auto registry = make(std::move(tenants));
    EXPECT_TRUE(registry->restore(saved_));
    std::vector<std::string> names;
    for (const JobView& view : registry->jobs())
      names.push_back(view.tenant + "/" + view.name);
    return names;
  }
  std::vector<uint8_t> saved_;
  bool fails_ = false;
};

TEST_F(KeptJobsTest, JobsOfOperatorsOutliveTheServerAndThoseOfWorkersDoNot) {
  const auto before = make(tenants());
  addend_control_job job = message("own", 0).job;
  job.flags = ADDEND_CONTROL_OWN_KEY;
  std::memset(job.key, 9, sizeof(job.key));
  ASSERT_TRUE(before->create("one", job));
  ASSERT_TRUE(before->join(10, "one", peer_, message("ring", 0), {}));
  EXPECT_EQ(names_after_restart(tenants()), (std::vector<std::string>{"one/own"}));
  const auto after = make(tenants());
  ASSERT_TRUE(after->restore(saved_));
  EXPECT_EQ(after->key_of("one/own")->bytes()[0], 9);
  ASSERT_TRUE(after->drain("one", which("own")));
  EXPECT_TRUE(names_after_restart(tenants()).empty());
}

TEST_F(KeptJobsTest, LimitsBindNewJobsAndNotThoseThatWereThere) {
  const auto before = make(tenants());
  ASSERT_TRUE(before->create("one", message("a", 0, 2, 30).job));
  std::vector<TenantOptions> narrow = tenants();
  narrow[0].max_slots = 20;
  EXPECT_EQ(names_after_restart(narrow).size(), 1u);
  narrow.erase(narrow.begin());
  EXPECT_TRUE(names_after_restart(narrow).empty());
}

TEST_F(KeptJobsTest, WhatCannotBeKeptIsRefused) {
  const auto registry = make(tenants());
  fails_ = true;
  EXPECT_EQ(registry->create("one", message("a", 0).job).error().code, Errc::kIo);
  EXPECT_TRUE(registry->empty());
  fails_ = false;
  ASSERT_TRUE(registry->create("one", message("a", 0).job));
  fails_ = true;
  EXPECT_FALSE(registry->drain("one", which("a")));
  EXPECT_FALSE(registry->jobs()[0].draining);
}

TEST_F(KeptJobsTest, OnlyWorkersThatWereThereComeBackToADrainingJob) {
  const auto before = make(tenants());
  ASSERT_TRUE(before->join(10, "one", peer_, message("ring", 0), {}));
  ASSERT_TRUE(before->drain("one", which("ring")));
  const auto after = make(tenants());
  ASSERT_TRUE(after->restore(saved_));
  EXPECT_FALSE(after->join(20, "one", peer_, message("ring", 0), {}));
  addend_control_join back = message("ring", 0);
  back.positions = 10;
  EXPECT_TRUE(after->join(21, "one", peer_, back, std::vector<uint32_t>(10, 3)));
}

TEST_F(KeptJobsTest, JobsOfATenantThatIsNoMoreEnd) {
  start_ring();
  std::vector<TenantOptions> others = tenants();
  others.erase(others.begin());
  registry_.set_tenants(others);
  EXPECT_TRUE(registry_.empty());
  EXPECT_TRUE(threads_.live.empty());
  EXPECT_EQ(sink_.of(ADDEND_CONTROL_ENDED).size(), 2u);
  EXPECT_FALSE(join(12, 0));
}

TEST_F(RegistryTest, AThousandJobsComeAndGo) {
  for (ConnectionId i = 0; i < 1000; ++i) {
    const std::string name = "job" + std::to_string(i);
    ASSERT_TRUE(come(100 + 2 * i, "one", message(name.c_str(), 0), {}));
    ASSERT_TRUE(come(101 + 2 * i, "one", message(name.c_str(), 1), {}));
    registry_.leave(100 + 2 * i);
    registry_.lost(101 + 2 * i);
  }
  EXPECT_TRUE(registry_.empty());
  EXPECT_TRUE(threads_.live.empty());
}

TEST_F(RegistryTest, AnEpochHasThePayloadThatEveryPathCarries) {
  ASSERT_TRUE(come(10, "one", message("ring", 0), {}, 48));
  EXPECT_EQ(registry_.jobs()[0].payload_bytes, 64u);
  ASSERT_TRUE(come(11, "one", message("ring", 1), {}, 56));
  EXPECT_EQ(threads_.last->slots.payload_bytes, 48u);
  EXPECT_EQ(registry_.jobs()[0].payload_bytes, 48u);
  for (const SentMessage& message : sink_.of(ADDEND_CONTROL_WELCOME))
    EXPECT_EQ(message.as<addend_control_welcome>().payload_bytes, 48u);
  // The next epoch is not bound by this one's paths.
  ASSERT_TRUE(come(11, "one", message("ring", 1), {}));
  ASSERT_TRUE(come(10, "one", message("ring", 0), {}));
  EXPECT_EQ(threads_.last->slots.payload_bytes, 64u);
}

TEST_F(RegistryTest, AWorkerIsAskedToProbeEveryThreadWithAKeyOfItsOwn) {
  ASSERT_TRUE(registry_.join(10, "one", peer_, message("ring", 0), {}));
  ASSERT_TRUE(registry_.join(11, "one", peer_, message("ring", 1), {}));
  const auto messages = sink_.of(ADDEND_CONTROL_PROBE);
  ASSERT_EQ(messages.size(), 2u);
  const auto probe = messages[1].as<addend_control_probe>();
  EXPECT_EQ(messages[1].to, 11u);
  EXPECT_EQ(probe.threads, 3u);
  EXPECT_EQ(probe.port[2], 9002);
  EXPECT_EQ(probe.payload_bytes, 64u);
  EXPECT_NE(std::memcmp(probe.secret, messages[0].as<addend_control_probe>().secret, 32), 0);
  ASSERT_EQ(threads_.probes.size(), 2u);
  EXPECT_EQ(threads_.probes[1]->number, probe.number);
  EXPECT_EQ(threads_.probes[1]->worker.to_string(), "10.1.2.3:5001");
}

TEST_F(RegistryTest, AWorkerWhoseDatagramsDoNotPassIsNamedToAll) {
  struct Case {
    uint64_t heard;
    bool misdirected;
    const char* words;
  };
  const Case cases[] = {
      {0, false, "worker 1's datagrams do not arrive at the server: UDP port 9000 blocked?"},
      {0b101, false, "worker 1's datagrams do not arrive at the server: UDP port 9001 blocked?"},
      {0b111, false, "the server's datagrams do not arrive at worker 1: UDP port 5001 blocked?"},
      {0, true, "worker 1's datagrams come from another address than its connection"}};
  for (const Case& one : cases) {
    sink_.all.clear();
    ASSERT_TRUE(join(10, 0));
    ASSERT_TRUE(registry_.join(11, "one", peer_, message("ring", 1), {}));
    threads_.probes.back()->heard = one.heard;
    threads_.probes.back()->misdirected = one.misdirected;
    const Status status = registry_.path(11, {0, 0});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kUnavailable);
    EXPECT_NE(status.error().message.find(one.words), std::string::npos) << status.error().message;
    const auto messages = sink_.of(ADDEND_CONTROL_FAILED);
    ASSERT_EQ(messages.size(), 1u);
    EXPECT_EQ(messages[0].to, 10u);
    EXPECT_EQ(net::get_text(messages[0].as<addend_control_failed>().text), status.error().message);
    EXPECT_TRUE(registry_.empty());
  }
}

TEST_F(RegistryTest, APathThatNobodyAskedForIsRefused) {
  EXPECT_FALSE(registry_.path(10, {64, 0}));
  ASSERT_TRUE(registry_.join(10, "one", peer_, message("ring", 0), {}));
  EXPECT_FALSE(registry_.path(10, {72, 0}));  // more than the job's
  EXPECT_FALSE(registry_.path(10, {63, 0}));
  ASSERT_TRUE(registry_.path(10, {64, 0}));
  ASSERT_TRUE(join(11, 1));
  EXPECT_FALSE(registry_.path(10, {64, 0}));  // the epoch has begun
}

}  // namespace
}  // namespace addend::service
