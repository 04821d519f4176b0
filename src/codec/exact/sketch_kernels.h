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

/// Keys sorted by chunks, in whatever order inside one. Hashes spread keys evenly: chunks have
/// equal room, as many slots as cells. Only where that is not enough are they counted first.
struct SketchBins {
  uint64_t* given;      ///< keys of each chunk, and then: whether one had no room
  uint64_t* starts;     ///< of chunks that were counted: a chunk's first slot; shape.chunks + 1
  uint64_t* positions;  ///< of the keys in slots
  int64_t* numbers;     ///< their integers
  bool counted;
};

/// Adds the integers of a gradient's non-zeros to cells. Words of 64 elements whose values do not
/// all fit the window escape, and add nothing.
struct InsertCall {
  Quanta quanta;
  const void* gradient;
  const uint64_t* bitmap;  ///< of its non-zeros
  const void* kept;        ///< slots of its tiles
  uint64_t words;
  SketchShape shape;
  bool sorted;       ///< as SketchRoom says; else `bins` are not looked at
  SketchBins bins;   ///< not counted
  uint64_t* cells;   ///< plane
  uint64_t* escape;  ///< plane, and a copy of it; null by formats
  uint64_t* local_escape;
  uint32_t* top;  ///< plane: the exponent of the largest value, plus kTopBias
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

/// Which keys were peeled, of those of a chunk that has more than cells: the highest bit of their
/// positions.
inline constexpr uint64_t kPeeled = uint64_t{1} << 63;

/// What the device has for a shape.
struct SketchRoom {
  bool sorts;          ///< whether keys are sorted to be inserted
  bool counts;         ///< whether chunks have to be counted to be peeled, as there are so many
  bool peels_shared;   ///< whether a CTA peels in its own memory
  uint32_t ctas;       ///< that peel at once
  uint64_t workspace;  ///< bytes for each of them
};

struct PeelCall {
  SketchShape shape;
  SketchRoom room;
  index::CountedUnion keys;
  SketchBins bins;
  uint32_t* slots;  ///< by rank: where a key is in the bins
  uint64_t* cells;
  uint64_t* stuck;  ///< bitmap of keys.count bits
  void* workspace;
  /// Two, and the letter: stuck keys, or kNoRoom if chunks have to be counted; cells that are not
  /// zero now.
  uint64_t* found;
  cuda::Mail* mail;
  uint64_t sequence;
};
inline constexpr uint64_t kNoRoom = ~uint64_t{0};

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
  const uint32_t* slots;                         ///< of keys, by rank
  const int64_t* peeled;                         ///< by slot
  const int64_t* stuck_values;
  const void* fix_values;
  void* values;
};

struct SketchKernels {
  static constexpr const char* kPart = "sketch";
  static constexpr uint32_t kVersion = 2;

  int (*room)(const SketchShape& shape, SketchRoom* room);
  int (*insert)(const InsertCall& call, void* stream);
  int (*split)(const SplitCall& call, void* stream);
  int (*peel)(const PeelCall& call, void* stream);
  int (*pick_quanta)(const PickCall& call, void* stream);
  int (*pick_elements)(const PickCall& call, void* stream);
  int (*settle)(const SettleCall& call, void* stream);
  int (*assemble)(const AssembleCall& call, void* stream);
};

}  // namespace addend::exact
