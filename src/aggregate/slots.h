// SPDX-License-Identifier: Apache-2.0
// The aggregator's state machine: what a job's slots do with a contribution at a time. No sockets,
// no clock, no allocation after create, and nothing that could decode.
//
// A slot has two banks, one for even and one for odd turns. In a bank the first contribution of a
// turn overwrites, later ones fold, the last one replies; the result stays as the answer to whoever
// asks again. A turn opens only when the one before it is complete: then every worker holds the
// result of the turn before that, whose bank it takes. Numbers are compared for equality with what
// the bank stores, so a frame that is late by any number of turns is refused
// (docs/formats/protocol.md, "Exactly once").
//
// A job with a quorum goes on without workers that are late: once a turn was closed without a
// worker, no turn waits for it or takes its contribution until a step begins (a turn with the flag
// entry) and it is heard of again (docs/decisions/0022-one-set-a-step.md).
//
// Narrow sums grow in 16 bits a lane while their turn is open, and are narrowed when it closes: a
// function of the whole sum, so that who came first does not matter. One turn of a slot is open at
// a time, and has the slot's room for that.
//
// A leaf of a tree contributes its complete turns to another aggregator, slot by slot and turn by
// turn, as one worker does; whatever comes back is the result
// (docs/decisions/0091-a-leaf-is-a-worker.md).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "addend/plane.h"
#include "addend/result.h"
#include "aggregate/attendance.h"
#include "base/buffer.h"
#include "wire/frame.h"

namespace addend::aggregate {

/// Entries of a table sum; those with tables of bytes use the low half of each.
using Table = std::array<uint16_t, 16>;

struct SlotsOptions {
  uint32_t epoch = 0;
  uint32_t boot = 0;
  uint32_t world = 1;                                   ///< 1 to ADDEND_MAX_JOB_WORKERS
  uint32_t first_slot = 0;                              ///< this object has the slots from here ...
  uint32_t slots = 1;                                   ///< ... this many
  uint32_t payload_bytes = ADDEND_FRAME_PAYLOAD_BYTES;  ///< longest contribution and longest result
  uint32_t ops = 0;  ///< allowed operations: bit n is operation n
  uint64_t patience_ns =
      0;                ///< from a turn's first contribution, if it is the first turn; 0: forever
  uint32_t quorum = 0;  ///< contributors that suffice when patience ends; 0: all, or the epoch ends
  bool relays = false;  ///< a leaf: results are another aggregator's. Not with a quorum
};

/// Who gets the reply. kUpstream: the aggregator that this one is a leaf of; the header then lacks
/// what is that one's own: epoch, boot, world, worker, contributors.
enum class Audience : uint8_t { kNobody, kSender, kEveryone, kUpstream };

/// A frame to send: its header in the machine's byte order, without tag, and the lanes, which
/// belong to the slots and stay until the next call.
struct Reply {
  Audience audience = Audience::kNobody;
  addend_frame_header header{};
  std::span<const uint8_t> payload;
};

struct Outcome {
  addend_refusal refusal = ADDEND_REFUSAL_NONE;
  Reply reply;
};

/// What happened so far.
struct Counters {
  uint64_t folded = 0;    ///< contributions that are in a sum
  uint64_t complete = 0;  ///< turns that all workers contributed to
  uint64_t partial = 0;   ///< turns closed at a quorum
  uint64_t answered = 0;  ///< results sent again because a worker asked again
  uint64_t resent = 0;    ///< contributions that were folded, but not at their first try
  std::array<uint64_t, ADDEND_REFUSAL_COUNT> refused{};
  std::array<uint64_t, ADDEND_MAX_JOB_WORKERS> last{};  ///< turns that waited for this worker
};

/// A bank as it moves to another data plane that folds the same job, or comes from one. The sums
/// belong to whoever made this.
struct BankImage {
  enum class State : uint8_t { kIdle, kOpen, kClosed, kRelayed };
  uint64_t contributors = 0;
  uint64_t opened_ns = 0;  ///< when patience began
  uint32_t turn = 0;
  uint16_t length = 0;  ///< of a contribution
  uint16_t sum_length = 0;
  uint8_t op = 0;
  uint8_t flags = 0;  ///< table number, entry, and partial once closed so
  State state = State::kIdle;
  const uint8_t* sums = nullptr;
};

/// A range of one job's slots. One thread at a time.
class Slots {
 public:
  /// `attendance` is shared by all parts of a job's slots; null: this is the only one.
  static Result<Slots> create(const SlotsOptions& options,
                              std::shared_ptr<Attendance> attendance = nullptr);

  /// Where the slots of the whole job begin in their workers' streams; without this, at 0.
  void begin_at(std::span<const uint32_t> positions);

  /// Makes table number `number` known. REQUIRES: number < ADDEND_MAX_JOB_TABLES. A table that
  /// turns may refer to is never changed.
  void set_table(uint32_t number, const Table& table);

  /// What becomes of an authentic datagram: `header` in the machine's byte order, `bytes` with the
  /// header, `payload` behind it. Any bytes are safe.
  Outcome handle(const addend_frame_header& header, const uint8_t* payload, uint32_t bytes,
                 uint64_t now_ns);

  /// How soon after a turn was relayed workers that ask again make it be relayed again.
  static constexpr uint64_t kRelayAgainNs = 1'000'000;
  /// What becomes of a result from upstream, authentic and of the upstream's epoch. REQUIRES: the
  /// payload has header.length bytes.
  Outcome take_result(const addend_frame_header& header, const uint8_t* payload);

  /// Ends the job's first open turn if its patience is over, and those that wait for absent workers
  /// only, one a call: true if there is a reply to send (to everyone), false if nothing is due. To
  /// be called often: other parts' patience waits for this one to say where it is.
  bool expire(uint64_t now_ns, Reply& reply);
  /// How long after its opening a turn that still waits counts where the job's parts wait.
  uint64_t long_wait_ns() const { return options_.patience_ns / 2; }
  /// Whether there is one.
  bool waits_long(uint64_t now_ns) const {
    return options_.patience_ns > 0 && oldest_ != kNone &&
           banks_[oldest_].opened_ns + long_wait_ns() <= now_ns;
  }

  /// Workers, by bit, that some open turn lacks.
  uint64_t lacks() const;
  /// Where the workers that are not absent wait.
  Wait first_wait() const;
  /// Where a turn of one of the slots is in the workers' streams.
  uint64_t place(uint32_t slot, uint32_t turn) const;

  /// One of a slot's two banks, and what becomes of it elsewhere. REQUIRES: the slot is in this
  /// range; set_bank: the bank is not open.
  BankImage bank(uint32_t slot, uint32_t number) const;
  void set_bank(uint32_t slot, uint32_t number, const BankImage& image);
  /// Whether some turn of a slot is open.
  bool is_waiting(uint32_t slot) const;
  /// Whether every worker is waited for, and none was left out and heard of since.
  bool all_present() const { return attendance_->all_present(); }

  /// Ends the epoch: from now on every contribution is answered with this notice.
  void end(addend_notice why, uint32_t worker, Reply& reply);
  bool ended() const { return ended_; }
  /// REQUIRES: ended(), else all zeros. In the machine's byte order.
  const addend_frame_header& notice_header() const { return end_; }

  const SlotsOptions& options() const { return options_; }
  const Counters& counters() const { return counters_; }
  uint64_t memory_bytes() const;

 private:
  using State = BankImage::State;
  static constexpr uint32_t kNone = ~0u;

  struct Bank {
    uint64_t contributors = 0;
    uint64_t opened_ns = 0;  // when patience began; when the turn was last relayed
    uint32_t turn = 0;
    uint32_t earlier = kNone, later = kNone;  // open banks in the order of their opening
    uint16_t length = 0;                      // of a contribution
    uint16_t sum_length = 0;
    uint8_t op = 0;
    uint8_t flags = 0;  // table number, entry, and partial once closed so
    State state = State::kIdle;
    uint32_t base = 0;  // position of turn 0 in the workers' streams
  };

  explicit Slots(const SlotsOptions& options) : options_(options) {}

  addend_refusal check(const addend_frame_header& header, uint32_t bytes) const;
  Outcome refuse(addend_refusal why);
  Outcome contribute(uint32_t index, const addend_frame_header& header, const uint8_t* payload,
                     uint64_t now_ns);
  Reply relay(uint32_t index, uint8_t flags, uint64_t now_ns);
  void open(uint32_t index, const addend_frame_header& header, uint64_t now_ns);
  void add(uint32_t index, const addend_frame_header& header, const uint8_t* payload);
  void enlist(uint32_t index);
  void close(uint32_t index);
  void narrow(uint32_t index);
  uint32_t first_open() const;
  uint64_t place(uint32_t index) const;
  bool is_over(uint64_t now_ns, uint32_t& index);
  bool has_all_present(const Bank& bank) const;
  Reply close_partial(uint32_t index);
  bool same_shape(const Bank& bank, const addend_frame_header& header) const;
  Reply result(uint32_t index, Audience audience) const;
  Reply notice(Audience audience) const;
  addend_frame_header reply_header() const;
  uint8_t* sums(uint32_t index) { return memory_.as<uint8_t>() + uint64_t{index} * stride_; }
  const uint8_t* sums(uint32_t index) const {
    return memory_.as<uint8_t>() + uint64_t{index} * stride_;
  }

  // Where a turn's sums are while it is open.
  uint8_t* growing(uint32_t index) {
    return is_narrow_sum(static_cast<Op>(banks_[index].op)) ? room_for_growth(index) : sums(index);
  }
  uint8_t* room_for_growth(uint32_t index) {
    return memory_.as<uint8_t>() + (banks_.size() + 1 + index / 2 * 2) * stride_;
  }

  SlotsOptions options_;
  uint64_t everyone_ = 0;  // all workers' bits
  uint64_t stride_ = 0;
  Buffer memory_;  // the banks' sums, one payload's worth of scratch, two a slot for narrow sums
  std::vector<Bank> banks_;
  uint32_t oldest_ = kNone, newest_ = kNone;
  std::shared_ptr<Attendance> attendance_;
  uint32_t part_ = 0;          // its number there
  uint64_t known_misses_ = 0;  // when expire last looked for turns that wait for absent ones only
  std::array<Table, ADDEND_MAX_JOB_TABLES> tables_{};
  std::array<std::array<uint8_t, 16>, ADDEND_MAX_JOB_TABLES> byte_tables_{};
  uint32_t known_tables_ = 0;
  bool ended_ = false;
  addend_frame_header end_{};  // the notice
  Counters counters_;
};

}  // namespace addend::aggregate
