// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <thread>
#include <utility>

#include <pthread.h>

namespace addend {

/// A thread that takes no signals: those are for the application's threads. `name`, of at most 15
/// characters, is what the system's tools show.
template <typename Body>
std::thread quiet_thread(const char* name, Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread made(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(made.native_handle(), name);
  return made;
}

}  // namespace addend
