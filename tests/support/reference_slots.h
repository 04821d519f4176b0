// SPDX-License-Identifier: Apache-2.0
// The trivial aggregator that the state machine must equal: it keeps every contribution of every
// turn for ever, counts turns with 64 bits, and adds one lane at a time when asked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "aggregate/slots.h"
#include "fold/reference.h"
#include "tests/support/frames.h"

namespace addend::testing_support {

class ReferenceSlots {
 public:
  explicit ReferenceSlots(const aggregate::SlotsOptions& options) : options_(options) {}

  void set_table(uint32_t number, const aggregate::Table& table) { tables_[number] = table; }

  struct Answer {
    addend_refusal refusal = ADDEND_REFUSAL_NONE;
    aggregate::Audience audience = aggregate::Audience::kNobody;
    uint8_t kind = 0;
    uint64_t contributors = 0;
    bool partial = false;
    std::vector<uint8_t> sums{};
  };

  /// REQUIRES: the header passed Slots' own checks of fields and job.
  Answer handle(const Packet& packet, uint64_t now_ns) {
    if (ended_) return {ADDEND_REFUSAL_ENDED, aggregate::Audience::kSender, ADDEND_FRAME_NOTICE};
    std::vector<Turn>& turns = slots_[packet.header.slot];
    const uint64_t turn = packet.header.turn;
    if (turn == turns.size() && (turns.empty() || turns.back().closed)) {
      turns.push_back({packet, now_ns, {}, false, false});
    }
    if (turn >= turns.size() || turn + 2 < turns.size()) return {ADDEND_REFUSAL_TURN};
    return contribute(turns[turn], packet);
  }

  bool expire(uint64_t now_ns, Answer& answer) {
    if (ended_ || options_.patience_ns == 0) return false;
    Turn* oldest = nullptr;
    for (auto& [slot, turns] : slots_) {
      if (turns.empty() || turns.back().closed) continue;
      if (oldest == nullptr || turns.back().opened_ns < oldest->opened_ns) oldest = &turns.back();
    }
    if (oldest == nullptr || oldest->opened_ns + options_.patience_ns > now_ns) return false;
    if (options_.quorum == 0 || oldest->from.size() < options_.quorum) {
      ended_ = true;
      answer = {ADDEND_REFUSAL_NONE, aggregate::Audience::kEveryone, ADDEND_FRAME_NOTICE};
      answer.contributors = contributors(*oldest);
      return true;
    }
    oldest->closed = oldest->partial = true;
    answer = result(*oldest, aggregate::Audience::kEveryone);
    return true;
  }

 private:
  struct Turn {
    Packet first;
    uint64_t opened_ns;
    std::vector<Packet> from;  // in order of arrival, which decides the last bits of float sums
    bool closed, partial;
  };

  Answer contribute(Turn& turn, const Packet& packet) {
    const bool known = (contributors(turn) >> packet.header.worker & 1) != 0;
    if (turn.closed) {
      Answer answer = result(turn, aggregate::Audience::kSender);
      if (!known) answer.refusal = ADDEND_REFUSAL_LATE;
      return answer;
    }
    if (packet.header.op != turn.first.header.op ||
        packet.header.length != turn.first.header.length ||
        packet.header.flags >> 4 != turn.first.header.flags >> 4) {
      ended_ = true;
      return {ADDEND_REFUSAL_MISMATCH, aggregate::Audience::kEveryone, ADDEND_FRAME_NOTICE};
    }
    if (known) return {ADDEND_REFUSAL_DUPLICATE};
    turn.from.push_back(packet);
    turn.closed = turn.from.size() == options_.world;
    return turn.closed ? result(turn, aggregate::Audience::kEveryone) : Answer{};
  }

  static uint64_t contributors(const Turn& turn) {
    uint64_t bits = 0;
    for (const Packet& packet : turn.from)
      bits |= uint64_t{1} << packet.header.worker;
    return bits;
  }

  Answer result(const Turn& turn, aggregate::Audience audience) const {
    Answer answer{ADDEND_REFUSAL_NONE, audience, ADDEND_FRAME_RESULT};
    answer.contributors = contributors(turn);
    answer.partial = turn.partial;
    const auto op = static_cast<Op>(turn.first.header.op);
    const uint32_t lanes = addend_frame_lanes(turn.first.header.op, turn.first.header.length);
    // Zero is neutral for every operation (bit patterns included).
    answer.sums.assign(op_sum_bytes(op, lanes), 0);
    for (const Packet& packet : turn.from) {
      if (!is_table_sum(op)) {
        reference::fold(op, answer.sums.data(), packet.payload.data(), lanes);
        continue;
      }
      const aggregate::Table& table = tables_.at(packet.header.flags >> 4);
      for (uint32_t i = 0; i < lanes; ++i) {
        const uint16_t entry = table[reference::nibble(packet.payload.data(), i)];
        add_entry(op, answer.sums, i, entry);
      }
    }
    return answer;
  }

  static void add_entry(Op op, std::vector<uint8_t>& sums, uint32_t lane, uint16_t entry) {
    if (op == Op::kTableSumU8) {
      sums[lane] = static_cast<uint8_t>(sums[lane] + entry);
      return;
    }
    uint16_t sum;
    std::memcpy(&sum, &sums[lane * 2], 2);
    sum = static_cast<uint16_t>(sum + entry);
    std::memcpy(&sums[lane * 2], &sum, 2);
  }

  aggregate::SlotsOptions options_;
  std::map<uint32_t, std::vector<Turn>> slots_;
  std::map<uint32_t, aggregate::Table> tables_;
  bool ended_ = false;
};

/// Whether the state machine's outcome is the reference's, bytes included.
inline bool same(const aggregate::Reply& reply, const ReferenceSlots::Answer& answer) {
  if (reply.audience != answer.audience) return false;
  if (reply.audience == aggregate::Audience::kNobody) return true;
  if (reply.header.kind != answer.kind) return false;
  if (answer.kind != ADDEND_FRAME_RESULT) return true;
  return reply.header.contributors == answer.contributors &&
         ((reply.header.flags & ADDEND_FRAME_PARTIAL) != 0) == answer.partial &&
         std::equal(reply.payload.begin(), reply.payload.end(), answer.sums.begin(),
                    answer.sums.end());
}

}  // namespace addend::testing_support
