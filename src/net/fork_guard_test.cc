// SPDX-License-Identifier: Apache-2.0
#include "net/fork_guard.h"

#include <cerrno>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace addend::net {
namespace {

// Forks a child that stays until `release` is closed here, with what it saw as its exit status.
template <typename Body>
pid_t fork_child(int release, int closed, const Body& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  close(closed);
  const int status = body();
  char byte;
  const ssize_t end = read(release, &byte, 1);
  _exit(end == 0 ? status : 99);
}

TEST(ForkGuard, AConnectionEndsWithItsProcessAndNotWithAChild) {
  int pair[2], hold[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  ASSERT_EQ(pipe(hold), 0);
  pid_t child = 0;
  {
    const ForkGuard guard(pair[0]);
    child = fork_child(hold[0], hold[1], [&] {
      close(pair[1]);
      // The number is still taken, by something harmless.
      return send(pair[0], "x", 1, MSG_NOSIGNAL) < 0 && errno != EBADF && errno != ENOTSOCK ? 7 : 8;
    });
  }
  close(pair[0]);
  char byte;
  EXPECT_EQ(recv(pair[1], &byte, 1, 0), 0) << "the child holds the connection, or wrote to it";
  close(hold[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  close(pair[1]);
  close(hold[0]);
}

TEST(ForkGuard, WhatIsNotGuardedAnyMoreIsInheritedAsUsual) {
  int pair[2], hold[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  ASSERT_EQ(pipe(hold), 0);
  { const ForkGuard guard(pair[0]); }
  const pid_t child = fork_child(hold[0], hold[1],
                                 [&] { return send(pair[0], "x", 1, MSG_NOSIGNAL) == 1 ? 7 : 8; });
  char byte;
  EXPECT_EQ(recv(pair[1], &byte, 1, 0), 1);
  close(hold[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  for (const int fd : {pair[0], pair[1], hold[0]})
    close(fd);
}

}  // namespace
}  // namespace addend::net
