// SPDX-License-Identifier: Apache-2.0
// The sketch on a device: the cells of sketch.h, and what peeling leaves of them. Everything is
// enqueued on the stream, and nothing waits for the host between two rounds of peeling.
#pragma once

#include <cstdint>

#include "codec/exact/sketch.h"
#include "codec/exact/sketch_values.h"
#include "codec/index/union_kernels.h"

namespace addend::exact {

/// Which integer stands for an element: by one window, or by the formats of blocks, of which those
/// of several integers have none.
struct Quanta {
  DType dtype;
  Window window;
  const uint32_t* lanes;  ///< of the blocks' ranges; null: the window
  RangeRules rules;
};

/// Adds the integers of a gradient's non-zeros to cells. Words of 64 elements whose values do not
/// all fit the window escape, and add nothing.
struct InsertCall {
  Quanta quanta;
  const void* gradient;
  const uint64_t* bitmap;  ///< of its non-zeros
  uint64_t words;
  SketchShape shape;
  uint64_t* cells;   ///< zeros
  uint64_t* escape;  ///< plane, and a copy of it; null by formats
  uint64_t* local_escape;
  uint32_t* top;  ///< plane, 0: the exponent of the largest value, plus kTopBias
};

/// Of a union: the keys that escape, and the others. The letter: the folded top.
struct SplitCall {
  Quanta quanta;
  const uint64_t* bitmap;
  uint64_t words;
  const uint64_t* escape;  ///< folded
  uint64_t* fix_up;
  uint64_t* keys;       ///< by formats; null: all are
  const uint32_t* top;  ///< null: the letter says 0
  cuda::Mail* mail;
  uint64_t sequence;
};

/// A key: where it is, and its rank, whose highest bit is set once the key was peeled.
struct SketchKey {
  uint64_t position;
  uint64_t rank;
};
inline constexpr uint64_t kPeeled = uint64_t{1} << 63;

struct PeelCall {
  SketchShape shape;
  index::CountedUnion keys;
  uint64_t* cells;
  int64_t* values;      ///< by rank
  uint64_t* stuck;      ///< bitmap of keys.count bits
  uint64_t* starts;     ///< a chunk's first slot; shape.chunks + 1
  uint64_t* ends;       ///< behind its last one; shape.chunks
  SketchKey* slots;     ///< of keys
  uint32_t* workspace;  ///< peel_workspace words for each of `ctas`
  uint32_t ctas;
  bool counts_in_shared;
  uint64_t* found;  ///< and the letter: stuck keys
  cuda::Mail* mail;
  uint64_t sequence;
};
/// What a CTA has for a chunk, in words: the cells with one key, and for each cell how many keys
/// are left and the sum of their numbers, unless these are in its own memory.
ADDEND_HOST_DEVICE inline uint64_t peel_workspace(const SketchShape& shape, bool counts_in_shared) {
  return (counts_in_shared ? 1 : 3) * shape.chunk_cells();
}

/// Elements at the positions of a bitmap that was counted.
struct PickCall {
  index::CountedUnion of;
  Quanta quanta;
  const void* gradient;
  const uint64_t* local_escape;  ///< integers: 0 in these words
  float factor;                  ///< elements: times this
  void* to;
};

/// Takes the sums of stuck keys out of the cells, and looks whether these are zero then.
struct SettleCall {
  SketchShape shape;
  index::CountedUnion stuck;
  const int64_t* values;
  uint64_t* cells;
  uint64_t* found;  ///< and the letter: cells that are not
  cuda::Mail* mail;
  uint64_t sequence;
};

/// The union's elements from three sources: sums of keys by rank, of stuck keys, and what escaped.
struct AssembleCall {
  Quanta quanta;
  float scale;
  index::CountedUnion all, keys, stuck, fix_up;  ///< without a bitmap: there are none
  const int64_t* peeled;
  const int64_t* stuck_values;
  const void* fix_values;
  void* values;
};

struct SketchKernels {
  static constexpr const char* kPart = "sketch";
  static constexpr uint32_t kVersion = 1;

  int (*insert)(const InsertCall& call, void* stream);
  int (*split)(const SplitCall& call, void* stream);
  /// How many CTAs peel at once, at most, and whether each has room for counts of its own.
  int (*peel_ctas)(const SketchShape& shape, uint32_t* ctas, bool* counts_in_shared);
  int (*peel)(const PeelCall& call, void* stream);
  int (*pick_quanta)(const PickCall& call, void* stream);
  int (*pick_elements)(const PickCall& call, void* stream);
  int (*settle)(const SettleCall& call, void* stream);
  int (*assemble)(const AssembleCall& call, void* stream);
};

}  // namespace addend::exact
