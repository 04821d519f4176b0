// SPDX-License-Identifier: Apache-2.0
#include "service/connection.h"

#include <array>

#include <sys/socket.h>

namespace addend::service {
namespace {

// Messages that a peer may leave unread: a welcome with positions, and ends of epochs.
constexpr std::size_t kMaxUnread = 512u << 10;
// A buffer that was larger gives its memory back.
constexpr std::size_t kKept = 16u << 10;

void take_front(std::vector<uint8_t>& bytes, std::size_t count) {
  if (count == bytes.size() && bytes.capacity() > kKept) {
    bytes = std::vector<uint8_t>();
  } else {
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
  }
}

}  // namespace

Connection::Connection(ConnectionId id, Peer peer, std::size_t longest)
    : id_(id), peer_(std::move(peer)), longest_(longest) {}

bool Connection::read() {
  std::array<uint8_t, 16384> bytes;  // a record
  std::size_t count = 0;
  const auth::Progress progress = peer_.stream.read(bytes, count);
  in_.insert(in_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
  return progress == auth::Progress::kDone || progress == auth::Progress::kWantRead ||
         progress == auth::Progress::kWantWrite;
}

Connection::Taken Connection::take(net::ControlMessage& message) {
  take_front(in_, std::exchange(taken_, 0));
  // What is there already before what may come: one record a call, so that the others have turns.
  for (const bool last : {false, true}) {
    const auto taken = net::parse_control(in_, message);
    if (!taken) return Taken::kBroken;
    addend_control_header header{};
    if (in_.size() >= sizeof(header)) std::memcpy(&header, in_.data(), sizeof(header));
    // Before the bytes are here, so that nobody makes us hold them.
    if (header.bytes > longest_) return Taken::kBroken;
    taken_ = *taken;
    has_more_ = taken_ > 0;
    if (has_more_) {
      moved_ = Clock::now();
      return Taken::kMessage;
    }
    if (!last && !read()) return Taken::kBroken;
  }
  return Taken::kNothing;
}

void Connection::put(addend_control_type type, std::span<const uint8_t> body,
                     std::span<const uint32_t> numbers) {
  if (out_.size() > kMaxUnread) {
    broken_ = true;
  } else {
    net::append_control(out_, type, body, numbers);
  }
}

bool Connection::write() {
  std::size_t sent = 0;
  auth::Progress progress = auth::Progress::kDone;
  while (sent < out_.size() && progress == auth::Progress::kDone) {
    std::size_t bytes = 0;
    progress = peer_.stream.write(std::span(out_).subspan(sent), bytes);
    sent += bytes;
  }
  if (sent > 0) moved_ = Clock::now();
  take_front(out_, sent);
  return !broken_ && progress != auth::Progress::kFailed && progress != auth::Progress::kClosed;
}

void Connection::fail(const Error& error) {
  addend_control_failed failed{};
  failed.code = static_cast<uint32_t>(error.code);
  net::put_text(failed.text, error.message);
  net::append_control(out_, ADDEND_CONTROL_FAILED, failed);
  closing_ = true;
  moved_ = Clock::now();
}

// Hanging up on bytes that nobody read would take back what was said.
bool Connection::linger() {
  if (!drained()) return true;
  in_.clear();
  shutdown(fd(), SHUT_WR);
  return read();
}

void Connection::close() {
  peer_.stream.close();
  peer_.socket = net::Descriptor();
}

}  // namespace addend::service
