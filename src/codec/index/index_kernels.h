// SPDX-License-Identifier: Apache-2.0
// The passes of kernels.h on a device. Kernels write the bytes that those write; what is kept of a
// scan lies otherwise, because no value needs a global order before the union is known:
//
//   tile      1024 elements of 4 bytes, 2048 of 2; a warp's work
//   kept      a slot of a quarter of its elements for each tile; a tile with more keeps nothing and
//             is read from the gradient again
//   offsets   the rank of a tile's first union element within its group of 131072 bits; `bases` has
//             the group's own
//
// Everything is enqueued on the stream. Bitmaps reach to the end of their last tile.
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "base/bits.h"
#include "cuda/memory.h"

namespace addend::index {

inline constexpr uint64_t kGroupBits = 131072;
constexpr uint64_t tile_elements(uint32_t width) { return 4096 / width; }
constexpr uint64_t tiles_for(uint32_t width, uint64_t count) {
  return ceil_div(count, tile_elements(width));
}
inline constexpr uint64_t kSlotBytes = 1024;

/// What a scan and a count add up, on the device: zeros before a scan, and again after a count.
struct Totals {
  uint64_t nonzeros;
  uint32_t negative_zeros;
  uint32_t lost;     ///< a position of this worker is not in the union
  uint32_t tickets;  ///< of the groups that were counted
  uint64_t size;     ///< of the union that was counted last
  bool raw;          ///< a -0.0 of this worker travels as one; else as +0.0
};

struct ScanCall {
  uint32_t width;
  const void* gradient;
  uint64_t count;
  uint64_t* bitmap;
  uint64_t* copy;  ///< of the bitmap: the plane
  void* kept;      ///< null: nothing is
  Totals* totals;
};

/// Drops bits of the union past the end and numbers the others. The letter: size of the union,
/// non-zeros of this worker, whether it has a -0.0, whether the union lacks one of its positions.
/// A -0.0 travels as one where this worker has more than `few` non-zeros.
struct CountCall {
  uint32_t width;
  uint64_t count;
  uint64_t* bitmap;
  const uint64_t* local;
  uint32_t* offsets;
  uint64_t* bases;
  uint64_t few;
  Totals* totals;
  cuda::Mail* mail;
  uint64_t sequence;
};

/// values[r] = factor times this worker's element at the r-th position of the union that was
/// counted. Enqueued behind the count, before the host knows the union's size: a union of more than
/// `room` positions is left alone.
struct ExpandCall {
  DType dtype;
  const void* gradient;
  uint64_t count;
  const uint64_t* bitmap;
  const uint64_t* local;
  const uint32_t* offsets;
  const uint64_t* bases;
  const void* kept;
  float factor;
  const Totals* totals;
  uint64_t room;
  void* values;
};

struct UnpackCall {
  uint32_t width;
  const void* values;
  const uint64_t* bitmap;
  const uint32_t* offsets;
  const uint64_t* bases;
  uint64_t count;
  bool everywhere;  ///< zeros outside the union are written, too
  void* gradient;
};

struct IndexKernels {
  static constexpr const char* kPart = "index";
  static constexpr uint32_t kVersion = 2;

  int (*scan)(const ScanCall& call, void* stream);
  int (*count)(const CountCall& call, void* stream);
  int (*expand)(const ExpandCall& call, void* stream);
  int (*unpack)(const UnpackCall& call, void* stream);
  /// to[i] = from[i] * factor, as addend::multiply.
  int (*multiply)(DType dtype, const void* from, uint64_t count, float factor, void* to,
                  void* stream);
  /// The letter: whether a value is infinite or NaN. `scratch` is 8 bytes.
  int (*look_for_nonfinite)(DType dtype, const void* values, uint64_t count, uint64_t* scratch,
                            cuda::Mail* mail, uint64_t sequence, void* stream);
};

}  // namespace addend::index
