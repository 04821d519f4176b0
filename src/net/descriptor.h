// SPDX-License-Identifier: Apache-2.0
// An owned file descriptor.
#pragma once

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <unistd.h>

#include "addend/result.h"

namespace addend::net {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// What the last system call refused, as an error.
inline Error io_error(const std::string& what) {
  return make_error(Errc::kIo, what + ": " + std::strerror(errno));
}

}  // namespace addend::net
