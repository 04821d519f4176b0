// SPDX-License-Identifier: Apache-2.0
// Bloom filters on a device (bloom.h): the same words. Everything is enqueued on the stream.
#pragma once

#include <cstdint>

#include "codec/index/bloom.h"
#include "codec/index/union_kernels.h"

namespace addend::index {

struct BloomCall {
  BloomShape shape;
  uint64_t* filter;
  uint64_t* bitmap;
  uint64_t words;  ///< of the bitmap
};

/// Bits of a bitmap, and one for each position of a union that was counted.
struct SelectCall {
  CountedUnion of;
  uint64_t* bitmap;  ///< of as many words as the union's
  uint64_t* found;
};

struct BloomKernels {
  static constexpr const char* kPart = "bloom";
  static constexpr uint32_t kVersion = 1;

  int (*insert)(const BloomCall& call, void* stream);
  /// The letter: bits of the filter that are set. `scratch` is 8 bytes.
  int (*find)(const BloomCall& call, uint64_t* scratch, cuda::Mail* mail, uint64_t sequence,
              void* stream);
  /// found = the bits that the bitmap has at the union's positions, side by side. REQUIRES: zeros
  /// there.
  int (*select)(const SelectCall& call, void* stream);
  /// bitmap = the union's positions whose bits are set in found. It may be the union's own.
  int (*spread)(const SelectCall& call, void* stream);
  /// The letter: how many values are not zero. `scratch` is 8 bytes.
  int (*count_nonzeros)(uint32_t width, const void* values, uint64_t count, uint64_t* scratch,
                        cuda::Mail* mail, uint64_t sequence, void* stream);
};

}  // namespace addend::index
