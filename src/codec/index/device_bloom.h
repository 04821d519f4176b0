// SPDX-License-Identifier: Apache-2.0
// A Bloom filter of a device's bitmap, as UnionIndex has one of the host's: the same planes.
#pragma once

#include "addend/plane.h"
#include "codec/index/bloom_kernels.h"
#include "cuda/memory.h"

namespace addend::index {

/// REQUIRES of all calls: the device is the calling thread's. They come in the order of the
/// declarations.
class DeviceBloom {
 public:
  explicit DeviceBloom(const cuda::Device& device);

  Status open();

  /// Adds the filter of this worker's positions.
  Status open_filter(const BloomShape& shape, const uint64_t* local, uint64_t count, Round& round);
  /// Writes what the folded filter holds, but for the end: bits past it may be set.
  Status find(uint64_t* bitmap);
  /// Of `found` positions of that, how many may be false ones. Waits for the filter's fill.
  Result<double> false_positions(uint64_t found) const;

  /// Adds the bits of this worker among the positions of what was found, once it is counted.
  Status open_found(const CountedUnion& held, uint64_t size, const uint64_t* local, Round& round);
  /// Takes the positions out that nobody has.
  Status close_found(const CountedUnion& held, uint64_t* bitmap);

  /// Asks how many values of the union are not zero; nonzeros() waits for it.
  Status count_nonzeros(uint32_t width, const void* values, uint64_t count);
  Result<uint64_t> nonzeros() const;

  uint64_t memory_bytes() const;

 private:
  const cuda::Device device_;
  const BloomKernels* kernels_ = nullptr;
  BloomCall call_{};
  uint64_t count_ = 0;
  cuda::Mailbox filled_, counted_;
  cuda::DeviceBuffer filter_, found_, scratch_;
};

}  // namespace addend::index
