// SPDX-License-Identifier: Apache-2.0
#include "mesh/mesh.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "addend/fold.h"
#include "mesh/bell.h"
#include "mesh/sockets.h"

namespace addend {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t aligned(uint64_t bytes) {
  return (bytes + Mesh::kAlign - 1) / Mesh::kAlign * Mesh::kAlign;
}

// How long a wait asks again and again before it sleeps: about what waking up takes. Ranks that
// come at the same time then do not sleep at all.
constexpr std::chrono::microseconds kSpin{50};

}  // namespace

Mesh::Mesh(std::span<const int> sockets, uint32_t rank, int bell)
    : rank_(rank), bell_(bell), peers_(sockets.size()) {
  for (std::size_t i = 0; i < sockets.size(); ++i)
    peers_[i].socket = sockets[i];
}

Result<std::unique_ptr<Mesh>> Mesh::create(std::span<const int> sockets, uint32_t rank, int bell) {
  ADDEND_TRY(prepare_sockets(sockets, rank));
  return std::unique_ptr<Mesh>(new Mesh(sockets, rank, bell));
}

std::size_t Mesh::place(uint64_t exchange) const {
  const auto at = std::lower_bound(
      exchanges_.begin(), exchanges_.end(), exchange,
      [](const std::unique_ptr<Exchange>& one, uint64_t number) { return one->number < number; });
  return static_cast<std::size_t>(at - exchanges_.begin());
}

const Mesh::Exchange* Mesh::find(uint64_t exchange) const {
  const std::size_t at = place(exchange);
  if (at == exchanges_.size() || exchanges_[at]->number != exchange) return nullptr;
  return exchanges_[at]->released ? nullptr : exchanges_[at].get();
}
Mesh::Exchange* Mesh::find(uint64_t exchange) {
  return const_cast<Exchange*>(std::as_const(*this).find(exchange));
}

Error Mesh::lost(uint32_t rank, const std::string& why) {
  broken_ = "the connection to rank " + std::to_string(rank) + " " + why;
  return make_error(Errc::kUnavailable, broken_);
}

Result<uint64_t> Mesh::start(std::span<const std::span<const uint8_t>> pieces) {
  if (!broken_.empty()) return make_error(Errc::kUnavailable, broken_);
  uint64_t length = 0;
  for (const auto& piece : pieces)
    length = aligned(length) + piece.size();
  if (length > kMaxMessageBytes) {
    return make_error(Errc::kCapacity, "a message of " + std::to_string(length) + " bytes");
  }
  if (exchanges_.size() >= kMaxExchanges) {
    return make_error(Errc::kCapacity,
                      std::to_string(exchanges_.size()) +
                          " exchanges are under way or not released, from number " +
                          std::to_string(exchanges_.front()->number) + " on");
  }
  if (spare_.empty()) {
    spare_.push_back(std::make_unique<Exchange>());
    spare_.back()->messages.resize(world());
  }
  Exchange& exchange = *spare_.back();
  Message& own = exchange.messages[rank_];
  ADDEND_TRY(own.bytes.reserve(length));
  own.length = length;
  uint64_t at = 0;
  for (const auto& piece : pieces) {
    const uint64_t begin = aligned(at);
    std::memset(own.bytes.as<uint8_t>() + at, 0, begin - at);
    if (!piece.empty()) std::memcpy(own.bytes.as<uint8_t>() + begin, piece.data(), piece.size());
    at = begin + piece.size();
  }
  exchange.number = started_++;
  exchange.reading = exchange.writing = world() - 1;
  exchange.released = false;
  exchanges_.push_back(std::move(spare_.back()));
  spare_.pop_back();
  for (uint32_t rank = 0; rank < world(); ++rank)
    ADDEND_TRY(write(rank));
  return exchange.number;
}

Status Mesh::write(uint32_t rank) {
  Peer& peer = peers_[rank];
  while (rank != rank_ && peer.writing < started_) {
    Exchange& exchange = *exchanges_[place(peer.writing)];
    const Message& own = exchange.messages[rank_];
    Frame frame{own.length, exchange.number};
    // The frame, then the message; what of them was written before is skipped.
    const uint64_t of_frame = std::min<uint64_t>(peer.written, sizeof frame);
    const uint64_t of_message = peer.written - of_frame;
    iovec parts[2] = {
        {reinterpret_cast<uint8_t*>(&frame) + of_frame, sizeof frame - of_frame},
        {const_cast<uint8_t*>(own.bytes.as<uint8_t>()) + of_message, own.length - of_message}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t written = sendmsg(peer.socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) {
      if (would_block()) return {};
      if (errno == EINTR) continue;
      return lost(rank, std::string("failed: ") + std::strerror(errno));
    }
    peer.written += static_cast<uint64_t>(written);
    if (peer.written < sizeof frame + own.length) continue;
    peer.written = 0;
    ++peer.writing;
    --exchange.writing;
    reclaim(exchange);
  }
  return {};
}

// Whether the frame of the peer's next message is here.
Result<bool> Mesh::read_frame(uint32_t rank) {
  Peer& peer = peers_[rank];
  const ssize_t got = recv(peer.socket, reinterpret_cast<uint8_t*>(&peer.incoming) + peer.read,
                           sizeof(Frame) - peer.read, MSG_DONTWAIT);
  if (got == 0) return lost(rank, "was closed");
  if (got < 0) {
    if (would_block() || errno == EINTR) return false;
    return lost(rank, std::string("failed: ") + std::strerror(errno));
  }
  peer.read += static_cast<uint64_t>(got);
  if (peer.read < sizeof(Frame)) return false;
  if (peer.incoming.exchange != peer.reading || peer.incoming.length > kMaxMessageBytes) {
    return lost(rank, "carries something else than messages in order");
  }
  Message& message = exchanges_[place(peer.reading)]->messages[rank];
  ADDEND_TRY(message.bytes.reserve(peer.incoming.length));
  message.length = peer.incoming.length;
  return true;
}

// Messages of exchanges that were not started here yet stay with the system.
Status Mesh::read(uint32_t rank) {
  Peer& peer = peers_[rank];
  while (rank != rank_ && peer.reading < started_) {
    if (peer.read < sizeof(Frame)) {
      const auto whole = read_frame(rank);
      if (!whole) return whole.error();
      if (!*whole) return {};
    }
    Exchange& exchange = *exchanges_[place(peer.reading)];
    Message& message = exchange.messages[rank];
    uint64_t at = peer.read - sizeof(Frame);
    while (at < message.length) {
      const ssize_t got =
          recv(peer.socket, message.bytes.as<uint8_t>() + at, message.length - at, MSG_DONTWAIT);
      if (got == 0) return lost(rank, "was closed");
      if (got < 0) {
        if (errno == EINTR) continue;
        if (would_block()) return {};
        return lost(rank, std::string("failed: ") + std::strerror(errno));
      }
      at += static_cast<uint64_t>(got);
      peer.read = sizeof(Frame) + at;
    }
    peer.read = 0;
    ++peer.reading;
    --exchange.reading;
    reclaim(exchange);
  }
  return {};
}

Status Mesh::progress() {
  for (uint32_t rank = 0; rank < world(); ++rank) {
    ADDEND_TRY(write(rank));
    ADDEND_TRY(read(rank));
  }
  return {};
}

Result<bool> Mesh::wait(uint64_t number, std::chrono::nanoseconds patience) {
  Exchange* exchange = find(number);
  if (exchange == nullptr) {
    return make_error(Errc::kInvalidArgument, "exchange " + std::to_string(number) + " is unknown");
  }
  const auto until = Clock::now() + patience;
  const auto spin_until = Clock::now() + kSpin;
  std::vector<pollfd> events;
  for (;;) {
    if (!broken_.empty()) return make_error(Errc::kUnavailable, broken_);
    ADDEND_TRY(progress());
    if (exchange->done()) return true;
    const auto now = Clock::now();
    const auto left = until - now;
    if (left <= left.zero()) return false;
    if (now < spin_until) continue;
    events.clear();
    for (uint32_t rank = 0; rank < world(); ++rank) {
      const Peer& peer = peers_[rank];
      const int reads = peer.reading < started_ ? POLLIN : 0;
      const int writes = peer.writing < started_ ? POLLOUT : 0;
      if (rank == rank_ || (reads | writes) == 0) continue;
      events.push_back({peer.socket, static_cast<short>(reads | writes), 0});
    }
    if (bell_ >= 0) events.push_back({bell_, POLLIN, 0});
    const timespec pause = to_timespec(left);
    if (ppoll(events.data(), events.size(), &pause, nullptr) < 0) {
      if (errno == EINTR) return false;  // the caller may have to look after a signal
      return make_error(Errc::kIo, std::string("poll: ") + std::strerror(errno));
    }
    if (bell_ >= 0 && events.back().revents != 0) {
      hush(bell_);
      ADDEND_TRY(progress());
      return exchange->done();
    }
  }
}

Result<std::span<const uint8_t>> Mesh::message(uint64_t number, uint32_t rank) const {
  const Exchange* exchange = find(number);
  if (exchange == nullptr || exchange->reading != 0 || rank >= world()) {
    return make_error(Errc::kInvalidArgument, "there is no such message");
  }
  const Message& message = exchange->messages[rank];
  return std::span<const uint8_t>(message.bytes.as<uint8_t>(), message.length);
}

Status Mesh::sum(uint64_t number, uint64_t offset, std::span<Plane> planes) const {
  const Exchange* exchange = find(number);
  if (exchange == nullptr || exchange->reading != 0) {
    return make_error(Errc::kInvalidArgument, "there is no such exchange, or it is not done");
  }
  uint64_t length = offset;
  for (const Plane& plane : planes)
    length = aligned(length) + op_bytes(plane.op, plane.lanes);
  std::vector<const uint8_t*> sources(world());
  for (uint32_t rank = 0; rank < world(); ++rank) {
    if (exchange->messages[rank].length != length) {
      return make_error(Errc::kUnavailable, "rank " + std::to_string(rank) + " sent " +
                                                std::to_string(exchange->messages[rank].length) +
                                                " bytes, not " + std::to_string(length));
    }
  }
  uint64_t at = offset;
  for (const Plane& plane : planes) {
    at = aligned(at);
    for (uint32_t rank = 0; rank < world(); ++rank) {
      sources[rank] = exchange->messages[rank].bytes.as<uint8_t>() + at;
    }
    if (plane.lanes > 0 && is_table_sum(plane.op)) {
      std::memset(plane.sums, 0, op_sum_bytes(plane.op, plane.lanes));
      fold_tables(plane.op, plane.sums, sources.data(), sources.size(), plane.table, plane.lanes);
    } else if (plane.lanes > 0) {
      std::memcpy(plane.data, sources[0], op_bytes(plane.op, plane.lanes));
      for (uint32_t rank = 1; rank < world(); ++rank) {
        fold(plane.op, plane.data, sources[rank], plane.lanes);
      }
    }
    at += op_bytes(plane.op, plane.lanes);
  }
  return {};
}

Status Mesh::release(uint64_t number) {
  Exchange* exchange = find(number);
  if (exchange == nullptr) {
    return make_error(Errc::kInvalidArgument, "exchange " + std::to_string(number) + " is unknown");
  }
  exchange->released = true;
  reclaim(*exchange);
  return {};
}

void Mesh::reclaim(const Exchange& exchange) {
  if (!exchange.released || !exchange.done()) return;
  const auto at = exchanges_.begin() + static_cast<std::ptrdiff_t>(place(exchange.number));
  spare_.push_back(std::move(*at));
  exchanges_.erase(at);
}

}  // namespace addend
