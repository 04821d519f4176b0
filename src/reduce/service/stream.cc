// SPDX-License-Identifier: Apache-2.0
#include "reduce/service/stream.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/assert.h"

namespace addend::service_client {
namespace {

// Later chunks that must have come back before a chunk is more likely lost than late: results of
// one super-packet come together, so the number is that of two of them.
constexpr uint64_t kReorder = 96;
// How many chunks are sent again when nothing comes back at all: the lowest ones hold up
// everything, and their results tell what became of the rest.
constexpr std::ptrdiff_t kProbes = 8;
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

Status Stream::enter(const EpochView& view) {
  const bool moved =
      std::any_of(positions_.begin(), positions_.end(), [](uint32_t p) { return p > 0; });
  if (view.positions.empty() && moved) {
    return make_error(Errc::kUnavailable,
                      "a worker has lost its place in the job; all must start the step anew");
  }
  std::vector<uint32_t> bases(slots_, 0);
  std::copy(view.positions.begin(), view.positions.end(), bases.begin());
  for (uint32_t s = 0; s < slots_; ++s) {
    if (positions_[s] - bases[s] > 1) {
      return make_error(Errc::kUnavailable, "the workers are too far apart to go on");
    }
  }
  view_ = view;
  view_.positions = {};
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
      make_idle(s);
    }
  }
  return {};
}

uint64_t Stream::extend(uint64_t chunks) {
  const uint64_t first = end_;
  // A slot whose next chunk is among the new ones had none before.
  for (uint32_t s = 0; s < slots_; ++s) {
    const uint64_t number = number_of(s);
    if (!states_[s].busy() && number >= first && number < first + chunks) make_idle(s);
  }
  end_ += chunks;
  missing_ += chunks;
  return first;
}

void Stream::make_idle(uint32_t slot) {
  idle_.push_back(slot);
  std::push_heap(idle_.begin(), idle_.end(), std::greater<>());
}

// The lowest slot that has anything to do may go beyond the window: every worker that has not
// finished it has it in flight then, so workers with narrow windows cannot wait for each other's
// slots for ever.
bool Stream::next(uint64_t& number) {
  if (idle_.empty()) return false;
  const uint32_t slot = idle_.front();
  if (outstanding_ >= pace_.window()) {
    const auto busy = [](const Slot& state) { return state.busy(); };
    if (std::any_of(states_.begin(), states_.begin() + slot, busy)) return false;
  }
  std::pop_heap(idle_.begin(), idle_.end(), std::greater<>());
  idle_.pop_back();
  number = number_of(slot);
  return true;
}

void Stream::add(uint64_t number, const Contribution& contribution) {
  const auto slot = static_cast<uint32_t>(number % slots_);
  Slot& state = states_[slot];
  const uint32_t position = positions_[slot];
  ADDEND_ASSERT(!state.busy() && number == number_of(slot));
  ADDEND_ASSERT(contribution.bytes.size() <= payload_bytes_);
  std::memcpy(frame(slot, position) + ADDEND_FRAME_HEADER_BYTES, contribution.bytes.data(),
              contribution.bytes.size());
  state.length[position % 2] = static_cast<uint16_t>(contribution.bytes.size());
  state.op[position % 2] = static_cast<uint8_t>(contribution.op);
  state.table[position % 2] = static_cast<uint8_t>(contribution.table);
  state.entry[position % 2] = contribution.entry;
  state.waiting = number;
  state.tries = 0;
  ++outstanding_;
  fresh_.push_back(slot);
}

void Stream::send(uint32_t slot, uint64_t now_ns) {
  Slot& state = states_[slot];
  const uint32_t position = position_of(slot);
  const uint32_t parity = position % 2;
  addend_frame_header header{};
  header.magic = ADDEND_FRAME_MAGIC;
  header.version = ADDEND_FRAME_VERSION;
  header.kind = ADDEND_FRAME_CONTRIBUTION;
  header.flags = state.tries > 0 ? uint8_t{ADDEND_FRAME_RESENT} : uint8_t{0};
  if (state.entry[parity]) header.flags |= ADDEND_FRAME_ENTRY;
  if (addend_op_is_table(state.op[parity])) {
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
  header.tag = addend_be64(view_.worker_key->tag(header, payload));
  std::memcpy(bytes, &header, sizeof(header));
  if (state.tries++ > 0) ++resent_;
  state.sent_ns = now_ns;
  state.order = ++order_;
  out_.push_back({slot, {bytes, sizeof(header) + payload.size()}});
}

std::span<const Stream::Frame> Stream::collect(uint64_t now_ns) {
  out_.clear();
  if (!fresh_.empty()) progress_ns_ = now_ns;
  for (const uint32_t slot : fresh_)
    send(slot, now_ns);
  fresh_.clear();
  if (outstanding_ > 0) {
    send_lost(now_ns);
    if (now_ns >= progress_ns_ + pace_.timeout_ns(1 + silences_)) send_after_timeout(now_ns);
  }
  return out_;
}

// A chunk is sent again when many later ones have come back and it had time to, or when its timeout
// is over.
void Stream::send_lost(uint64_t now_ns) {
  next_check_ns_ = ~uint64_t{0};
  for (uint32_t slot = 0; slot < slots_; ++slot) {
    const Slot& state = states_[slot];
    if (!state.busy() || state.tries == 0) continue;
    const bool overtaken = state.order + kReorder <= latest_back_ &&
                           now_ns >= state.sent_ns + pace_.overtaken_ns(state.tries);
    if (overtaken || now_ns >= state.sent_ns + pace_.timeout_ns(state.tries)) send(slot, now_ns);
    next_check_ns_ = std::min(next_check_ns_, state.sent_ns + pace_.timeout_ns(state.tries));
  }
}

void Stream::send_after_timeout(uint64_t now_ns) {
  // Lowest in the order of the stream first, counting what is sent once more for others: the lowest
  // of all is in flight on every worker that some other worker waits for, so the probes meet.
  probes_.clear();
  for (uint32_t s = 0; s < slots_; ++s) {
    if (states_[s].busy() && states_[s].tries > 0)
      probes_.push_back(uint64_t{position_of(s)} * slots_ + s);
  }
  const auto middle = probes_.begin() + std::min(kProbes, std::ssize(probes_));
  std::partial_sort(probes_.begin(), middle, probes_.end());
  for (auto number = probes_.begin(); number != middle; ++number)
    send(static_cast<uint32_t>(*number % slots_), now_ns);
  if (++silences_ >= kLongSilence) pace_.silent();
  progress_ns_ = now_ns;
}

uint64_t Stream::next_timeout_ns() const {
  if (outstanding_ == 0) return ~uint64_t{0};
  return std::min(progress_ns_ + pace_.timeout_ns(1 + silences_), next_check_ns_);
}

bool Stream::authentic(std::span<const uint8_t> datagram, addend_frame_header& header) const {
  if (datagram.size() < sizeof(header)) return false;
  std::memcpy(&header, datagram.data(), sizeof(header));
  const addend_frame_header wire = header;
  addend_frame_swap(&header);
  const auto payload = datagram.subspan(sizeof(header));
  return header.magic == ADDEND_FRAME_MAGIC && header.version == ADDEND_FRAME_VERSION &&
         (header.kind == ADDEND_FRAME_RESULT || header.kind == ADDEND_FRAME_NOTICE) &&
         header.epoch == view_.epoch && header.boot == view_.boot &&
         header.length == payload.size() && payload.size() <= payload_bytes_ &&
         header.slot < slots_ && view_.result_key->verify(wire, payload);
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
  if (state.tries == 1) pace_.measured(now_ns - state.sent_ns);
  pace_.progressed(state.tries);
  progress_ns_ = now_ns;
  silences_ = 0;
  latest_back_ = std::max(latest_back_, state.order);
  state.tries = 0;
  if (state.again) {
    state.again = false;
    // Now what the slot is really waiting for, if anything.
    if (state.waiting != kNobody) {
      fresh_.push_back(header.slot);
    } else {
      --outstanding_;
      if (number_of(header.slot) < end_) make_idle(header.slot);
    }
    return Verdict::kIgnored;
  }
  arrival = {state.waiting, sums, header.contributors};
  state.waiting = kNobody;
  ++positions_[header.slot];
  --outstanding_;
  --missing_;
  if (number_of(header.slot) < end_) make_idle(header.slot);
  return Verdict::kArrived;
}

}  // namespace addend::service_client
