// SPDX-License-Identifier: Apache-2.0
#include "aggregate/slots.h"

#include <functional>

#include "gtest/gtest.h"
#include "tests/support/frames.h"

namespace addend::aggregate {
namespace {

using testing_support::contribution;
using testing_support::deliver;
using testing_support::Packet;

constexpr uint32_t kIntegers = 1u << ADDEND_OP_SUM_I32 | 1u << ADDEND_OP_TABLE_SUM_U8 |
                               1u << ADDEND_OP_TABLE_SUM_U16 | 1u << ADDEND_OP_SUM_U8;

SlotsOptions job_of(uint32_t world) {
  SlotsOptions options;
  options.epoch = 11;
  options.boot = 22;
  options.world = world;
  options.first_slot = 4;
  options.slots = 2;
  options.payload_bytes = 64;
  options.ops = kIntegers;
  return options;
}

std::vector<uint8_t> number(uint8_t value) { return {value, 0, 0, 0}; }

class SlotsTest : public ::testing::Test {
 protected:
  void start(const SlotsOptions& options) {
    options_ = options;
    auto slots = Slots::create(options);
    ASSERT_TRUE(slots);
    slots_ = std::make_unique<Slots>(*std::move(slots));
  }
  Packet packet(uint32_t worker, uint32_t turn, uint8_t value, uint32_t slot = 4) {
    return contribution(options_, worker, slot, turn, Op::kSumI32, number(value));
  }
  Outcome send(uint32_t worker, uint32_t turn, uint8_t value, uint32_t slot = 4) {
    return deliver(*slots_, packet(worker, turn, value, slot), now_);
  }
  uint8_t sum(const Outcome& outcome) { return outcome.reply.payload[0]; }

  SlotsOptions options_;
  std::unique_ptr<Slots> slots_;
  uint64_t now_ = 0;
};

TEST_F(SlotsTest, TheLastContributorRepliesToEveryone) {
  start(job_of(2));
  EXPECT_EQ(send(0, 0, 5).reply.audience, Audience::kNobody);
  const Outcome last = send(1, 0, 6);
  EXPECT_EQ(last.reply.audience, Audience::kEveryone);
  EXPECT_EQ(last.reply.header.kind, ADDEND_FRAME_RESULT);
  EXPECT_EQ(last.reply.header.contributors, 3u);
  EXPECT_EQ(last.reply.header.count, 2);
  EXPECT_EQ(last.reply.header.boot, 22u);
  EXPECT_EQ(sum(last), 11);
  EXPECT_EQ(slots_->counters().last[1], 1u);
}

TEST_F(SlotsTest, ADuplicateIsNotFoldedAndACompleteTurnIsAnsweredFromMemory) {
  start(job_of(2));
  (void)send(0, 0, 5);
  EXPECT_EQ(send(0, 0, 5).refusal, ADDEND_REFUSAL_DUPLICATE);
  (void)send(1, 0, 6);
  const Outcome again = send(0, 0, 5);
  EXPECT_EQ(again.reply.audience, Audience::kSender);
  EXPECT_EQ(sum(again), 11);
}

// With a one-bit turn number the late copy would count again: 1 + 100 + 100 instead of 100 x 3.
TEST_F(SlotsTest, ACopyThatIsTwoTurnsLateIsRefused) {
  start(job_of(3));
  const Packet late = packet(0, 0, 1);
  for (uint32_t worker = 0; worker < 3; ++worker)
    (void)send(worker, 0, 1);
  for (uint32_t worker = 0; worker < 3; ++worker)
    (void)send(worker, 1, 10);
  EXPECT_EQ(deliver(*slots_, late, now_).reply.audience, Audience::kSender);  // still kept
  (void)send(1, 2, 100);
  EXPECT_EQ(deliver(*slots_, late, now_).refusal, ADDEND_REFUSAL_TURN);
  (void)send(2, 2, 100);
  const auto last = send(0, 2, 100);
  EXPECT_EQ(last.reply.payload[0] + 256 * last.reply.payload[1], 300);
}

TEST_F(SlotsTest, ATurnDoesNotOpenBeforeTheOneBeforeItIsComplete) {
  start(job_of(2));
  (void)send(0, 0, 1);
  EXPECT_EQ(send(0, 1, 1).refusal, ADDEND_REFUSAL_TURN);
  EXPECT_EQ(send(0, 2, 1).refusal, ADDEND_REFUSAL_TURN);
  EXPECT_EQ(send(0, ~1u, 1).refusal, ADDEND_REFUSAL_TURN);  // the turn before the first
}

TEST_F(SlotsTest, TableSumsLookUpTheJobsTable) {
  start(job_of(2));
  Table table{};
  for (uint16_t i = 0; i < 16; ++i)
    table[i] = static_cast<uint16_t>(i * i);
  slots_->set_table(3, table);
  Packet one = contribution(options_, 0, 4, 0, Op::kTableSumU16, {0x21, 0x0F});
  one.header.flags = 3 << ADDEND_FRAME_TABLE_SHIFT;
  Packet other = contribution(options_, 1, 4, 0, Op::kTableSumU16, {0x12, 0xF0});
  other.header.flags = one.header.flags;
  (void)deliver(*slots_, one, now_);
  const Outcome outcome = deliver(*slots_, other, now_);
  ASSERT_EQ(outcome.reply.payload.size(), 8u);
  const std::vector<uint8_t> bytes(outcome.reply.payload.begin(), outcome.reply.payload.end());
  EXPECT_EQ(bytes, (std::vector<uint8_t>{5, 0, 5, 0, 225, 0, 225, 0}));
  one.header.flags = 2 << ADDEND_FRAME_TABLE_SHIFT;
  EXPECT_EQ(deliver(*slots_, one, now_).refusal, ADDEND_REFUSAL_OP);
}

TEST_F(SlotsTest, ASumLongerThanThePayloadIsRefused) {
  start(job_of(1));
  slots_->set_table(0, Table{});
  const Packet packet = contribution(options_, 0, 4, 0, Op::kTableSumU16, std::vector<uint8_t>(17));
  EXPECT_EQ(deliver(*slots_, packet, now_).refusal, ADDEND_REFUSAL_LENGTH);
}

TEST_F(SlotsTest, AnotherShapeEndsTheEpochForEveryone) {
  start(job_of(2));
  (void)send(0, 0, 1);
  const Outcome outcome =
      deliver(*slots_, contribution(options_, 1, 4, 0, Op::kSumI32, std::vector<uint8_t>(8)), now_);
  EXPECT_EQ(outcome.refusal, ADDEND_REFUSAL_MISMATCH);
  EXPECT_EQ(outcome.reply.audience, Audience::kEveryone);
  EXPECT_EQ(outcome.reply.header.op, ADDEND_NOTICE_MISMATCH);
  EXPECT_EQ(outcome.reply.header.worker, 1);
  const Outcome after = send(0, 0, 1);
  EXPECT_EQ(after.refusal, ADDEND_REFUSAL_ENDED);
  EXPECT_EQ(after.reply.header.op, ADDEND_NOTICE_MISMATCH);
}

TEST_F(SlotsTest, PatienceEndsWithANoticeThatNamesTheMissingWorker) {
  SlotsOptions options = job_of(3);
  options.patience_ns = 100;
  start(options);
  now_ = 1000;
  (void)send(0, 0, 1);
  (void)send(2, 0, 1);
  Reply reply;
  EXPECT_FALSE(slots_->expire(1099, reply));
  ASSERT_TRUE(slots_->expire(1100, reply));
  EXPECT_EQ(reply.header.kind, ADDEND_FRAME_NOTICE);
  EXPECT_EQ(reply.header.op, ADDEND_NOTICE_TIMEOUT);
  EXPECT_EQ(reply.header.worker, 1);
  EXPECT_EQ(reply.header.contributors, 5u);
  EXPECT_TRUE(slots_->ended());
  EXPECT_FALSE(slots_->expire(~uint64_t{0} - 1, reply));
}

// Worker 1 went ahead with slot 5 and lost what it sent to slot 4; worker 2, whose window is
// narrow, waits for slot 4 before it sends more.
TEST_F(SlotsTest, PatienceEndsForTheFirstTurnOfTheStreamAndNotForTheOldest) {
  SlotsOptions options = job_of(3);
  options.patience_ns = 100;
  start(options);
  (void)send(1, 0, 1, 5);
  (void)send(0, 0, 1, 5);
  now_ = 30;
  (void)send(0, 0, 1, 4);
  (void)send(2, 0, 1, 4);
  Reply reply;
  EXPECT_FALSE(slots_->expire(129, reply));
  ASSERT_TRUE(slots_->expire(130, reply));
  EXPECT_EQ(reply.header.slot, 4);
  EXPECT_EQ(reply.header.worker, 1);
}

TEST_F(SlotsTest, TheOrderOfTurnsIsThatOfTheWorkersStreams) {
  SlotsOptions options = job_of(3);
  options.patience_ns = 100;
  start(options);
  // An aggregator that began anew: slot 4 is two turns ahead of slot 5, across the last number.
  slots_->begin_at(std::vector<uint32_t>{0, 0, 0, 0, 1, ~0u});
  (void)send(1, 0, 1, 4);
  (void)send(0, 0, 1, 5);
  Reply reply;
  ASSERT_TRUE(slots_->expire(100, reply));
  EXPECT_EQ(reply.header.slot, 5);
  EXPECT_EQ(reply.header.worker, 1);
}

TEST_F(SlotsTest, APartWaitsForAnotherThatHasAnEarlierTurn) {
  SlotsOptions options = job_of(3), later = options;
  options.patience_ns = later.patience_ns = 100;
  later.first_slot = options.first_slot + options.slots;
  const auto attendance = std::make_shared<Attendance>();
  Slots here = *Slots::create(options, attendance), there = *Slots::create(later, attendance);
  start(options);
  (void)deliver(there, packet(1, 0, 1, later.first_slot), 0);
  (void)deliver(here, packet(0, 0, 1, options.first_slot), 30);
  Reply reply;
  EXPECT_FALSE(here.expire(80, reply));  // says where it waits
  EXPECT_FALSE(there.expire(100, reply));
  ASSERT_TRUE(here.expire(130, reply));
  EXPECT_EQ(reply.header.worker, 1);
  EXPECT_FALSE(there.expire(1000, reply));  // somebody ends it: who is missing is known
}

TEST_F(SlotsTest, AQuorumFreezesTheTurnOnceAndForAll) {
  SlotsOptions options = job_of(3);
  options.patience_ns = 100;
  options.quorum = 2;
  start(options);
  (void)send(0, 0, 1);
  (void)send(2, 0, 10);
  Reply reply;
  ASSERT_TRUE(slots_->expire(100, reply));
  EXPECT_EQ(reply.audience, Audience::kEveryone);
  EXPECT_EQ(reply.header.flags, ADDEND_FRAME_PARTIAL);
  EXPECT_EQ(reply.header.count, 2);
  const Outcome late = send(1, 0, 100);
  EXPECT_EQ(late.refusal, ADDEND_REFUSAL_LATE);
  EXPECT_EQ(late.reply.audience, Audience::kSender);
  EXPECT_EQ(late.reply.header.contributors, 5u);
  EXPECT_EQ(sum(late), 11);
}

class QuorumTest : public SlotsTest {
 protected:
  void SetUp() override {
    SlotsOptions options = job_of(3);
    options.patience_ns = 100;
    options.quorum = 2;
    start(options);
  }
  Outcome send_entry(uint32_t worker, uint32_t turn, uint8_t value) {
    Packet entry = packet(worker, turn, value);
    entry.header.flags = ADDEND_FRAME_ENTRY;
    return deliver(*slots_, entry, now_);
  }
  /// Turn 0, without worker 1.
  void miss_worker_one() {
    (void)send_entry(0, 0, 1);
    (void)send_entry(2, 0, 10);
    now_ = 100;
    Reply reply;
    ASSERT_TRUE(slots_->expire(now_, reply));
    ASSERT_EQ(reply.header.contributors, 5u);
  }
};

TEST_F(QuorumTest, WhoWasMissedIsNotWaitedForAgain) {
  miss_worker_one();
  (void)send(0, 1, 2);
  const Outcome last = send(2, 1, 20);
  EXPECT_EQ(last.reply.audience, Audience::kEveryone);
  EXPECT_EQ(last.reply.header.flags, ADDEND_FRAME_PARTIAL);
  EXPECT_EQ(last.reply.header.contributors, 5u);
  EXPECT_EQ(sum(last), 22);
}

TEST_F(QuorumTest, WithinAStepNothingOfAMissedWorkerIsFolded) {
  miss_worker_one();
  // It got the result first and is ahead of the others: it may not even open the turn.
  EXPECT_EQ(send(1, 1, 100).refusal, ADDEND_REFUSAL_LATE);
  EXPECT_FALSE(slots_->is_waiting(4));
  (void)send(0, 1, 2);
  const Outcome late = send(1, 1, 100);
  EXPECT_EQ(late.refusal, ADDEND_REFUSAL_LATE);
  EXPECT_EQ(late.reply.audience, Audience::kNobody);
  EXPECT_EQ(sum(send(2, 1, 20)), 22);
}

TEST_F(QuorumTest, AMissedWorkerThatIsHeardOfIsWaitedForInTheNextStep) {
  miss_worker_one();
  EXPECT_EQ(send_entry(1, 0, 100).refusal, ADDEND_REFUSAL_LATE);
  (void)send(0, 1, 2);
  EXPECT_EQ(send(2, 1, 20).reply.header.contributors, 5u);
  (void)send_entry(0, 2, 3);
  EXPECT_EQ(send_entry(2, 2, 30).reply.audience, Audience::kNobody);
  const Outcome all = send_entry(1, 2, 100);
  EXPECT_EQ(all.reply.header.contributors, 7u);
  EXPECT_EQ(all.reply.header.flags, ADDEND_FRAME_ENTRY);
  EXPECT_EQ(sum(all), 133);
}

TEST_F(QuorumTest, AMissedWorkerMayBeTheFirstOfTheNextStep) {
  miss_worker_one();
  (void)send_entry(1, 1, 100);
  (void)send_entry(0, 1, 2);
  EXPECT_EQ(send_entry(2, 1, 20).reply.header.contributors, 7u);
}

TEST_F(QuorumTest, TurnsThatWaitForAMissedWorkerCloseWithTheOneThatMissedIt) {
  (void)send_entry(0, 0, 1);
  (void)send_entry(2, 0, 10);
  now_ = 50;
  Packet elsewhere = packet(0, 0, 2);
  elsewhere.header.slot = 5;
  (void)deliver(*slots_, elsewhere, now_);
  elsewhere.header.worker = 2;
  elsewhere.header.contributors = 4;
  (void)deliver(*slots_, elsewhere, now_);
  Reply reply;
  ASSERT_TRUE(slots_->expire(100, reply));
  EXPECT_EQ(reply.header.slot, 4);
  ASSERT_TRUE(slots_->expire(100, reply));
  EXPECT_EQ(reply.header.slot, 5);
  EXPECT_EQ(reply.header.contributors, 5u);
  EXPECT_FALSE(slots_->expire(100, reply));
}

TEST_F(QuorumTest, WhoAsksForATurnThatIsGoneIsToldSo) {
  miss_worker_one();
  for (uint32_t turn = 1; turn < 4; ++turn) {
    (void)send(0, turn, 1);
    (void)send(2, turn, 1);
  }
  const Outcome gone = send(1, 0, 1);
  EXPECT_EQ(gone.refusal, ADDEND_REFUSAL_TURN);
  EXPECT_EQ(gone.reply.audience, Audience::kSender);
  EXPECT_EQ(gone.reply.header.turn, 2u);
  EXPECT_EQ(send(1, 6, 1).reply.audience, Audience::kNobody);
}

TEST_F(QuorumTest, PartsOfAJobMissTheSameWorkers) {
  const auto attendance = std::make_shared<Attendance>();
  Slots here = *Slots::create(options_, attendance), there = *Slots::create(options_, attendance);
  for (const uint32_t worker : {0, 2}) {
    (void)deliver(here, packet(worker, 0, 1), 0);
    (void)deliver(there, packet(worker, 0, 1), 60);
  }
  Reply reply;
  EXPECT_FALSE(there.expire(99, reply));
  ASSERT_TRUE(here.expire(100, reply));
  ASSERT_TRUE(there.expire(100, reply));
  EXPECT_EQ(reply.header.contributors, 5u);
}

TEST_F(QuorumTest, FewerThanAQuorumEndTheEpoch) {
  miss_worker_one();
  (void)send(0, 1, 2);
  Reply reply;
  // Patience begins anew when somebody was missed.
  ASSERT_FALSE(slots_->expire(150, reply));
  ASSERT_FALSE(slots_->expire(249, reply));
  ASSERT_TRUE(slots_->expire(250, reply));
  EXPECT_EQ(reply.header.kind, ADDEND_FRAME_NOTICE);
  EXPECT_TRUE(slots_->ended());
}

TEST_F(SlotsTest, APayloadThatIsNotAlignedFoldsAlike) {
  start(job_of(2));
  std::vector<uint8_t> buffer(64 + 1, 7);
  for (uint32_t worker = 0; worker < 2; ++worker) {
    Packet packet = contribution(options_, worker, 4, 0, Op::kSumI32, std::vector<uint8_t>(64, 7));
    const Outcome outcome = slots_->handle(packet.header, buffer.data() + 1, packet.bytes(), now_);
    if (worker == 1) {
      EXPECT_EQ(outcome.reply.payload[63], 14);
    }
  }
}

struct Bend {
  const char* what;
  addend_refusal refusal;
  std::function<void(Packet&)> apply;
};

TEST_F(SlotsTest, EveryWrongFieldIsRefusedUnderItsOwnReasonAndChangesNothing) {
  const Bend bends[] = {
      {"magic", ADDEND_REFUSAL_MAGIC, [](Packet& p) { p.header.magic = 0; }},
      {"version", ADDEND_REFUSAL_MAGIC, [](Packet& p) { p.header.version = 2; }},
      {"kind", ADDEND_REFUSAL_KIND, [](Packet& p) { p.header.kind = ADDEND_FRAME_RESULT; }},
      {"big endian", ADDEND_REFUSAL_KIND, [](Packet& p) { p.header.flags = 1; }},
      {"partial", ADDEND_REFUSAL_KIND, [](Packet& p) { p.header.flags = ADDEND_FRAME_PARTIAL; }},
      {"table without table sum", ADDEND_REFUSAL_OP, [](Packet& p) { p.header.flags = 16; }},
      {"op", ADDEND_REFUSAL_OP, [](Packet& p) { p.header.op = ADDEND_OP_COUNT; }},
      {"op not allowed", ADDEND_REFUSAL_OP, [](Packet& p) { p.header.op = ADDEND_OP_SUM_F32; }},
      {"longer than said", ADDEND_REFUSAL_LENGTH, [](Packet& p) { p.payload.push_back(0); }},
      {"shorter than said", ADDEND_REFUSAL_LENGTH, [](Packet& p) { p.payload.pop_back(); }},
      {"half a lane", ADDEND_REFUSAL_LENGTH,
       [](Packet& p) {
         p.payload.resize(6);
         p.header.length = 6;
       }},
      {"no lane", ADDEND_REFUSAL_LENGTH,
       [](Packet& p) {
         p.payload.clear();
         p.header.length = 0;
       }},
      {"beyond the job's payload", ADDEND_REFUSAL_LENGTH,
       [](Packet& p) {
         p.payload.resize(68);
         p.header.length = 68;
       }},
      {"epoch", ADDEND_REFUSAL_EPOCH, [](Packet& p) { p.header.epoch = 10; }},
      {"boot", ADDEND_REFUSAL_BOOT, [](Packet& p) { p.header.boot = 21; }},
      {"world", ADDEND_REFUSAL_WORLD, [](Packet& p) { p.header.world = 3; }},
      {"no world", ADDEND_REFUSAL_WORLD, [](Packet& p) { p.header.world = 0; }},
      {"worker", ADDEND_REFUSAL_CONTRIBUTORS, [](Packet& p) { p.header.worker = 1; }},
      {"worker outside", ADDEND_REFUSAL_CONTRIBUTORS, [](Packet& p) { p.header.worker = 2; }},
      {"two contributors", ADDEND_REFUSAL_CONTRIBUTORS,
       [](Packet& p) { p.header.contributors = 3; }},
      {"count", ADDEND_REFUSAL_CONTRIBUTORS, [](Packet& p) { p.header.count = 2; }},
      {"slot below", ADDEND_REFUSAL_SLOT, [](Packet& p) { p.header.slot = 3; }},
      {"slot above", ADDEND_REFUSAL_SLOT, [](Packet& p) { p.header.slot = 6; }},
      {"turn", ADDEND_REFUSAL_TURN, [](Packet& p) { p.header.turn = 1; }},
  };
  start(job_of(2));
  for (const Bend& bend : bends) {
    Packet bent = packet(0, 0, 50);
    bend.apply(bent);
    const uint64_t before = slots_->counters().refused[bend.refusal];
    const Outcome outcome = deliver(*slots_, bent, now_);
    EXPECT_EQ(outcome.refusal, bend.refusal) << bend.what;
    EXPECT_EQ(outcome.reply.audience, Audience::kNobody) << bend.what;
    EXPECT_EQ(slots_->counters().refused[bend.refusal], before + 1) << bend.what;
  }
  (void)send(0, 0, 1);
  EXPECT_EQ(sum(send(1, 0, 1)), 2);
}

// A leaf's complete turn, as it goes upstream.
TEST_F(SlotsTest, ALeafContributesItsSumAndHasTheResultFromUpstream) {
  SlotsOptions job = job_of(2);
  job.relays = true;
  start(job);
  (void)send(0, 0, 5);
  const Outcome up = send(1, 0, 6);
  ASSERT_EQ(up.reply.audience, Audience::kUpstream);
  EXPECT_EQ(up.reply.header.kind, ADDEND_FRAME_CONTRIBUTION);
  EXPECT_EQ(up.reply.header.count, 1);
  EXPECT_EQ(sum(up), 11);
  // The next turn waits, and whoever asks too early is not heard upstream.
  EXPECT_EQ(send(0, 1, 7).refusal, ADDEND_REFUSAL_TURN);
  Outcome again = send(0, 0, 5);
  EXPECT_EQ(again.refusal, ADDEND_REFUSAL_DUPLICATE);
  EXPECT_EQ(again.reply.audience, Audience::kNobody);
  now_ += Slots::kRelayAgainNs;
  again = send(1, 0, 6);
  EXPECT_EQ(again.reply.audience, Audience::kUpstream);
  EXPECT_EQ(again.reply.header.flags, ADDEND_FRAME_RESENT);
  EXPECT_EQ(sum(again), 11);
  Packet result = packet(0, 0, 100);
  result.header.kind = ADDEND_FRAME_RESULT;
  const auto take = [&] { return slots_->take_result(result.header, result.payload.data()); };
  for (uint8_t* field : {&result.header.op, &result.header.flags}) {
    const uint8_t good = *field;
    *field =
        field == &result.header.op ? uint8_t{ADDEND_OP_SUM_I64} : uint8_t{ADDEND_FRAME_PARTIAL};
    EXPECT_EQ(take().refusal, ADDEND_REFUSAL_MISMATCH);
    *field = good;
  }
  const Outcome down = take();
  EXPECT_EQ(down.reply.audience, Audience::kEveryone);
  EXPECT_EQ(down.reply.header.contributors, 3u);
  EXPECT_EQ(sum(down), 100);
  EXPECT_EQ(take().refusal, ADDEND_REFUSAL_DUPLICATE);
  EXPECT_EQ(sum(send(0, 0, 5)), 100);  // whose result was lost on the way down
  (void)send(0, 1, 7);
  EXPECT_EQ(take().refusal, ADDEND_REFUSAL_DUPLICATE);
}

TEST(SlotsCreate, RefusesWhatCannotBeAJob) {
  const auto refused = [](const std::function<void(SlotsOptions&)>& bend) {
    SlotsOptions options = job_of(2);
    bend(options);
    return !Slots::create(options).has_value();
  };
  EXPECT_TRUE(refused([](SlotsOptions& o) { o.world = 0; }));
  EXPECT_TRUE(refused([](SlotsOptions& o) { o.world = 65; }));
  EXPECT_TRUE(refused([](SlotsOptions& o) { o.slots = 0; }));
  EXPECT_TRUE(refused([](SlotsOptions& o) { o.first_slot = 65535; }));
  EXPECT_TRUE(refused([](SlotsOptions& o) { o.payload_bytes = 12; }));
  EXPECT_TRUE(refused([](SlotsOptions& o) { o.payload_bytes = 8840; }));
  EXPECT_TRUE(refused([](SlotsOptions& o) { o.quorum = 3; }));
  EXPECT_TRUE(refused([](SlotsOptions& o) { o.quorum = 1; }));  // and no patience
  EXPECT_TRUE(refused([](SlotsOptions& o) {
    o.relays = true;
    o.quorum = 1;
    o.patience_ns = 1;
  }));
}

}  // namespace
}  // namespace addend::aggregate
