// SPDX-License-Identifier: Apache-2.0
#include "reduce/mesh/mesh.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "net/address.h"
#include "reduce/host_memory.h"

namespace addend::mesh {
namespace {

using Clock = std::chrono::steady_clock;

// How long a wait asks again and again before it sleeps: about what waking up takes. Workers that
// come at the same time then do not sleep at all.
constexpr std::chrono::microseconds kSpin{50};
// A wait that has nothing to do for so long looks up: a signal may have come before it slept.
constexpr std::chrono::milliseconds kLook{500};
// What one channel may move before the others have their turn.
constexpr uint64_t kTurnBytes = 1 << 20;
// Lanes of rounds that others started and we did not are kept up to here; more must wait, and what
// comes behind them.
constexpr uint64_t kMaxEarlyBytes = 256 << 20;
// No message is longer, whatever a frame says.
constexpr uint64_t kMaxLaneBytes = uint64_t{1} << 36;

timespec to_timespec(Clock::duration time) {
  const auto ns =
      std::max<int64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(), 0);
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

// What happened to a connection.
std::string named(uint32_t worker, const std::string& what) {
  return "the connection to worker " + std::to_string(worker) + " " + what;
}

}  // namespace

uint64_t exchange_bytes(const Link& link, std::size_t world) {
  constexpr uint64_t kMost = 8 << 20;  // beyond this, a copy from everybody is too much memory
  constexpr double kShare = 0.25;      // of a hop, that bytes may take
  const auto workers = static_cast<double>(world);
  // An exchange sends (world - 1) times the bytes, two steps send 2 / world of that.
  const double extra = (workers - 1) * (1 - 2 / workers);
  const double most = static_cast<double>(kMost) / workers;
  if (extra <= 0) return static_cast<uint64_t>(most);
  const double hop_bytes = link.latency_us * link.gbit_per_s * 125;
  return static_cast<uint64_t>(std::min(most, kShare * hop_bytes / extra));
}

MeshReducer::MeshReducer(std::vector<net::Descriptor> sockets, net::Descriptor waker,
                         const Options& options)
    : worker_(options.worker),
      exchange_bytes_(options.exchange_bytes),
      channels_(sockets.size()),
      waker_(std::move(waker)) {
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    if (sockets[i]) guards_.emplace_back(sockets[i].get());
    if (sockets[i] && net::stays_on_host(sockets[i].get())) ++local_workers_;
    channels_[i].socket = std::move(sockets[i]);
  }
}

Result<std::unique_ptr<MeshReducer>> MeshReducer::create(std::vector<net::Descriptor> sockets,
                                                         const Options& options) {
  if (options.worker >= sockets.size()) {
    return make_error(Errc::kInvalidArgument, "workers are numbered from 0 to world - 1");
  }
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    if (i == options.worker) continue;
    const int flags = fcntl(sockets[i].get(), F_GETFL);
    if (flags < 0 || fcntl(sockets[i].get(), F_SETFL, flags | O_NONBLOCK) < 0) {
      return make_error(Errc::kInvalidArgument,
                        "the socket to worker " + std::to_string(i) + ": " + std::strerror(errno));
    }
    net::watch_connection(sockets[i].get());
  }
  net::Descriptor waker(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!waker) return net::io_error("eventfd");
  return std::unique_ptr<MeshReducer>(
      new MeshReducer(std::move(sockets), std::move(waker), options));
}

// ---- the caller's side

Result<uint64_t> MeshReducer::start_step(std::span<const Claim> claims, Round& round) {
  ADDEND_TRY(check_usable());
  if (claims.size() > kMaxClaims) {
    return make_error(Errc::kInvalidArgument, "agree takes at most 8 claims");
  }
  ADDEND_TRY(check_host_memory(round));
  if (woken_.exchange(false)) take_wake();  // whoever called it finds what it is about in time
  if (spare_transfers_.empty()) spare_transfers_.push_back(std::make_unique<Transfer>());
  const Way way = choose_way(round, exchange_bytes_, world());
  const Status begun = spare_transfers_.back()->begin(next_, round, way, world(), worker());
  if (!begun) return break_down(begun.error());  // the others start a round that we do not
  Transfer& transfer = *spare_transfers_.back();
  transfer.claim(claims);
  transfers_.emplace(next_, std::move(spare_transfers_.back()));
  spare_transfers_.pop_back();
  ++next_;
  send_to_all(transfer, Kind::kShare);
  Status status = adopt(transfer);
  for (uint32_t to = 0; status && to < world(); ++to)
    status = write(to);
  if (!status) return break_down(status.error());
  return transfer.number();
}

Result<bool> MeshReducer::wait(uint64_t number, Deadline deadline) {
  const Result<bool> ended = wait_any({&number, 1}, deadline);
  if (!ended || !*ended) return ended;
  const auto found = transfers_.find(number);
  const std::optional<Error> refused = found->second->refused();
  spare_transfers_.push_back(std::move(found->second));
  transfers_.erase(found);
  if (refused) return *refused;
  return true;
}

bool MeshReducer::has_ended(uint64_t number) const {
  const auto found = transfers_.find(number);
  return found != transfers_.end() && found->second->done() && !found->second->refused();
}

Result<bool> MeshReducer::wait_any(std::span<const uint64_t> numbers, Deadline deadline) {
  std::vector<const Transfer*> awaited;
  for (const uint64_t number : numbers) {
    const auto found = transfers_.find(number);
    if (found == transfers_.end()) {
      ADDEND_TRY(check_usable());
      return make_error(Errc::kInvalidArgument, "round " + std::to_string(number) + " is unknown");
    }
    awaited.push_back(found->second.get());
  }
  const auto one_is_done = [&] {
    return std::any_of(awaited.begin(), awaited.end(), [](const auto* one) { return one->done(); });
  };
  const auto spin_until = Clock::now() + kSpin;
  while (!one_is_done()) {
    ADDEND_TRY(check_usable());
    if (interrupted_) {
      return break_down(make_error(Errc::kUnavailable, "the rounds under way were interrupted"));
    }
    Status status = progress();
    if (one_is_done()) break;
    for (const Transfer* transfer : awaited) {
      if (status) status = check_lost(*transfer);
    }
    if (!status) return break_down(status.error());
    const auto now = Clock::now();
    if (now >= deadline) return break_down(late(*awaited.front()));
    if (now < spin_until) continue;
    const auto woken = sleep(deadline);
    if (!woken) return break_down(woken.error());
    if (*woken) return false;
  }
  return true;
}

Status MeshReducer::reduce(Round& round, Deadline deadline) {
  const auto number = start(round);
  if (!number) return number.error();
  for (;;) {
    const auto done = wait(*number, deadline);
    if (!done) return done.error();
    if (*done) return {};
  }
}

// In this order: whoever finds the flag set finds the event, too, and can take it back.
void MeshReducer::wake() {
  eventfd_write(waker_.get(), 1);
  woken_ = true;
}

void MeshReducer::interrupt() {
  interrupted_ = true;
  wake();
}

void MeshReducer::take_wake() {
  eventfd_t count;
  eventfd_read(waker_.get(), &count);
}

void MeshReducer::abandon() {
  break_down(make_error(Errc::kUnavailable, "the rounds under way were abandoned"));
}

// The others are told by the end of what we send: they still read what came before it.
Error MeshReducer::break_down(const Error& error) {
  if (broken_.empty()) broken_ = error.message;
  for (Channel& channel : channels_) {
    net::Descriptor socket = std::move(channel.socket);
    channel = Channel();
    channel.socket = std::move(socket);
    if (channel.socket) shutdown(channel.socket.get(), SHUT_WR);
  }
  transfers_.clear();
  early_.clear();
  return error;
}

// Closing a socket with bytes that nobody read resets it, and the other side may lose what we said
// last: the sums of the last round, or why it was refused. So we read until the others have ended,
// too, for a moment.
MeshReducer::~MeshReducer() {
  constexpr std::chrono::seconds kLinger{1};
  const auto until = Clock::now() + kLinger;
  std::array<uint8_t, 1 << 16> waste;
  for (Channel& channel : channels_) {
    if (channel.socket) shutdown(channel.socket.get(), SHUT_WR);
  }
  for (Channel& channel : channels_) {
    pollfd event{channel.socket.get(), POLLIN, 0};
    while (channel.socket && Clock::now() < until) {
      const timespec pause = to_timespec(until - Clock::now());
      if (ppoll(&event, 1, &pause, nullptr) <= 0) break;
      if (recv(channel.socket.get(), waste.data(), waste.size(), MSG_DONTWAIT) <= 0) break;
    }
  }
}

Error MeshReducer::late(const Transfer& transfer) const {
  std::string missing;
  for (uint32_t w = 0; w < world(); ++w) {
    if (transfer.waits_for(w)) missing += (missing.empty() ? "" : ", ") + std::to_string(w);
  }
  const std::string who = missing.empty() ? "nobody: a worker does not read" : missing;
  return make_error(Errc::kTimeout, "the deadline passed; still waited for workers: " + who);
}

Result<bool> MeshReducer::sleep(Deadline deadline) {
  events_.assign(1, {waker_.get(), POLLIN, 0});
  for (const Channel& channel : channels_) {
    const int reads = channel.held() ? 0 : POLLIN;
    const int writes = channel.outgoing.empty() || !channel.unreachable.empty() ? 0 : POLLOUT;
    const bool asks = channel.socket && channel.lost.empty() && (reads | writes) != 0;
    events_.push_back({asks ? channel.socket.get() : -1, static_cast<short>(reads | writes), 0});
  }
  const auto left = deadline - Clock::now();
  const timespec pause = to_timespec(std::min<Clock::duration>(left, kLook));
  const int ready = ppoll(events_.data(), events_.size(), &pause, nullptr);
  if (ready < 0 && errno != EINTR) return net::io_error("poll");
  if (ready < 0) return true;           // a signal: its handler may want the thread
  if (ready == 0) return left > kLook;  // one that came before we slept, perhaps
  if (events_[0].revents == 0) return false;
  woken_ = false;
  take_wake();
  return true;
}

Status MeshReducer::progress() {
  for (uint32_t i = 1; i < world(); ++i) {
    const uint32_t other = (worker() + i) % world();
    ADDEND_TRY(write(other));
    ADDEND_TRY(read(other));
  }
  return {};
}

// ---- sending

void MeshReducer::send_to_all(Transfer& transfer, Kind kind) {
  for (uint32_t i = 1; i < world(); ++i)  // not all workers write to the same one first
    send(transfer, (worker() + i) % world(), kind);
}

void MeshReducer::send(Transfer& transfer, uint32_t to, Kind kind) {
  if (spare_outgoing_.empty()) spare_outgoing_.push_back(std::make_unique<Outgoing>());
  auto outgoing = std::move(spare_outgoing_.back());
  spare_outgoing_.pop_back();
  outgoing->transfer = &transfer;
  outgoing->parts.clear();
  outgoing->parts.add(&outgoing->frame, sizeof(Frame));
  transfer.lay_out(kind, worker(), to, outgoing->parts);
  outgoing->frame = transfer.frame(kind, outgoing->parts.left() - sizeof(Frame));
  auto& queue = channels_[to].outgoing;
  // Sums end a round, so they overtake shares, but not what is half written.
  auto place = queue.end();
  if (kind != Kind::kShare && !queue.empty()) {
    place = std::find_if(queue.begin() + 1, queue.end(),
                         [](const auto& other) { return other->frame.kind == Kind::kShare; });
  }
  queue.insert(place, std::move(outgoing));
}

Status MeshReducer::write(uint32_t to) {
  Channel& channel = channels_[to];
  for (uint64_t turn = 0; !channel.outgoing.empty() && turn < kTurnBytes;) {
    if (!channel.lost.empty() || !channel.unreachable.empty()) return {};
    Outgoing& outgoing = *channel.outgoing.front();
    const auto moved = outgoing.parts.send(channel.socket.get());
    if (!moved) channel.unreachable = named(to, moved.error().message);
    if (!moved || *moved == 0) return {};
    turn += *moved;
    if (outgoing.parts.left() > 0) continue;
    Transfer& transfer = *outgoing.transfer;
    spare_outgoing_.push_back(std::move(channel.outgoing.front()));
    channel.outgoing.pop_front();
    transfer.sent();
    fold_if_ready(transfer);
  }
  return {};
}

// ---- receiving

Status MeshReducer::read(uint32_t from) {
  Channel& channel = channels_[from];
  for (uint64_t turn = 0; turn < kTurnBytes;) {
    if (!channel.lost.empty() || channel.held()) return {};
    if (channel.frame_bytes < sizeof(Frame)) {
      const auto whole = read_frame(from);
      if (!whole) return whole.error();
      if (!*whole) return {};
      continue;
    }
    if (channel.into.left() > 0) {
      const auto moved = channel.into.receive(channel.socket.get());
      if (!moved) lose(from, moved.error().message);
      if (!moved || *moved == 0) return {};
      turn += *moved;
      if (channel.transfer != nullptr && channel.frame.kind == Kind::kShare) {
        channel.transfer->came(from, channel.frame.length - channel.into.left());
      }
    }
    if (channel.into.left() == 0) ADDEND_TRY(arrived(from));
  }
  return {};
}

// Whether the frame is here, and a place for its lanes was looked for.
Result<bool> MeshReducer::read_frame(uint32_t from) {
  Channel& channel = channels_[from];
  Parts rest;
  rest.add(reinterpret_cast<uint8_t*>(&channel.frame) + channel.frame_bytes,
           sizeof(Frame) - channel.frame_bytes);
  const auto moved = rest.receive(channel.socket.get());
  if (!moved) {
    lose(from, moved.error().message);
    return false;
  }
  channel.frame_bytes += *moved;
  if (channel.frame_bytes < sizeof(Frame)) return false;
  ADDEND_TRY(find_place(from));
  return true;
}

Status MeshReducer::find_place(uint32_t from) {
  Channel& channel = channels_[from];
  const Frame& frame = channel.frame;
  const bool share = frame.kind == Kind::kShare;
  if (frame.magic != Frame::kMagic || frame.kind > Kind::kRefusal || frame.length > kMaxLaneBytes) {
    return strange(from);
  }
  if (share && frame.round >= next_) return make_room(from);
  const auto found = transfers_.find(frame.round);
  if (found == transfers_.end()) return strange(from);
  Transfer& transfer = *found->second;
  if (!transfer.expects(frame.kind, from)) return strange(from);
  channel.transfer = &transfer;
  channel.placed = true;
  channel.into.clear();
  if (share && !transfer.accepts(from, frame)) {
    channel.unwanted = frame.length;
    return next_unwanted(channel);
  }
  transfer.lay_out(frame.kind, from, worker(), channel.into);
  if (channel.into.left() != frame.length) return strange(from);
  return {};
}

// Lanes that nobody here wants are read all the same: what comes behind them counts.
Status MeshReducer::next_unwanted(Channel& channel) {
  constexpr uint64_t kWasteBytes = 1 << 16;
  ADDEND_TRY(waste_.reserve(kWasteBytes));
  const uint64_t now = std::min(channel.unwanted, kWasteBytes);
  channel.unwanted -= now;
  channel.into.clear();
  channel.into.add(waste_.as<uint8_t>(), now);
  return {};
}

Status MeshReducer::make_room(uint32_t from) {
  Channel& channel = channels_[from];
  // What this worker still owes us comes behind it, and cannot wait for room.
  const bool full =
      channel.frame.length > 0 && early_bytes_ + channel.frame.length > kMaxEarlyBytes;
  if (full && !owes(from)) return {};
  if (spare_early_.empty()) spare_early_.push_back(std::make_unique<Early>());
  auto early = std::move(spare_early_.back());
  spare_early_.pop_back();
  early->from = from;
  early->frame = channel.frame;
  ADDEND_TRY(early->lanes.reserve(early->frame.length));
  early_bytes_ += early->frame.length;
  channel.into.clear();
  channel.into.add(early->lanes.as<uint8_t>(), early->frame.length);
  channel.early = std::move(early);
  channel.placed = true;
  return {};
}

Status MeshReducer::arrived(uint32_t from) {
  Channel& channel = channels_[from];
  if (channel.unwanted > 0) return next_unwanted(channel);
  channel.frame_bytes = 0;
  channel.placed = false;
  if (channel.early != nullptr) {
    early_.push_back(std::move(channel.early));
    const auto found = transfers_.find(early_.back()->frame.round);
    return found == transfers_.end() ? Status() : adopt(*found->second);  // started meanwhile
  }
  Transfer& transfer = *std::exchange(channel.transfer, nullptr);
  transfer.arrived(channel.frame.kind, from);
  fold_if_ready(transfer);
  return {};
}

// Takes what came before the round was started, and then looks whether others' lanes have room.
Status MeshReducer::adopt(Transfer& transfer) {
  for (std::size_t i = 0; i < early_.size();) {
    if (early_[i]->frame.round != transfer.number()) {
      ++i;
      continue;
    }
    std::unique_ptr<Early> early = std::move(early_[i]);
    early_.erase(early_.begin() + static_cast<std::ptrdiff_t>(i));
    early_bytes_ -= early->frame.length;
    if (!transfer.expects(Kind::kShare, early->from)) return strange(early->from);
    if (transfer.accepts(early->from, early->frame)) {
      Parts into;
      transfer.lay_out(Kind::kShare, early->from, worker(), into);
      if (into.left() != early->frame.length) return strange(early->from);
      const uint8_t* lanes = early->lanes.as<uint8_t>();
      for (const iovec& piece : into) {
        std::memcpy(piece.iov_base, lanes, piece.iov_len);
        lanes += piece.iov_len;
      }
      transfer.came(early->from, early->frame.length);
    }
    transfer.arrived(Kind::kShare, early->from);
    spare_early_.push_back(std::move(early));
  }
  fold_if_ready(transfer);
  for (uint32_t from = 0; from < world(); ++from) {
    if (channels_[from].held()) ADDEND_TRY(find_place(from));
  }
  return {};
}

void MeshReducer::fold_if_ready(Transfer& transfer) {
  if (const auto kind = transfer.fold_if_ready()) send_to_all(transfer, *kind);
}

// ---- lost connections

// A connection that carries nonsense is as good as none.
Status MeshReducer::strange(uint32_t from) {
  lose(from, "carries something else than rounds in order");
  return {};
}

void MeshReducer::lose(uint32_t worker, const std::string& why) {
  channels_[worker].lost = named(worker, why);
}

bool MeshReducer::owes(uint32_t from) const {
  return std::any_of(transfers_.begin(), transfers_.end(),
                     [&](const auto& entry) { return entry.second->waits_for(from); });
}

// A worker that has all it needs may go: only rounds that still need it fail, when they are waited
// for.
Status MeshReducer::check_lost(const Transfer& transfer) const {
  for (uint32_t w = 0; w < world(); ++w) {
    const Channel& channel = channels_[w];
    const std::string& why = channel.lost.empty() ? channel.unreachable : channel.lost;
    if (why.empty()) continue;
    const bool unsent =
        std::any_of(channel.outgoing.begin(), channel.outgoing.end(),
                    [&](const auto& outgoing) { return outgoing->transfer == &transfer; });
    const bool missing = !channel.lost.empty() && transfer.waits_for(w);
    if (unsent || missing) return make_error(Errc::kUnavailable, why);
  }
  return {};
}

}  // namespace addend::mesh
