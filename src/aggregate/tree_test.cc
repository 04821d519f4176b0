// SPDX-License-Identifier: Apache-2.0
// A tree of two levels: leaves that fold their workers, and a root that folds the leaves. Frames of
// both hops are lost, doubled, reordered and held back for many turns; everything restarts at any
// point. Whatever a worker accepts must be the fold of all workers of all leaves, once each.
#include <deque>
#include <map>

#include "gtest/gtest.h"
#include "tests/support/reference_slots.h"

namespace addend::testing_support {
namespace {

constexpr uint32_t kBytes = 16;
constexpr uint32_t kTurns = 8;
constexpr uint64_t kStepNs = aggregate::Slots::kRelayAgainNs / 4;
constexpr Op kOps[] = {Op::kSumI32, Op::kMaxU32,      Op::kTableSumU16,
                       Op::kOrU64,  Op::kNarrowSum48, Op::kNarrowSum84};
const aggregate::Table kTable = {0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 60, 61, 62, 63, 64, 65};

Op op_of(uint32_t slot, uint32_t position) { return kOps[(slot + position) % std::size(kOps)]; }

class Tree {
 public:
  explicit Tree(uint64_t seed) : seed_(seed), leaves_(1 + draw(4)), slots_(1 + draw(3)) {
    loss_ = draw(4) * 8;
    for (uint32_t leaf = 0; leaf < leaves_; ++leaf)
      worlds_.push_back(1 + draw(3));
    begin_epoch();
  }

  void run() {
    for (uint64_t step = 0; !finished(); ++step) {
      ASSERT_LT(step, 400000u) << "seed " << seed_ << ": no progress";
      if (draw(3000) == 0) begin_epoch();
      now_ns_ += kStepNs;
      const uint32_t leaf = draw(leaves_);
      if (wire_.size() < 60) send(leaf, draw(worlds_[leaf]), draw(slots_));
      pass_on();
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

  uint64_t results() const { return results_; }
  uint64_t asked_again() const { return asked_again_; }

 private:
  struct Flight {
    Packet packet;
    enum class To : uint8_t { kLeaf, kRoot, kLeafFromRoot, kWorker } to;
    uint32_t leaf = 0, worker = 0;
  };
  using To = Flight::To;
  using Key = std::array<uint32_t, 3>;  // leaf, worker, slot

  uint32_t draw(uint32_t range) {
    return addend_reduce32(static_cast<uint32_t>(addend_random(seed_, next_++) >> 32), range);
  }

  aggregate::SlotsOptions options_of(uint32_t world, bool relays) const {
    aggregate::SlotsOptions options;
    options.epoch = epoch_;
    options.boot = relays ? 7 : 9;
    options.world = world;
    options.slots = slots_;
    options.payload_bytes = kBytes * 4;
    options.ops = ~0u;
    options.relays = relays;
    return options;
  }

  // Somebody restarted, at whatever level: all begin at the first turn that some worker lacks.
  void begin_epoch() {
    ++epoch_;
    bases_.resize(slots_, 0);
    for (uint32_t s = 0; s < slots_ && !places_.empty(); ++s) {
      uint32_t least = kTurns;
      for (const auto& [key, position] : places_) {
        if (key[2] == s) least = std::min(least, position);
      }
      bases_[s] = least;
    }
    root_ =
        std::make_unique<aggregate::Slots>(*aggregate::Slots::create(options_of(leaves_, false)));
    leaf_slots_.clear();
    for (uint32_t leaf = 0; leaf < leaves_; ++leaf) {
      leaf_slots_.push_back(*aggregate::Slots::create(options_of(worlds_[leaf], true)));
      leaf_slots_.back().set_table(0, kTable);
      for (uint32_t w = 0; w < worlds_[leaf]; ++w) {
        for (uint32_t s = 0; s < slots_; ++s) {
          uint32_t& position = places_[{leaf, w, s}];
          // Nobody is more than one turn ahead; that one is repeated for the others.
          ASSERT_LE(position - bases_[s], 1u) << "seed " << seed_;
          position = bases_[s];
        }
      }
    }
  }

  bool finished() const {
    return std::all_of(places_.begin(), places_.end(),
                       [](const auto& place) { return place.second >= kTurns; });
  }

  std::vector<uint8_t> lanes_of(uint32_t leaf, uint32_t worker, uint32_t slot,
                                uint32_t position) const {
    return payload_for(seed_, leaf * 16 + worker, slot, position, kBytes);
  }

  void send(uint32_t leaf, uint32_t worker, uint32_t slot) {
    const uint32_t position = places_[{leaf, worker, slot}];
    if (position >= kTurns) return;
    post({contribution(leaf_slots_[leaf].options(), worker, slot, position - bases_[slot],
                       op_of(slot, position), lanes_of(leaf, worker, slot, position)),
          To::kLeaf, leaf, worker});
  }

  void post(const Flight& flight) {
    if (draw(100) < loss_) return;
    wire_.push_back(flight);
    if (draw(10) == 0) wire_.push_back(flight);
    if (draw(20) == 0) held_.push_back(flight);
  }

  void pass_on() {
    if (!held_.empty() && draw(10) == 0) {
      wire_.push_back(held_.front());
      held_.pop_front();
    }
    for (uint32_t n = draw(5); n > 0 && !wire_.empty(); --n) {
      const uint32_t pick = draw(static_cast<uint32_t>(std::min<std::size_t>(wire_.size(), 6)));
      const Flight flight = wire_[pick];
      wire_.erase(wire_.begin() + pick);
      deliver_one(flight);
    }
  }

  void deliver_one(const Flight& flight) {
    const Packet& packet = flight.packet;
    switch (flight.to) {
      case To::kLeaf:
        return answer(flight, deliver(leaf_slots_[flight.leaf], packet, now_ns_).reply);
      case To::kRoot:
        return answer(flight, deliver(*root_, packet, now_ns_).reply);
      case To::kLeafFromRoot:
        // As the data plane does it: only results of the upstream epoch get this far.
        if (packet.header.epoch != epoch_) return;
        return answer(
            flight,
            leaf_slots_[flight.leaf].take_result(packet.header, packet.payload.data()).reply);
      case To::kWorker:
        return accept(flight);
    }
  }

  void answer(const Flight& asked, const aggregate::Reply& reply) {
    const Packet packet{reply.header, {reply.payload.begin(), reply.payload.end()}};
    switch (reply.audience) {
      case aggregate::Audience::kNobody:
        return;
      case aggregate::Audience::kUpstream:
        return go_up(asked.leaf, packet);
      case aggregate::Audience::kSender:
        return post({packet, asked.to == To::kRoot ? To::kLeafFromRoot : To::kWorker, asked.leaf,
                     asked.worker});
      case aggregate::Audience::kEveryone:
        break;
    }
    if (asked.to == To::kRoot) {
      for (uint32_t leaf = 0; leaf < leaves_; ++leaf)
        post({packet, To::kLeafFromRoot, leaf});
    } else {
      for (uint32_t w = 0; w < worlds_[asked.leaf]; ++w)
        post({packet, To::kWorker, asked.leaf, w});
    }
  }

  void go_up(uint32_t leaf, Packet packet) {
    if ((packet.header.flags & ADDEND_FRAME_RESENT) != 0) ++asked_again_;
    packet.header.epoch = root_->options().epoch;
    packet.header.boot = root_->options().boot;
    packet.header.world = static_cast<uint8_t>(leaves_);
    packet.header.worker = static_cast<uint8_t>(leaf);
    packet.header.contributors = uint64_t{1} << leaf;
    post({packet, To::kRoot, leaf});
  }

  void accept(const Flight& flight) {
    const addend_frame_header& header = flight.packet.header;
    ASSERT_EQ(header.kind, ADDEND_FRAME_RESULT);
    if (header.epoch != epoch_) return;
    uint32_t& position = places_[{flight.leaf, flight.worker, header.slot}];
    // Copies of the turn before may come; nothing is ever ahead.
    ASSERT_LE(header.turn + bases_[header.slot], position) << "seed " << seed_;
    check(flight.packet, flight.leaf, header.turn + bases_[header.slot]);
    if (header.turn + bases_[header.slot] < position) return;
    ++position;
    ++results_;
  }

  void check(const Packet& packet, uint32_t leaf, uint32_t position) {
    const addend_frame_header& header = packet.header;
    const Op op = op_of(header.slot, position);
    const uint32_t lanes = addend_frame_lanes(static_cast<uint8_t>(op), kBytes);
    std::vector<uint8_t> sums(addend_frame_growing_length(static_cast<uint8_t>(op), kBytes), 0);
    for (uint32_t l = 0; l < leaves_; ++l) {
      for (uint32_t w = 0; w < worlds_[l]; ++w) {
        const auto own = lanes_of(l, w, header.slot, position);
        if (!is_table_sum(op)) {
          reference::fold(op, sums.data(), own.data(), lanes);
          continue;
        }
        for (uint32_t i = 0; i < lanes; ++i) {
          uint16_t sum;
          std::memcpy(&sum, &sums[i * 2], 2);
          sum = static_cast<uint16_t>(
              sum + (op_table_bytes(op) == 0 ? own[i] : kTable[reference::nibble(own.data(), i)]));
          std::memcpy(&sums[i * 2], &sum, 2);
        }
      }
    }
    if (is_narrow_sum(op)) sums = ReferenceSlots::narrowed(op, sums);
    ASSERT_EQ(header.op, static_cast<uint8_t>(op));
    ASSERT_EQ(packet.payload, sums) << "seed " << seed_ << " position " << position;
    ASSERT_EQ(header.count, worlds_[leaf]);
    ASSERT_EQ(header.contributors, (uint64_t{1} << worlds_[leaf]) - 1);
  }

  uint64_t seed_, next_ = 0, now_ns_ = 0;
  uint32_t leaves_, slots_, loss_ = 0, epoch_ = 0;
  std::vector<uint32_t> worlds_, bases_;
  std::unique_ptr<aggregate::Slots> root_;
  std::vector<aggregate::Slots> leaf_slots_;
  std::map<Key, uint32_t> places_;  // turns that a worker has the result of
  std::deque<Flight> wire_, held_;
  uint64_t results_ = 0, asked_again_ = 0;
};

TEST(Tree, EveryResultIsTheSumOfAllWorkersOfAllLeavesOverABadNetwork) {
  uint64_t results = 0, asked_again = 0;
  for (uint64_t seed = 1; seed <= 1500; ++seed) {
    Tree tree(seed);
    tree.run();
    if (HasFatalFailure()) return;
    results += tree.results();
    asked_again += tree.asked_again();
  }
  EXPECT_GT(results, 50000u);
  EXPECT_GT(asked_again, 5000u);
}

}  // namespace
}  // namespace addend::testing_support
