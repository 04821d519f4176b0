// SPDX-License-Identifier: Apache-2.0
// Workers' streams against the aggregator's slots in virtual time, over links with a delay, a speed
// and seeded losses. Steps are rounds of chunks, one after the other, as a codec makes them. Every
// sum is checked; nothing depends on this machine's speed.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "aggregate/slots.h"
#include "base/bits.h"
#include "gtest/gtest.h"
#include "reduce/service/stream.h"
#include "tests/support/keys.h"
#include "wire/hash.h"

namespace addend::service_client {

inline constexpr uint32_t kPayload = 8;       // of what is computed ...
inline constexpr uint32_t kWireBytes = 1500;  // ... and of what the links carry for it
inline constexpr uint32_t kSlots = 512;

inline constexpr uint64_t kForeverNs = 1'000'000'000'000;

struct Link {
  uint64_t round_trip_ns;
  double loss;             // of each datagram, in each direction
  double gbit_s = 10;      // of each worker's link, in each direction
  uint64_t jitter_ns = 0;  // delays differ by up to this, so datagrams may overtake others
  uint64_t serve_ns = 0;   // that each datagram, of all links, takes the aggregator
  uint64_t away_ns = 0;    // that the aggregator's core works, and then as long for somebody else
  uint64_t burst_ns = 0;   // for which a loss goes on, as where a queue is full
  uint64_t nap_ns = 0;     // how often a worker looks what has come, each at another time
};

/// What a job does about workers that do not come.
struct Policy {
  uint64_t patience_ns = 0;
  uint32_t quorum = 0;
  uint32_t threads = 1;  // of the aggregator
};

inline auth::FrameKey key_of(uint8_t fill) {
  return *auth::FrameKey::create(testing_support::secret_of(fill), kPayload);
}

class Wire {
 public:
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;
  Wire(uint64_t seed, uint32_t world, const Link& link, const Policy& policy = {})
      : seed_(seed), link_(link), result_key_(key_of(99)), up_(world), down_(world) {
    aggregate::SlotsOptions options;
    options.epoch = options.boot = 1;
    options.world = world;
    options.payload_bytes = kPayload;
    options.ops = 1u << ADDEND_OP_SUM_I64;
    options.patience_ns = policy.patience_ns;
    options.quorum = policy.quorum;
    const auto attendance = std::make_shared<aggregate::Attendance>();
    options.slots = kSlots / policy.threads;
    for (uint32_t t = 0; t < policy.threads; ++t) {
      options.first_slot = t * options.slots;
      parts_.push_back(*aggregate::Slots::create(options, attendance));
    }
    for (uint32_t w = 0; w < world; ++w)
      worker_keys_.push_back(key_of(static_cast<uint8_t>(w)));
    for (uint32_t w = 0; w < world; ++w) {
      streams_.emplace_back(kSlots, kPayload);
      EXPECT_TRUE(streams_[w].enter({1,
                                     1,
                                     w,
                                     world,
                                     &worker_keys_[w],
                                     &result_key_,
                                     {},
                                     policy.threads,
                                     link.round_trip_ns}));
    }
    lag_ns_.resize(world, 0);
    if (policy.patience_ns > 0) watch();
  }

  /// A worker begins its steps so much later than the others.
  void set_lag(uint32_t worker, uint64_t ns) { lag_ns_[worker] = ns; }

  /// From then on a worker neither sends nor receives.
  void stop(uint32_t worker, uint64_t at_ns) {
    at(at_ns, [this, worker] { stopped_ |= uint64_t{1} << worker; });
  }

  void set_round_trip(uint64_t ns) { link_.round_trip_ns = ns; }
  void set_jitter(uint64_t ns) { link_.jitter_ns = ns; }

  /// One step of rounds of so many chunks; returns the seconds until the last worker that was not
  /// stopped has all, or until the epoch has ended.
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
    while (!notice_ && (asleep > 0 || !all_done())) {
      if (events_.empty() || now_ns_ > began_ns + kForeverNs ||
          ::testing::Test::HasFatalFailure()) {
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
  /// The aggregator's words, if it has ended the epoch.
  const std::optional<addend_frame_header>& notice() const { return notice_; }
  /// Workers, by bit, that some result was without.
  uint64_t missed() const { return missed_; }
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
  bool is_stopped(uint32_t worker) const { return (stopped_ >> worker & 1) != 0; }
  bool all_done() const {
    for (uint32_t w = 0; w < streams_.size(); ++w) {
      if (!is_stopped(w) && round_[w] < rounds_.size()) return false;
    }
    return true;
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
    uint64_t& lost_ns = lost_until_ns_[&free_ns];
    if (draw() < link_.loss) lost_ns = free_ns + link_.burst_ns;
    return free_ns > lost_ns;
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
    if (is_stopped(w) || round_[w] == rounds_.size()) return;
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
    const auto outcome = parts_[header.slot / parts_[0].options().slots].handle(
        header, bytes.data() + ADDEND_FRAME_HEADER_BYTES, static_cast<uint32_t>(bytes.size()),
        now_ns_);
    ASSERT_NE(outcome.refusal, ADDEND_REFUSAL_MISMATCH);
    reply(outcome.reply, header.worker);
  }

  // Every millisecond, as a server does.
  void watch() {
    at(now_ns_ + 1'000'000, [this] {
      for (aggregate::Slots& part : parts_) {
        aggregate::Reply due;
        while (part.expire(now_ns_, due))
          reply(due, 0);
      }
      watch();
    });
  }

  void reply(const aggregate::Reply& reply, uint32_t sender) {
    if (reply.audience == aggregate::Audience::kNobody) return;
    addend_frame_header back = reply.header;
    if (back.kind == ADDEND_FRAME_NOTICE) notice_ = back;
    addend_frame_swap(&back);
    back.tag = addend_be64(result_key_.tag(back, reply.payload));
    std::vector<uint8_t> frame(sizeof(back) + reply.payload.size());
    std::memcpy(frame.data(), &back, sizeof(back));
    if (!reply.payload.empty())
      std::memcpy(frame.data() + sizeof(back), reply.payload.data(), reply.payload.size());
    for (uint32_t w = 0; w < streams_.size(); ++w) {
      if (reply.audience == aggregate::Audience::kSender && w != sender) continue;
      uint64_t there_ns = 0;
      serve();
      if (carry(down_[w], there_ns)) at(there_ns, [this, w, frame] { deliver(w, frame); });
    }
  }

  void deliver(uint32_t worker, const std::vector<uint8_t>& bytes) {
    if (is_stopped(worker)) return;
    Arrival arrival{};
    addend_control_ended ended{};
    if (streams_[worker].receive(bytes, now_ns_, arrival, ended) == Stream::Verdict::kArrived) {
      uint64_t expected = 0, sum;
      for (uint32_t w = 0; w < streams_.size(); ++w)
        expected +=
            (arrival.contributors >> w & 1) * static_cast<uint64_t>(value(w, arrival.number));
      missed_ |= low_mask(static_cast<uint32_t>(streams_.size())) & ~arrival.contributors;
      std::memcpy(&sum, arrival.sums.data(), sizeof(sum));
      ASSERT_EQ(sum, expected) << "seed " << seed_ << " chunk " << arrival.number;
    }
    if (link_.nap_ns == 0) return drive(worker);
    if (std::exchange(napping_[worker], true)) return;
    const uint64_t phase_ns = link_.nap_ns * worker / streams_.size();
    const uint64_t naps = (now_ns_ + link_.nap_ns - phase_ns) / link_.nap_ns;
    at(naps * link_.nap_ns + phase_ns, [this, worker] {
      napping_[worker] = false;
      drive(worker);
    });
  }

  uint64_t seed_, draws_ = 0, now_ns_ = 0, events_made_ = 0, sent_ = 0, served_ns_ = 0;
  uint64_t stopped_ = 0, missed_ = 0;  // workers
  Link link_;
  auth::FrameKey result_key_;
  std::vector<auth::FrameKey> worker_keys_;
  std::vector<Stream> streams_;
  std::vector<aggregate::Slots> parts_;
  std::optional<addend_frame_header> notice_;
  std::vector<uint64_t> up_, down_, lag_ns_;
  std::map<Moment, std::function<void()>> events_;
  std::map<uint32_t, uint64_t> timers_;
  std::map<uint32_t, bool> napping_;
  std::map<const uint64_t*, uint64_t> lost_until_ns_;  // by link and direction
  std::vector<uint64_t> rounds_;                       // of the step
  std::vector<std::size_t> round_;  // that each worker is in; rounds_.size(): none
};

}  // namespace addend::service_client
