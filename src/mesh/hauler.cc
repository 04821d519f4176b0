// SPDX-License-Identifier: Apache-2.0
#include "mesh/hauler.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "addend/fold.h"
#include "base/bits.h"
#include "mesh/bell.h"
#include "mesh/sockets.h"

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;

// Segments begin at multiples of this many lanes, so on whole bytes and words of any operation.
constexpr uint64_t kLaneAlign = 16;
constexpr uint64_t kByteAlign = 64;
// What one peer may send or get before the others have their turn.
constexpr uint64_t kTurnBytes = 1 << 20;
// Shares of hauls that others started and we did not are kept up to here; more must wait, and what
// comes behind them.
constexpr uint64_t kMaxEarlyBytes = 256 << 20;
// No share is longer, whatever a frame says.
constexpr uint64_t kMaxLaneBytes = uint64_t{1} << 40;

uint64_t aligned(uint64_t bytes) { return ceil_div(bytes, kByteAlign) * kByteAlign; }

void* sums_of(const Plane& plane) { return is_table_sum(plane.op) ? plane.sums : plane.data; }

Error strange(uint32_t rank) {
  return make_error(Errc::kUnavailable, "the connection to rank " + std::to_string(rank) +
                                            " carries something else than hauls");
}

}  // namespace

void Hauler::Parts::add(const void* data, uint64_t bytes) {
  if (bytes > 0) pieces.push_back({const_cast<void*>(data), bytes});
  left += bytes;
}

void Hauler::Parts::advance(uint64_t bytes) {
  left -= bytes;
  while (bytes > 0) {
    iovec& piece = pieces[at];
    const uint64_t now = std::min<uint64_t>(bytes, piece.iov_len);
    piece = {static_cast<uint8_t*>(piece.iov_base) + now, piece.iov_len - now};
    bytes -= now;
    if (piece.iov_len == 0) ++at;
  }
}

Hauler::Hauler(std::span<const int> sockets, uint32_t rank, int bell, int ringer, int wake)
    : rank_(rank),
      bell_(bell),
      ringer_(ringer),
      wake_(wake),
      process_(getpid()),
      peers_(sockets.size()) {
  for (std::size_t i = 0; i < sockets.size(); ++i)
    peers_[i].socket = i == rank ? -1 : sockets[i];
  thread_ = std::thread([this] {
    try {
      run();
    } catch (const std::bad_alloc&) {
      break_down("no memory for a haul");
    }
  });
}

Result<std::unique_ptr<Hauler>> Hauler::create(std::span<const int> sockets, uint32_t rank,
                                               int bell, int ringer) {
  ADDEND_TRY(prepare_sockets(sockets, rank));
  const int wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake < 0) return make_error(Errc::kIo, std::string("eventfd: ") + std::strerror(errno));
  return std::unique_ptr<Hauler>(new Hauler(sockets, rank, bell, ringer, wake));
}

Hauler::~Hauler() {
  abandon();
  close(wake_);
}

void Hauler::abandon() {
  if (getpid() != process_) {  // a forked child has no such thread, and whoever held the lock
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (broken_.empty()) broken_ = "hauls were abandoned";
  }
  if (!thread_.joinable()) return;
  eventfd_write(wake_, 1);
  thread_.join();
}

// ---- the caller's side

Result<uint64_t> Hauler::start(std::span<const Plane> planes) {
  std::unique_ptr<Haul> haul;
  {
    const std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      haul = std::move(spare_.back());
      spare_.pop_back();
    }
  }
  if (haul == nullptr) haul = std::make_unique<Haul>();
  haul->planes.assign(planes.begin(), planes.end());
  ADDEND_TRY(haul->received.reserve(share_bytes(*haul) * (world() - 1)));
  haul->got_share.assign(world(), false);
  haul->got_sums.assign(world(), false);
  haul->shares = haul->sums = world() - 1;
  haul->writing = 2 * (world() - 1);
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!broken_.empty()) return make_error(Errc::kUnavailable, broken_);
    number = haul->number = next_++;
    under_way_.insert(number);
    started_.push_back(std::move(haul));
  }
  eventfd_write(wake_, 1);
  return number;
}

Result<bool> Hauler::wait(uint64_t haul, std::chrono::nanoseconds patience) {
  const auto until = Clock::now() + patience;
  for (bool last = false;;) {
    {
      const std::lock_guard lock(mutex_);
      if (done_.erase(haul) > 0) return true;
      if (!broken_.empty()) return make_error(Errc::kUnavailable, broken_);
      if (!under_way_.contains(haul)) {
        return make_error(Errc::kInvalidArgument, "haul " + std::to_string(haul) + " is unknown");
      }
    }
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - Clock::now());
    if (last || left <= left.zero()) return false;
    pollfd event{bell_, POLLIN, 0};
    const timespec pause = to_timespec(left);
    if (ppoll(&event, 1, &pause, nullptr) < 0) {
      if (errno == EINTR) return false;  // the caller may have to look after a signal
      return make_error(Errc::kIo, std::string("poll: ") + std::strerror(errno));
    }
    last = event.revents != 0;
    if (last) hush(bell_);
  }
}

// ---- which lanes go where

Hauler::Segment Hauler::segment(const Plane& plane, uint32_t rank) const {
  const uint64_t share = ceil_div(plane.lanes, kLaneAlign * world()) * kLaneAlign;
  const uint64_t begin = std::min(share * rank, plane.lanes);
  return {begin, std::min(share, plane.lanes - begin)};
}

uint64_t Hauler::share_bytes(const Haul& haul) const {
  uint64_t bytes = 0;
  for (const Plane& plane : haul.planes)
    bytes += aligned(op_bytes(plane.op, segment(plane, rank_).lanes));
  return bytes;
}

Hauler::Parts Hauler::parts_of(Haul& haul, Kind kind, uint32_t from, uint32_t to) const {
  Parts parts;
  // Ranks but our own have a place each.
  uint8_t* received = haul.received.as<uint8_t>();
  if (from != rank_) received += share_bytes(haul) * (from - (from > rank_ ? 1 : 0));
  for (const Plane& plane : haul.planes) {
    const Segment share = segment(plane, kind == Kind::kShare ? to : from);
    if (kind == Kind::kSums) {
      auto* sums = static_cast<uint8_t*>(sums_of(plane));
      parts.add(sums + op_sum_bytes(plane.op, share.begin), op_sum_bytes(plane.op, share.lanes));
      continue;
    }
    const uint64_t bytes = op_bytes(plane.op, share.lanes);
    if (from == rank_) {
      parts.add(static_cast<const uint8_t*>(plane.data) + op_bytes(plane.op, share.begin), bytes);
    } else {
      parts.add(received, bytes);
      received += aligned(bytes);
    }
  }
  return parts;
}

// ---- the thread

void Hauler::break_down(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    if (broken_.empty()) broken_ = why;
  }
  ring(ringer_);
}

void Hauler::run() {
  std::vector<pollfd> events;
  while (take_started()) {
    events.assign(1, {wake_, POLLIN, 0});
    for (Peer& peer : peers_) {
      const int reads = peer.held() ? 0 : POLLIN, writes = peer.outgoing.empty() ? 0 : POLLOUT;
      const bool asks = peer.socket >= 0 && peer.lost.empty() && (reads | writes) != 0;
      events.push_back({asks ? peer.socket : -1, static_cast<short>(reads | writes), 0});
    }
    if (poll(events.data(), events.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return break_down(std::string("poll: ") + std::strerror(errno));
    }
    if (events[0].revents != 0) {
      eventfd_t count;
      eventfd_read(wake_, &count);
    }
    for (uint32_t i = 1; i < world(); ++i) {
      const uint32_t rank = (rank_ + i) % world();  // not all ranks write to the same one first
      const short got = events[rank + 1].revents;
      Status status;
      if (got != 0) status = write(rank);  // also to see what is wrong
      if (status && (got & ~POLLOUT) != 0) status = read(rank);
      if (!status) return break_down(status.error().message);
    }
  }
}

// False: it is time to stop.
bool Hauler::take_started() {
  std::vector<std::unique_ptr<Haul>> started;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return false;
    started.swap(started_);
  }
  for (auto& haul : started) {
    Haul& begun = *haul;
    ++taken_;
    hauls_.emplace(begun.number, std::move(haul));
    const Status status = begin(begun);
    if (!status) {
      break_down(status.error().message);
      return false;
    }
  }
  return true;
}

Status Hauler::begin(Haul& haul) {
  if (world() == 1) return fold_share(haul);
  for (uint32_t i = 1; i < world(); ++i)
    send(haul, (rank_ + i) % world(), Kind::kShare);
  ADDEND_TRY(check_lost());
  std::vector<std::unique_ptr<Early>> early;
  early.swap(early_);
  for (auto& one : early) {
    if (one->haul != haul.number) {
      early_.push_back(std::move(one));
    } else {
      ADDEND_TRY(adopt(haul, *one));
    }
  }
  return look_again();
}

// There may be room now for shares that are held.
Status Hauler::look_again() {
  for (uint32_t rank = 0; rank < world(); ++rank) {
    if (peers_[rank].held()) ADDEND_TRY(find_haul(rank));
  }
  return {};
}

void Hauler::send(Haul& haul, uint32_t rank, Kind kind) {
  auto outgoing = std::make_unique<Outgoing>();
  Parts lanes = parts_of(haul, kind, rank_, rank);
  outgoing->haul = &haul;
  outgoing->frame = {haul.number, kind, 0, lanes.left};
  outgoing->parts.add(&outgoing->frame, sizeof(Frame));
  for (const iovec& piece : lanes.pieces)
    outgoing->parts.add(piece.iov_base, piece.iov_len);
  auto& queue = peers_[rank].outgoing;
  // Sums end a haul, so they overtake shares, but not what is half written.
  auto place = queue.end();
  if (kind == Kind::kSums && !queue.empty()) {
    place = std::find_if(queue.begin() + 1, queue.end(),
                         [](const auto& other) { return other->frame.kind == Kind::kShare; });
  }
  queue.insert(place, std::move(outgoing));
}

Status Hauler::write(uint32_t rank) {
  Peer& peer = peers_[rank];
  uint64_t turn = 0;
  while (!peer.outgoing.empty() && turn < kTurnBytes) {
    Outgoing& outgoing = *peer.outgoing.front();
    msghdr message{};
    message.msg_iov = outgoing.parts.pieces.data() + outgoing.parts.at;
    message.msg_iovlen =
        std::min<std::size_t>(outgoing.parts.pieces.size() - outgoing.parts.at, IOV_MAX);
    const ssize_t written = sendmsg(peer.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) {
      if (would_block()) return {};
      if (errno == EINTR) continue;
      return lose(rank, std::string("failed: ") + std::strerror(errno));
    }
    turn += static_cast<uint64_t>(written);
    outgoing.parts.advance(static_cast<uint64_t>(written));
    if (outgoing.parts.left > 0) continue;
    Haul& haul = *outgoing.haul;
    peer.outgoing.pop_front();
    --haul.writing;
    end_if_done(haul);
  }
  return {};
}

Status Hauler::read(uint32_t rank) {
  Peer& peer = peers_[rank];
  uint64_t turn = 0;
  while (peer.lost.empty() && turn < kTurnBytes) {
    if (peer.frame_bytes < sizeof(Frame)) {
      ADDEND_TRY(read_frame(rank));
      if (peer.frame_bytes < sizeof(Frame)) return {};
    }
    if (peer.held()) return {};
    if (peer.into.left > 0) {
      msghdr message{};
      message.msg_iov = peer.into.pieces.data() + peer.into.at;
      message.msg_iovlen = std::min<std::size_t>(peer.into.pieces.size() - peer.into.at, IOV_MAX);
      const ssize_t got = recvmsg(peer.socket, &message, MSG_DONTWAIT);
      if (got == 0) return lose(rank, "was closed");
      if (got < 0) {
        if (would_block()) return {};
        if (errno == EINTR) continue;
        return lose(rank, std::string("failed: ") + std::strerror(errno));
      }
      turn += static_cast<uint64_t>(got);
      peer.into.advance(static_cast<uint64_t>(got));
    }
    if (peer.into.left == 0) ADDEND_TRY(arrived(rank));
  }
  return {};
}

Status Hauler::read_frame(uint32_t rank) {
  Peer& peer = peers_[rank];
  const ssize_t got = recv(peer.socket, reinterpret_cast<uint8_t*>(&peer.frame) + peer.frame_bytes,
                           sizeof(Frame) - peer.frame_bytes, MSG_DONTWAIT);
  if (got == 0) return lose(rank, "was closed");
  if (got < 0) {
    if (would_block() || errno == EINTR) return {};
    return lose(rank, std::string("failed: ") + std::strerror(errno));
  }
  peer.frame_bytes += static_cast<uint64_t>(got);
  if (peer.frame_bytes < sizeof(Frame)) return {};
  return find_haul(rank);
}

// The frame is here: where do its lanes go?
Status Hauler::find_haul(uint32_t rank) {
  Peer& peer = peers_[rank];
  const auto found = hauls_.find(peer.frame.haul);
  const Kind kind = peer.frame.kind;
  if (found == hauls_.end() && peer.frame.haul >= taken_ && kind == Kind::kShare) {
    return make_room(rank);
  }
  if (found != hauls_.end() && (kind == Kind::kShare || kind == Kind::kSums)) {
    Haul& haul = *found->second;
    peer.haul = &haul;
    peer.into = parts_of(haul, kind, rank, rank_);
    const auto& got = kind == Kind::kShare ? haul.got_share : haul.got_sums;
    if (peer.into.left == peer.frame.length && !got[rank]) return {};
  }
  return strange(rank);
}

Status Hauler::make_room(uint32_t rank) {
  Peer& peer = peers_[rank];
  // What this peer still owes us comes behind it, and cannot wait for room.
  if (!owes(rank) && early_bytes_ + peer.frame.length > kMaxEarlyBytes) return {};
  if (peer.frame.length > kMaxLaneBytes) return strange(rank);
  auto early = std::make_unique<Early>();
  early->haul = peer.frame.haul;
  early->rank = rank;
  early->length = peer.frame.length;
  ADDEND_TRY(early->lanes.reserve(early->length));
  early_bytes_ += early->length;
  peer.into = Parts();
  peer.into.add(early->lanes.as<uint8_t>(), early->length);
  peer.early = std::move(early);
  return {};
}

Status Hauler::arrived(uint32_t rank) {
  Peer& peer = peers_[rank];
  peer.frame_bytes = 0;
  if (peer.early != nullptr) {
    auto early = std::move(peer.early);
    const auto found = hauls_.find(early->haul);
    if (found == hauls_.end()) {
      early_.push_back(std::move(early));
      return {};
    }
    ADDEND_TRY(adopt(*found->second, *early));  // started meanwhile
    return look_again();
  }
  Haul& haul = *std::exchange(peer.haul, nullptr);
  if (peer.frame.kind == Kind::kShare) return share_arrived(haul, rank);
  haul.got_sums[rank] = true;
  --haul.sums;
  end_if_done(haul);
  return {};
}

// Puts a share that came early where it belongs.
Status Hauler::adopt(Haul& haul, Early& early) {
  const Parts into = parts_of(haul, Kind::kShare, early.rank, rank_);
  if (into.left != early.length || haul.got_share[early.rank]) return strange(early.rank);
  const uint8_t* from = early.lanes.as<uint8_t>();
  for (const iovec& piece : into.pieces) {
    std::memcpy(piece.iov_base, from, piece.iov_len);
    from += piece.iov_len;
  }
  early_bytes_ -= early.length;
  return share_arrived(haul, early.rank);
}

Status Hauler::share_arrived(Haul& haul, uint32_t rank) {
  haul.got_share[rank] = true;
  return --haul.shares == 0 ? fold_share(haul) : Status();
}

// Every rank's lanes of our share are here.
Status Hauler::fold_share(Haul& haul) {
  std::vector<uint8_t*> sources(world());
  for (uint32_t rank = 0, place = 0; rank < world(); ++rank) {
    if (rank != rank_) sources[rank] = haul.received.as<uint8_t>() + share_bytes(haul) * place++;
  }
  for (const Plane& plane : haul.planes) {
    const Segment share = segment(plane, rank_);
    const uint64_t bytes = op_bytes(plane.op, share.lanes);
    auto* own = static_cast<uint8_t*>(plane.data) + op_bytes(plane.op, share.begin);
    auto* sums = static_cast<uint8_t*>(sums_of(plane)) + op_sum_bytes(plane.op, share.begin);
    sources[rank_] = own;
    if (share.lanes > 0 && is_table_sum(plane.op)) {
      std::memset(sums, 0, op_sum_bytes(plane.op, share.lanes));
      fold_tables(plane.op, sums, sources.data(), world(), plane.table, share.lanes);
    } else if (share.lanes > 0) {
      for (uint32_t rank = 1; rank < world(); ++rank)
        fold(plane.op, sources[0], sources[rank], share.lanes);
      if (sources[0] != sums) std::memcpy(sums, sources[0], bytes);
    }
    for (uint32_t rank = 0; rank < world(); ++rank) {
      if (rank != rank_) sources[rank] += aligned(bytes);
    }
  }
  for (uint32_t i = 1; i < world(); ++i)
    send(haul, (rank_ + i) % world(), Kind::kSums);
  end_if_done(haul);
  return {};
}

void Hauler::end_if_done(Haul& haul) {
  if (haul.shares + haul.sums + haul.writing > 0) return;
  auto ended = hauls_.extract(haul.number);
  {
    const std::lock_guard lock(mutex_);
    under_way_.erase(ended.key());
    done_.insert(ended.key());
    spare_.push_back(std::move(ended.mapped()));
  }
  ring(ringer_);
}

// A rank that has all it needs may go; only one that still owes us something breaks a haul.
Status Hauler::lose(uint32_t rank, const std::string& why) {
  peers_[rank].lost = "the connection to rank " + std::to_string(rank) + " " + why;
  return check_lost();
}

bool Hauler::owes(uint32_t rank) const {
  return std::any_of(hauls_.begin(), hauls_.end(),
                     [&](const auto& haul) { return !haul.second->got_sums[rank]; });
}

Status Hauler::check_lost() const {
  for (uint32_t rank = 0; rank < world(); ++rank) {
    const Peer& peer = peers_[rank];
    if (peer.lost.empty()) continue;
    if (owes(rank) || !peer.outgoing.empty()) return make_error(Errc::kUnavailable, peer.lost);
  }
  return {};
}

}  // namespace addend
