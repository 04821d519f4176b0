// SPDX-License-Identifier: Apache-2.0
// What loss costs, in virtual time: workers' streams against the aggregator's slots over links with
// a delay, a speed and seeded losses. Steps are rounds of chunks, one after the other, as a codec
// makes them. Every sum is checked; nothing depends on this machine's speed.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include "aggregate/slots.h"
#include "gtest/gtest.h"
#include "reduce/service/stream.h"
#include "tests/support/keys.h"
#include "wire/hash.h"

namespace addend::service_client {
namespace {

constexpr uint32_t kPayload = 8;       // of what is computed ...
constexpr uint32_t kWireBytes = 1500;  // ... and of what the links carry for it
constexpr uint32_t kSlots = 512;

struct Link {
  uint64_t round_trip_ns;
  double loss;             // of each datagram, in each direction
  double gbit_s = 10;      // of each worker's link, in each direction
  uint64_t jitter_ns = 0;  // delays differ by up to this, so datagrams may overtake others
  uint64_t serve_ns = 0;   // that each datagram, of all links, takes the aggregator
  uint64_t away_ns = 0;    // that the aggregator's core works, and then as long for somebody else
};

auth::FrameKey key_of(uint8_t fill) {
  return *auth::FrameKey::create(testing_support::secret_of(fill), kPayload);
}

class Wire {
 public:
  Wire(uint64_t seed, uint32_t world, const Link& link)
      : seed_(seed), link_(link), result_key_(key_of(99)), up_(world), down_(world) {
    aggregate::SlotsOptions options;
    options.epoch = options.boot = 1;
    options.world = world;
    options.slots = kSlots;
    options.payload_bytes = kPayload;
    options.ops = 1u << ADDEND_OP_SUM_I64;
    slots_ = std::make_unique<aggregate::Slots>(*aggregate::Slots::create(options));
    for (uint32_t w = 0; w < world; ++w)
      worker_keys_.push_back(key_of(static_cast<uint8_t>(w)));
    for (uint32_t w = 0; w < world; ++w) {
      streams_.emplace_back(kSlots, kPayload);
      EXPECT_TRUE(streams_[w].enter(
          {1, 1, w, world, &worker_keys_[w], &result_key_, {}, 1, link.round_trip_ns}));
    }
    lag_ns_.resize(world, 0);
  }

  /// A worker begins its steps so much later than the others.
  void set_lag(uint32_t worker, uint64_t ns) { lag_ns_[worker] = ns; }

  void set_round_trip(uint64_t ns) { link_.round_trip_ns = ns; }

  /// One step of rounds of so many chunks; returns the seconds until the last worker has all.
  double step(const std::vector<uint64_t>& rounds) {
    const uint64_t began_ns = now_ns_;
    rounds_ = rounds;
    round_.assign(streams_.size(), rounds.size());  // asleep
    std::size_t asleep = streams_.size();
    for (uint32_t w = 0; w < streams_.size(); ++w) {
      at(began_ns + lag_ns_[w], [this, w, &asleep] {
        --asleep;
        round_[w] = 0;
        streams_[w].extend(rounds_[0]);
        drive(w);
      });
    }
    const auto done = [this](std::size_t round) { return round == rounds_.size(); };
    while (asleep > 0 || !std::all_of(round_.begin(), round_.end(), done)) {
      if (events_.empty() || ::testing::Test::HasFatalFailure()) {
        ADD_FAILURE() << "seed " << seed_ << ": nothing more happens";
        return 0;
      }
      const auto first = events_.begin();
      now_ns_ = first->first.first;
      const auto next = std::move(first->second);
      events_.erase(first);
      next();
    }
    return static_cast<double>(now_ns_ - began_ns) * 1e-9;
  }
  uint64_t sent() const { return sent_; }
  uint64_t resent() const {
    return std::accumulate(streams_.begin(), streams_.end(), uint64_t{0},
                           [](uint64_t sum, const Stream& s) { return sum + s.resent(); });
  }

 private:
  // Time, and a number that keeps the order of what happens at once.
  using Moment = std::pair<uint64_t, uint64_t>;

  void at(uint64_t ns, std::function<void()> what) {
    events_.emplace(Moment{ns, ++events_made_}, std::move(what));
  }
  double draw() { return static_cast<double>(addend_random(seed_, draws_++) >> 11) * 0x1p-53; }
  int64_t value(uint32_t worker, uint64_t chunk) const {
    return static_cast<int64_t>(addend_random(seed_ + 1 + worker, chunk));
  }

  // When a datagram that leaves now is there: behind those before it, and after the delay. False if
  // it is lost, which takes its time on the link all the same.
  bool carry(uint64_t& free_ns, uint64_t& there_ns) {
    const auto length_ns = static_cast<uint64_t>(kWireBytes * 8 / link_.gbit_s);
    free_ns = std::max(free_ns, now_ns_) + length_ns;
    there_ns = free_ns + link_.round_trip_ns / 2;
    if (link_.jitter_ns > 0)
      there_ns += static_cast<uint64_t>(draw() * static_cast<double>(link_.jitter_ns));
    return draw() >= link_.loss;
  }

  // When the aggregator has dealt with one more datagram.
  uint64_t serve() {
    if (link_.serve_ns == 0) return now_ns_;
    served_ns_ = std::max(served_ns_, now_ns_) + link_.serve_ns;
    if (link_.away_ns > 0 && served_ns_ / link_.away_ns % 2 == 1)
      served_ns_ = (served_ns_ / link_.away_ns + 1) * link_.away_ns;
    return served_ns_;
  }

  void drive(uint32_t w) {
    Stream& stream = streams_[w];
    if (round_[w] == rounds_.size()) return;
    if (stream.complete()) {
      if (++round_[w] == rounds_.size()) return;
      stream.extend(rounds_[round_[w]]);
    }
    for (uint64_t number = 0; stream.next(number);) {
      const int64_t lane = value(w, number);
      stream.add(number, {Op::kSumI64, {reinterpret_cast<const uint8_t*>(&lane), kPayload}});
    }
    for (const Stream::Frame& frame : stream.collect(now_ns_)) {
      uint64_t there_ns = 0;
      ++sent_;
      if (!carry(up_[w], there_ns)) continue;
      at(there_ns, [this, bytes = std::vector<uint8_t>(frame.bytes.begin(), frame.bytes.end())] {
        at(serve(), [this, bytes] { aggregate(bytes); });
      });
    }
    const uint64_t again_ns = std::max(stream.next_timeout_ns(), now_ns_ + 1);
    if (again_ns != ~uint64_t{0}) {
      const uint64_t number = ++timers_[w];
      at(again_ns, [this, w, number] {
        if (timers_[w] == number) drive(w);
      });
    }
  }

  void aggregate(const std::vector<uint8_t>& bytes) {
    const addend_frame_header header = addend_frame_read(bytes.data());
    const auto outcome = slots_->handle(header, bytes.data() + ADDEND_FRAME_HEADER_BYTES,
                                        static_cast<uint32_t>(bytes.size()), now_ns_);
    ASSERT_NE(outcome.refusal, ADDEND_REFUSAL_MISMATCH);
    if (outcome.reply.audience == aggregate::Audience::kNobody) return;
    addend_frame_header back = outcome.reply.header;
    addend_frame_swap(&back);
    back.tag = addend_be64(result_key_.tag(back, outcome.reply.payload));
    std::vector<uint8_t> frame(sizeof(back) + outcome.reply.payload.size());
    std::memcpy(frame.data(), &back, sizeof(back));
    std::memcpy(frame.data() + sizeof(back), outcome.reply.payload.data(),
                outcome.reply.payload.size());
    for (uint32_t w = 0; w < streams_.size(); ++w) {
      if (outcome.reply.audience == aggregate::Audience::kSender && w != header.worker) continue;
      uint64_t there_ns = 0;
      serve();
      if (carry(down_[w], there_ns)) at(there_ns, [this, w, frame] { deliver(w, frame); });
    }
  }

  void deliver(uint32_t worker, const std::vector<uint8_t>& bytes) {
    Arrival arrival{};
    addend_control_ended ended{};
    if (streams_[worker].receive(bytes, now_ns_, arrival, ended) == Stream::Verdict::kArrived) {
      uint64_t expected = 0, sum;
      for (uint32_t w = 0; w < streams_.size(); ++w)
        expected += static_cast<uint64_t>(value(w, arrival.number));
      std::memcpy(&sum, arrival.sums.data(), sizeof(sum));
      ASSERT_EQ(sum, expected) << "seed " << seed_ << " chunk " << arrival.number;
    }
    drive(worker);
  }

  uint64_t seed_, draws_ = 0, now_ns_ = 0, events_made_ = 0, sent_ = 0, served_ns_ = 0;
  Link link_;
  auth::FrameKey result_key_;
  std::vector<auth::FrameKey> worker_keys_;
  std::vector<Stream> streams_;
  std::unique_ptr<aggregate::Slots> slots_;
  std::vector<uint64_t> up_, down_, lag_ns_;
  std::map<Moment, std::function<void()>> events_;
  std::map<uint32_t, uint64_t> timers_;
  std::vector<uint64_t> rounds_;    // of the step
  std::vector<std::size_t> round_;  // that each worker is in; rounds_.size(): none
};

struct Load {
  const char* name;
  std::vector<uint64_t> rounds;  // chunks of each: the agree round, then the codec's
  int steps;
};

struct Outcome {
  double seconds;
  double again;  // of all contributions, those that were not the first
};

Outcome run(const Load& load, uint32_t world, const Link& link, uint64_t lag_ns = 0) {
  Wire wire(20261116, world, link);
  wire.set_lag(world - 1, lag_ns);
  wire.step(load.rounds);  // the window opens
  double sum = 0;
  for (int i = 0; i < load.steps; ++i)
    sum += wire.step(load.rounds);
  return {sum / load.steps, static_cast<double>(wire.resent()) / static_cast<double>(wire.sent())};
}

constexpr uint64_t kRoundTripsNs[] = {200'000, 2'000'000, 20'000'000, 80'000'000};

// Seconds of a step where whoever loses something knows so a round trip after it was sent, and
// nothing that was not lost is sent again: what no resending betters, for rounds of a window. (To
// send what is not known to be lost can: see the copies of decision 0041.)
double ideal(const Load& load, uint32_t world, const Link& link) {
  constexpr int kSteps = 300;
  uint64_t draws = 0;
  const auto round_trips_lost = [&] {  // until all workers' datagrams have got through
    int most = 0;
    for (uint32_t w = 0; w < world; ++w) {
      int lost = 0;
      while (static_cast<double>(addend_random(1, draws++) >> 11) * 0x1p-53 < link.loss)
        ++lost;
      most = std::max(most, lost);
    }
    return most;
  };
  const double round_trip = static_cast<double>(link.round_trip_ns) * 1e-9;
  const double each = kWireBytes * 8e-9 / link.gbit_s;
  double sum = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (const uint64_t chunks : load.rounds) {
      double end = 0;
      for (uint64_t i = 0; i < chunks; ++i) {
        const int trips = 1 + round_trips_lost() + round_trips_lost();
        end = std::max(end, static_cast<double>(i + 2) * each + trips * round_trip);
      }
      sum += end;
    }
  }
  return sum / kSteps;
}

// Goodput against that of the same links without loss. On a path of a fifth of a millisecond a loss
// costs a good part of a short step, even at best; what is longer gets copies.
void expect_bars(const Load& load, uint32_t world, uint64_t round_trip_ns, double gbit_s = 10) {
  const Link little_lost{round_trip_ns, 0.001, gbit_s};
  const Outcome none = run(load, world, {round_trip_ns, 0, gbit_s});
  const Outcome little = run(load, world, little_lost);
  const Outcome much = run(load, world, {round_trip_ns, 0.01, gbit_s});
  const double of_little = none.seconds / little.seconds, of_much = none.seconds / much.seconds;
  double bar = 0.85;
  if (round_trip_ns < 1'000'000 && load.rounds.back() <= kSlots)
    bar = std::min(bar, 0.92 * none.seconds / ideal(load, world, little_lost));
  std::printf(
      "%-14s %u workers, %4.1f Gbit/s, %4.1f ms: %.3f ms a step; 0.1 %% loss %.2f (>= %.3f), 1 %% "
      "loss %.2f\n",
      load.name, world, gbit_s, static_cast<double>(round_trip_ns) * 1e-6, none.seconds * 1e3,
      of_little, bar, of_much);
  EXPECT_EQ(none.again, 0);
  EXPECT_GE(of_little, bar) << load.name;
  EXPECT_GE(of_much, 0.5) << load.name;
  EXPECT_LE(much.again, 0.55) << load.name;
}
void expect_bars(const Load& load, uint32_t world) {
  for (const uint64_t round_trip_ns : kRoundTripsNs)
    expect_bars(load, world, round_trip_ns);
}

TEST(Loss, CostsLittleInSmallSparseSteps) { expect_bars({"exact 256 KiB", {1, 5, 10}, 60}, 4); }
TEST(Loss, CostsLittleInSmallDenseSteps) { expect_bars({"dense 256 KiB", {1, 187}, 30}, 4); }
TEST(Loss, CostsLittleInSparseSteps) { expect_bars({"exact 8 MiB", {1, 149, 300}, 20}, 2); }
TEST(Loss, CostsLittleInDenseSteps) { expect_bars({"dense 8 MiB", {1, 5958}, 2}, 2); }

TEST(Loss, CostsLittleWhereARoundFillsThePath) {
  expect_bars({"dense 256 KiB", {1, 187}, 30}, 4, 2'000'000, 0.5);
}

// Timeouts used to learn from waits for what others had lost, and waits to grow with them.
TEST(Loss, DoesNotMakeAWorkerWaitLongerThanItsPathTakes) {
  const Load load{"one chunk", {1}, 400};
  for (const uint64_t round_trip_ns : kRoundTripsNs) {
    const Outcome outcome = run(load, 4, {round_trip_ns, 0.05});
    // A third of the steps lose something.
    EXPECT_LT(outcome.seconds, 2.5e-9 * static_cast<double>(round_trip_ns));
  }
}

TEST(Loss, IsNotSeenWhereAWorkerIsOnlySlow) {
  const Load load{"dense 256 KiB", {1, 187}, 30};
  for (const uint64_t round_trip_ns : kRoundTripsNs) {
    const uint64_t lag_ns = 20 * round_trip_ns;
    const Outcome outcome = run(load, 4, {round_trip_ns, 0}, lag_ns);
    // The others' windows have become narrow meanwhile.
    EXPECT_LT(outcome.seconds, static_cast<double>(lag_ns + 6 * round_trip_ns + 400'000) * 1e-9);
    EXPECT_LT(outcome.again, 0.4);
  }
}

TEST(Loss, IsNotSeenWhereDatagramsOvertakeEachOther) {
  for (const uint64_t round_trip_ns : {2'000'000u, 20'000'000u}) {
    const Link link{round_trip_ns, 0, 10, round_trip_ns / 16};
    EXPECT_LT(run({"dense 8 MiB", {1, 5958}, 2}, 4, link).again, 0.01);
  }
}

// A window of four workers takes such an aggregator two milliseconds, which its path does not.
constexpr Link kBusy{100'000, 0, 10, 0, 500}, kBusyAndLossy{100'000, 0.01, 10, 0, 500};

TEST(Loss, IsHardlySeenWhereTheAggregatorHasItsCoreForHalfTheTime) {
  for (const uint64_t away_ns : {1'000'000u, 3'000'000u}) {
    Link link = kBusy;
    link.away_ns = away_ns;
    EXPECT_LT(run({"dense 4 MiB", {1, 2979}, 3}, 4, link).again, 0.02);
  }
}

// Of all that is lost every worker sends its part again, and often once more while the one that
// lost a result is a turn behind. More would be work for the one that all of them wait for.
TEST(Loss, MakesABusyAggregatorLittleWork) {
  const Load load{"dense 8 MiB", {1, 5958}, 2};
  const Outcome none = run(load, 4, kBusy), lossy = run(load, 4, kBusyAndLossy);
  std::printf("1 %% loss: sent again %.3f, goodput %.2f\n", lossy.again,
              none.seconds / lossy.seconds);
  EXPECT_LT(lossy.again, 0.12);
  EXPECT_GT(none.seconds / lossy.seconds, 0.8);
}

// What is asked for again before it can come back is never at its first try, by which round trips
// are measured.
TEST(Loss, IsNotSeenForLongWhereAPathBecomesLonger) {
  Wire wire(20261116, 2, {100'000, 0});
  wire.step({64});
  wire.set_round_trip(2'000'000);
  for (int i = 0; i < 10; ++i)
    wire.step({64});
  const uint64_t resent = wire.resent();
  for (int i = 0; i < 10; ++i)
    wire.step({64});
  EXPECT_EQ(wire.resent(), resent);
}

TEST(Loss, IsNotSeenInAWindowBecauseOneChunkWaitedLong) {
  Wire wire(20261116, 2, {100'000, 0});
  wire.set_lag(1, 1'300'000);
  wire.step({1});
  wire.set_lag(1, 0);
  wire.set_round_trip(400'000);
  const uint64_t resent = wire.resent();
  wire.step({64});
  EXPECT_LE(wire.resent() - resent, 2u * 8);
}

}  // namespace
}  // namespace addend::service_client
