// SPDX-License-Identifier: Apache-2.0
// ReproducibleValues on a device: the same planes. Values lie in the order of a bitmap's positions;
// the host learns the planes' lengths by a letter.
#pragma once

#include "addend/codec.h"
#include "codec/exact/reproducible_kernels.h"
#include "cuda/memory.h"

namespace addend::exact {

/// REQUIRES of all calls: the device is the calling thread's. They come in the order of the
/// declarations.
class DeviceReproducible {
 public:
  /// `layout` must outlive it.
  DeviceReproducible(const cuda::Device& device, const Layout& layout, double tolerance);

  Status open();

  /// Adds the max plane of a gradient. `bitmap` and `kept` of a scan, if there was one.
  Status open_ranges(const void* gradient, const uint64_t* bitmap, const void* kept, Round& round);
  const uint32_t* lanes() const { return call_.lanes; }
  const RangeRules& rules() const { return call_.rules; }
  /// Once that is folded: what its formats make of a bitmap's positions. Does not wait.
  Status count(const uint64_t* bitmap);
  /// Packs the elements at these positions, and adds the planes.
  Status pack(const void* values, Round& round);
  /// Values that needed more than one i64 lane.
  uint64_t escaped() const { return escaped_; }
  /// Decodes the (folded) planes into elements in the same order, times `scale`.
  Status unpack(float scale, void* values);

  uint64_t memory_bytes() const;

 private:
  const cuda::Device device_;
  const Layout& layout_;
  const ReproducibleKernels* kernels_ = nullptr;
  RangeCall call_{};
  uint64_t escaped_ = 0;
  cuda::Mailbox counted_;
  cuda::DeviceBuffer lanes_;  // plane: block ranges
  cuda::DeviceBuffer blocks_, before_, groups_, tickets_;
  cuda::DeviceBuffer narrow_, wide_;  // planes
};

}  // namespace addend::exact
