// SPDX-License-Identifier: Apache-2.0
#include "reduce/mesh/parts.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

#include <sys/socket.h>

namespace addend::mesh {
namespace {

msghdr message_of(const iovec* begin, const iovec* end) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(begin);
  message.msg_iovlen = std::min<std::size_t>(static_cast<std::size_t>(end - begin), IOV_MAX);
  return message;
}

// What a call that moved nothing says.
Result<uint64_t> nothing_moved() {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return uint64_t{0};
  return make_error(Errc::kUnavailable, std::string("failed: ") + std::strerror(errno));
}

}  // namespace

void Parts::clear() {
  pieces_.clear();
  at_ = 0;
  left_ = 0;
}

void Parts::add(const void* data, uint64_t bytes) {
  if (bytes > 0) pieces_.push_back({const_cast<void*>(data), bytes});
  left_ += bytes;
}

void Parts::advance(uint64_t bytes) {
  left_ -= bytes;
  while (bytes > 0) {
    iovec& piece = pieces_[at_];
    const uint64_t now = std::min<uint64_t>(bytes, piece.iov_len);
    piece = {static_cast<uint8_t*>(piece.iov_base) + now, piece.iov_len - now};
    bytes -= now;
    if (piece.iov_len == 0) ++at_;
  }
}

Result<uint64_t> Parts::send(int socket) {
  const msghdr message = message_of(begin(), end());
  const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) return nothing_moved();
  advance(static_cast<uint64_t>(sent));
  return static_cast<uint64_t>(sent);
}

Result<uint64_t> Parts::receive(int socket) {
  msghdr message = message_of(begin(), end());
  const ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT);
  if (got < 0) return nothing_moved();
  if (got == 0) return make_error(Errc::kUnavailable, "was closed");
  advance(static_cast<uint64_t>(got));
  return static_cast<uint64_t>(got);
}

}  // namespace addend::mesh
