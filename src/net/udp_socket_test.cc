// SPDX-License-Identifier: Apache-2.0
#include "net/udp_socket.h"

#include <algorithm>

#include <poll.h>

#include "gtest/gtest.h"

namespace addend::net {
namespace {

UdpSocket loopback_socket() {
  auto socket = UdpSocket::bind(*resolve("127.0.0.1", 0), 1 << 20);
  EXPECT_TRUE(socket) << (socket ? "" : socket.error().message);
  return *std::move(socket);
}

// Cuts what arrives into datagrams again.
std::vector<std::vector<uint8_t>> receive_all(const UdpSocket& socket, std::size_t count) {
  Inbox inbox;
  std::vector<std::vector<uint8_t>> datagrams;
  while (datagrams.size() < count) {
    pollfd ready{socket.fd(), POLLIN, 0};
    if (poll(&ready, 1, 5000) <= 0) break;
    for (const Inbox::Datagrams& from : inbox.receive(socket)) {
      for (std::size_t at = 0; at < from.bytes.size(); at += from.segment) {
        const auto one =
            from.bytes.subspan(at, std::min<std::size_t>(from.segment, from.bytes.size() - at));
        datagrams.emplace_back(one.begin(), one.end());
      }
    }
  }
  return datagrams;
}

TEST(UdpSocket, ASuperPacketArrivesAsItsDatagrams) {
  const UdpSocket sender = loopback_socket(), receiver = loopback_socket();
  const Address to = *resolve("127.0.0.1", receiver.port());
  std::vector<uint8_t> bytes(1000 * 100 + 17);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(i / 1000);
  Outbox outbox(sender);
  outbox.add(to, bytes, 1000);
  outbox.flush();
  const auto datagrams = receive_all(receiver, 101);
  ASSERT_EQ(datagrams.size(), 101u);
  EXPECT_EQ(outbox.dropped(), 0u);
  for (std::size_t i = 0; i < 101; ++i) {
    EXPECT_EQ(datagrams[i].size(), i < 100 ? 1000u : 17u);
    EXPECT_TRUE(std::all_of(datagrams[i].begin(), datagrams[i].end(),
                            [&](uint8_t b) { return b == static_cast<uint8_t>(i); }));
  }
}

// Frames of the usual length: 45 of them are more than 65000 bytes, and one super-packet still.
TEST(UdpSocket, ASuperPacketHoldsAsMuchAsADatagramMay) {
  constexpr uint32_t kFrame = 1448, kFrames = 45;
  static_assert(kFrame * kFrames <= kMaxSuperBytes);
  for (const char* host : {"127.0.0.1", "::1"}) {
    const auto sender = UdpSocket::bind(*resolve(host, 0), 1 << 20);
    const auto receiver = UdpSocket::bind(*resolve(host, 0), 1 << 20);
    if (!sender || !receiver) continue;  // a machine without IPv6
    std::vector<uint8_t> bytes(kFrame * kFrames, 1);
    Outbox outbox(*sender);
    outbox.add(*resolve(host, receiver->port()), bytes, kFrame);
    outbox.flush();
    EXPECT_EQ(outbox.dropped(), 0u) << host;
    EXPECT_EQ(receive_all(*receiver, kFrames).size(), kFrames) << host;
  }
}

TEST(UdpSocket, ManySmallBatchesKeepTheirOrder) {
  const UdpSocket sender = loopback_socket(), receiver = loopback_socket();
  const Address to = *resolve("127.0.0.1", receiver.port());
  std::vector<std::array<uint8_t, 2>> bytes(300);
  Outbox outbox(sender);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = {static_cast<uint8_t>(i), static_cast<uint8_t>(i >> 8)};
    outbox.add(to, bytes[i], 2);
  }
  outbox.flush();
  const auto datagrams = receive_all(receiver, bytes.size());
  ASSERT_EQ(datagrams.size(), bytes.size());
  for (std::size_t i = 0; i < bytes.size(); ++i)
    EXPECT_TRUE(std::equal(bytes[i].begin(), bytes[i].end(), datagrams[i].begin()));
}

TEST(UdpSocket, WhatIsTooLongForThePathIsCountedAndTheRestGoes) {
  const UdpSocket sender = loopback_socket(), receiver = loopback_socket();
  const Address to = *resolve("127.0.0.1", receiver.port());
  const std::vector<uint8_t> longer(70000, 1), shorter(100, 2);
  Outbox outbox(sender);
  EXPECT_FALSE(outbox.take_too_long());
  outbox.add(to, longer, 70000);
  outbox.add(to, shorter, 100);
  outbox.flush();
  EXPECT_EQ(outbox.too_long(), 1u);
  EXPECT_EQ(outbox.dropped(), 1u);
  EXPECT_TRUE(outbox.take_too_long() == to);
  EXPECT_FALSE(outbox.take_too_long());
  EXPECT_EQ(receive_all(receiver, 1), std::vector<std::vector<uint8_t>>{shorter});
}

TEST(Address, ReadsHostsAndPorts) {
  EXPECT_EQ(resolve("127.0.0.1:80")->to_string(), "127.0.0.1:80");
  EXPECT_EQ(resolve("[::1]:7")->to_string(), "[::1]:7");
  EXPECT_EQ(resolve(":9")->port(), 9);
  EXPECT_FALSE(resolve("127.0.0.1"));
  EXPECT_FALSE(resolve("127.0.0.1:x"));
  EXPECT_FALSE(resolve("127.0.0.1:70000"));
  EXPECT_TRUE(*resolve("127.0.0.1:80") == *resolve("::ffff:127.0.0.1", 80));
  EXPECT_FALSE(*resolve("127.0.0.1:80") == *resolve("127.0.0.1:81"));
}

}  // namespace
}  // namespace addend::net
