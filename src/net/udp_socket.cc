// SPDX-License-Identifier: Apache-2.0
#include "net/udp_socket.h"

#include <algorithm>

#include <netinet/udp.h>
#include <poll.h>

#include "net/socket.h"

namespace addend::net {
namespace {

// Older C libraries do not name these.
constexpr int kUdpSegment = 103, kUdpGro = 104;
constexpr uint32_t kOutMessages = 64;
constexpr int kPatienceMs = 2;

// Returns what was got for arrivals.
uint32_t ask_for_buffers(int fd, uint32_t bytes) {
  const int wanted = static_cast<int>(bytes);
  // The privileged variants pass the administrator's limit; without privilege the plain ones give
  // what they can.
  if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &wanted, sizeof(wanted)) != 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &wanted, sizeof(wanted));
  }
  if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &wanted, sizeof(wanted)) != 0) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &wanted, sizeof(wanted));
  }
  int got = 0;
  socklen_t length = sizeof(got);
  getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &got, &length);
  return static_cast<uint32_t>(got) / 2;  // the kernel counts its own overhead as much again
}

// Routers and this machine's own stack then drop what is longer than the path carries, instead of
// cutting it: a fragment that is lost costs the whole datagram, and many firewalls lose them all.
// The stack tells EMSGSIZE as soon as it knows.
void forbid_fragments(int fd) {
  const int v4 = IP_PMTUDISC_DO, v6 = IPV6_PMTUDISC_DO;
  setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER, &v4, sizeof(v4));
  setsockopt(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &v6, sizeof(v6));
}

}  // namespace

Result<UdpSocket> UdpSocket::bind(const Address& address, uint32_t buffer_bytes) {
  UdpSocket socket;
  socket.fd_ = make_socket(SOCK_DGRAM);
  if (!socket.fd_) return io_error("cannot make a UDP socket");
  const int off = 0, on = 1;
  socket.family_ = family_of(socket.fd());
  socket.receive_buffer_bytes_ = ask_for_buffers(socket.fd(), buffer_bytes);
  forbid_fragments(socket.fd());
  if (net::bind(socket.fd(), address) != 0) {
    return io_error("cannot bind UDP " + address.to_string());
  }
  socket.port_ = port_of(socket.fd());
  setsockopt(socket.fd(), IPPROTO_UDP, kUdpGro, &on, sizeof(on));
  socket.segments_ = setsockopt(socket.fd(), IPPROTO_UDP, kUdpSegment, &off, sizeof(off)) == 0;
  return socket;
}

struct Inbox::Slot {
  iovec bytes{};
  sockaddr_in6 from{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
};

Inbox::Inbox()
    : memory_(new uint8_t[std::size_t{kMessages} * kBytes]),
      slots_(kMessages),
      messages_(kMessages) {
  datagrams_.reserve(kMessages);
  for (uint32_t i = 0; i < kMessages; ++i)
    slots_[i].bytes = {memory_.get() + std::size_t{i} * kBytes, kBytes};
}
Inbox::~Inbox() = default;

std::span<const Inbox::Datagrams> Inbox::receive(const UdpSocket& socket) {
  for (uint32_t i = 0; i < kMessages; ++i) {
    msghdr& header = messages_[i].msg_hdr;
    header = {};
    header.msg_name = &slots_[i].from;
    header.msg_namelen = sizeof(slots_[i].from);
    header.msg_iov = &slots_[i].bytes;
    header.msg_iovlen = 1;
    header.msg_control = slots_[i].control.data();
    header.msg_controllen = slots_[i].control.size();
  }
  datagrams_.clear();
  const int count = recvmmsg(socket.fd(), messages_.data(), kMessages, MSG_DONTWAIT, nullptr);
  for (int i = 0; i < count; ++i) {
    msghdr& header = messages_[static_cast<uint32_t>(i)].msg_hdr;
    const uint32_t bytes = messages_[static_cast<uint32_t>(i)].msg_len;
    uint32_t segment = bytes;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level != IPPROTO_UDP || c->cmsg_type != kUdpGro) continue;
      int size = 0;
      std::memcpy(&size, CMSG_DATA(c), sizeof(size));
      if (size > 0) segment = static_cast<uint32_t>(size);
    }
    const Slot& slot = slots_[static_cast<uint32_t>(i)];
    datagrams_.push_back({read_name(slot.from),
                          {static_cast<const uint8_t*>(slot.bytes.iov_base), bytes},
                          std::max(segment, 1u)});
  }
  return datagrams_;
}

struct Outbox::Slot {
  std::array<iovec, kMaxSegments> pieces;
  Address to;
  SocketName name{AF_INET6, Address{}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(uint16_t))> control;
};

Outbox::Outbox(const UdpSocket& socket)
    : socket_(&socket), slots_(kOutMessages), messages_(kOutMessages) {}
Outbox::~Outbox() = default;

void Outbox::add(const Address& to, std::span<const uint8_t> bytes, uint32_t segment) {
  const uint32_t most =
      socket_->segments() ? std::min(kMaxSegments, std::max(kMaxSuperBytes / segment, 1u)) : 1;
  while (!bytes.empty()) {
    const std::size_t now = std::min<std::size_t>(bytes.size(), std::size_t{segment} * most);
    push(to, now, segment).pieces[0] = {const_cast<uint8_t*>(bytes.data()), now};
    bytes = bytes.subspan(now);
  }
}

void Outbox::add(const Address& to, std::span<const std::span<const uint8_t>> datagrams,
                 uint32_t segment) {
  if (!socket_->segments()) {
    for (const auto& one : datagrams)
      add(to, one, segment);
    return;
  }
  std::size_t bytes = 0;
  for (const auto& one : datagrams)
    bytes += one.size();
  Slot& slot = push(to, bytes, segment);
  for (std::size_t i = 0; i < datagrams.size(); ++i)
    slot.pieces[i] = {const_cast<uint8_t*>(datagrams[i].data()), datagrams[i].size()};
  messages_[size_ - 1].msg_hdr.msg_iovlen = datagrams.size();
}

Outbox::Slot& Outbox::push(const Address& to, std::size_t bytes, uint32_t segment) {
  if (size_ == kOutMessages) flush();
  Slot& slot = slots_[size_];
  slot.to = to;
  msghdr& header = messages_[size_].msg_hdr;
  header = {};
  slot.name = SocketName(socket_->family(), to);
  header.msg_name = &slot.name.v6;
  header.msg_namelen = slot.name.length;
  header.msg_iov = slot.pieces.data();
  header.msg_iovlen = 1;
  if (bytes > segment) {
    header.msg_control = slot.control.data();
    header.msg_controllen = slot.control.size();
    cmsghdr* control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = IPPROTO_UDP;
    control->cmsg_type = kUdpSegment;
    control->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const auto size = static_cast<uint16_t>(segment);
    std::memcpy(CMSG_DATA(control), &size, sizeof(size));
  }
  ++size_;
  return slot;
}

void Outbox::flush() {
  uint32_t sent = 0;
  bool waited = false;
  while (sent < size_) {
    const int count = sendmmsg(socket_->fd(), messages_.data() + sent, size_ - sent, MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<uint32_t>(count);
      continue;
    }
    if ((errno == EAGAIN || errno == ENOBUFS) && !waited) {
      pollfd ready{socket_->fd(), POLLOUT, 0};
      poll(&ready, 1, kPatienceMs);
      waited = true;
      continue;
    }
    // This one cannot go (no route, no room, too long); the others may. Of a super-packet whose
    // datagrams are too long, kernels before 6.14 say that it is invalid.
    const bool super = messages_[sent].msg_hdr.msg_controllen > 0;
    if (errno == EMSGSIZE || (errno == EINVAL && super)) {
      ++too_long_;
      too_long_to_ = slots_[sent].to;
    }
    ++dropped_;
    ++sent;
  }
  size_ = 0;
}

}  // namespace addend::net
