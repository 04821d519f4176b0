// SPDX-License-Identifier: Apache-2.0
// Workspace memory: aligned, grown when a layout needs more, never per step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "addend/result.h"

namespace addend {

/// An owned, 64-byte aligned block. Large blocks (kZeroFrom) come zeroed and untouched from the
/// system in huge pages where it has them, so reserving for the worst case costs address space, not
/// memory.
/// Movable, not copyable.
class Buffer {
 public:
  Buffer() = default;
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  /// Ensures room for `bytes`. Contents are lost when it grows; what was reserved is never given
  /// back.
  Status reserve(uint64_t bytes);

  uint64_t capacity() const { return capacity_; }

  template <typename T>
  T* as() {
    return static_cast<T*>(data_);
  }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data_);
  }

  /// Bytes that kernels may write past the last element they own: a whole vector.
  static constexpr uint64_t kSlack = 64;
  /// Blocks of so many bytes or more are zero when they are new.
  static constexpr uint64_t kZeroFrom = uint64_t{1} << 20;

 private:
  void release();

  void* data_ = nullptr;
  uint64_t capacity_ = 0;
};

}  // namespace addend
