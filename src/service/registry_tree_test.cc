// SPDX-License-Identifier: Apache-2.0
// The registry of a leaf.
#include "tests/support/registry_fixture.h"

namespace addend::service {
namespace {

class FakeNextServer final : public NextServer {
 public:
  uint32_t leaf() const override { return 1; }
  uint32_t leaves() const override { return 2; }
  void join(uint32_t number, const std::string& name, const JobOptions& options,
            std::vector<uint32_t> positions) override {
    joins.push_back({number, name, options, std::move(positions)});
  }
  void leave(uint32_t number, bool done) override { left.push_back({number, done}); }

  struct Join {
    uint32_t number;
    std::string name;
    JobOptions options;
    std::vector<uint32_t> positions;
  };
  std::vector<Join> joins;
  std::vector<std::pair<uint32_t, bool>> left;
};

// This server is the second of two leaves, so of four workers it has 2 and 3.
class LeafTest : public RegistryTest {
 protected:
  Status join_leaf(ConnectionId from, uint32_t worker, std::vector<uint32_t> positions = {},
                   uint32_t payload_bytes = 64) {
    addend_control_join join = message("ring", worker, 4);
    join.positions = static_cast<uint32_t>(positions.size());
    ADDEND_TRY(leaf_.join(from, "one", peer_, join, std::move(positions)));
    return leaf_.path(from, {payload_bytes, 0});
  }
  static std::shared_ptr<Upstream> upstream(std::vector<uint32_t> positions = {}) {
    auto upstream = std::make_shared<Upstream>();
    upstream->welcome.slots = 10;
    upstream->welcome.payload_bytes = 48;
    upstream->welcome.ops = ~0u;
    upstream->positions = std::move(positions);
    return upstream;
  }
  void start_leaf() {
    ASSERT_TRUE(join_leaf(10, 2));
    ASSERT_TRUE(join_leaf(11, 3));
    leaf_.upstream_joined(1, upstream());
    ASSERT_EQ(sink_.of(ADDEND_CONTROL_WELCOME).size(), 2u);
  }

  FakeNextServer next_;
  Registry leaf_{tenants(),
                 77,
                 threads_,
                 sink_,
                 [](LogLevel, std::string_view, std::span<const LogField>) {},
                 {},
                 &next_};
};

TEST_F(LeafTest, WorkersAreWelcomeWhenTheNextServerHasLetTheLeafIn) {
  ASSERT_TRUE(join_leaf(10, 2, {}, 56));
  EXPECT_TRUE(next_.joins.empty());
  ASSERT_TRUE(join_leaf(11, 3));
  ASSERT_EQ(next_.joins.size(), 1u);
  EXPECT_EQ(next_.joins[0].name, "one.ring");
  EXPECT_EQ(next_.joins[0].options.payload_bytes, 56u);
  EXPECT_TRUE(sink_.of(ADDEND_CONTROL_WELCOME).empty());
  leaf_.upstream_joined(next_.joins[0].number, upstream());
  const auto messages = sink_.of(ADDEND_CONTROL_WELCOME);
  ASSERT_EQ(messages.size(), 2u);
  const auto welcome = messages[0].as<addend_control_welcome>();
  EXPECT_EQ(welcome.first_worker, 2u);
  EXPECT_EQ(welcome.world, 2u);
  EXPECT_EQ(welcome.payload_bytes, 48u);
  EXPECT_TRUE(threads_.last->slots.relays);
  EXPECT_EQ(threads_.last->slots.world, 2u);
}

TEST_F(LeafTest, WhereWorkersDoNotDivideEachIsOneLeafs) {
  const auto join = [&](uint32_t worker) -> Status {
    ADDEND_TRY(leaf_.join(8 + worker, "one", peer_, message("ring", worker, 5), {}));
    return leaf_.path(8 + worker, {64, 0});
  };
  EXPECT_FALSE(join(1));
  EXPECT_TRUE(join(2));
  EXPECT_TRUE(join(3));
  EXPECT_TRUE(next_.joins.empty());
  EXPECT_TRUE(join(4));
  EXPECT_EQ(next_.joins.size(), 1u);
}

TEST_F(LeafTest, PositionsGoUpAndThoseOfAllLeavesComeDown) {
  ASSERT_TRUE(join_leaf(10, 2, std::vector<uint32_t>(10, 7)));
  ASSERT_TRUE(join_leaf(11, 3, std::vector<uint32_t>(10, 8)));
  EXPECT_EQ(next_.joins[0].positions, std::vector<uint32_t>(10, 7));
  leaf_.upstream_joined(1, upstream(std::vector<uint32_t>(10, 6)));
  EXPECT_EQ(sink_.of(ADDEND_CONTROL_WELCOME)[0].numbers, std::vector<uint32_t>(10, 6));
}

TEST_F(LeafTest, AWorkerThatGoesMeanwhileTakesTheLeafBack) {
  ASSERT_TRUE(join_leaf(10, 2));
  ASSERT_TRUE(join_leaf(11, 3));
  leaf_.lost(11);
  EXPECT_EQ(next_.left, (std::vector<std::pair<uint32_t, bool>>{{1, false}}));
  leaf_.upstream_joined(1, upstream());  // was on its way
  EXPECT_TRUE(sink_.of(ADDEND_CONTROL_WELCOME).empty());
  ASSERT_TRUE(join_leaf(12, 3));
  ASSERT_EQ(next_.joins.size(), 2u);
  leaf_.upstream_joined(2, upstream());
  EXPECT_EQ(sink_.of(ADDEND_CONTROL_WELCOME).size(), 2u);
}

TEST_F(LeafTest, APathSaidTwiceDoesNotAskTheNextServerAgain) {
  ASSERT_TRUE(join_leaf(10, 2));
  ASSERT_TRUE(join_leaf(11, 3));
  const Status again = leaf_.path(11, {64, 0});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Errc::kMalformed);
  EXPECT_EQ(next_.joins.size(), 1u);
}

TEST_F(LeafTest, ANameThatIsTooLongThereIsRefusedToAllWorkers) {
  const std::string name(61, 'x');
  for (const uint32_t worker : {2u, 3u}) {
    ASSERT_TRUE(leaf_.join(8 + worker, "one", peer_, message(name.c_str(), worker, 4), {}));
    ASSERT_TRUE(leaf_.path(8 + worker, {64, 0}));
  }
  EXPECT_TRUE(next_.joins.empty());
  const auto failed = sink_.of(ADDEND_CONTROL_FAILED);
  ASSERT_EQ(failed.size(), 2u);
  EXPECT_EQ(failed[0].as<addend_control_failed>().code,
            static_cast<uint32_t>(Errc::kInvalidArgument));
  EXPECT_TRUE(leaf_.empty());
}

TEST_F(LeafTest, LeavesAreNumberedInTheirWholeLevel) {
  ASSERT_TRUE(join_leaf(10, 2));
  ASSERT_TRUE(join_leaf(11, 3));
  auto middle = upstream();
  middle->welcome.first_worker = 6;  // the next server is a leaf, too, and not the first
  leaf_.upstream_joined(1, middle);
  leaf_.upstream_ended(1, {ADDEND_NOTICE_CLOSED, 1});
  EXPECT_EQ(sink_.of(ADDEND_CONTROL_ENDED)[0].as<addend_control_ended>().worker, 7u);
  // Of the level above, as the next server was told it.
  ASSERT_TRUE(join_leaf(10, 2));
  ASSERT_TRUE(join_leaf(11, 3));
  leaf_.upstream_joined(2, middle);
  leaf_.upstream_ended(2, {ADDEND_NOTICE_CLOSED | ADDEND_NOTICE_LEAF, 1});
  EXPECT_EQ(sink_.of(ADDEND_CONTROL_ENDED)[2].as<addend_control_ended>().worker, 1u);
}

TEST_F(LeafTest, TheEndOfOneEpochIsTheEndOfTheOther) {
  start_leaf();
  leaf_.upstream_ended(1, {ADDEND_NOTICE_CLOSED, 0});
  const auto ended = sink_.of(ADDEND_CONTROL_ENDED);
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].as<addend_control_ended>().notice,
            uint32_t{ADDEND_NOTICE_CLOSED} | ADDEND_NOTICE_LEAF);
  EXPECT_EQ(next_.left.size(), 1u);
  // And the other way round.
  ASSERT_TRUE(join_leaf(10, 2));
  ASSERT_TRUE(join_leaf(11, 3));
  leaf_.upstream_joined(2, upstream());
  leaf_.lost(10);
  EXPECT_EQ(next_.left.back(), (std::pair<uint32_t, bool>{2, false}));
  leaf_.leave(11);
  EXPECT_TRUE(leaf_.empty());
}

TEST_F(LeafTest, WhenTheLastWorkerHasLeftTheLeafDoes) {
  start_leaf();
  leaf_.leave(10);
  EXPECT_TRUE(next_.left.empty());
  leaf_.leave(11);
  EXPECT_EQ(next_.left, (std::vector<std::pair<uint32_t, bool>>{{1, true}}));
  EXPECT_TRUE(leaf_.empty());
}

TEST_F(LeafTest, ANextServerThatGoesMakesWorkersComeBack) {
  start_leaf();
  leaf_.upstream_gone(1);
  EXPECT_EQ(sink_.cuts, (std::vector<ConnectionId>{10, 11}));
  EXPECT_TRUE(sink_.of(ADDEND_CONTROL_ENDED).empty());
  EXPECT_TRUE(threads_.live.empty());
  leaf_.lost(10);  // what closing it says, too
  ASSERT_TRUE(join_leaf(12, 2, std::vector<uint32_t>(10, 3)));
  ASSERT_TRUE(join_leaf(13, 3, std::vector<uint32_t>(10, 3)));
  EXPECT_EQ(next_.joins.size(), 2u);
}

TEST_F(LeafTest, ANextServerThatRefusesIsNamedToAllWorkers) {
  ASSERT_TRUE(join_leaf(10, 2));
  ASSERT_TRUE(join_leaf(11, 3));
  leaf_.upstream_joined(1, make_error(Errc::kCapacity, "no room"));
  const auto failed = sink_.of(ADDEND_CONTROL_FAILED);
  ASSERT_EQ(failed.size(), 2u);
  EXPECT_EQ(net::get_text(failed[0].as<addend_control_failed>().text), "next server: no room");
  EXPECT_TRUE(leaf_.empty());
}

TEST_F(LeafTest, OtherSlotsThereAreRefused) {
  ASSERT_TRUE(join_leaf(10, 2));
  ASSERT_TRUE(join_leaf(11, 3));
  auto other = upstream();
  other->welcome.slots = 11;
  leaf_.upstream_joined(1, other);
  EXPECT_EQ(sink_.of(ADDEND_CONTROL_FAILED).size(), 2u);
}

}  // namespace
}  // namespace addend::service
