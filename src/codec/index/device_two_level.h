// SPDX-License-Identifier: Apache-2.0
// TwoLevelIndex on a device: the same planes. Sizes come to the host by letters; values are packed
// behind the counts without waiting for those, as long as there is room for them.
#pragma once

#include <span>

#include "addend/plane.h"
#include "codec/index/index_kernels.h"
#include "codec/index/two_level_kernels.h"
#include "cuda/memory.h"

namespace addend::index {

/// Where packed values go: a buffer that grows with the union.
struct PackedValues {
  float factor = 1;
  uint64_t most = 0;  ///< a larger union travels as it is
  cuda::DeviceBuffer* buffer = nullptr;
};

/// REQUIRES of all calls: the device is the calling thread's. They come in the order of the
/// declarations.
class DeviceTwoLevel {
 public:
  DeviceTwoLevel(const cuda::Device& device, const IndexKernels& kernels);

  Status open();

  Status open_blocks(DType dtype, const void* gradient, uint64_t count, uint64_t block,
                     Round& round);
  /// This worker is not in the union: bits of it that are missing there are not lost.
  void leave_out() { left_out_ = true; }
  /// Adds the element plane. False: no block is partial, and the union is known.
  Result<bool> close_blocks(const PackedValues& values, Round& round);
  Status close_elements(const PackedValues& values);

  uint64_t nonzeros() const { return nonzeros_; }
  /// Whether a block without a non-zero has a -0.0.
  bool negative_zeros() const { return negative_zeros_; }
  uint64_t size() const { return size_; }

  /// Once the union is known: the gradient's elements, in order.
  Status pack(const PackedValues& values);
  /// Writes sums where they belong, and zeros elsewhere; not in dead blocks where `zeros_stand`.
  Status unpack(const void* sums, bool zeros_stand, void* gradient);

  /// The union of the step as a bitmap of words_for(count) words.
  Status write_union(uint64_t* bitmap);

  /// Asks how a union, of any kind of step, would be cut into blocks of these sizes. answer()
  /// waits for what was asked last.
  Status ask(const uint64_t* bitmap, uint64_t count, std::span<const uint64_t> sizes);
  /// For each size: live blocks, and elements of those that are not full.
  Result<std::span<const uint64_t>> answer() const;

  uint64_t memory_bytes() const;

 private:
  Status reserve_elements(uint64_t bits);
  Status pack_ahead(const PackedValues& values);

  const cuda::Device device_;
  const IndexKernels& kernels_;
  const TwoLevelKernels* blocks_ = nullptr;
  TwoLevelCall call_{};
  uint64_t nonzeros_ = 0, size_ = 0, element_bits_ = 0;
  uint64_t packed_ = 0;  // positions that values were packed for ahead, at most
  bool negative_zeros_ = false;
  bool left_out_ = false;

  cuda::Mailbox counted_, surveyed_;
  cuda::DeviceBuffer live_, partial_, local_live_, before_, groups_, totals_;
  cuda::DeviceBuffer elements_, local_elements_, offsets_, bases_;
};

}  // namespace addend::index
