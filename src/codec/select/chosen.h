// SPDX-License-Identifier: Apache-2.0
// What was selected of a gradient: elements in order, by chunks of positions, each with memory of
// its own so that threads fill them at once; and how a selection ends at a cut.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/chunks.h"
#include "codec/index/sparse.h"
#include "codec/select/cut.h"

namespace addend::select {

/// Elements of begin .. end, within one chunk.
struct Stretch {
  uint64_t begin = 0, end = 0;
  float* values = nullptr;
  uint16_t* places = nullptr;  ///< after begin, of candidates
  uint64_t count = 0;
};

uint64_t total_of(std::span<const Stretch> stretches);

class Chosen {
 public:
  /// `places`: of candidates that may have to go back.
  Status reserve(uint64_t count, bool places);
  /// Of a step whose positions will be in this bitmap.
  void start(uint64_t* bitmap);

  /// Cuts begin .. end at multiples of kChunkElements. The first stretch goes on where the last
  /// range ended. Valid until the next call.
  std::span<Stretch> stretches(uint64_t begin, uint64_t end);
  /// The stretches have their counts.
  void accept(std::span<const Stretch> filled);

  uint64_t* bitmap() const { return bitmap_; }
  uint64_t size() const;
  float* values(uint64_t chunk) { return values_.as<float>() + chunk * room_; }
  const float* values(uint64_t chunk) const { return values_.as<float>() + chunk * room_; }
  std::span<uint64_t> counts() { return counts_; }
  std::span<const uint64_t> counts() const { return counts_; }
  /// For a carrier; elements are those of its layout's type by then.
  index::Sparse sparse() const { return {bitmap_, values_.as<void>(), room_ * 4, counts_.data()}; }

  uint64_t memory_bytes() const;

 private:
  uint64_t room_ = 0;  // elements of a chunk
  uint64_t* bitmap_ = nullptr;
  Buffer values_;
  Buffer places_;  // u16 for each of them, if any
  std::vector<uint64_t> counts_;
  std::vector<Stretch> stretches_;
};

/// Larger magnitudes travel, and of those equal to it the first `equal`. Bits without a sign.
struct Cutoff {
  uint32_t at = 0;
  uint64_t equal = 0;
};

/// All elements of a part, which has `count`, that are at least `least`, bits without a sign.
struct Candidates {
  std::span<const Stretch> stretches;
  uint32_t least = 1;
  uint64_t count = 0;
};

/// Where the `most` largest end, as keep_largest has it; none if candidates do not tell.
/// `nonfinite`: how many candidates are not finite.
std::optional<Cutoff> cutoff_of_largest(const Candidates& candidates, uint64_t most,
                                        Scratch& scratch, uint64_t* nonfinite);
/// The same for those above the histogram's threshold, as keep_above has it; candidates tell where
/// their least is that of a bin.
std::optional<Cutoff> cutoff_above(const Candidates& candidates, uint64_t about, Scratch& scratch,
                                   uint64_t* nonfinite);

/// Puts what does not travel back to `left`, and takes it from bitmap and values. REQUIRES: places;
/// they are used up.
void drop_beyond(const Cutoff& cutoff, std::span<Stretch> stretches, float* left, uint64_t* bitmap);

}  // namespace addend::select
