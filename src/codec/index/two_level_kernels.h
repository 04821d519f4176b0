// SPDX-License-Identifier: Apache-2.0
// The passes of two_level.h on a device: the bits and bytes that TwoLevelIndex writes. A warp has a
// word of 64 blocks. Everything is enqueued on the stream; what depends on a size that the host
// does not know yet looks at it on the device, and does nothing where there is no room for it.
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "codec/index/index_kernels.h"

namespace addend::index {

/// Words of block bitmaps whose sums are counted together.
inline constexpr uint64_t kGroupWords = 256;

/// Of elements: those of live blocks that are nowhere partial, and those of partial blocks, which
/// have a bit each.
struct BlockSums {
  uint64_t full;
  uint64_t bits;
};

/// What a scan adds up, on the device: zeros before a scan, and again after a count.
struct BlockTotals {
  uint64_t nonzeros;
  uint32_t negative_zeros;  ///< a dead block has a -0.0
  uint32_t lost;            ///< a live block of this worker is not in the union
  uint32_t tickets;
  BlockSums all;  ///< of the blocks that were counted last
};

struct TwoLevelCall {
  DType dtype;
  const void* gradient;
  uint64_t count;
  uint64_t block;
  uint64_t* live;
  uint64_t* partial;
  uint64_t* local_live;
  BlockSums* before;  ///< each word: of the words before it in its group
  BlockSums* groups;  ///< each group: of the groups before it
  BlockTotals* totals;

  /// Bits of partial blocks: 128 bytes past them can be read.
  uint64_t* elements;
  uint64_t* local_elements;
  uint64_t element_room;  ///< bits
  /// What IndexKernels::count found in them; not read before `counted`.
  const uint32_t* offsets;
  const uint64_t* bases;
  const Totals* element_totals;
  bool counted;

  float factor;
  void* values;
  uint64_t value_room;
};

inline constexpr uint32_t kMostSizes = 4;

struct SurveyCall {
  const uint64_t* bitmap;
  uint64_t count;
  uint64_t sizes[kMostSizes];
  uint32_t size_count;
  uint64_t* scratch;  ///< two a size
  cuda::Mail* mail;
  uint64_t sequence;
};

struct TwoLevelKernels {
  static constexpr const char* kPart = "two-level";
  static constexpr uint32_t kVersion = 1;

  /// live, partial and local_live of the gradient.
  int (*scan)(const TwoLevelCall& call, void* stream);
  /// Of the folded bitmaps: before, groups. The letter: full elements, element bits, non-zeros of
  /// this worker, whether a dead block of it has a -0.0, whether the union lacks a live block of
  /// it.
  int (*count)(const TwoLevelCall& call, cuda::Mail* mail, uint64_t sequence, void* stream);
  /// elements and local_elements, if there are some.
  int (*mark)(const TwoLevelCall& call, void* stream);
  /// values = the gradient's elements of the union, in order, times the factor. Before `counted` it
  /// does nothing if there are element bits.
  int (*pack)(const TwoLevelCall& call, void* stream);
  /// Writes values where they belong and zeros elsewhere in live blocks; `everywhere`: in the
  /// others, too.
  int (*unpack)(const TwoLevelCall& call, bool everywhere, void* gradient, void* stream);
  /// bitmap = the union, bits past the end zero. REQUIRES: zeros there.
  int (*write_union)(const TwoLevelCall& call, uint64_t* bitmap, void* stream);
  /// The letter: for each size, the live blocks of a union, and the elements of those that are not
  /// full.
  int (*survey)(const SurveyCall& call, void* stream);
};

}  // namespace addend::index
