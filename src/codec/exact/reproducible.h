// SPDX-License-Identifier: Apache-2.0
// Values as integers: every block of the gradient gets one fixed-point format from a max plane that
// all workers see, and values travel as wrapping integer sums. Integers add in any order, so the
// decoded sum is the exact sum, rounded once, bit for bit the same on all ranks.
// docs/formats/exact.md, "Reproducible values".
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "addend/result.h"
#include "base/buffer.h"
#include "codec/exact/ranges.h"

namespace addend::exact {

/// The non-zeros of a gradient: their bitmap and, in index order, their values.
struct NonZeros {
  const uint64_t* bitmap = nullptr;
  const void* values = nullptr;
  uint64_t count = 0;  ///< elements of the gradient, not of `values`
};

/// Writes the max-plane lanes of every block. `lanes` has kRangeLanes per block.
void measure_ranges(DType dtype, const NonZeros& nonzeros, uint32_t* lanes);

/// Packs and unpacks the values at selected positions as one i32 plane and one i64 plane, in index
/// order.
class ReproducibleValues {
 public:
  /// Derives the block formats from the folded max plane.
  Status set_ranges(const uint32_t* lanes, uint64_t count, const RangeRules& rules);

  /// Packs the selected values of `gradient`. The planes stay valid until the next call.
  Status pack(DType dtype, const void* gradient, const uint64_t* selection);
  Plane narrow_plane();
  Plane wide_plane();
  /// Of the last pack: values that needed more than one i64 lane.
  uint64_t escaped() const { return escaped_; }

  /// Decodes the (folded) planes in index order into `packed`, one element of dtype per selected
  /// position, times `scale`.
  void unpack(DType dtype, const uint64_t* selection, float scale, void* packed) const;

  const BlockFormat& format(uint64_t block) const { return formats_.as<BlockFormat>()[block]; }
  uint64_t blocks() const { return blocks_; }
  uint64_t memory_bytes() const;

 private:
  uint64_t count_ = 0;
  uint64_t blocks_ = 0;
  Buffer formats_;  // BlockFormat per block
  Buffer narrow_;   // i32 lanes
  Buffer wide_;     // i64 lanes
  uint64_t narrow_lanes_ = 0;
  uint64_t wide_lanes_ = 0;
  uint64_t escaped_ = 0;
};

}  // namespace addend::exact
