// SPDX-License-Identifier: Apache-2.0
// Messages of own non-zeros on a device: as own.h, for whole rounds of them.
#pragma once

#include <span>

#include "codec/exact/own_kernels.h"
#include "codec/index/device_counted.h"
#include "cuda/memory.h"

namespace addend::exact {

/// REQUIRES of all calls: the device is the calling thread's.
class DeviceOwn {
 public:
  DeviceOwn(const cuda::Device& device, const index::IndexKernels& kernels);
  Status open();

  /// Enqueues how long the index of these non-zeros is; index_bytes() waits for it.
  Status measure(const uint64_t* bitmap, uint64_t count);
  Result<uint64_t> index_bytes() const;
  /// Lanes before a message's values.
  static uint64_t value_lane(uint64_t index_bytes);

  /// Writes a message but for its values. REQUIRES: zeros there.
  Status write(uint64_t nonzeros, uint64_t index_bytes, uint64_t* lanes);

  /// The messages of a round, one after the other: kUndecodable if one is none. Writes where they
  /// have something.
  Status read(DType dtype, uint64_t count, const uint64_t* messages,
              std::span<const uint64_t> bounds, uint64_t* bitmap);
  /// Adds them, in order, to zeros.
  Status add_to(DType dtype, uint64_t count, const uint64_t* messages,
                std::span<const uint64_t> bounds, void* gradient);

  uint64_t memory_bytes() const;

 private:
  Status open_message(DType dtype, uint64_t count, std::span<const uint64_t> lanes);

  const cuda::Device device_;
  const OwnKernels* kernels_ = nullptr;
  WriteOwnCall call_{};
  index::DeviceCounted message_;
  cuda::Mailbox measured_, read_;
  cuda::DeviceBuffer tiles_, groups_, pieces_, broken_;
};

}  // namespace addend::exact
