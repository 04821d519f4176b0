// SPDX-License-Identifier: Apache-2.0
// A descriptor that stays with the process that opened it.
#pragma once

namespace addend::net {

/// While it lives, children that this process forks do not hold `fd` open: a connection ends with
/// its process, whatever children (data loaders, say) that one leaves behind. At its number they
/// find a socket that is connected to nothing, so that destroying what used it does no harm.
class ForkGuard {
 public:
  explicit ForkGuard(int fd);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

 private:
  int fd_;
};

}  // namespace addend::net
