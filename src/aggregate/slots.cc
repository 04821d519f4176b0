// SPDX-License-Identifier: Apache-2.0
// The states of a bank. Turn n of a slot is in its bank n & 1; the other one is its sibling.
//
//   idle    no turn yet
//     |
//     |  the first contribution to turn n, if the sibling is not open: turn n - 1 is over
//     v
//   open    each worker's first contribution is folded, its others are duplicates
//     |  ^
//     |  |  the first contribution to turn n + 2, if the sibling has closed turn n + 1:
//     |  |  whoever is waited for holds the result that is overwritten
//     |  '-------------------------------------------------------------.
//     |                                                                |
//     |  the last worker has contributed                               |
//     |  or, with a quorum and as many contributors:                   |
//     |    all have who are not absent                                 |
//     |    patience is over: whoever has not is absent from now on     |
//     v                                                                |
//   closed  the result went to everyone; whoever asks again gets it ---'
//
//   A leaf has one state more between open and closed:
//
//   open --the last worker has contributed--> relayed --upstream's result of turn n--> closed
//                                              |  ^
//                                              '--'  somebody asks again: so do we, upstream
//
//   All banks at once --> ended: patience is over without a quorum, a contribution has another
//   shape than its turn, or end() was called. Every contribution then gets the notice.
//
//   A bank that is not open --> any state: set_bank, when another data plane that had the slot and
//   folded by the same rules gives it back.
#include "aggregate/slots.h"

#include <bit>
#include <cstring>

#include "addend/fold.h"
#include "base/assert.h"
#include "base/bits.h"

namespace addend::aggregate {
namespace {

constexpr uint32_t kNarrowOps = (1u << ADDEND_OP_COUNT) - (1u << ADDEND_OP_NARROW_SUM_1_4);

// What sums of this operation are added with while they grow.
uint8_t sum_op_of(uint8_t op) {
  if (op < ADDEND_OP_TABLE_SUM_U8) return op;
  return op == ADDEND_OP_TABLE_SUM_U8 ? ADDEND_OP_SUM_U8 : ADDEND_OP_SUM_U16;
}

}  // namespace

Result<Slots> Slots::create(const SlotsOptions& options, std::shared_ptr<Attendance> attendance) {
  if (options.world == 0 || options.world > ADDEND_MAX_JOB_WORKERS) {
    return make_error(Errc::kInvalidArgument, "a job has 1 to 64 workers");
  }
  if (options.slots == 0 || options.first_slot + uint64_t{options.slots} > 65536) {
    return make_error(Errc::kInvalidArgument, "slots are numbered from 0 to 65535");
  }
  if (options.payload_bytes == 0 || options.payload_bytes > ADDEND_FRAME_MAX_PAYLOAD_BYTES ||
      options.payload_bytes % 8 != 0) {
    return make_error(Errc::kInvalidArgument, "a payload is a multiple of 8 up to 8832 bytes");
  }
  if (options.quorum > options.world) {
    return make_error(Errc::kInvalidArgument, "a quorum is at most all workers");
  }
  if (options.quorum > 0 && options.patience_ns == 0) {
    return make_error(Errc::kInvalidArgument,
                      "a quorum needs patience: how long to wait before it suffices");
  }
  if (options.quorum > 0 && options.relays) {
    return make_error(Errc::kUnsupported,
                      "a job of a tree has no quorum: a leaf cannot say who is missing in its sum");
  }
  Slots slots(options);
  slots.attendance_ = attendance ? std::move(attendance) : std::make_shared<Attendance>();
  slots.part_ = slots.attendance_->enroll();
  ADDEND_ASSERT(slots.part_ < ADDEND_CONTROL_MAX_THREADS);
  slots.everyone_ = low_mask(options.world);
  slots.stride_ = ceil_div(options.payload_bytes, 64) * 64;
  const uint64_t banks = uint64_t{options.slots} * 2;
  const uint64_t growing = (options.ops & kNarrowOps) != 0 ? banks : 0;
  ADDEND_TRY(slots.memory_.reserve((banks + 1 + growing) * slots.stride_ + Buffer::kSlack));
  slots.banks_.resize(banks);
  // As if turns -2 and -1 had been: the next one of either bank is then bank.turn + 2, always.
  for (uint64_t i = 0; i < banks; ++i)
    slots.banks_[i].turn = static_cast<uint32_t>(i % 2) - 2;
  return slots;
}

void Slots::begin_at(std::span<const uint32_t> positions) {
  for (std::size_t i = 0; i < banks_.size(); ++i)
    banks_[i].base = positions[options_.first_slot + i / 2];
}

void Slots::set_table(uint32_t number, const Table& table) {
  ADDEND_ASSERT(number < ADDEND_MAX_JOB_TABLES);
  tables_[number] = table;
  for (std::size_t i = 0; i < table.size(); ++i)
    byte_tables_[number][i] = static_cast<uint8_t>(table[i]);
  known_tables_ |= 1u << number;
}

addend_refusal Slots::check(const addend_frame_header& header, uint32_t bytes) const {
  const addend_refusal refusal = addend_contribution_check(&header, bytes);
  if (refusal != ADDEND_REFUSAL_NONE) return refusal;
  if (header.epoch != options_.epoch) return ADDEND_REFUSAL_EPOCH;
  if (header.boot != options_.boot) return ADDEND_REFUSAL_BOOT;
  if (header.world != options_.world) return ADDEND_REFUSAL_WORLD;
  if (header.slot < options_.first_slot || header.slot - options_.first_slot >= options_.slots) {
    return ADDEND_REFUSAL_SLOT;
  }
  if ((options_.ops >> header.op & 1) == 0) return ADDEND_REFUSAL_OP;
  if (addend_frame_has_table(header.op) &&
      (known_tables_ >> addend_frame_table(&header) & 1) == 0) {
    return ADDEND_REFUSAL_OP;
  }
  if (!addend_frame_fits(header.op, header.length, options_.payload_bytes, options_.relays)) {
    return ADDEND_REFUSAL_LENGTH;
  }
  return ADDEND_REFUSAL_NONE;
}

Outcome Slots::refuse(addend_refusal why) {
  ++counters_.refused[why];
  return {why, {}};
}

Outcome Slots::handle(const addend_frame_header& header, const uint8_t* payload, uint32_t bytes,
                      uint64_t now_ns) {
  const addend_refusal refusal = check(header, bytes);
  if (refusal != ADDEND_REFUSAL_NONE) return refuse(refusal);
  // The notice that everyone was sent may be lost: whoever goes on learns of the end here.
  if (ended_) {
    Outcome outcome = refuse(ADDEND_REFUSAL_ENDED);
    outcome.reply = notice(Audience::kSender);
    return outcome;
  }
  const uint32_t index = (header.slot - options_.first_slot) * 2 + (header.turn & 1);
  const Bank& bank = banks_[index];
  const Bank& sibling = banks_[index ^ 1];
  if (bank.state != State::kIdle && header.turn == bank.turn) {
    return contribute(index, header, payload, now_ns);
  }
  const bool follows = header.turn == bank.turn + 2 && header.turn == sibling.turn + 1;
  if (!follows || sibling.state == State::kOpen || sibling.state == State::kRelayed) {
    Outcome outcome = refuse(ADDEND_REFUSAL_TURN);
    // Whoever was left behind gets a later result, and knows it by that.
    const bool later = bank.state == State::kClosed && bank.turn - header.turn < 1u << 31;
    if (options_.quorum > 0 && later) outcome.reply = result(index, Audience::kSender);
    return outcome;
  }
  // An absent worker may get a result before those that are waited for, and be first in the turn
  // behind it.
  const bool entry = (header.flags & ADDEND_FRAME_ENTRY) != 0;
  if (!entry && (attendance_->absent() & header.contributors) != 0) {
    attendance_->hear(header.contributors);
    return refuse(ADDEND_REFUSAL_LATE);
  }
  if (entry) attendance_->enter(header.contributors);
  open(index, header, now_ns);
  return contribute(index, header, payload, now_ns);
}

Outcome Slots::contribute(uint32_t index, const addend_frame_header& header, const uint8_t* payload,
                          uint64_t now_ns) {
  Bank& bank = banks_[index];
  const bool known = (bank.contributors & header.contributors) != 0;
  // The result did not arrive, or this worker was not waited for.
  if (bank.state == State::kClosed) {
    ++counters_.answered;
    if (!known) attendance_->hear(header.contributors);
    Outcome outcome = known ? Outcome{} : refuse(ADDEND_REFUSAL_LATE);
    outcome.reply = result(index, Audience::kSender);
    return outcome;
  }
  // What we sent upstream, or its result, may be lost: workers have timers, and we ask when they
  // do.
  if (bank.state == State::kRelayed) {
    Outcome outcome = refuse(ADDEND_REFUSAL_DUPLICATE);
    if (now_ns >= bank.opened_ns + kRelayAgainNs)
      outcome.reply = relay(index, ADDEND_FRAME_RESENT, now_ns);
    return outcome;
  }
  const bool absent = (attendance_->absent() & header.contributors) != 0;
  if (absent && !known && (bank.flags & ADDEND_FRAME_ENTRY) == 0) {
    attendance_->hear(header.contributors);
    return refuse(ADDEND_REFUSAL_LATE);
  }
  if (!same_shape(bank, header)) {
    Outcome outcome = refuse(ADDEND_REFUSAL_MISMATCH);
    end(ADDEND_NOTICE_MISMATCH, header.worker, outcome.reply);
    return outcome;
  }
  if (known) return refuse(ADDEND_REFUSAL_DUPLICATE);
  if (absent) attendance_->enter(header.contributors);
  add(index, header, payload);
  if (bank.contributors != everyone_) {
    if (!has_all_present(bank)) return {};
    return {ADDEND_REFUSAL_NONE, close_partial(index)};
  }
  ++counters_.complete;
  ++counters_.last[header.worker];
  close(index);
  if (options_.relays) return {ADDEND_REFUSAL_NONE, relay(index, 0, now_ns)};
  narrow(index);
  return {ADDEND_REFUSAL_NONE, result(index, Audience::kEveryone)};
}

// The sum of our workers, as one worker's contribution: sums of table entries are plain lanes.
Reply Slots::relay(uint32_t index, uint8_t flags, uint64_t now_ns) {
  Bank& bank = banks_[index];
  bank.state = State::kRelayed;
  bank.opened_ns = now_ns;
  Reply reply = result(index, Audience::kUpstream);
  reply.header.kind = ADDEND_FRAME_CONTRIBUTION;
  reply.header.flags = flags;
  reply.header.op = sum_op_of(bank.op);
  reply.header.count = 1;
  reply.header.length = static_cast<uint16_t>(addend_frame_growing_length(bank.op, bank.length));
  reply.payload = {growing(index), reply.header.length};
  return reply;
}

Outcome Slots::take_result(const addend_frame_header& header, const uint8_t* payload) {
  if (ended_) return refuse(ADDEND_REFUSAL_ENDED);
  if (header.slot < options_.first_slot || header.slot - options_.first_slot >= options_.slots) {
    return refuse(ADDEND_REFUSAL_SLOT);
  }
  const uint32_t index = (header.slot - options_.first_slot) * 2 + (header.turn & 1);
  Bank& bank = banks_[index];
  if (header.turn != bank.turn || bank.state != State::kRelayed) {
    const bool known = header.turn == bank.turn && bank.state == State::kClosed;
    return refuse(known ? ADDEND_REFUSAL_DUPLICATE : ADDEND_REFUSAL_TURN);
  }
  if (header.op != sum_op_of(bank.op) ||
      header.length != addend_frame_growing_length(bank.op, bank.length) ||
      (header.flags & ADDEND_FRAME_PARTIAL) != 0) {
    return refuse(ADDEND_REFUSAL_MISMATCH);
  }
  std::memcpy(growing(index), payload, header.length);
  bank.state = State::kClosed;
  narrow(index);
  return {ADDEND_REFUSAL_NONE, result(index, Audience::kEveryone)};
}

void Slots::open(uint32_t index, const addend_frame_header& header, uint64_t now_ns) {
  Bank& bank = banks_[index];
  bank.contributors = 0;
  bank.opened_ns = now_ns;
  bank.turn = header.turn;
  bank.op = header.op;
  bank.flags =
      static_cast<uint8_t>(header.flags & (~ADDEND_FRAME_KNOWN_FLAGS | ADDEND_FRAME_ENTRY));
  bank.length = header.length;
  bank.sum_length = static_cast<uint16_t>(addend_frame_sum_length(header.op, header.length));
  bank.state = State::kOpen;
  enlist(index);
}

// Nearly always behind all others; a turn that was opened elsewhere may be older.
void Slots::enlist(uint32_t index) {
  Bank& bank = banks_[index];
  bank.earlier = newest_;
  bank.later = kNone;
  while (bank.earlier != kNone && banks_[bank.earlier].opened_ns > bank.opened_ns) {
    bank.later = bank.earlier;
    bank.earlier = banks_[bank.earlier].earlier;
  }
  (bank.earlier == kNone ? oldest_ : banks_[bank.earlier].later) = index;
  (bank.later == kNone ? newest_ : banks_[bank.later].earlier) = index;
}

void Slots::close(uint32_t index) {
  Bank& bank = banks_[index];
  bank.state = State::kClosed;
  // Out of the list of open banks; the result stays until the bank's next turn.
  (bank.earlier == kNone ? oldest_ : banks_[bank.earlier].later) = bank.later;
  (bank.later == kNone ? newest_ : banks_[bank.later].earlier) = bank.earlier;
}

// Makes what has grown the result. REQUIRES: nothing more is added.
void Slots::narrow(uint32_t index) {
  const Bank& bank = banks_[index];
  const auto op = static_cast<Op>(bank.op);
  if (!is_narrow_sum(op)) return;
  narrow_sums(op, reinterpret_cast<const uint16_t*>(growing(index)),
              addend_frame_lanes(bank.op, bank.length), sums(index));
}

void Slots::add(uint32_t index, const addend_frame_header& header, const uint8_t* payload) {
  Bank& bank = banks_[index];
  const bool first = bank.contributors == 0;
  const auto op = static_cast<Op>(header.op);
  const uint32_t lanes = addend_frame_lanes(header.op, header.length);
  uint8_t* acc = growing(index);
  if (is_table_sum(op)) {
    if (first) std::memset(acc, 0, addend_frame_growing_length(header.op, header.length));
    const uint32_t table = addend_frame_table(&header);
    const void* entries = op == Op::kTableSumU16
                              ? static_cast<const void*>(tables_[table].data())
                              : static_cast<const void*>(byte_tables_[table].data());
    fold_table(op, acc, payload, entries, lanes);
  } else if (first) {
    // Overwrites what is left of the turn before last: a bank is never cleared.
    std::memcpy(acc, payload, header.length);
  } else {
    // A datagram behind an odd one in the same receive buffer is not aligned for its lanes.
    if (reinterpret_cast<uintptr_t>(payload) % 8 != 0) {
      uint8_t* scratch = sums(static_cast<uint32_t>(banks_.size()));
      std::memcpy(scratch, payload, header.length);
      payload = scratch;
    }
    fold(op, acc, payload, lanes);
  }
  bank.contributors |= header.contributors;
  ++counters_.folded;
  if ((header.flags & ADDEND_FRAME_RESENT) != 0) ++counters_.resent;
}

bool Slots::same_shape(const Bank& bank, const addend_frame_header& header) const {
  return bank.op == header.op && bank.length == header.length &&
         (bank.flags & ~ADDEND_FRAME_KNOWN_FLAGS) == (header.flags & ~ADDEND_FRAME_KNOWN_FLAGS) &&
         (bank.flags & ADDEND_FRAME_ENTRY) == (header.flags & ADDEND_FRAME_ENTRY);
}

// Whether a turn has everybody who is waited for. Fewer than a quorum never suffice.
bool Slots::has_all_present(const Bank& bank) const {
  return options_.quorum > 0 && (bank.contributors | attendance_->absent()) == everyone_ &&
         static_cast<uint32_t>(std::popcount(bank.contributors)) >= options_.quorum;
}

Reply Slots::close_partial(uint32_t index) {
  Bank& bank = banks_[index];
  bank.flags |= ADDEND_FRAME_PARTIAL;
  ++counters_.partial;
  close(index);
  narrow(index);
  return result(index, Audience::kEveryone);
}

uint64_t Slots::place(uint32_t index) const {
  return place(options_.first_slot + index / 2, banks_[index].turn);
}

uint32_t Slots::first_open() const {
  uint32_t first = oldest_;
  for (uint32_t index = oldest_; index != kNone; index = banks_[index].later) {
    if (is_before(place(index), place(first))) first = index;
  }
  return first;
}

// Whether patience is over, and in which turn: the first one of the job. A worker always has the
// lowest chunk that it has not finished in flight, also beyond its window (Stream::next), so that
// only those that do not send are missing there. In a turn behind it others may be, who wait for
// the first one.
bool Slots::is_over(uint64_t now_ns, uint32_t& index) {
  const bool long_wait = waits_long(now_ns);
  attendance_->wait_at(part_, long_wait ? place(index = first_open()) : 0);
  return long_wait && banks_[index].opened_ns + options_.patience_ns <= now_ns &&
         attendance_->is_first(place(index));
}

bool Slots::expire(uint64_t now_ns, Reply& reply) {
  if (ended_) return false;
  uint32_t index = kNone;
  const bool over = is_over(now_ns, index);
  // Somebody is absent, as this thread or another one found out.
  if (const uint64_t misses = attendance_->misses(); misses != known_misses_) {
    for (uint32_t open = oldest_; open != kNone; open = banks_[open].later) {
      if (!has_all_present(banks_[open])) continue;
      reply = close_partial(open);
      return true;
    }
    // What held up the workers that are left is over only now.
    for (uint32_t open = oldest_; open != kNone; open = banks_[open].later)
      banks_[open].opened_ns = now_ns;
    known_misses_ = misses;
    return false;
  }
  if (!over) return false;
  Bank& bank = banks_[index];
  const auto count = static_cast<uint32_t>(std::popcount(bank.contributors));
  if (options_.quorum == 0 || count < options_.quorum) {
    end(ADDEND_NOTICE_TIMEOUT, static_cast<uint32_t>(std::countr_one(bank.contributors)), reply);
    reply.header.contributors = end_.contributors = bank.contributors;
    reply.header.count = end_.count = static_cast<uint8_t>(count);
    reply.header.slot = end_.slot = static_cast<uint16_t>(options_.first_slot + index / 2);
    reply.header.turn = end_.turn = bank.turn;
    return true;
  }
  attendance_->miss(everyone_ & ~bank.contributors);
  reply = close_partial(index);
  return true;
}

uint64_t Slots::lacks() const {
  uint64_t workers = 0;
  if (ended_) return workers;
  for (uint32_t index = oldest_; index != kNone; index = banks_[index].later)
    workers |= everyone_ & ~banks_[index].contributors;
  return workers & ~attendance_->absent();
}

Wait Slots::first_wait() const {
  if (ended_ || oldest_ == kNone) return {};
  const uint32_t index = first_open();
  const Bank& bank = banks_[index];
  return {place(index), bank.opened_ns, everyone_ & ~bank.contributors & ~attendance_->absent()};
}

uint64_t Slots::place(uint32_t slot, uint32_t turn) const {
  const uint32_t index = (slot - options_.first_slot) * 2;
  ADDEND_ASSERT(index < banks_.size());
  return place_of(banks_[index].base + turn, slot);
}

BankImage Slots::bank(uint32_t slot, uint32_t number) const {
  const uint32_t index = (slot - options_.first_slot) * 2 + number;
  ADDEND_ASSERT(index < banks_.size());
  const Bank& bank = banks_[index];
  return {bank.contributors, bank.opened_ns, bank.turn,  bank.length, bank.sum_length,
          bank.op,           bank.flags,     bank.state, sums(index)};
}

void Slots::set_bank(uint32_t slot, uint32_t number, const BankImage& image) {
  const uint32_t index = (slot - options_.first_slot) * 2 + number;
  ADDEND_ASSERT(index < banks_.size() && banks_[index].state != State::kOpen);
  ADDEND_ASSERT(image.sum_length <= options_.payload_bytes);
  Bank& bank = banks_[index];
  bank.contributors = image.contributors;
  bank.opened_ns = image.opened_ns;
  bank.turn = image.turn;
  bank.length = image.length;
  bank.sum_length = image.sum_length;
  bank.op = image.op;
  bank.flags = image.flags;
  bank.state = image.state;
  if (image.sum_length > 0) std::memcpy(sums(index), image.sums, image.sum_length);
  if (bank.state == State::kOpen) enlist(index);
}

bool Slots::is_waiting(uint32_t slot) const {
  const uint32_t index = (slot - options_.first_slot) * 2;
  ADDEND_ASSERT(index + 1 < banks_.size());
  return banks_[index].state == State::kOpen || banks_[index + 1].state == State::kOpen;
}

void Slots::end(addend_notice why, uint32_t worker, Reply& reply) {
  ended_ = true;
  end_ = reply_header();
  end_.kind = ADDEND_FRAME_NOTICE;
  end_.op = static_cast<uint8_t>(why);
  end_.worker = static_cast<uint8_t>(worker);
  reply = notice(Audience::kEveryone);
}

addend_frame_header Slots::reply_header() const {
  addend_frame_header header{};
  header.magic = ADDEND_FRAME_MAGIC;
  header.version = ADDEND_FRAME_VERSION;
  header.epoch = options_.epoch;
  header.boot = options_.boot;
  header.world = static_cast<uint8_t>(options_.world);
  return header;
}

Reply Slots::result(uint32_t index, Audience audience) const {
  const Bank& bank = banks_[index];
  Reply reply{audience, reply_header(), {sums(index), bank.sum_length}};
  reply.header.kind = ADDEND_FRAME_RESULT;
  reply.header.flags = bank.flags;
  reply.header.turn = bank.turn;
  reply.header.slot = static_cast<uint16_t>(options_.first_slot + index / 2);
  reply.header.worker = ADDEND_FRAME_EVERYONE;
  reply.header.op = bank.op;
  reply.header.count = static_cast<uint8_t>(std::popcount(bank.contributors));
  reply.header.length = bank.sum_length;
  reply.header.contributors = bank.contributors;
  return reply;
}

Reply Slots::notice(Audience audience) const { return {audience, end_, {}}; }

uint64_t Slots::memory_bytes() const {
  return sizeof(*this) + memory_.capacity() + banks_.capacity() * sizeof(Bank);
}

}  // namespace addend::aggregate
