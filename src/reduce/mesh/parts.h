// SPDX-License-Identifier: Apache-2.0
// Memory in several places that a stream socket reads or writes little by little.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <sys/uio.h>

#include "addend/result.h"

namespace addend::mesh {

class Parts {
 public:
  void clear();
  void add(const void* data, uint64_t bytes);
  /// Bytes that were not moved yet.
  uint64_t left() const { return left_; }
  /// What was added and not moved yet.
  const iovec* begin() const { return pieces_.data() + at_; }
  const iovec* end() const { return pieces_.data() + pieces_.size(); }

  /// Moves what the socket takes or has without waiting: how much that was, 0 if nothing can be
  /// moved now. kUnavailable: the connection failed, or (receive) the other side closed it.
  Result<uint64_t> send(int socket);
  Result<uint64_t> receive(int socket);

 private:
  void advance(uint64_t bytes);

  std::vector<iovec> pieces_;
  std::size_t at_ = 0;
  uint64_t left_ = 0;
};

}  // namespace addend::mesh
