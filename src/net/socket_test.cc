// SPDX-License-Identifier: Apache-2.0
#include "net/socket.h"

#include "gtest/gtest.h"

namespace addend::net {
namespace {

sockaddr_in6 written(const SocketName& name) {
  sockaddr_in6 raw{};
  std::memcpy(&raw, name.get(), name.length);
  return raw;
}

TEST(Socket, AnAddressIsTheSameAfterASocketOfEitherFamily) {
  const Address v4 = *resolve("10.1.2.3:7700"), v6 = *resolve("[fd78::1]:7700");
  EXPECT_EQ(read_name(written({AF_INET6, v4})), v4);
  EXPECT_EQ(read_name(written({AF_INET, v4})), v4);
  EXPECT_EQ(read_name(written({AF_INET6, v6})), v6);
  EXPECT_TRUE(read_name(written({AF_INET, v4})).known());
  EXPECT_EQ(SocketName(AF_INET, v4).length, sizeof(sockaddr_in));
  EXPECT_EQ(SocketName(AF_INET, v6).length, sizeof(sockaddr_in6));  // for the kernel to refuse
}

TEST(Socket, WithoutIpv6EveryAddressIsEveryIpv4Address) {
  const SocketName name(AF_INET, *resolve(":7700"));
  EXPECT_EQ(name.v4.sin_family, AF_INET);
  EXPECT_EQ(name.v4.sin_addr.s_addr, htonl(INADDR_ANY));
  EXPECT_EQ(ntohs(name.v4.sin_port), 7700);
}

TEST(Socket, ConnectionsOverIpv4AloneTellWhereTheyComeFrom) {
  const Descriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(bind(listener.get(), *resolve("127.0.0.1:0")), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  const Descriptor client(socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(connect(client.get(), *resolve("127.0.0.1", port_of(listener.get()))), 0);
  Address from;
  ASSERT_TRUE(accept(listener.get(), from));
  EXPECT_EQ(from, *resolve("127.0.0.1", port_of(client.get())));
}

}  // namespace
}  // namespace addend::net
