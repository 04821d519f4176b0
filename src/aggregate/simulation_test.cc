// SPDX-License-Identifier: Apache-2.0
// Honest workers over a bad network: frames are lost, doubled, reordered and held back for many
// turns; workers and the aggregator restart at any point, which raises the epoch. Whatever a worker
// accepts as the result of a turn must be the fold of exactly its stated contributors.
#include <deque>
#include <map>

#include "gtest/gtest.h"
#include "tests/support/reference_slots.h"

namespace addend::testing_support {
namespace {

constexpr uint32_t kBytes = 16;
constexpr uint32_t kTurns = 12;

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : seed_(seed) {
    options_.world = 1 + draw(5);
    options_.slots = 1 + draw(3);
    options_.payload_bytes = kBytes;
    options_.ops = 1u << ADDEND_OP_SUM_I32;
    options_.boot = 7;
    loss_ = draw(4) * 8;
    if (draw(2) == 0) {
      options_.patience_ns = 60;
      options_.quorum = 1 + draw(options_.world);
    }
    begin_epoch();
  }

  /// Runs until every worker has every turn, or until it was left behind by a quorum.
  void run() {
    for (uint64_t now = 0; !finished(); ++now) {
      ASSERT_LT(now, 200000u) << "seed " << seed_ << ": no progress";
      if (draw(4000) == 0) begin_epoch();
      const uint32_t worker = draw(options_.world);
      if (wire_.size() < 50) send(worker, draw(options_.slots));
      pass_on(now);
      aggregate::Reply reply;
      while (slots_->expire(now, reply))
        broadcast(reply);
    }
  }

  uint64_t results() const { return results_; }
  uint64_t left_behind() const { return left_behind_; }

 private:
  struct Place {
    uint32_t turn = 0;
    bool left_behind = false;
  };
  struct Flight {
    Packet packet;
    uint32_t to;  // a worker, or the aggregator
  };
  static constexpr uint32_t kAggregator = ~0u;

  uint32_t draw(uint32_t range) {
    return addend_reduce32(static_cast<uint32_t>(addend_random(seed_, next_++) >> 32), range);
  }

  // A restart of the aggregator or of a worker: all agree on the first turn that someone lacks and
  // start over there, under another epoch, while frames of the old one are still in flight.
  void begin_epoch() {
    ++options_.epoch;
    if (draw(2) == 0) ++options_.boot;
    auto slots = aggregate::Slots::create(options_);
    ASSERT_TRUE(slots);
    slots_ = std::make_unique<aggregate::Slots>(*std::move(slots));
    done_.resize(options_.slots, 0);
    for (uint32_t s = 0; s < options_.slots; ++s) {
      uint32_t least = kTurns;
      for (uint32_t w = 0; w < options_.world && !places_.empty(); ++w)
        least = std::min(least, done_[s] + places_[{w, s}].turn);
      done_[s] = places_.empty() ? 0 : least;
    }
    places_.clear();
    delivered_.clear();
    for (uint32_t w = 0; w < options_.world; ++w) {
      for (uint32_t s = 0; s < options_.slots; ++s)
        places_[{w, s}] = {};
    }
  }

  bool finished() const {
    for (const auto& [key, place] : places_) {
      if (!place.left_behind && done_[key.second] + place.turn < kTurns) return false;
    }
    return true;
  }

  void send(uint32_t worker, uint32_t slot) {
    const Place& place = places_[{worker, slot}];
    if (place.left_behind || done_[slot] + place.turn >= kTurns) return;
    post({contribution(options_, worker, slot, place.turn, Op::kSumI32,
                       payload_for(options_.epoch, worker, slot, place.turn, kBytes)),
          kAggregator});
  }

  void post(const Flight& flight) {
    if (draw(100) < loss_) return;
    wire_.push_back(flight);
    if (draw(10) == 0) wire_.push_back(flight);
    // Some copies stay on the wire for many turns.
    if (draw(20) == 0) held_.push_back(flight);
  }

  void pass_on(uint64_t now) {
    if (!held_.empty() && draw(10) == 0) {
      wire_.push_back(held_.front());
      held_.pop_front();
    }
    for (uint32_t n = draw(4); n > 0 && !wire_.empty(); --n) {
      const uint32_t pick = draw(static_cast<uint32_t>(std::min<std::size_t>(wire_.size(), 6)));
      const Flight flight = wire_[pick];
      wire_.erase(wire_.begin() + pick);
      if (flight.to == kAggregator) {
        const aggregate::Outcome outcome = deliver(*slots_, flight.packet, now);
        if (outcome.reply.audience == aggregate::Audience::kEveryone) broadcast(outcome.reply);
        if (outcome.reply.audience == aggregate::Audience::kSender)
          reply_to(flight.packet.header.worker, outcome.reply);
      } else {
        accept(flight.to, flight.packet);
      }
    }
  }

  void broadcast(const aggregate::Reply& reply) {
    for (uint32_t w = 0; w < options_.world; ++w)
      reply_to(w, reply);
  }
  void reply_to(uint32_t worker, const aggregate::Reply& reply) {
    post({{reply.header, {reply.payload.begin(), reply.payload.end()}}, worker});
  }

  void accept(uint32_t worker, const Packet& packet) {
    const addend_frame_header& header = packet.header;
    if (header.epoch != options_.epoch || header.boot != options_.boot) return;
    if (header.kind == ADDEND_FRAME_NOTICE) {
      for (uint32_t s = 0; s < options_.slots; ++s)
        places_[{worker, s}].left_behind = true;
      return;
    }
    Place& place = places_[{worker, header.slot}];
    check(packet);
    if (place.left_behind || header.turn < place.turn) return;
    if (header.turn > place.turn) {
      // Others went on at a quorum; this worker can no longer get the turn it lacks.
      ASSERT_GT(options_.quorum, 0u);
      if (header.turn > place.turn + 1) {
        place.left_behind = true;
        ++left_behind_;
      }
      return;
    }
    ++place.turn;
    ++results_;
  }

  // The sum is that of the stated contributors, who are everyone unless the result says otherwise,
  // and nobody ever sees another sum for the same turn.
  void check(const Packet& packet) {
    const addend_frame_header& header = packet.header;
    std::vector<uint8_t> sum(kBytes, 0);
    for (uint32_t w = 0; w < options_.world; ++w) {
      if ((header.contributors >> w & 1) == 0) continue;
      reference::fold(Op::kSumI32, sum.data(),
                      payload_for(options_.epoch, w, header.slot, header.turn, kBytes).data(),
                      kBytes / 4);
    }
    ASSERT_EQ(packet.payload, sum) << "seed " << seed_ << " turn " << header.turn;
    ASSERT_EQ(header.count, std::popcount(header.contributors));
    if ((header.flags & ADDEND_FRAME_PARTIAL) == 0) {
      ASSERT_EQ(header.count, options_.world);
    }
    const auto [known, fresh] =
        delivered_.insert({{header.slot, header.turn}, header.contributors});
    ASSERT_EQ(known->second, header.contributors) << "seed " << seed_;
  }

  uint64_t seed_, next_ = 0;
  uint32_t loss_ = 0;
  aggregate::SlotsOptions options_;
  std::unique_ptr<aggregate::Slots> slots_;
  std::vector<uint32_t> done_;  // turns of earlier epochs, by slot
  std::map<std::pair<uint32_t, uint32_t>, Place> places_;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> delivered_;
  std::deque<Flight> wire_, held_;
  uint64_t results_ = 0, left_behind_ = 0;
};

TEST(Simulation, EveryResultIsTheSumOfItsContributorsOverABadNetwork) {
  uint64_t results = 0, left_behind = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    Simulation simulation(seed);
    simulation.run();
    if (HasFatalFailure()) return;
    results += simulation.results();
    left_behind += simulation.left_behind();
  }
  EXPECT_GT(results, 100000u);
  EXPECT_GT(left_behind, 10u);
}

}  // namespace
}  // namespace addend::testing_support
