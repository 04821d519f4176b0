// SPDX-License-Identifier: Apache-2.0
// A worker's slots over time: what was contributed, what came back, what to send again. A stream of
// chunks goes round and round the slots; it goes on across rounds, and across epochs when the
// aggregator has lost its memory. No sockets, no clock.
//
// A chunk's place in the stream is its number from 0; chunk n uses slot n mod slots, for that
// slot's (n / slots)th time: its position. Under an epoch that began where the slot was at position
// b, position p is turn p - b.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "addend/plane.h"
#include "addend/result.h"
#include "auth/frame_key.h"
#include "reduce/service/pace.h"
#include "wire/control.h"
#include "wire/frame.h"

namespace addend::service_client {

/// What a stream has to know of an epoch. The keys must outlive its use.
struct EpochView {
  uint32_t epoch = 0, boot = 0;
  uint32_t worker = 0, world = 1;
  const auth::FrameKey* worker_key = nullptr;
  const auth::FrameKey* result_key = nullptr;
  std::span<const uint32_t> positions;  ///< where each slot begins; empty: at 0
  uint32_t threads = 1;                 ///< of the aggregator; slot s is with s * threads / slots
  uint64_t round_trip_ns = 0;           ///< of the path, as probes found; 0: unknown
  bool by_switch = false;  ///< lanes travel in network byte order, under tags that do not change
};

/// What came back for a chunk.
struct Arrival {
  uint64_t number;
  std::span<const uint8_t> sums;  ///< as they travel
  uint64_t contributors;
};

/// What is wrong where some worker does not come back, but anew.
Error lost_place();

/// One thread at a time.
class Stream {
 public:
  Stream(uint32_t slots, uint32_t payload_bytes);

  /// Begins, or goes on, under an epoch. kUnavailable if the workers cannot go on from where they
  /// are.
  Status enter(const EpochView& view);

  /// Makes the stream longer by so many chunks and returns the number of the first.
  uint64_t extend(uint64_t chunks);
  /// A chunk whose slot is free, if the window has room for it, to be added. Slots go on
  /// independently: one that waits for a lost frame does not hold up the others. False if there is
  /// none.
  bool next(uint64_t& number);
  struct Contribution {
    Op op;
    std::span<const uint8_t> bytes;
    uint32_t table = 0;  ///< the caller's number of a table (see set_table)
    bool entry = false;  ///< a step begins here
  };
  /// Adds the contribution of the chunk that next() named; it is sent with the next collect.
  void add(uint64_t number, const Contribution& contribution);
  /// What the aggregator calls the caller's table in this epoch.
  void set_table(uint32_t table, uint32_t number) { table_numbers_[table] = number; }

  /// Frames to send now: new ones, and old ones that seem lost. They belong to the stream and stay
  /// until its next call. All frames are whole and tagged.
  struct Frame {
    uint32_t slot;
    std::span<const uint8_t> bytes;
  };
  std::span<const Frame> collect(uint64_t now_ns);
  /// When collect may have something to send again.
  uint64_t next_timeout_ns() const;

  enum class Verdict : uint8_t { kIgnored, kArrived, kNotice, kLeftBehind };
  /// A datagram from the aggregator. kArrived fills `arrival`, kNotice fills `ended`. kLeftBehind:
  /// the others went on at a quorum, and what this worker lacks cannot be had any more.
  Verdict receive(std::span<const uint8_t> datagram, uint64_t now_ns, Arrival& arrival,
                  addend_control_ended& ended);

  /// Whether every chunk has come back, and nobody waits for ours any more.
  bool complete() const { return missing_ == 0 && outstanding_ == 0; }
  /// Turns done in each slot: where this worker is, for a server that starts anew.
  std::span<const uint32_t> positions() const { return positions_; }
  uint64_t resent() const { return resent_; }

 private:
  static constexpr uint64_t kNobody = ~uint64_t{0};

  // What a slot is waiting for, and both of its last contributions: after the aggregator has lost
  // its memory, a worker that is one turn behind needs the one before from everybody.
  struct Slot {
    uint64_t waiting = kNobody;  // number of the chunk that has not come back
    bool again = false;          // first the turn before, which came back, but not to everybody
    uint32_t tries = 0;          // of what is in flight
    uint64_t sent_ns = 0, order = 0;
    bool copied = false;        // sent twice this time
    bool in_doubt = false;      // sent again because it was overtaken
    bool was_late = false;      // the turn before came back at another try, or was overtaken
    uint64_t overtaken_ns = 0;  // when later ones were first seen to have come back; 0: not yet
    std::array<uint16_t, 2> length{};
    std::array<uint8_t, 2> op{}, table{};
    std::array<bool, 2> entry{};

    bool busy() const { return again || waiting != kNobody; }
  };

  uint8_t* frame(uint32_t slot, uint32_t position) {
    return frames_.data() + (uint64_t{slot} * 2 + position % 2) * frame_bytes_;
  }
  /// The turn in flight, or the next one, as a position.
  uint32_t position_of(uint32_t slot) const {
    return positions_[slot] - (states_[slot].again ? 1 : 0);
  }
  uint64_t number_of(uint32_t slot) const { return uint64_t{positions_[slot]} * slots_ + slot; }
  /// Of the turn in flight.
  uint64_t number_in_flight(uint32_t slot) const {
    return uint64_t{position_of(slot)} * slots_ + slot;
  }
  uint64_t& latest_back(uint32_t slot) {
    return latest_back_[uint64_t{slot} * view_.threads / slots_];
  }
  bool overtaken(uint32_t slot);
  void send(uint32_t slot, uint64_t now_ns);
  void put(uint32_t slot, uint8_t resent);
  void send_overtaken(uint64_t now_ns);
  uint64_t end_of_longest_way() const;
  void send_copies(uint64_t now_ns);
  void ask_again(uint64_t now_ns);
  uint64_t ask_after_ns() const;
  uint64_t next_ask_ns() const;
  bool authentic(std::span<const uint8_t> datagram, addend_frame_header& header) const;
  bool answers(const addend_frame_header& header) const;
  Verdict accept(const addend_frame_header& header, std::span<const uint8_t> sums, uint64_t now_ns,
                 Arrival& arrival);

  uint32_t slots_, payload_bytes_;
  std::size_t frame_bytes_;
  std::vector<uint8_t> frames_;
  std::vector<Slot> states_;
  std::vector<uint32_t> positions_, bases_;
  std::array<uint32_t, ADDEND_MAX_JOB_TABLES> table_numbers_{};
  EpochView view_;
  Pace pace_;

  uint64_t end_ = 0;           // chunks of the stream so far
  uint64_t missing_ = 0;       // of them, those that have not come back
  uint64_t highest_ = 0;       // number of a chunk that was added
  std::deque<uint64_t> idle_;  // chunks to add, in the order in which their slots became free
  uint64_t outstanding_ = 0;   // slots in flight, those of `again` included
  uint64_t order_ = 0;         // of sending
  // By thread, the latest in that order that came back, at its first try.
  std::array<uint64_t, ADDEND_CONTROL_MAX_THREADS> latest_back_{};
  uint64_t oldest_ns_ = 0;                     // when the oldest that is in flight was sent
  uint64_t next_overtaken_ns_ = ~uint64_t{0};  // when one that was overtaken counts as lost
  uint64_t next_copy_ns_ = ~uint64_t{0};
  uint64_t progress_ns_ = 0, asked_ns_ = 0;  // when something came back; asked again
  uint32_t silences_ = 0;                    // times asked since something came back
  std::size_t in_need_ = 0;  // chunks asked for the last time; 0: one came back unasked since
  uint64_t resent_ = 0;
  std::vector<uint32_t> fresh_;  // slots to send for the first time
  std::vector<uint64_t> asked_;
  std::vector<Frame> out_;
};

}  // namespace addend::service_client
