// SPDX-License-Identifier: Apache-2.0
// Zeroed memory for gradients, on huge pages where the kernel grants them: measurements should not
// be about page faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "addend/result.h"

namespace addend::cli {

/// Owns its pages; aligned to 2 MiB. Movable, not copyable.
class PageBuffer {
 public:
  static Result<PageBuffer> create(uint64_t bytes);

  PageBuffer() = default;
  PageBuffer(PageBuffer&& other) noexcept { *this = std::move(other); }
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  ~PageBuffer();

  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  void* mapping_ = nullptr;
  std::size_t mapped_ = 0;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace addend::cli
