// SPDX-License-Identifier: Apache-2.0
// ReproducibleValues on a device: the lanes of reproducible.h, of values that lie in the order of
// a bitmap's positions, whatever the bitmap came from. Everything is enqueued on the stream.
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "codec/exact/ranges.h"
#include "cuda/memory.h"

namespace addend::exact {

/// A block's format and what travels for it. Of the numbers that follow a rank, all count from the
/// first block of the group on; `groups` has what lies before that.
struct RangeBlock {
  int16_t quantum;
  uint8_t digits;
  bool special, narrow;
  uint32_t values;  ///< positions of the bitmap in it
};
struct RangeSums {
  uint64_t values, narrow, wide;  ///< lanes, of the latter two
  uint64_t escaped;               ///< values of several lanes
};

/// Blocks that are counted together.
inline constexpr uint64_t kRangeGroup = 256;

/// The max plane of a gradient.
struct MeasureCall {
  DType dtype;
  const void* gradient;
  uint64_t count;
  const uint64_t* bitmap;  ///< of a scan, and what that kept; null: there was none
  const void* kept;
  uint32_t* lanes;
};

struct RangeCall {
  DType dtype;
  uint64_t count;
  const uint32_t* lanes;   ///< folded
  const uint64_t* bitmap;  ///< no bits past the end
  RangeRules rules;
  RangeBlock* blocks;
  RangeSums* before;  ///< each block: of the blocks before it in its group
  RangeSums* groups;  ///< each group: of the groups before it
  uint32_t* tickets;  ///< 0, and again after a count
  /// Packing reads `values` and writes the planes, unpacking the other way around.
  float scale;
  void* values;
  int32_t* narrow;
  int64_t* wide;
};

struct ReproducibleKernels {
  static constexpr const char* kPart = "reproducible";
  static constexpr uint32_t kVersion = 1;

  int (*measure)(const MeasureCall& call, void* stream);
  /// blocks, before and groups. The letter: values, narrow lanes, wide lanes, escaped values.
  int (*count)(const RangeCall& call, cuda::Mail* mail, uint64_t sequence, void* stream);
  int (*pack)(const RangeCall& call, void* stream);
  /// Sums times the scale, as elements.
  int (*unpack)(const RangeCall& call, void* stream);
};

}  // namespace addend::exact
