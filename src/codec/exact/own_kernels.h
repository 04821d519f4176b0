// SPDX-License-Identifier: Apache-2.0
// Messages of own non-zeros on a device (own.h): their lanes, and what is read from them. An index
// is written and read in pieces by many threads: what a piece has to know of the others is found
// first. Everything is enqueued on the stream.
#pragma once

#include <cstdint>

#include "codec/index/union_kernels.h"

namespace addend::exact {

/// A tile of 1024 positions of a bitmap, for those who write its runs.
struct OwnTile {
  uint64_t end;    ///< of the last run in the tiles before it; 0: there is none
  uint64_t gap;    ///< the first position from the next tile on that is not set
  uint64_t bytes;  ///< that the tiles before it in its group take in the index
};
inline constexpr uint64_t kOwnTile = 1024;
inline constexpr uint64_t kOwnGroup = 256;  // tiles
constexpr uint64_t own_groups(uint64_t count) { return ceil_div(count, kOwnTile * kOwnGroup); }

struct WriteOwnCall {
  const uint64_t* bitmap;  ///< no bits past the end
  uint64_t count;
  OwnTile* tiles;
  OwnTile* groups;  ///< of groups: what is in them; then, of bytes, what is before them
  uint64_t* lanes;  ///< zeros: the message but for its values
  uint64_t nonzeros;
  uint64_t bytes;  ///< of the index
};

/// A piece of an index, for those who read it: what its runs reach over, or those before it.
struct OwnPiece {
  uint64_t positions;
  uint64_t values;
  bool inside;  ///< it ends between the two numbers of a run
};
inline constexpr uint64_t kOwnPiece = 32;  // bytes

struct ReadOwnCall {
  const uint64_t* lanes;
  uint64_t size;
  uint64_t count;
  uint32_t width;
  OwnPiece* pieces;  ///< own_pieces(size) times two: where it begins between two numbers, and not
  uint64_t* bitmap;  ///< zeros: gets the message's positions
  uint32_t* broken;  ///< not 0 if it is no message
};
constexpr uint64_t own_pieces(uint64_t size) { return size * 8 / kOwnPiece + 1; }

/// gradient[position r] += values[r], as planes add.
struct AddOwnCall {
  DType dtype;
  index::CountedUnion of;
  const uint64_t* lanes;  ///< a message that was read
  void* gradient;
};

struct OwnKernels {
  static constexpr const char* kPart = "own";
  static constexpr uint32_t kVersion = 1;

  /// tiles. The letter: bytes of the index.
  int (*measure)(const WriteOwnCall& call, cuda::Mail* mail, uint64_t sequence, void* stream);
  int (*write)(const WriteOwnCall& call, void* stream);
  int (*read)(const ReadOwnCall& call, void* stream);
  int (*add)(const AddOwnCall& call, void* stream);
  /// to |= from.
  int (*merge)(const uint64_t* from, uint64_t words, uint64_t* to, void* stream);
  /// The letter: *number.
  int (*tell)(const uint32_t* number, cuda::Mail* mail, uint64_t sequence, void* stream);
};

}  // namespace addend::exact
