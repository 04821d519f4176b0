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

/// After a poll that found the bell readable; a read that takes less than it could has taken all.
inline void hush(int bell) {
  char some[256];
  while (read(bell, some, sizeof some) == ssize_t{sizeof some}) {
  }
}

}  // namespace addend
