// SPDX-License-Identifier: Apache-2.0
// Random jobs and random traffic for the state machine, shared by the model test and the fuzzer:
// both drive it with numbers from any source and compare every answer with the trivial reference.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/reference_slots.h"

namespace addend::testing_support {

inline constexpr uint32_t kAllOps = (1u << ADDEND_OP_COUNT) - 1;

/// The state machine alone; another machine has the same members.
class SlotsMachine {
 public:
  explicit SlotsMachine(const aggregate::SlotsOptions& options)
      : slots_(*aggregate::Slots::create(options)) {}
  void set_table(uint32_t number, const aggregate::Table& table) {
    slots_.set_table(number, table);
  }
  aggregate::Outcome handle(const Packet& packet, uint64_t now_ns) {
    return deliver(slots_, packet, now_ns);
  }
  aggregate::Outcome take_result(const Packet& packet) {
    return slots_.take_result(packet.header, packet.payload.data());
  }
  bool expire(uint64_t now_ns, aggregate::Reply& reply) { return slots_.expire(now_ns, reply); }
  aggregate::Counters counters() const { return slots_.counters(); }

 private:
  aggregate::Slots slots_;
};

/// A machine beside its reference. `Draw` is a callable: draw(n) is in [0, n).
template <typename Draw, typename Machine = SlotsMachine>
class SlotsAgainstReference {
 public:
  explicit SlotsAgainstReference(Draw draw)
      : draw_(std::move(draw)), options_(draw_options()), machine_(options_), reference_(options_) {
    for (uint32_t number = 0; number < 2; ++number) {
      aggregate::Table table;
      for (uint16_t& entry : table)
        entry = static_cast<uint16_t>(draw_(number == 0 ? 4 : 1000));
      machine_.set_table(number, table);
      reference_.set_table(number, table);
    }
  }

  /// One random event; false if the two disagree.
  bool step() {
    now_ns_ += (1 + draw_(4) * 10) * time_scale();
    if (draw_(16) == 0) return same_expiry();
    if constexpr (kMayRelay) {
      if (options_.relays && draw_(4) == 0) return same_result();
    }
    // Mostly near the front of the slot, sometimes many turns off or absurd.
    const uint32_t slot = options_.first_slot + draw_(options_.slots);
    uint32_t& front = fronts_[slot - options_.first_slot];
    const uint32_t far = draw_(8);
    uint32_t turn = front;
    if (far == 0) turn = front - draw_(8);
    if (far == 1) turn = front + draw_(3);
    if (far == 2) turn = draw_(1u << 31) * 2 + draw_(2);
    const uint32_t worker = draw_(options_.world);
    Packet packet =
        contribution(options_, worker, slot, turn, op_,
                     payload_for(options_.epoch, worker, slot, turn + draw_(2), length_));
    if (op_table_bytes(op_) != 0) packet.header.flags = static_cast<uint8_t>(table_ << 4);
    if (draw_(4) == 0) packet.header.flags |= ADDEND_FRAME_RESENT;
    // Every third turn of a slot begins a step, but for a worker that is confused.
    if ((turn % 3 == 0) != (draw_(512) == 0)) packet.header.flags |= ADDEND_FRAME_ENTRY;
    const bool same_answer = same_outcome(packet);
    if (closed_) {
      ++front;
      if (draw_(64) == 0) choose_shape();
    }
    return same_answer;
  }

  const Machine& machine() const { return machine_; }
  bool relays() const { return options_.relays; }

 private:
  // Leaves of a tree are machines that take results.
  static constexpr bool kMayRelay = requires(Machine & machine, const Packet& packet) {
    machine.take_result(packet);
  };

  // A leaf asks upstream again after a while.
  uint64_t time_scale() const { return options_.relays ? 20000 : 1; }

  aggregate::SlotsOptions draw_options() {
    aggregate::SlotsOptions options;
    options.epoch = 1 + draw_(1000);
    options.boot = 1 + draw_(1000);
    options.world = 1 + draw_(draw_(8) == 0 ? ADDEND_MAX_JOB_WORKERS : 5);
    options.first_slot = draw_(3) * 100;
    options.slots = 1 + draw_(4);
    options.payload_bytes = 256;
    options.ops = kAllOps;
    const uint32_t policy = draw_(3);
    if (policy > 0) options.patience_ns = 100 + draw_(400);
    if (policy > 1) options.quorum = 1 + draw_(options.world);
    if constexpr (kMayRelay) {
      options.relays = policy < 2 && draw_(3) == 0;
      if (options.relays) options.patience_ns *= 20000;
    }
    fronts_.assign(options.slots, 0);
    choose_shape();
    return options;
  }

  void choose_shape() {
    op_ = static_cast<Op>(draw_(ADDEND_OP_COUNT));
    length_ = (1 + draw_(2)) * 8;
    length_ *= length_ % addend_frame_unit(static_cast<uint8_t>(op_)) == 0 ? 1 : 3;
    table_ = draw_(2);
  }

  // From upstream: mostly of the turn that waits for it, and of its shape.
  bool same_result() {
    const uint32_t slot = options_.first_slot + draw_(options_.slots);
    uint32_t& front = fronts_[slot - options_.first_slot];
    const uint32_t turn = front + (draw_(4) == 0 ? draw_(4) - 2 : 0);
    const uint32_t bytes = addend_frame_growing_length(static_cast<uint8_t>(op_), length_);
    Packet packet =
        contribution(options_, 0, slot, turn, op_, payload_for(7, 0, slot, turn, bytes));
    packet.header.op = ReferenceSlots::sum_op_of(op_);
    if (draw_(64) == 0) packet.header.flags |= ADDEND_FRAME_PARTIAL;
    const bool good = same_answer(machine_.take_result(packet), reference_.take_result(packet));
    if (closed_) {
      ++front;
      if (draw_(64) == 0) choose_shape();
    }
    return good;
  }

  bool same_outcome(const Packet& packet) {
    return same_answer(machine_.handle(packet, now_ns_), reference_.handle(packet, now_ns_));
  }

  bool same_answer(const aggregate::Outcome& outcome, const ReferenceSlots::Answer& answer) {
    closed_ = outcome.reply.audience == aggregate::Audience::kEveryone;
    ++refused_[outcome.refusal];
    return outcome.refusal == answer.refusal && same(outcome.reply, answer) &&
           (outcome.refusal == ADDEND_REFUSAL_NONE ||
            machine_.counters().refused[outcome.refusal] == refused_[outcome.refusal]);
  }

  // Everything that is due, as a server does it.
  bool same_expiry() {
    for (;;) {
      aggregate::Reply reply;
      ReferenceSlots::Answer answer;
      const bool due = machine_.expire(now_ns_, reply);
      if (reference_.expire(now_ns_, answer) != due) return false;
      if (!due) return true;
      if (reply.header.kind == ADDEND_FRAME_RESULT) {
        ++fronts_[reply.header.slot - options_.first_slot];
      }
      if (!same(reply, answer) || reply.header.contributors != answer.contributors) return false;
    }
  }

  Draw draw_;
  std::vector<uint32_t> fronts_;  // the turn that honest workers are at, by slot
  Op op_ = Op::kSumI32;
  uint32_t length_ = 8, table_ = 0;
  aggregate::SlotsOptions options_;
  Machine machine_;
  ReferenceSlots reference_;
  uint64_t now_ns_ = 0;
  bool closed_ = false;
  std::array<uint64_t, ADDEND_REFUSAL_COUNT> refused_{};
};

}  // namespace addend::testing_support
