// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
#include <thread>
#include <utility>

#include <pthread.h>
#include <sched.h>

namespace addend {

/// While one is there, its thread takes no signals, and those that it starts never do.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// A thread that takes no signals: those are for the application's threads. `name`, of at most 15
/// characters, is what the system's tools show. Throws what std::thread throws.
template <typename Body>
std::thread quiet_thread(const char* name, Body body) {
  const SignalsBlocked meanwhile;
  std::thread made(std::move(body));
  pthread_setname_np(made.native_handle(), name);
  return made;
}

/// From now on this thread waits for a core, rather than take that of whoever wakes it. One that
/// has a policy of the application's keeps it.
inline void leave_waker_its_core(std::thread& thread) {
  int policy = 0;
  sched_param param{};
  pthread_getschedparam(thread.native_handle(), &policy, &param);
  if (policy == SCHED_OTHER) pthread_setschedparam(thread.native_handle(), SCHED_BATCH, &param);
}

}  // namespace addend
