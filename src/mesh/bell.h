// SPDX-License-Identifier: Apache-2.0
// A pipe by which one thread ends another's wait.
#pragma once

#include <unistd.h>

namespace addend {

/// Full: it rings already.
inline void ring(int ringer) {
  const char one = 1;
  [[maybe_unused]] const ssize_t written = write(ringer, &one, 1);
}

/// After a poll that found the bell readable; a read that takes what is there does not block.
inline void hush(int bell) {
  char some[256];
  [[maybe_unused]] const ssize_t got = read(bell, some, sizeof some);
}

}  // namespace addend
