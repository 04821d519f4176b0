// SPDX-License-Identifier: Apache-2.0
#include "net/fork_guard.h"

#include <mutex>
#include <vector>

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

namespace addend::net {
namespace {

// A fork takes the mutex along, so that a child finds the list whole.
struct Guarded {
  std::mutex mutex;
  std::vector<int> fds;  // guarded by mutex
};

Guarded& guarded();

// Only what is allowed in a child of many threads: system calls.
void let_go() {
  const int nothing = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  for (const int fd : guarded().fds)
    nothing >= 0 ? dup3(nothing, fd, O_CLOEXEC) : close(fd);
  if (nothing >= 0) close(nothing);
  guarded().mutex.unlock();
}

// Never destroyed: forks happen until the very end.
Guarded& guarded() {
  static Guarded* const kGuarded = [] {
    pthread_atfork([] { guarded().mutex.lock(); }, [] { guarded().mutex.unlock(); }, let_go);
    return new Guarded;
  }();
  return *kGuarded;
}

}  // namespace

ForkGuard::ForkGuard(int fd) : fd_(fd) {
  const std::lock_guard lock(guarded().mutex);
  guarded().fds.push_back(fd);
}

ForkGuard::~ForkGuard() {
  const std::lock_guard lock(guarded().mutex);
  std::erase(guarded().fds, fd_);
}

}  // namespace addend::net
