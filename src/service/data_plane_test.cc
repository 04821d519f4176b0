// SPDX-License-Identifier: Apache-2.0
// What the data plane does with datagrams: who is let in, who is answered, and with what bytes.
#include "service/data_plane.h"

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "net/udp_socket.h"
#include "service/status.h"
#include "tests/support/frames.h"
#include "tests/support/keys.h"

namespace addend::service {
namespace {

using testing_support::contribution;
using testing_support::Packet;

constexpr uint32_t kWorld = 3;

class Sent final : public FrameSink {
 public:
  void send(const net::Address& to, std::span<const uint8_t> bytes, uint32_t segment) override {
    for (std::size_t at = 0; at < bytes.size(); at += segment) {
      const auto one = bytes.subspan(at, std::min<std::size_t>(segment, bytes.size() - at));
      frames[to.to_string()].emplace_back(one.begin(), one.end());
    }
    ++messages;
  }
  void flush() override {}
  std::map<std::string, std::vector<std::vector<uint8_t>>> frames;
  uint32_t messages = 0;
};

net::Address address_of(uint32_t worker) {
  return *net::resolve("10.0.0.1", static_cast<uint16_t>(7000 + worker));
}

auth::Secret job_secret() { return testing_support::secret_of(5); }

class DataPlaneTest : public ::testing::Test {
 protected:
  void start(uint32_t epoch = 42, uint32_t packets_per_s = 0, uint64_t patience_ns = 0,
             const std::shared_ptr<Upstream>& upstream = nullptr) {
    aggregate::SlotsOptions options;
    options.epoch = epoch;
    options.boot = 9;
    options.world = kWorld;
    options.slots = 64;
    options.payload_bytes = 64;
    options.ops = 1u << ADDEND_OP_SUM_I32;
    options.patience_ns = patience_ns;
    options.relays = upstream != nullptr;
    std::vector<auth::FrameKey> keys;
    std::vector<net::Address> workers;
    for (uint32_t w = 0; w < kWorld; ++w) {
      keys.push_back(*auth::FrameKey::create(*auth::derive_secret(job_secret(), "worker", w), 64));
      workers.push_back(address_of(w));
    }
    auto result_key = auth::FrameKey::create(*auth::derive_secret(job_secret(), "result", 0), 64);
    job_ = std::make_shared<JobEpoch>(JobEpoch{options, std::move(keys), *std::move(result_key),
                                               std::move(workers), packets_per_s, upstream});
    plane_.add(job_, *aggregate::Slots::create(options));
  }

  static std::vector<uint8_t> frame(const Packet& packet, const auth::FrameKey& key) {
    addend_frame_header wire = packet.header;
    addend_frame_swap(&wire);
    wire.tag = addend_be64(key.tag(wire, packet.payload));
    std::vector<uint8_t> bytes(packet.bytes());
    std::memcpy(bytes.data(), &wire, sizeof(wire));
    std::memcpy(bytes.data() + sizeof(wire), packet.payload.data(), packet.payload.size());
    return bytes;
  }
  std::vector<uint8_t> frame(const Packet& packet) {
    return frame(packet, job_->worker_keys[packet.header.worker]);
  }
  std::vector<uint8_t> frame(uint32_t worker, uint32_t slot, uint32_t turn, uint8_t value) {
    return frame(contribution(job_->slots, worker, slot, turn, Op::kSumI32, {value, 0, 0, 0}));
  }
  void receive(uint32_t worker, const std::vector<uint8_t>& bytes) {
    plane_.receive(address_of(worker), bytes, net::kMaxSuperBytes, now_);
  }
  const std::vector<std::vector<uint8_t>>& replies(uint32_t worker) {
    plane_.flush();
    return sent_.frames[address_of(worker).to_string()];
  }
  uint64_t refused(addend_refusal why) {
    const DataPlaneStatus status = plane_.status(0);
    uint64_t count = status.refused[why];
    for (const EpochStatus& epoch : status.epochs)
      count += epoch.counters.refused[why];
    return count;
  }
  std::size_t all_replies() {
    plane_.flush();
    std::size_t count = 0;
    for (const auto& [to, frames] : sent_.frames)
      count += frames.size();
    return count;
  }

  std::vector<addend_frame_header> take_ended() { return std::exchange(ended_, {}); }

  Sent sent_;
  std::vector<addend_frame_header> ended_;
  uint32_t sent_when_told_ = 0;  // messages, when the last epoch ended
  DataPlane plane_{sent_, [this](const addend_frame_header& notice) {
                     ended_.push_back(notice);
                     sent_when_told_ = sent_.messages;
                   }};
  std::shared_ptr<JobEpoch> job_;
  uint64_t now_ = 1'000'000'000;
};

TEST_F(DataPlaneTest, EveryWorkerGetsTheSameAuthenticResult) {
  start();
  for (uint32_t w = 0; w < kWorld; ++w)
    receive(w, frame(w, 7, 0, static_cast<uint8_t>(w + 1)));
  for (uint32_t w = 0; w < kWorld; ++w) {
    ASSERT_EQ(replies(w).size(), 1u);
    EXPECT_EQ(replies(w)[0], replies(0)[0]);
  }
  const std::vector<uint8_t>& bytes = replies(0)[0];
  addend_frame_header wire;
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  const auto payload = std::span<const uint8_t>(bytes).subspan(sizeof(wire));
  EXPECT_TRUE(job_->result_key.verify(wire, payload));
  EXPECT_EQ(payload[0], 6);
  EXPECT_EQ(addend_be32(wire.boot), 9u);
}

TEST_F(DataPlaneTest, ResultsOfManySlotsTravelAsOneSuperPacketPerWorker) {
  start();
  for (uint32_t w = 0; w < kWorld; ++w) {
    for (uint32_t slot = 0; slot < 20; ++slot)
      receive(w, frame(w, slot, 0, 1));
  }
  EXPECT_EQ(replies(1).size(), 20u);
  EXPECT_EQ(sent_.messages, kWorld);
}

// Workers ask for what was lost in rows; one message for each frame would cost more than the loss.
TEST_F(DataPlaneTest, ResultsThatOneWorkerAsksForAgainTravelTogether) {
  start();
  for (uint32_t w = 0; w < kWorld; ++w) {
    for (uint32_t slot = 0; slot < 40; ++slot)
      receive(w, frame(w, slot, 0, static_cast<uint8_t>(slot)));
  }
  const auto first = replies(1);
  sent_ = {};
  for (const uint32_t w : {1u, 2u}) {
    for (uint32_t slot = 0; slot < 40; ++slot)
      receive(w, frame(w, slot, 0, static_cast<uint8_t>(slot)));
  }
  EXPECT_EQ(replies(1), first);
  EXPECT_EQ(replies(2), first);
  EXPECT_TRUE(replies(0).empty());
  EXPECT_EQ(sent_.messages, 2u);
}

TEST_F(DataPlaneTest, ManyResultsAskedForAgainAllArrive) {
  start();
  for (uint32_t w = 0; w < kWorld; ++w) {
    for (uint32_t slot = 0; slot < 64; ++slot)
      receive(w, frame(w, slot, 0, static_cast<uint8_t>(slot)));
  }
  const auto first = replies(1);
  sent_ = {};
  // More than the buffer holds, with results for everyone in between.
  for (int time = 0; time < 30; ++time) {
    for (uint32_t slot = 0; slot < 64; ++slot)
      receive(1, frame(1, slot, 0, static_cast<uint8_t>(slot)));
    for (uint32_t w = 0; time == 15 && w < kWorld; ++w)
      receive(w, frame(w, 5, 1, 1));
  }
  const auto& again = replies(1);
  EXPECT_EQ(again.size(), 30u * 64 + 1);
  EXPECT_EQ(replies(0).size(), 1u);
}

// Of every worker a row of frames that are read and verified together: good ones, forged ones, ones
// under another's name, duplicates, turns out of order, and a last one that is shorter.
TEST_F(DataPlaneTest, DatagramsInARowFareLikeDatagramsOneByOne) {
  start();
  Sent sent_singly;
  DataPlane singly(sent_singly);
  singly.add(job_, *aggregate::Slots::create(job_->slots));
  uint32_t turn = 0;
  for (const std::size_t count : {23u, 23u, 9u, 8u, 7u, 2u, 1u}) {
    for (uint32_t w = 0; w < kWorld; ++w) {
      std::vector<uint8_t> row;
      std::size_t segment = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const bool other = i % 6 == 5, shorter = i > 0 && i + 1 == count;
        Packet packet = contribution(
            job_->slots, other ? (w + 1) % kWorld : w, shorter ? 30 : static_cast<uint32_t>(i % 20),
            i % 11 == 10 ? turn + 3 : turn, Op::kSumI32, std::vector<uint8_t>(shorter ? 4 : 60));
        for (std::size_t b = 0; b < packet.payload.size(); ++b)
          packet.payload[b] = static_cast<uint8_t>(b * 7 + i + w);
        std::vector<uint8_t> bytes = frame(packet);
        if (i % 5 == 3) bytes[20 + i] ^= 1;
        segment = std::max(segment, bytes.size());
        singly.receive(address_of(w), bytes, static_cast<uint32_t>(bytes.size()), now_);
        row.insert(row.end(), bytes.begin(), bytes.end());
      }
      plane_.receive(address_of(w), row, static_cast<uint32_t>(segment), now_);
    }
    plane_.flush();
    singly.flush();
    EXPECT_EQ(sent_.frames, sent_singly.frames) << count;
    ++turn;
  }
  const DataPlaneStatus row = plane_.status(0), one = singly.status(0);
  EXPECT_EQ(row.packets, one.packets);
  EXPECT_EQ(row.refused, one.refused);
  EXPECT_EQ(row.epochs[0].counters.refused, one.epochs[0].counters.refused);
  EXPECT_EQ(row.epochs[0].counters.folded, one.epochs[0].counters.folded);
  EXPECT_GT(row.epochs[0].counters.refused[ADDEND_REFUSAL_TAG], 0u);
  EXPECT_GT(row.epochs[0].counters.refused[ADDEND_REFUSAL_SOURCE], 0u);
  EXPECT_GT(row.epochs[0].counters.complete, 0u);
}

TEST_F(DataPlaneTest, AnEmptyDatagramIsCounted) {
  start();
  receive(0, {});
  EXPECT_EQ(refused(ADDEND_REFUSAL_TRUNCATED), 1u);
}

TEST_F(DataPlaneTest, WhoeverIsNotAuthenticGetsNoAnswerAndChangesNothing) {
  start();
  std::vector<uint8_t> forged = frame(0, 0, 0, 50);
  forged.back() ^= 1;
  receive(0, forged);
  EXPECT_EQ(refused(ADDEND_REFUSAL_TAG), 1u);
  // Worker 1's key does not make worker 0's tag.
  Packet packet = contribution(job_->slots, 1, 0, 0, Op::kSumI32, {50, 0, 0, 0});
  std::vector<uint8_t> other = frame(packet);
  other[14] = 0;
  std::memset(other.data() + 24, 0, 8);
  other[31] = 1;
  receive(0, other);
  EXPECT_EQ(refused(ADDEND_REFUSAL_TAG), 2u);
  receive(1, frame(0, 0, 0, 50));
  EXPECT_EQ(refused(ADDEND_REFUSAL_SOURCE), 1u);
  std::vector<uint8_t> foreign = frame(0, 0, 0, 50);
  foreign[7] ^= 1;
  receive(0, foreign);
  EXPECT_EQ(refused(ADDEND_REFUSAL_EPOCH), 1u);
  receive(0, {1, 2, 3});
  EXPECT_EQ(refused(ADDEND_REFUSAL_TRUNCATED), 1u);
  receive(0, std::vector<uint8_t>(1500, 0x11));
  EXPECT_EQ(refused(ADDEND_REFUSAL_MAGIC), 1u);
  receive(0, frame(contribution(job_->slots, 0, 0, 0, Op::kSumI32, std::vector<uint8_t>(64))));
  EXPECT_EQ(all_replies(), 0u);
}

TEST_F(DataPlaneTest, APayloadBeyondTheJobsIsRefusedBeforeItsTagIsLookedAt) {
  start();
  Packet packet = contribution(job_->slots, 0, 0, 0, Op::kSumI32, std::vector<uint8_t>(64));
  std::vector<uint8_t> bytes = frame(packet);
  bytes.resize(bytes.size() + 64);
  bytes[19] = 128;
  receive(0, bytes);
  EXPECT_EQ(refused(ADDEND_REFUSAL_LENGTH), 1u);
}

TEST_F(DataPlaneTest, ARecordedTurnIsOfNoUseLater) {
  start();
  const std::vector<uint8_t> recorded = frame(0, 0, 0, 1);
  for (uint32_t turn = 0; turn < 4; ++turn) {
    for (uint32_t w = 0; w < kWorld; ++w)
      receive(w, frame(w, 0, turn, 1));
  }
  const std::size_t before = all_replies();
  receive(0, recorded);
  EXPECT_EQ(refused(ADDEND_REFUSAL_TURN), 1u);
  EXPECT_EQ(all_replies(), before);
}

TEST_F(DataPlaneTest, AWorkerOverItsRateIsRefusedAndOthersDoNotNotice) {
  start(42, 1000);
  // 100 ms worth of burst, then one a millisecond.
  for (int i = 0; i < 500; ++i)
    receive(0, frame(0, 0, 0, 1));
  const uint64_t over = refused(ADDEND_REFUSAL_RATE);
  EXPECT_GT(over, 390u);
  EXPECT_LT(over, 400u);
  receive(1, frame(1, 0, 0, 1));
  EXPECT_EQ(refused(ADDEND_REFUSAL_RATE), over);
  now_ += 10'000'000;
  receive(0, frame(0, 0, 0, 1));
  EXPECT_EQ(refused(ADDEND_REFUSAL_RATE), over);
}

TEST_F(DataPlaneTest, WhoeverHasLeftIsNamedWhenATurnWaitsForItAndNotBefore) {
  start();
  for (uint32_t w = 0; w < kWorld; ++w)
    receive(w, frame(w, 0, 0, 1));
  plane_.leave(42, 1);
  plane_.expire(now_);
  // What it is in may still be asked for.
  const std::size_t before = replies(0).size();
  receive(0, frame(0, 0, 0, 1));
  EXPECT_EQ(replies(0).size(), before + 1);
  EXPECT_TRUE(take_ended().empty());
  receive(0, frame(0, 0, 1, 1));
  plane_.expire(now_);
  const auto ended = take_ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].op, ADDEND_NOTICE_CLOSED);
  EXPECT_EQ(ended[0].worker, 1);
  EXPECT_EQ(replies(0).back().size(), std::size_t{ADDEND_FRAME_HEADER_BYTES});
  plane_.expire(now_);
  EXPECT_TRUE(take_ended().empty());
}

TEST_F(DataPlaneTest, StatusNamesWhoIsWaitedForAfterASecond) {
  start();
  receive(0, frame(0, 0, 0, 1));
  EXPECT_EQ(plane_.status(now_ + 999'999'999).epochs[0].wait.workers, 0u);
  EXPECT_EQ(plane_.status(now_ + 1'000'000'000).epochs[0].wait.workers, (1u << kWorld) - 2);
}

TEST_F(DataPlaneTest, StatusDoesNotNameThoseWhoWaitThemselves) {
  start();
  // Worker 1's window ends behind slot 0, where it waits for worker 2, too. What worker 0 sent
  // first came last.
  receive(0, frame(0, 1, 0, 1));
  receive(0, frame(0, 0, 0, 1));
  receive(1, frame(1, 0, 0, 1));
  EXPECT_EQ(plane_.status(now_ + 1'000'000'000).epochs[0].wait.workers, 1u << 2);
}

TEST_F(DataPlaneTest, StatusOfSeveralThreadsNamesWhoIsWaitedForFirst) {
  start();
  receive(0, frame(0, 1, 0, 1));
  const DataPlaneStatus later = plane_.status(now_ + 1'000'000'000);
  receive(0, frame(0, 0, 0, 1));
  receive(1, frame(1, 0, 0, 1));
  const DataPlaneStatus first = plane_.status(now_ + 1'000'000'000);
  for (const bool in_order : {true, false}) {
    ServerStatus status;
    status.jobs.resize(1);
    status.jobs[0].view.epoch = 42;
    add(status, in_order ? first : later);
    add(status, in_order ? later : first);
    EXPECT_EQ(status.jobs[0].waited_for(), 1u << 2) << in_order;
  }
}

TEST_F(DataPlaneTest, ATurnThatTimesOutEndsTheEpochAndSaysSo) {
  start(42, 0, 1'000'000);
  receive(0, frame(0, 0, 0, 1));
  receive(2, frame(2, 0, 0, 1));
  EXPECT_TRUE(plane_.watches_time());
  plane_.expire(now_ + 999'999);
  EXPECT_TRUE(take_ended().empty());
  plane_.expire(now_ + 1'000'000);
  const auto ended = take_ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].worker, 1);
  EXPECT_EQ(ended[0].op, ADDEND_NOTICE_TIMEOUT);
  ASSERT_EQ(replies(1).size(), 1u);
  EXPECT_EQ(replies(1)[0].size(), std::size_t{ADDEND_FRAME_HEADER_BYTES});
}

// A probe as a worker sends it; the key is that of job_secret.
std::vector<uint8_t> probe_frame(const Probe& probe, uint32_t payload_bytes) {
  addend_frame_header header{};
  header.magic = ADDEND_FRAME_MAGIC;
  header.version = ADDEND_FRAME_VERSION;
  header.kind = ADDEND_FRAME_PROBE;
  header.epoch = probe.number;
  header.boot = probe.boot;
  header.slot = 3;
  header.length = static_cast<uint16_t>(payload_bytes);
  std::vector<uint8_t> bytes(sizeof(header) + payload_bytes, 0);
  addend_frame_swap(&header);
  header.tag =
      addend_be64(probe.key.tag(header, std::span<const uint8_t>(bytes).subspan(sizeof(header))));
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

std::shared_ptr<Probe> make_probe(uint32_t number) {
  auto probe = std::make_shared<Probe>();
  probe->number = number;
  probe->boot = 9;
  probe->payload_bytes = 64;
  probe->worker = address_of(1);
  probe->key = *auth::FrameKey::create(job_secret(), 64);
  return probe;
}

TEST_F(DataPlaneTest, AProbeComesBackAsLongAsItWas) {
  auto probe = make_probe(70);
  plane_.expect(probe, 5);
  for (const uint32_t length : {64u, 8u}) {
    receive(1, probe_frame(*probe, length));
    const std::vector<uint8_t>& echo = replies(1).back();
    ASSERT_EQ(echo.size(), ADDEND_FRAME_HEADER_BYTES + length);
    addend_frame_header wire;
    std::memcpy(&wire, echo.data(), sizeof(wire));
    EXPECT_EQ(wire.kind, ADDEND_FRAME_ECHO);
    EXPECT_EQ(addend_be16(wire.slot), 3);
    EXPECT_TRUE(probe->key.verify(wire, std::span<const uint8_t>(echo).subspan(sizeof(wire))));
  }
  EXPECT_EQ(probe->heard, uint64_t{1} << 5);
  EXPECT_EQ(plane_.status(0).refused, (std::array<uint64_t, ADDEND_REFUSAL_COUNT>{}));
}

TEST_F(DataPlaneTest, OnlyProbesThatAreExpectedAndAuthenticAreEchoed) {
  auto probe = make_probe(70);
  plane_.expect(probe, 0);
  std::vector<uint8_t> forged = probe_frame(*probe, 64);
  forged.back() ^= 1;
  receive(1, forged);
  EXPECT_EQ(refused(ADDEND_REFUSAL_TAG), 1u);
  receive(1, probe_frame(*make_probe(71), 64));
  EXPECT_EQ(refused(ADDEND_REFUSAL_EPOCH), 1u);
  std::vector<uint8_t> cut = probe_frame(*probe, 64);
  cut.pop_back();
  receive(1, cut);
  EXPECT_EQ(refused(ADDEND_REFUSAL_LENGTH), 1u);
  EXPECT_EQ(probe->heard, 0u);
  EXPECT_FALSE(probe->misdirected);
  receive(2, probe_frame(*probe, 64));  // an address translation, say
  EXPECT_EQ(refused(ADDEND_REFUSAL_SOURCE), 1u);
  EXPECT_TRUE(probe->misdirected);
  probe->echoes = 1;
  receive(1, probe_frame(*probe, 64));
  receive(1, probe_frame(*probe, 64));
  EXPECT_EQ(refused(ADDEND_REFUSAL_RATE), 1u);
  EXPECT_EQ(all_replies(), 1u);
  const std::vector<uint8_t> late = probe_frame(*probe, 64);
  probe.reset();
  receive(1, late);
  EXPECT_EQ(refused(ADDEND_REFUSAL_EPOCH), 2u);
  EXPECT_EQ(all_replies(), 1u);
}

TEST_F(DataPlaneTest, APathThatNoLongerCarriesFramesEndsItsEpochOnly) {
  start(42);
  plane_.end_path(*net::resolve("10.9.9.9", 1));
  EXPECT_TRUE(take_ended().empty());
  plane_.end_path(address_of(2));
  const auto ended = take_ended();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].worker, 2);
  EXPECT_EQ(ended[0].op, ADDEND_NOTICE_PATH);
  EXPECT_EQ(sent_when_told_, 0u);  // before the notices, which end_path sends
  for (uint32_t w = 0; w < kWorld; ++w)
    EXPECT_EQ(replies(w).size(), 1u);
  plane_.end_path(address_of(2));
  EXPECT_TRUE(take_ended().empty());
}

TEST_F(DataPlaneTest, JobsDoNotMix) {
  start(42);
  const auto first = job_;
  start(43);
  for (uint32_t w = 0; w < kWorld; ++w)
    receive(w, frame(w, 0, 0, 1));
  EXPECT_EQ(replies(0).size(), 1u);
  plane_.remove(43);
  receive(0, frame(0, 0, 1, 1));
  EXPECT_EQ(refused(ADDEND_REFUSAL_EPOCH), 1u);
  job_ = first;
  receive(0, frame(0, 0, 0, 1));
  EXPECT_EQ(plane_.status(0).epochs[0].counters.folded, 1u);
}

TEST_F(DataPlaneTest, ALeafTakesOnlyResultsThatTheNextServerHasSigned) {
  const auto upstream = std::make_shared<Upstream>();
  upstream->welcome.slots = 64;
  upstream->welcome.epoch = 3;
  upstream->welcome.boot = 4;
  upstream->welcome.payload_bytes = 64;
  upstream->worker_key = *auth::FrameKey::create(job_secret(), 64);
  upstream->result_key = *auth::FrameKey::create(*auth::derive_secret(job_secret(), "up", 0), 64);
  upstream->threads = {address_of(99)};
  upstream->sink = std::make_unique<Sent>();
  start(42, 0, 0, upstream);
  for (uint32_t w = 0; w < kWorld; ++w)
    receive(w, frame(w, 0, 0, 1));
  Packet packet = contribution(job_->slots, 0, 0, 0, Op::kSumI32, {9, 0, 0, 0});
  packet.header.kind = ADDEND_FRAME_RESULT;
  packet.header.epoch = 3;
  packet.header.boot = 4;
  const auto forged = frame(packet, upstream->worker_key);
  const auto real = frame(packet, upstream->result_key);
  plane_.receive_up(42, forged, net::kMaxSuperBytes);
  EXPECT_EQ(refused(ADDEND_REFUSAL_TAG), 1u);
  EXPECT_EQ(all_replies(), 0u);
  plane_.receive_up(42, real, net::kMaxSuperBytes);
  EXPECT_EQ(all_replies(), kWorld);
}

// The way to a next server that carries nothing any more.
class NarrowSink final : public FrameSink {
 public:
  void send(const net::Address&, std::span<const uint8_t>, uint32_t) override {}
  void flush() override {}
  bool was_too_long() override { return true; }
};

TEST_F(DataPlaneTest, ALeafWhosePathUpBecomesShorterSaysSoToItsWorkers) {
  const auto upstream = std::make_shared<Upstream>();
  upstream->leaf = 5;
  upstream->welcome.slots = 64;
  upstream->worker_key = *auth::FrameKey::create(job_secret(), 64);
  upstream->threads = {address_of(99)};
  upstream->sink = std::make_unique<NarrowSink>();
  start(42, 0, 0, upstream);
  for (uint32_t w = 0; w < kWorld; ++w)
    receive(w, frame(w, 0, 0, 1));
  for (uint32_t w = 0; w < kWorld; ++w) {
    const auto& frames = replies(w);
    ASSERT_EQ(frames.size(), 1u);
    EXPECT_EQ(frames[0][2], ADDEND_FRAME_NOTICE);
    EXPECT_EQ(frames[0][16], ADDEND_NOTICE_PATH | ADDEND_NOTICE_LEAF);
    EXPECT_EQ(frames[0][14], 5);
  }
  EXPECT_EQ(take_ended().size(), 1u);
}

}  // namespace
}  // namespace addend::service
