// SPDX-License-Identifier: Apache-2.0
// The trivial aggregator that the state machine must equal: it keeps every contribution of every
// turn for ever, counts turns with 64 bits, and adds one lane at a time when asked.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
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
      if (is_entry(packet)) {
        come_back(packet.header.worker);
      } else if (absent_.count(packet.header.worker) > 0) {
        heard_.insert(packet.header.worker);
        return {ADDEND_REFUSAL_LATE};
      }
      turns.push_back({packet, now_ns, opened_++, {}, false, false, false, {}});
    }
    if (turn >= turns.size() || turn + 2 < turns.size()) return out_of_turn(turns, packet);
    return contribute(turns[turn], packet, now_ns);
  }

  /// A leaf's: a result from upstream.
  Answer take_result(const Packet& packet) {
    if (ended_) return {ADDEND_REFUSAL_ENDED};
    std::vector<Turn>& turns = slots_[packet.header.slot];
    const uint64_t number = packet.header.turn;
    if (number >= turns.size() || number + 2 < turns.size()) return {ADDEND_REFUSAL_TURN};
    Turn& turn = turns[number];
    if (turn.closed) return {ADDEND_REFUSAL_DUPLICATE};
    if (!turn.relayed) return {ADDEND_REFUSAL_TURN};
    if (packet.header.op != sum_op_of(static_cast<Op>(turn.first.header.op)) ||
        packet.header.length != grown(turn).size() ||
        (packet.header.flags & ADDEND_FRAME_PARTIAL) != 0)
      return {ADDEND_REFUSAL_MISMATCH};
    turn.closed = true;
    turn.upstream = packet.payload;
    return result(turn, aggregate::Audience::kEveryone);
  }

  bool expire(uint64_t now_ns, Answer& answer) {
    if (ended_ || options_.patience_ns == 0) return false;
    Turn* first = nullptr;  // in the order of the workers' streams
    Turn* ready = nullptr;
    for (auto& [slot, turns] : slots_) {
      if (turns.empty() || turns.back().closed || turns.back().relayed) continue;
      Turn& turn = turns.back();
      if (first == nullptr || turn.first.header.turn < first->first.header.turn) first = &turn;
      if (!has_all_present(turn)) continue;
      if (ready == nullptr || turn.number < ready->number) ready = &turn;
    }
    if (ready != nullptr) {
      ready->closed = ready->partial = true;
      answer = result(*ready, aggregate::Audience::kEveryone);
      return true;
    }
    if (missed_) {
      for (auto& [slot, turns] : slots_) {
        if (!turns.empty()) turns.back().opened_ns = now_ns;
      }
      missed_ = false;
    }
    if (first == nullptr || first->opened_ns + options_.patience_ns > now_ns) return false;
    if (options_.quorum == 0 || first->from.size() < options_.quorum) {
      ended_ = true;
      answer = {ADDEND_REFUSAL_NONE, aggregate::Audience::kEveryone, ADDEND_FRAME_NOTICE};
      answer.contributors = contributors(*first);
      return true;
    }
    missed_ = true;
    for (uint32_t w = 0; w < options_.world; ++w) {
      if ((contributors(*first) >> w & 1) != 0) continue;
      absent_.insert(w);
      heard_.erase(w);
    }
    first->closed = first->partial = true;
    answer = result(*first, aggregate::Audience::kEveryone);
    return true;
  }

  /// What a leaf's sums are added with upstream.
  static uint8_t sum_op_of(Op op) {
    if (!is_table_sum(op)) return static_cast<uint8_t>(op);
    return op == Op::kTableSumU8 ? ADDEND_OP_SUM_U8 : ADDEND_OP_SUM_U16;
  }

  /// What u16 sums come back as, byte for byte.
  static std::vector<uint8_t> narrowed(Op op, const std::vector<uint8_t>& grown) {
    std::vector<uint16_t> sums(grown.size() / 2);
    std::memcpy(sums.data(), grown.data(), grown.size());
    std::vector<uint8_t> out(op_sum_bytes(op, sums.size()));
    for (uint64_t at = 0; at < sums.size(); at += narrow::kGroupLanes) {
      reference::narrow_group(&sums[at], std::min<uint64_t>(narrow::kGroupLanes, sums.size() - at),
                              addend_op_narrow_bits(static_cast<addend_op>(op)),
                              out.data() + op_sum_bytes(op, at));
    }
    return out;
  }

 private:
  struct Turn {
    Packet first;
    uint64_t opened_ns;        // when patience began
    uint64_t number;           // in the order of opening
    std::vector<Packet> from;  // in order of arrival, which decides the last bits of float sums
    bool closed, partial;
    bool relayed;                   // a leaf's: all have contributed, and upstream was asked
    std::vector<uint8_t> upstream;  // and what it answered
  };

  Answer relay(Turn& turn, uint64_t now_ns) const {
    turn.relayed = true;
    turn.opened_ns = now_ns;
    Answer answer = result(turn, aggregate::Audience::kUpstream);
    answer.kind = ADDEND_FRAME_CONTRIBUTION;
    answer.sums = grown(turn);
    return answer;
  }

  // With a quorum, who asks for a turn that is gone gets the last one that took its place.
  Answer out_of_turn(const std::vector<Turn>& turns, const Packet& packet) const {
    Answer answer{ADDEND_REFUSAL_TURN};
    const uint32_t turn = packet.header.turn;
    uint64_t last = turns.size();
    while (last > 0 && (last - 1) % 2 != turn % 2)
      --last;
    if (options_.quorum == 0 || last == 0 || !turns[last - 1].closed) return answer;
    if (static_cast<uint32_t>(last - 1) - turn >= 1u << 31) return answer;
    answer = result(turns[last - 1], aggregate::Audience::kSender);
    answer.refusal = ADDEND_REFUSAL_TURN;
    return answer;
  }

  static bool is_entry(const Packet& packet) {
    return (packet.header.flags & ADDEND_FRAME_ENTRY) != 0;
  }

  void come_back(uint32_t worker) {
    absent_.erase(worker);
    for (const uint32_t heard : heard_)
      absent_.erase(heard);
    heard_.clear();
  }

  bool has_all_present(const Turn& turn) const {
    for (uint32_t w = 0; w < options_.world; ++w) {
      if ((contributors(turn) >> w & 1) == 0 && absent_.count(w) == 0) return false;
    }
    return options_.quorum > 0 && turn.from.size() >= options_.quorum;
  }

  Answer contribute(Turn& turn, const Packet& packet, uint64_t now_ns) {
    const uint32_t worker = packet.header.worker;
    const bool known = (contributors(turn) >> worker & 1) != 0;
    if (turn.closed) {
      Answer answer = result(turn, aggregate::Audience::kSender);
      if (!known) {
        heard_.insert(worker);
        answer.refusal = ADDEND_REFUSAL_LATE;
      }
      return answer;
    }
    if (turn.relayed) {
      Answer answer;
      if (now_ns >= turn.opened_ns + aggregate::Slots::kRelayAgainNs) answer = relay(turn, now_ns);
      answer.refusal = ADDEND_REFUSAL_DUPLICATE;
      return answer;
    }
    const bool absent = absent_.count(worker) > 0;
    if (absent && !known && !is_entry(turn.first)) {
      heard_.insert(worker);
      return {ADDEND_REFUSAL_LATE};
    }
    if (packet.header.op != turn.first.header.op ||
        packet.header.length != turn.first.header.length ||
        packet.header.flags >> 4 != turn.first.header.flags >> 4 ||
        is_entry(packet) != is_entry(turn.first)) {
      ended_ = true;
      return {ADDEND_REFUSAL_MISMATCH, aggregate::Audience::kEveryone, ADDEND_FRAME_NOTICE};
    }
    if (known) return {ADDEND_REFUSAL_DUPLICATE};
    if (absent) come_back(worker);
    turn.from.push_back(packet);
    if (options_.relays) return turn.from.size() == options_.world ? relay(turn, now_ns) : Answer{};
    turn.partial = turn.from.size() < options_.world && has_all_present(turn);
    turn.closed = turn.partial || turn.from.size() == options_.world;
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
    answer.sums = grown(turn);
    const auto op = static_cast<Op>(turn.first.header.op);
    if (is_narrow_sum(op)) answer.sums = narrowed(op, answer.sums);
    return answer;
  }

  // What the contributions add up to; narrow sums are still u16.
  std::vector<uint8_t> grown(const Turn& turn) const {
    if (!turn.upstream.empty()) return turn.upstream;
    const auto op = static_cast<Op>(turn.first.header.op);
    const uint32_t lanes = addend_frame_lanes(turn.first.header.op, turn.first.header.length);
    // Zero is neutral for every operation (bit patterns included).
    std::vector<uint8_t> sums(is_narrow_sum(op) ? lanes * 2 : op_sum_bytes(op, lanes), 0);
    for (const Packet& packet : turn.from) {
      if (!is_table_sum(op)) {
        reference::fold(op, sums.data(), packet.payload.data(), lanes);
        continue;
      }
      for (uint32_t i = 0; i < lanes; ++i)
        add_entry(op, sums, i, entry_of(packet, i));
    }
    return sums;
  }

  // Bit by bit, whatever the width of an index.
  uint16_t entry_of(const Packet& packet, uint32_t lane) const {
    const auto op = static_cast<addend_op>(packet.header.op);
    const uint32_t bits = addend_op_index_bits(op);
    uint32_t index = 0;
    for (uint32_t bit = 0; bit < bits; ++bit) {
      const uint32_t at = lane * bits + bit;
      index |= (packet.payload[at / 8] >> (at % 8) & 1u) << bit;
    }
    if (addend_op_table_bytes(op) == 0) return static_cast<uint16_t>(index);
    const uint16_t entry = tables_.at(packet.header.flags >> 4)[index];
    return addend_op_table_bytes(op) == 32 ? entry : entry & 0xFF;
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
  std::set<uint32_t> absent_;  // workers that no turn waits for
  std::set<uint32_t> heard_;   // of them, those that will be waited for when a step begins
  bool missed_ = false;        // somebody became absent, and open turns do not know yet
  uint64_t opened_ = 0;
  bool ended_ = false;
};

/// Whether the state machine's outcome is the reference's, bytes included.
inline bool same(const aggregate::Reply& reply, const ReferenceSlots::Answer& answer) {
  if (reply.audience != answer.audience) return false;
  if (reply.audience == aggregate::Audience::kNobody) return true;
  if (reply.header.kind != answer.kind) return false;
  if (answer.kind == ADDEND_FRAME_NOTICE) return true;
  return reply.header.contributors == answer.contributors &&
         ((reply.header.flags & ADDEND_FRAME_PARTIAL) != 0) == answer.partial &&
         std::equal(reply.payload.begin(), reply.payload.end(), answer.sums.begin(),
                    answer.sums.end());
}

}  // namespace addend::testing_support
