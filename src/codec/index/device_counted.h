// SPDX-License-Identifier: Apache-2.0
// A bitmap on a device and the ranks of its positions.
#pragma once

#include "codec/index/index_kernels.h"
#include "codec/index/union_kernels.h"
#include "cuda/memory.h"

namespace addend::index {

/// REQUIRES of all calls: the device is the calling thread's.
class DeviceCounted {
 public:
  DeviceCounted(const cuda::Device& device, const IndexKernels& kernels);

  Status open();
  /// Room for a bitmap over `count` elements that are `width` bytes wide.
  Status reserve(uint32_t width, uint64_t count);
  uint64_t* bitmap() const { return bitmap_.as<uint64_t>(); }
  /// Once that is written. size() waits for it.
  Status count();
  Result<uint64_t> size() const;
  CountedUnion counted() const;

  uint64_t memory_bytes() const;

 private:
  const cuda::Device device_;
  const IndexKernels& kernels_;
  uint32_t width_ = 4;
  uint64_t count_ = 0;
  cuda::Mailbox counted_;
  cuda::DeviceBuffer bitmap_, offsets_, bases_, totals_;
};

}  // namespace addend::index
