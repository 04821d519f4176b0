// SPDX-License-Identifier: Apache-2.0
// The states of a slot, as its worker sees them.
//
//                                    .--.  sent once more: it was overtaken, was silent for a
//                                    |  v  timeout, or everything waits for it (a copy)
//   idle --add--> fresh --collect--> in flight --its result--> idle, one position further
//                   ^                    |
//                   '------- enter ------'  another epoch, whose server knows nothing of this turn
//
// Under another epoch a slot may first have to repeat the turn before (`again`): its result came
// here, but not to every worker. What comes back then is ignored.
#include "reduce/service/stream.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "reduce/service/chunks.h"

namespace addend::service_client {
namespace {

// How much later a chunk must have been sent to overtake another: networks swap a few.
constexpr uint64_t kReorder = 3;
// How many chunks are sent again when nothing tells what became of them; the lowest ones hold up
// everything. Each time more: another worker may be slow, and then it is in vain; but with a quorum
// whatever was lost must be there before patience ends.
constexpr std::size_t kAsked = 8, kMoreAsked = 4;
// Turns behind the first slot at which one is what the end of the round will wait for.
constexpr uint64_t kFarBehind = 2;
// Turns before the end of a round of which one more is much.
constexpr uint64_t kFewTurns = 8;
// Timeouts in a row, each twice as long as the one before, that no lost frame explains.
constexpr uint32_t kLongSilence = 4;

}  // namespace

Stream::Stream(uint32_t slots, uint32_t payload_bytes)
    : slots_(slots),
      payload_bytes_(payload_bytes),
      // A multiple of 8, so that payloads are aligned.
      frame_bytes_(ADDEND_FRAME_HEADER_BYTES + std::size_t{payload_bytes}),
      frames_(frame_bytes_ * 2 * slots),
      states_(slots),
      positions_(slots, 0),
      bases_(slots, 0),
      pace_(slots) {}

Error lost_place() {
  return make_error(Errc::kUnavailable,
                    "a worker has lost its place in the job; all must start the step anew");
}

Status Stream::enter(const EpochView& view) {
  const bool moved =
      std::any_of(positions_.begin(), positions_.end(), [](uint32_t p) { return p > 0; });
  if (view.positions.empty() && moved) return lost_place();
  std::vector<uint32_t> bases(slots_, 0);
  std::copy(view.positions.begin(), view.positions.end(), bases.begin());
  // Of each slot only the last two contributions are kept.
  for (uint32_t s = 0; s < slots_; ++s) {
    if (positions_[s] - bases[s] > 1) {
      return make_error(Errc::kUnavailable, "the workers are too far apart to go on");
    }
  }
  view_ = view;
  view_.positions = {};
  if (view.round_trip_ns > 0) pace_.expect(view.round_trip_ns);
  bases_ = std::move(bases);
  fresh_.clear();
  idle_.clear();
  outstanding_ = 0;
  for (uint32_t s = 0; s < slots_; ++s) {
    Slot& state = states_[s];
    state.again = positions_[s] > bases_[s];
    state.tries = 0;
    if (state.busy()) {
      fresh_.push_back(s);
      ++outstanding_;
    } else if (number_of(s) < end_) {
      idle_.push_back(number_of(s));
    }
  }
  std::sort(idle_.begin(), idle_.end());
  return {};
}

uint64_t Stream::extend(uint64_t chunks) {
  const uint64_t first = end_;
  // A slot whose next chunk is among the new ones had none before.
  for (uint64_t number = first; number < first + std::min<uint64_t>(chunks, slots_); ++number) {
    const auto slot = static_cast<uint32_t>(number % slots_);
    if (!states_[slot].busy() && number == number_of(slot)) idle_.push_back(number);
  }
  end_ += chunks;
  missing_ += chunks;
  return first;
}

// In the order of results. Among the slots of one data thread that is the order in which it sent
// them, so the same for all workers, however many they read at a time and however wide their
// windows are: what comes back out of that order waits for something that was lost. Results of
// several threads mix otherwise on each worker. The lowest chunk of all may go beyond the window:
// every worker that has not finished it has it in flight then, so workers with narrow windows
// cannot wait for each other for ever, and patience knows whom it misses (Slots::is_over).
bool Stream::next(uint64_t& number) {
  if (idle_.empty()) return false;
  auto chosen = idle_.begin();
  if (outstanding_ >= pace_.window()) {
    chosen = std::min_element(idle_.begin(), idle_.end());
    for (uint32_t s = 0; s < slots_; ++s) {
      if (states_[s].busy() && number_in_flight(s) < *chosen) return false;
    }
  }
  number = *chosen;
  idle_.erase(chosen);
  return true;
}

void Stream::add(uint64_t number, const Contribution& contribution) {
  const auto slot = static_cast<uint32_t>(number % slots_);
  Slot& state = states_[slot];
  const uint32_t position = positions_[slot];
  ADDEND_ASSERT(!state.busy() && number == number_of(slot));
  ADDEND_ASSERT(contribution.bytes.size() <= payload_bytes_);
  uint8_t* lanes = frame(slot, position) + ADDEND_FRAME_HEADER_BYTES;
  std::size_t bytes = contribution.bytes.size();
  std::memcpy(lanes, contribution.bytes.data(), bytes);
  if (view_.by_switch) {
    swap_lanes(contribution.op, {lanes, bytes});
    for (; bytes % kSwitchWordBytes != 0; ++bytes)
      lanes[bytes] = 0;
  }
  state.length[position % 2] = static_cast<uint16_t>(bytes);
  state.op[position % 2] = static_cast<uint8_t>(contribution.op);
  state.table[position % 2] = static_cast<uint8_t>(contribution.table);
  state.entry[position % 2] = contribution.entry;
  state.waiting = number;
  highest_ = std::max(highest_, number);
  state.tries = 0;
  ++outstanding_;
  fresh_.push_back(slot);
}

void Stream::send(uint32_t slot, uint64_t now_ns) {
  Slot& state = states_[slot];
  put(slot, state.tries++ > 0 ? ADDEND_FRAME_RESENT : 0);
  state.sent_ns = now_ns;
  state.order = ++order_;
  state.overtaken_ns = 0;
  state.copied = false;
}

// Writes the frame and hands it out.
void Stream::put(uint32_t slot, uint8_t resent) {
  const Slot& state = states_[slot];
  const uint32_t position = position_of(slot);
  const uint32_t parity = position % 2;
  addend_frame_header header{};
  header.magic = ADDEND_FRAME_MAGIC;
  header.version = ADDEND_FRAME_VERSION;
  header.kind = ADDEND_FRAME_CONTRIBUTION;
  header.flags = resent;
  if (view_.by_switch) header.flags |= ADDEND_FRAME_BIG_ENDIAN;
  if (state.entry[parity]) header.flags |= ADDEND_FRAME_ENTRY;
  if (addend_frame_has_table(state.op[parity])) {
    header.flags = static_cast<uint8_t>(header.flags | table_numbers_[state.table[parity]]
                                                           << ADDEND_FRAME_TABLE_SHIFT);
  }
  header.epoch = view_.epoch;
  header.turn = position - bases_[slot];
  header.slot = static_cast<uint16_t>(slot);
  header.worker = static_cast<uint8_t>(view_.worker);
  header.world = static_cast<uint8_t>(view_.world);
  header.op = state.op[parity];
  header.count = 1;
  header.length = state.length[parity];
  header.boot = view_.boot;
  header.contributors = uint64_t{1} << view_.worker;
  addend_frame_swap(&header);
  uint8_t* bytes = frame(slot, position);
  const std::span<const uint8_t> payload(bytes + sizeof(header), state.length[parity]);
  // Written and tagged anew each time: the turn, the epoch and its key may be others by now.
  header.tag = addend_be64(view_.by_switch ? view_.worker_key->fixed_tag()
                                           : view_.worker_key->tag(header, payload));
  std::memcpy(bytes, &header, sizeof(header));
  if (resent != 0) ++resent_;
  out_.push_back({slot, {bytes, sizeof(header) + payload.size()}});
}

std::span<const Stream::Frame> Stream::collect(uint64_t now_ns) {
  out_.clear();
  for (const uint32_t slot : fresh_)
    send(slot, now_ns);
  fresh_.clear();
  send_overtaken(now_ns);
  send_copies(now_ns);
  if (outstanding_ > 0 && now_ns >= next_ask_ns()) ask_again(now_ns);
  return out_;
}

// Only chunks that came back at their first try overtake: all workers sent them after the one that
// they overtake. One that was sent again may have been complete long ago, and the next one of its
// slot the others may have sent long before this worker did, and before what it overtakes.
bool Stream::overtaken(uint32_t slot) {
  return states_[slot].order + kReorder <= latest_back(slot);
}

void Stream::send_overtaken(uint64_t now_ns) {
  next_overtaken_ns_ = oldest_ns_ = ~uint64_t{0};
  for (uint32_t slot = 0; slot < slots_; ++slot) {
    Slot& state = states_[slot];
    if (!state.busy() || state.tries == 0) continue;
    if (overtaken(slot)) {
      if (state.overtaken_ns == 0) state.overtaken_ns = now_ns;
      const uint64_t lost_ns = state.overtaken_ns + pace_.overtaken_ns();
      if (now_ns >= lost_ns) {
        // Its answer tells whether it was lost or only swapped, unless that may be its copy's.
        if (state.copied) pace_.lost();
        state.in_doubt = !state.copied;
        send(slot, now_ns);
      } else {
        next_overtaken_ns_ = std::min(next_overtaken_ns_, lost_ns);
      }
    }
    oldest_ns_ = std::min(oldest_ns_, state.sent_ns);
  }
}

// A slot's turns follow one another, so those that have most of them left hold up the round. Slots
// below this number have; one that lost something is alone with that for as long as it is behind.
uint64_t Stream::end_of_longest_way() const {
  uint64_t lowest = end_ - 1;
  for (const uint64_t number : idle_)
    lowest = std::min(lowest, number);
  for (uint32_t slot = 0; slot < slots_; ++slot) {
    if (states_[slot].busy()) lowest = std::min(lowest, number_in_flight(slot));
  }
  const uint64_t turns_behind = (end_ - 1 - lowest) / slots_;
  return turns_behind < kFewTurns ? end_ - turns_behind * slots_ : 0;
}

// What everything will wait for: the last turn of each slot, after which the link is idle, slots
// that losses have put far behind, and near the end those that will be the last.
void Stream::send_copies(uint64_t now_ns) {
  next_copy_ns_ = ~uint64_t{0};
  if (!pace_.copies() || outstanding_ == 0) return;
  const uint64_t longest_way = pace_.has_room() ? end_of_longest_way() : 0;
  for (uint32_t slot = 0; slot < slots_; ++slot) {
    Slot& state = states_[slot];
    if (!state.busy() || state.tries == 0 || state.copied) continue;
    const uint64_t number = number_in_flight(slot);
    const bool far_behind = number + kFarBehind * slots_ < highest_;
    if (number + slots_ < end_ && !far_behind && number >= longest_way) continue;
    const uint64_t due_ns = state.sent_ns + pace_.copy_ns();
    if (now_ns < due_ns) {
      next_copy_ns_ = std::min(next_copy_ns_, due_ns);
      continue;
    }
    // Where none were sent in time (the path was full), an answer is about to come.
    if (now_ns < due_ns + pace_.reorder_ns()) put(slot, ADDEND_FRAME_RESENT);
    state.copied = true;
  }
}

// How long a chunk has to come back before it is asked for. Where results arrive, nobody is slow,
// and the end of their row is the time.
uint64_t Stream::ask_after_ns() const {
  const bool arriving = silences_ == 0 && progress_ns_ > oldest_ns_;
  return arriving ? 5 * pace_.reorder_ns() : pace_.timeout_ns(silences_);
}

// When something had time to come back, did not, and nothing else came for a while: where results
// arrive, those that are missing are overtaken, or their turn has not come.
uint64_t Stream::next_ask_ns() const {
  return std::max({oldest_ns_ + ask_after_ns(), progress_ns_ + 2 * pace_.reorder_ns(),
                   asked_ns_ + pace_.timeout_ns(silences_)});
}

void Stream::ask_again(uint64_t now_ns) {
  // Lowest in the order of the stream first, counting what is sent once more for others: the lowest
  // of all is in flight on every worker that some other worker waits for, so they meet.
  asked_.clear();
  for (uint32_t s = 0; s < slots_; ++s) {
    if (states_[s].busy() && now_ns >= states_[s].sent_ns + ask_after_ns())
      asked_.push_back(number_in_flight(s));
  }
  // Half of them stay at their first try, by which alone a round trip that has become longer than
  // the timeout is noticed; not for ever, or with a quorum patience would end for what was lost of
  // that half.
  const std::size_t all = asked_.size(), half = (all + 1) / 2;
  const std::size_t most = silences_ < kLongSilence ? half : all;
  in_need_ = std::min(std::max(kAsked, std::min(kMoreAsked * in_need_, most)), all);
  const auto middle = asked_.begin() + static_cast<std::ptrdiff_t>(in_need_);
  std::partial_sort(asked_.begin(), middle, asked_.end());
  for (auto number = asked_.begin(); number != middle; ++number)
    send(static_cast<uint32_t>(*number % slots_), now_ns);
  if (++silences_ >= kLongSilence) pace_.silent();
  asked_ns_ = now_ns;
}

uint64_t Stream::next_timeout_ns() const {
  if (outstanding_ == 0) return ~uint64_t{0};
  return std::min({next_ask_ns(), next_overtaken_ns_, next_copy_ns_});
}

bool Stream::authentic(std::span<const uint8_t> datagram, addend_frame_header& header) const {
  if (datagram.size() < sizeof(header)) return false;
  std::memcpy(&header, datagram.data(), sizeof(header));
  const addend_frame_header wire = header;
  addend_frame_swap(&header);
  const auto payload = datagram.subspan(sizeof(header));
  // Notices are the server's.
  const bool of_switch = view_.by_switch && header.kind == ADDEND_FRAME_RESULT;
  const bool swapped = (header.flags & ADDEND_FRAME_BIG_ENDIAN) != 0;
  return header.magic == ADDEND_FRAME_MAGIC && header.version == ADDEND_FRAME_VERSION &&
         (header.kind == ADDEND_FRAME_RESULT || header.kind == ADDEND_FRAME_NOTICE) &&
         header.epoch == view_.epoch && header.boot == view_.boot &&
         header.length == payload.size() && payload.size() <= payload_bytes_ &&
         header.slot < slots_ && swapped == of_switch &&
         (of_switch ? header.tag == view_.result_key->fixed_tag()
                    : view_.result_key->verify(wire, payload));
}

// Whether a result is the one that its slot waits for.
bool Stream::answers(const addend_frame_header& header) const {
  const Slot& state = states_[header.slot];
  const uint32_t position = position_of(header.slot);
  if (!state.busy() || header.turn + bases_[header.slot] != position) return false;
  const uint8_t op = state.op[position % 2];
  const uint32_t lanes = addend_frame_lanes(op, state.length[position % 2]);
  return header.op == op && header.length == op_sum_bytes(static_cast<Op>(op), lanes);
}

Stream::Verdict Stream::receive(std::span<const uint8_t> datagram, uint64_t now_ns,
                                Arrival& arrival, addend_control_ended& ended) {
  addend_frame_header header;
  if (!authentic(datagram, header)) return Verdict::kIgnored;
  if (header.kind == ADDEND_FRAME_NOTICE) {
    ended = {header.op, header.worker};
    return Verdict::kNotice;
  }
  // Two turns ahead of ours: the others went on at a quorum, and ours cannot be had any more.
  if (header.turn + bases_[header.slot] - position_of(header.slot) - 2 < 1u << 31) {
    return Verdict::kLeftBehind;
  }
  if (!answers(header)) return Verdict::kIgnored;
  return accept(header, datagram.subspan(sizeof(header)), now_ns, arrival);
}

Stream::Verdict Stream::accept(const addend_frame_header& header, std::span<const uint8_t> sums,
                               uint64_t now_ns, Arrival& arrival) {
  Slot& state = states_[header.slot];
  // Of a chunk that was sent twice nobody knows which one was answered, unless it was too soon for
  // the second, or too late for the first.
  const uint64_t elapsed_ns = now_ns - state.sent_ns;
  const bool in_order = state.tries == 1 && !overtaken(header.slot);
  if (state.tries == 1) {
    if (in_order)
      pace_.measured(elapsed_ns, now_ns);
    else if (state.copied && pace_.is_of_copy(elapsed_ns))
      pace_.lost();
    else
      pace_.swapped();
    if (!state.was_late) latest_back(header.slot) = std::max(latest_back(header.slot), state.order);
    in_need_ = 0;
  } else if (state.in_doubt && pace_.is_too_soon(elapsed_ns)) {
    pace_.swapped();
  } else if (state.in_doubt) {
    pace_.lost();
  }
  state.in_doubt = false;
  state.was_late = !in_order;
  pace_.progressed();
  progress_ns_ = now_ns;
  silences_ = 0;
  state.tries = 0;
  if (state.again) {
    state.again = false;
    // Now what the slot is really waiting for, if anything.
    if (state.waiting != kNobody) {
      fresh_.push_back(header.slot);
    } else {
      --outstanding_;
      if (number_of(header.slot) < end_) idle_.push_back(number_of(header.slot));
    }
    return Verdict::kIgnored;
  }
  arrival = {state.waiting, sums, header.contributors};
  state.waiting = kNobody;
  ++positions_[header.slot];
  --outstanding_;
  --missing_;
  if (number_of(header.slot) < end_) idle_.push_back(number_of(header.slot));
  return Verdict::kArrived;
}

}  // namespace addend::service_client
