// SPDX-License-Identifier: Apache-2.0
// Workers' streams against the aggregator's slots over a bad network, without sockets or time:
// frames are lost, doubled, reordered and late; the aggregator loses its memory. Every chunk's sum
// must be right on every worker, and the whole must come to an end.
#include "reduce/service/stream.h"

#include <cstring>
#include <deque>
#include <map>

#include "aggregate/slots.h"
#include "gtest/gtest.h"
#include "tests/support/keys.h"
#include "wire/hash.h"

namespace addend::service_client {
namespace {

constexpr uint32_t kPayload = 16;
constexpr uint64_t kStepNs = 20'000;

auth::FrameKey key_of(uint8_t fill) {
  return *auth::FrameKey::create(testing_support::secret_of(fill), kPayload);
}

struct Faults {
  uint32_t loss_percent = 0;
  uint32_t duplicate_percent = 0;
  uint32_t late_percent = 0;
  uint32_t restarts = 0;
  std::size_t frames_per_step = ~std::size_t{0};  // that the wire carries, both ways together
  uint32_t stalls = 0;  // of the last worker, for up to twice the others' patience
};

class Job {
 public:
  Job(uint64_t seed, uint32_t world, uint32_t slots, uint64_t chunks, const Faults& faults)
      : seed_(seed), chunks_(chunks), faults_(faults), result_key_(key_of(99)) {
    options_.boot = 1;
    options_.world = world;
    options_.slots = slots;
    options_.payload_bytes = kPayload;
    options_.ops = 1u << ADDEND_OP_SUM_I32;
    if (faults.stalls > 0) {
      options_.patience_ns = 50'000 * kStepNs;  // a second: lost frames are sent again before
      options_.quorum = world - 1;
    }
    for (uint32_t w = 0; w < world; ++w) {
      worker_keys_.push_back(key_of(static_cast<uint8_t>(w)));
      streams_.emplace_back(slots, kPayload);
      streams_.back().extend(chunks);
      done_.emplace_back(chunks, false);
    }
    begin_epoch({});
  }

  void run() {
    uint32_t restarts = faults_.restarts, stalls = faults_.stalls;
    for (now_ns_ = 0; !finished(); now_ns_ += kStepNs) {
      ASSERT_LT(now_ns_, 200'000'000'000u) << "seed " << seed_ << ": no end";
      if (stalls > 0 && now_ns_ >= stalled_until_ns_ && draw(15) == 0) {
        --stalls;
        stalled_until_ns_ = now_ns_ + draw(100'000) * kStepNs;
      }
      for (uint32_t w = 0; w < options_.world; ++w)
        drive(w);
      pass_on();
      aggregate::Reply reply;
      while (slots_->expire(now_ns_, reply))
        send_back(reply, options_.world);
      if (restarts > 0 && draw(400) == 0) {
        --restarts;
        restart();
      }
    }
  }
  uint64_t resent() const {
    uint64_t sum = 0;
    for (const Stream& stream : streams_)
      sum += stream.resent();
    return sum;
  }
  double virtual_seconds() const { return static_cast<double>(now_ns_) * 1e-9; }
  /// Results that the last worker got though it was not in them.
  uint64_t partial() const { return partial_; }
  bool left_behind() const { return left_behind_; }

 private:
  struct Flight {
    uint32_t to;  // a worker, or world for the aggregator
    std::vector<uint8_t> bytes;
  };

  uint32_t draw(uint32_t range) {
    return addend_reduce32(static_cast<uint32_t>(addend_random(seed_, draws_++) >> 32), range);
  }
  int32_t value(uint32_t worker, uint64_t chunk, uint32_t lane) const {
    return static_cast<int32_t>(addend_random(seed_ + worker, chunk * 4 + lane));
  }

  void begin_epoch(const std::vector<uint32_t>& positions) {
    ++options_.epoch;
    slots_ = std::make_unique<aggregate::Slots>(*aggregate::Slots::create(options_));
    for (uint32_t w = 0; w < options_.world; ++w) {
      ASSERT_TRUE(streams_[w].enter({options_.epoch, options_.boot, w, options_.world,
                                     &worker_keys_[w], &result_key_, positions}));
    }
  }

  // What a server does with the places that workers tell when they join again.
  void restart() {
    std::vector<uint32_t> positions(options_.slots, ~0u);
    for (const Stream& stream : streams_) {
      for (uint32_t s = 0; s < options_.slots; ++s)
        positions[s] = std::min(positions[s], stream.positions()[s]);
    }
    ++options_.boot;
    begin_epoch(positions);
  }

  bool finished() const {
    for (uint32_t w = 0; w < options_.world; ++w) {
      if (!streams_[w].complete() && !(left_behind_ && w == options_.world - 1)) return false;
    }
    return true;
  }

  bool is_idle(uint32_t worker) const {
    return worker == options_.world - 1 && (left_behind_ || now_ns_ < stalled_until_ns_);
  }

  void drive(uint32_t worker) {
    Stream& stream = streams_[worker];
    // Workers are not in step: some idle for a while.
    if (draw(4) == 0 || is_idle(worker)) return;
    for (uint64_t number = 0; stream.next(number);) {
      std::array<int32_t, 4> lanes;
      for (uint32_t i = 0; i < 4; ++i)
        lanes[i] = value(worker, number, i);
      const bool entry = number % 50 == 0;
      stream.add(
          number,
          {Op::kSumI32, {reinterpret_cast<const uint8_t*>(lanes.data()), kPayload}, 0, entry});
    }
    for (const Stream::Frame& frame : stream.collect(now_ns_))
      post({options_.world, {frame.bytes.begin(), frame.bytes.end()}});
  }

  void post(const Flight& flight) {
    if (draw(100) < faults_.loss_percent) return;
    wire_.push_back(flight);
    if (draw(100) < faults_.duplicate_percent) wire_.push_back(flight);
    if (draw(100) < faults_.late_percent) late_.push_back(flight);
  }

  void pass_on() {
    if (!late_.empty() && draw(20) == 0) {
      wire_.push_back(late_.front());
      late_.pop_front();
    }
    const std::size_t most = std::min(wire_.size(), faults_.frames_per_step);
    for (std::size_t left = most; left > 0 && !wire_.empty(); --left) {
      const uint32_t pick = draw(static_cast<uint32_t>(std::min<std::size_t>(wire_.size(), 4)));
      const Flight flight = wire_[pick];
      wire_.erase(wire_.begin() + pick);
      flight.to == options_.world ? aggregate(flight.bytes) : deliver(flight.to, flight.bytes);
    }
  }

  void aggregate(const std::vector<uint8_t>& bytes) {
    addend_frame_header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    const auto payload = std::span<const uint8_t>(bytes).subspan(sizeof(header));
    const addend_frame_header wire = header;
    addend_frame_swap(&header);
    ASSERT_TRUE(worker_keys_[header.worker].verify(wire, payload));
    const auto outcome =
        slots_->handle(header, payload.data(), static_cast<uint32_t>(bytes.size()), now_ns_);
    ASSERT_NE(outcome.refusal, ADDEND_REFUSAL_MISMATCH);
    if (outcome.reply.audience != aggregate::Audience::kNobody) {
      send_back(outcome.reply, header.worker);
    }
  }

  void send_back(const aggregate::Reply& reply, uint32_t sender) {
    addend_frame_header back = reply.header;
    addend_frame_swap(&back);
    back.tag = addend_be64(result_key_.tag(back, reply.payload));
    std::vector<uint8_t> frame(sizeof(back) + reply.payload.size());
    std::memcpy(frame.data(), &back, sizeof(back));
    std::memcpy(frame.data() + sizeof(back), reply.payload.data(), reply.payload.size());
    for (uint32_t w = 0; w < options_.world; ++w) {
      if (reply.audience == aggregate::Audience::kEveryone || w == sender) post({w, frame});
    }
  }

  void deliver(uint32_t worker, const std::vector<uint8_t>& bytes) {
    if (is_idle(worker)) return;  // nobody reads the socket, which is full
    Arrival arrival{};
    addend_control_ended ended{};
    const auto verdict = streams_[worker].receive(bytes, now_ns_, arrival, ended);
    ASSERT_NE(verdict, Stream::Verdict::kNotice);
    if (verdict == Stream::Verdict::kLeftBehind) {
      ASSERT_TRUE(faults_.stalls > 0 && worker == options_.world - 1) << "seed " << seed_;
      left_behind_ = true;
    }
    if (verdict != Stream::Verdict::kArrived) return;
    ASSERT_LT(arrival.number, chunks_);
    ASSERT_FALSE(done_[worker][arrival.number]) << "twice";
    done_[worker][arrival.number] = true;
    const uint64_t everyone = (uint64_t{1} << options_.world) - 1;
    ASSERT_TRUE(faults_.stalls > 0 || arrival.contributors == everyone);
    // All workers see the same set, or they could not tell alike that a step must begin again.
    const auto known = sets_.insert({arrival.number, arrival.contributors}).first;
    ASSERT_EQ(known->second, arrival.contributors) << "seed " << seed_;
    if ((arrival.contributors >> worker & 1) == 0) ++partial_;
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t expected = 0, sum;
      for (uint32_t w = 0; w < options_.world; ++w) {
        if ((arrival.contributors >> w & 1) != 0)
          expected += static_cast<uint32_t>(value(w, arrival.number, i));
      }
      std::memcpy(&sum, arrival.sums.data() + i * 4, 4);
      ASSERT_EQ(sum, expected) << "seed " << seed_ << " chunk " << arrival.number;
    }
  }

  uint64_t seed_, draws_ = 0, chunks_, now_ns_ = 0;
  Faults faults_;
  aggregate::SlotsOptions options_;
  auth::FrameKey result_key_;
  std::vector<auth::FrameKey> worker_keys_;
  std::unique_ptr<aggregate::Slots> slots_;
  std::vector<Stream> streams_;
  std::vector<std::vector<bool>> done_;
  std::deque<Flight> wire_, late_;
  std::map<uint64_t, uint64_t> sets_;  // contributors by chunk
  uint64_t stalled_until_ns_ = 0, partial_ = 0;
  bool left_behind_ = false;
};

TEST(Stream, EverySumIsRightOverAGoodNetworkAndNothingIsSentTwice) {
  Job job(1, 4, 64, 5000, {});
  job.run();
  EXPECT_EQ(job.resent(), 0u);
}

TEST(Stream, EverySumIsRightOverABadNetwork) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const auto draw = [&](uint64_t i, uint32_t range) {
      return static_cast<uint32_t>(addend_random(seed, i) % range);
    };
    Job job(seed, 1 + draw(1, 5), 1 + draw(2, 40), 100 + draw(3, 400),
            {draw(4, 20), draw(5, 20), draw(6, 10), 0, 10000});
    job.run();
    if (HasFatalFailure()) return;
  }
}

// In virtual time, over a wire for 6.4 million frames a second: 9 Gbit/s of sums.
TEST(Stream, OnePercentOfLossBothWaysCostsLessThanHalfOfTheGoodput) {
  const Faults none{0, 0, 0, 0, 128}, loss{1, 0, 0, 0, 128};
  Job good(7, 4, 512, 40000, none), lossy(7, 4, 512, 40000, loss);
  good.run();
  lossy.run();
  EXPECT_GT(good.virtual_seconds() / lossy.virtual_seconds(), 0.5)
      << good.virtual_seconds() << " s without, " << lossy.virtual_seconds() << " s with loss, "
      << good.resent() << " and " << lossy.resent() << " sent again";
}

TEST(Stream, WorkersGoOnAfterTheAggregatorHasLostItsMemory) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const auto draw = [&](uint64_t i, uint32_t range) {
      return static_cast<uint32_t>(addend_random(seed, i) % range);
    };
    Job job(seed, 1 + draw(1, 4), 1 + draw(2, 20), 100 + draw(3, 200),
            {draw(4, 10), draw(5, 10), draw(6, 10), 1 + draw(7, 4), 10000});
    job.run();
    if (HasFatalFailure()) return;
  }
}

TEST(Stream, WithAQuorumSumsAreOfTheirContributorsAndAStalledWorkerGoesOnOrKnowsWhyNot) {
  uint64_t partial = 0, caught_up = 0, left_behind = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    // Few chunks a slot: a worker that stalls can still get what it missed. Many: it cannot.
    const uint32_t slots = seed % 2 == 0 ? 400 : 20;
    Job job(seed, 3 + static_cast<uint32_t>(seed % 3), slots, 800, {2, 5, 5, 0, 100, 2});
    job.run();
    if (HasFatalFailure()) return;
    partial += job.partial();
    caught_up += job.partial() > 0 && !job.left_behind() ? 1 : 0;
    left_behind += job.left_behind() ? 1 : 0;
  }
  EXPECT_GT(partial, 100u);
  EXPECT_GT(caught_up, 3u);
  EXPECT_GT(left_behind, 3u);
}

// Of the two halves of a window that waits for the stalled worker both must be asked for: a seed
// with which asking for one only ended the job.
TEST(Stream, WithAQuorumWhatWasLostIsThereBeforePatienceEnds) {
  Job job(52, 4, 400, 800, {2, 5, 5, 0, 100, 2});
  job.run();
}

TEST(Stream, AWorkerThatLostItsPlaceCannotGoOn) {
  Stream stream(4, kPayload);
  const auth::FrameKey key = key_of(1);
  const std::vector<uint32_t> positions = {2, 0, 0, 0};
  EXPECT_FALSE(stream.enter({1, 1, 0, 2, &key, &key, positions}));
  EXPECT_TRUE(stream.enter({1, 1, 0, 2, &key, &key, {}}));
}

TEST(Stream, GarbageAndForgeriesAreIgnored) {
  Stream stream(4, kPayload);
  const auth::FrameKey key = key_of(1), other = key_of(2);
  ASSERT_TRUE(stream.enter({1, 1, 0, 1, &key, &key, {}}));
  const std::vector<uint8_t> lanes(kPayload, 1);
  uint64_t number = 0;
  EXPECT_FALSE(stream.next(number));
  stream.extend(1);
  ASSERT_TRUE(stream.next(number));
  stream.add(number, {Op::kSumI32, lanes});
  EXPECT_FALSE(stream.next(number));
  ASSERT_EQ(stream.collect(0).size(), 1u);
  Arrival arrival{};
  addend_control_ended ended{};
  const auto verdict = [&](const std::vector<uint8_t>& bytes) {
    return stream.receive(bytes, 0, arrival, ended);
  };
  EXPECT_EQ(verdict({}), Stream::Verdict::kIgnored);
  EXPECT_EQ(verdict(std::vector<uint8_t>(56, 7)), Stream::Verdict::kIgnored);
  addend_frame_header header{};
  header.magic = ADDEND_FRAME_MAGIC;
  header.version = ADDEND_FRAME_VERSION;
  header.kind = ADDEND_FRAME_RESULT;
  header.epoch = header.boot = 1;
  header.op = ADDEND_OP_SUM_I32;
  header.length = kPayload;
  header.contributors = header.count = 1;
  const auto frame = [&](const auth::FrameKey& with) {
    addend_frame_header wire = header;
    addend_frame_swap(&wire);
    wire.tag = addend_be64(with.tag(wire, lanes));
    std::vector<uint8_t> bytes(sizeof(wire) + kPayload, 1);
    std::memcpy(bytes.data(), &wire, sizeof(wire));
    return bytes;
  };
  EXPECT_EQ(verdict(frame(other)), Stream::Verdict::kIgnored);
  header.epoch = 2;
  EXPECT_EQ(verdict(frame(key)), Stream::Verdict::kIgnored);
  header.epoch = 1;
  header.slot = 1;
  EXPECT_EQ(verdict(frame(key)), Stream::Verdict::kIgnored);
  header.slot = 4;
  EXPECT_EQ(verdict(frame(key)), Stream::Verdict::kIgnored);
  header.slot = 0;
  EXPECT_EQ(verdict(frame(key)), Stream::Verdict::kArrived);
  EXPECT_EQ(verdict(frame(key)), Stream::Verdict::kIgnored);
}

TEST(Stream, WhereASwitchFoldsLanesAreBigEndianAndTagsDoNotChange) {
  const auth::FrameKey worker_key = key_of(1), result_key = key_of(99);
  const EpochView view{7, 9, 1, 2, &worker_key, &result_key, {}, 1, 0, true};
  Stream stream(1, kPayload);
  stream.extend(1);
  ASSERT_TRUE(stream.enter(view));
  uint64_t number = 0;
  ASSERT_TRUE(stream.next(number));
  const uint8_t lanes[] = {1, 2, 3, 4, 5, 6, 7, 8};
  stream.add(number, {Op::kSumI32, lanes, 0, true});
  const auto frames = stream.collect(1);
  ASSERT_EQ(frames.size(), 1u);
  std::vector<uint8_t> frame(frames[0].bytes.begin(), frames[0].bytes.end());
  addend_frame_header header = addend_frame_read(frame.data());
  EXPECT_EQ(header.flags, ADDEND_FRAME_BIG_ENDIAN | ADDEND_FRAME_ENTRY);
  EXPECT_EQ(header.tag, worker_key.fixed_tag());
  const std::vector<uint8_t> swapped = {4, 3, 2, 1, 8, 7, 6, 5};
  EXPECT_TRUE(std::equal(swapped.begin(), swapped.end(), frame.begin() + sizeof(header)));

  header.kind = ADDEND_FRAME_RESULT;
  header.worker = ADDEND_FRAME_EVERYONE;
  header.count = 2;
  header.contributors = 3;
  const auto verdict_on = [&](uint8_t flags, uint64_t tag) {
    addend_frame_header bent = header;
    bent.flags = flags;
    bent.tag = tag;
    addend_frame_write(bent, frame.data());
    Arrival arrival{};
    addend_control_ended ended{};
    return stream.receive(frame, 2, arrival, ended);
  };
  addend_frame_header little = header;
  little.flags = 0;
  addend_frame_swap(&little);
  const uint64_t true_tag = result_key.tag(little, swapped);
  EXPECT_EQ(verdict_on(0, true_tag), Stream::Verdict::kIgnored) << "of a server that folds itself";
  EXPECT_EQ(verdict_on(0, result_key.fixed_tag()), Stream::Verdict::kIgnored);
  EXPECT_EQ(verdict_on(ADDEND_FRAME_BIG_ENDIAN, 0), Stream::Verdict::kIgnored);
  EXPECT_EQ(verdict_on(ADDEND_FRAME_BIG_ENDIAN, worker_key.fixed_tag()), Stream::Verdict::kIgnored);
  EXPECT_EQ(verdict_on(ADDEND_FRAME_BIG_ENDIAN, result_key.fixed_tag()), Stream::Verdict::kArrived);
}

TEST(Stream, WhereASwitchFoldsShortLanesFillWholeWords) {
  const auth::FrameKey worker_key = key_of(1), result_key = key_of(99);
  Stream stream(2, kPayload);
  stream.extend(2);
  ASSERT_TRUE(stream.enter({7, 9, 1, 2, &worker_key, &result_key, {}, 1, 0, true}));
  uint64_t number = 0;
  const uint8_t lanes[] = {1, 2, 3, 4, 5, 6};
  ASSERT_TRUE(stream.next(number));
  stream.add(number, {Op::kSumU8, std::span(lanes, 5), 0, false});
  ASSERT_TRUE(stream.next(number));
  stream.add(number, {Op::kSumU16, lanes, 0, false});
  const auto frames = stream.collect(1);
  ASSERT_EQ(frames.size(), 2u);
  const uint8_t bytes[] = {1, 2, 3, 4, 5, 0, 0, 0}, pairs[] = {2, 1, 4, 3, 6, 5, 0, 0};
  for (const auto& [sent, expected] : {std::pair(frames[0], bytes), {frames[1], pairs}}) {
    std::vector<uint8_t> frame(sent.bytes.begin(), sent.bytes.end());
    addend_frame_header header = addend_frame_read(frame.data());
    EXPECT_EQ(header.length, 8u);
    const std::vector<uint8_t> payload(frame.begin() + sizeof(header), frame.end());
    EXPECT_EQ(payload, std::vector<uint8_t>(expected, expected + 8));
    header.kind = ADDEND_FRAME_RESULT;
    header.worker = ADDEND_FRAME_EVERYONE;
    header.tag = result_key.fixed_tag();
    addend_frame_write(header, frame.data());
    Arrival arrival{};
    addend_control_ended ended{};
    EXPECT_EQ(stream.receive(frame, 2, arrival, ended), Stream::Verdict::kArrived);
    EXPECT_EQ(arrival.sums.size(), 8u);
  }
}

}  // namespace
}  // namespace addend::service_client
