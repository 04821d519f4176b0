// SPDX-License-Identifier: Apache-2.0
// UnionIndex on a device, as far as quant needs it: the same planes, a union that is known as a
// bitmap in both forms, and arrays of floats over its positions. The host learns sizes by letters.
#pragma once

#include <span>
#include <vector>

#include "addend/codec.h"
#include "codec/index/device_two_level.h"
#include "codec/index/union_kernels.h"
#include "cuda/memory.h"

namespace addend::index {

/// REQUIRES of all calls: the device is the calling thread's.
class DeviceUnion {
 public:
  /// `layout` must outlive it.
  DeviceUnion(const cuda::Device& device, const IndexKernels& kernels, const Layout& layout);

  Status open();

  /// A step: one of these two, then, once the round is folded, close, until that opens no other.
  Status open_bitmap(const void* gradient, Round& round);
  Status open_blocks(const void* gradient, uint64_t block, Round& round);
  /// Adds the element plane; false: the union is known. `left_out`: this worker is not in it.
  Result<bool> close(bool left_out, Round& round);

  uint64_t size() const { return size_; }
  uint64_t nonzeros() const { return nonzeros_; }
  /// How many of its positions each segment of the layout has.
  std::span<const uint64_t> segment_sizes() const { return {sizes_.host<uint64_t>(), segments()}; }

  /// The gradient's elements of the union as floats; with a residual (over the positions), what is
  /// owed there is added, and written to `owed`.
  Status gather(const float* residual, float* owed, float* values) const;
  /// Writes floats of the union to their positions, and nothing elsewhere.
  Status put(const float* values, float* array) const;
  /// Writes elements of the union where they belong, and zeros elsewhere; not where the gradient of
  /// the step has them already.
  Status scatter(const void* values, void* gradient);

  /// Asks how the union would be cut into blocks of these sizes; answer() waits for it
  /// (DeviceTwoLevel).
  Status ask(std::span<const uint64_t> sizes);
  Result<std::span<const uint64_t>> answer() const { return two_level_.answer(); }

  uint64_t memory_bytes() const;

 private:
  uint64_t segments() const { return layout_.segments.size(); }
  uint32_t width() const { return dtype_bytes(layout_.dtype); }
  uint64_t bits() const;
  Status start(const void* gradient);
  Result<bool> close_blocks(Round& round);
  Status count(bool left_out);
  Status read_count(bool left_out);
  CountedUnion counted_union() const;

  const cuda::Device device_;
  const IndexKernels& kernels_;
  const UnionKernels* of_union_ = nullptr;
  const Layout& layout_;

  const void* gradient_ = nullptr;
  enum class Waiting : uint8_t { kBitmap, kBlocks, kElements };
  Waiting waiting_ = Waiting::kBitmap;
  bool by_blocks_ = false, left_out_ = false;
  bool negative_zeros_ = false;
  uint64_t size_ = 0, nonzeros_ = 0;

  DeviceTwoLevel two_level_;
  cuda::Mailbox counted_, cut_;
  cuda::PinnedBuffer sizes_;
  cuda::DeviceBuffer bounds_, local_, bitmap_, offsets_, bases_, totals_, unused_;
};

}  // namespace addend::index
