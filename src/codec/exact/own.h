// SPDX-License-Identifier: Apache-2.0
// One worker's non-zeros as a message of its own, for steps in which everybody's go to everybody
// and nothing is added on the way. docs/formats/exact.md, "Gather".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "addend/codec.h"
#include "addend/plane.h"
#include "addend/result.h"
#include "codec/exact/reproducible.h"

namespace addend::exact {

/// A message is made of u64 lanes:
///
///   1 lane    how many non-zeros there are
///   1 lane    how many bytes the index has
///   index     runs of non-zeros as numbers of 7 bits a byte, zeros up to a whole lane
///   values    in order, zeros up to a whole lane
///
/// A worker without non-zeros has a message of no lanes.
uint64_t own_lanes(const NonZeros& own, uint64_t nonzeros, uint32_t width);

/// Writes it, with the values times scale. REQUIRES: room for own_lanes(...), all zero.
void write_own(const NonZeros& own, uint64_t nonzeros, DType dtype, float scale, uint64_t* lanes);

/// Lanes of all workers' messages, as they were summed, as bounds of the messages' plane; returns
/// those of the longest. `own` is this worker's.
Result<uint64_t> bound_messages(std::span<const uint64_t> sizes, const Layout& layout, uint64_t own,
                                std::vector<uint64_t>& bounds);

/// What a codec says of lanes that are no message.
Error no_message();

/// A message that was found to be one.
class OwnMessage {
 public:
  /// Checks that the lanes are a message about `count` elements. They must outlive it.
  static Result<OwnMessage> read(const uint64_t* lanes, uint64_t size, uint64_t count, DType dtype);

  /// Sets the bits of its positions.
  void mark(uint64_t* bitmap) const;
  /// gradient[position] += value, as planes add. REQUIRES: natural alignment.
  void add_to(void* gradient) const;

 private:
  template <typename Visit>
  bool for_each_run(Visit&& visit) const;

  DType dtype_ = DType::kF32;
  uint64_t nonzeros_ = 0;
  const uint8_t* index_ = nullptr;
  uint64_t index_bytes_ = 0;
  const void* values_ = nullptr;
};

}  // namespace addend::exact
