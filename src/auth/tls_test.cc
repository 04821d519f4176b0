// SPDX-License-Identifier: Apache-2.0
#include "auth/tls.h"

#include <array>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gtest/gtest.h"
#include "tests/support/keys.h"

namespace addend::auth {
namespace {

using testing_support::secret_of;

/// Both ends of a connection in one thread, over a pair of sockets.
class Pair {
 public:
  Pair(const TlsContext& server, const TlsContext& client) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds_.data()), 0);
    server_.emplace(*TlsStream::create(server, fds_[0], TlsStream::Side::kServer));
    client_.emplace(*TlsStream::create(client, fds_[1], TlsStream::Side::kClient));
  }
  ~Pair() {
    close(fds_[0]);
    if (fds_[1] >= 0) close(fds_[1]);
  }
  void hang_up() {
    close(fds_[1]);
    fds_[1] = -1;
  }
  bool handshake() {
    Progress server = Progress::kWantRead, client = Progress::kWantRead;
    for (int turn = 0; turn < 20; ++turn) {
      if (client != Progress::kDone) client = client_->handshake();
      if (server != Progress::kDone) server = server_->handshake();
      if (server == Progress::kFailed || client == Progress::kFailed) return false;
    }
    return server == Progress::kDone && client == Progress::kDone;
  }
  TlsStream& server() { return *server_; }
  TlsStream& client() { return *client_; }

 private:
  std::array<int, 2> fds_{};
  std::optional<TlsStream> server_, client_;
};

TlsContext server_with_key(const std::string& name, const Secret& key) {
  auto context = TlsContext::server(
      [=](const std::string& identity) {
        return identity == name ? std::optional<Secret>(key) : std::nullopt;
      },
      std::nullopt);
  EXPECT_TRUE(context);
  return *std::move(context);
}

TEST(Tls, ASharedKeyOpensAConnectionAndNamesThePeer) {
  const TlsContext server = server_with_key("ring/a", secret_of(1));
  const auto client = TlsContext::client({"ring/a", secret_of(1), {}}, "");
  Pair pair(server, *client);
  ASSERT_TRUE(pair.handshake()) << pair.server().problem() << pair.client().problem();
  EXPECT_EQ(pair.server().peer(), "ring/a");
  const std::array<uint8_t, 3> sent = {1, 2, 3};
  std::size_t bytes = 0;
  ASSERT_EQ(pair.client().write(sent, bytes), Progress::kDone);
  std::array<uint8_t, 8> received{};
  ASSERT_EQ(pair.server().read(received, bytes), Progress::kDone);
  EXPECT_EQ(bytes, 3u);
  EXPECT_EQ(received[2], 3);
}

TEST(Tls, AWrongKeyOrAnUnknownNameDoesNot) {
  const TlsContext server = server_with_key("a", secret_of(1));
  const auto wrong_key = TlsContext::client({"a", secret_of(2), {}}, "");
  const auto wrong_name = TlsContext::client({"b", secret_of(1), {}}, "");
  Pair one(server, *wrong_key), other(server, *wrong_name);
  EXPECT_FALSE(one.handshake());
  EXPECT_FALSE(other.handshake());
  // Nobody learns which of them it was.
  one.client().handshake();
  other.client().handshake();
  EXPECT_FALSE(one.client().problem().empty());
  EXPECT_EQ(one.client().problem(), other.client().problem());
  EXPECT_EQ(one.server().problem(), other.server().problem());
  EXPECT_FALSE(one.client().hung_up());
}

TEST(Tls, WritingToAPeerThatIsGoneFailsAndDoesNotKillTheProcess) {
  const TlsContext server = server_with_key("a", secret_of(1));
  const auto client = TlsContext::client({"a", secret_of(1), {}}, "");
  Pair pair(server, *client);
  ASSERT_TRUE(pair.handshake());
  pair.hang_up();
  const std::array<uint8_t, 3> bytes = {1, 2, 3};
  std::size_t sent = 0;
  EXPECT_EQ(pair.server().write(bytes, sent), Progress::kFailed);
  pair.server().close();
}

}  // namespace
}  // namespace addend::auth
