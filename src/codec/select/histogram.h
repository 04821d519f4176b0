// SPDX-License-Identifier: Apache-2.0
// How many elements there are of each magnitude, by exponent and three bits of mantissa: one pass
// says where every density would cut. docs/algorithms/select.md.
#pragma once

#include <array>
#include <cstdint>

#include "addend/plane.h"

namespace addend::select {

class Histogram {
 public:
  /// Of the bits of an f32 without its sign, the highest 11.
  static constexpr uint32_t kBins = 2048;
  static constexpr uint32_t kShift = 20;
  /// Bins from here on are infinities and NaN, which are above every magnitude.
  static constexpr uint32_t kFirstNonFinite = 2040;

  /// The least bits, without a sign, of a bin's magnitudes. REQUIRES: bin <= kBins.
  static constexpr uint32_t least_bits(uint32_t bin) { return bin << kShift; }

  uint64_t& operator[](uint32_t bin) { return counts_[bin]; }
  uint64_t operator[](uint32_t bin) const { return counts_[bin]; }
  void add(const Histogram& other);
  void clear() { counts_.fill(0); }

  /// All of them, zeros too.
  uint64_t elements() const;
  uint64_t nonfinite() const;

  /// Where the `kept` largest end: in `bin`, below `above` elements of higher bins. Ends in bin 0
  /// if there are no more.
  struct Cut {
    uint32_t bin = 0;
    uint64_t above = 0;
  };
  Cut cut(uint64_t kept) const;

  /// About so many elements are at least this large: within 1 % where a bin's magnitudes are spread
  /// like its neighbours'. Infinite where only what is not finite would be kept, 0 where all.
  float threshold(double density) const;

 private:
  uint64_t wanted(double density) const;

  std::array<uint64_t, kBins> counts_{};
};

/// Elements to look at, with what error feedback owes them.
struct Addends {
  DType dtype = DType::kF32;
  const void* gradient = nullptr;
  const float* residual = nullptr;  ///< null: nothing is owed
};

/// Counts the magnitudes of gradient[i] + residual[i], an f32. Where `sums` is not null, they are
/// written there. REQUIRES: sums overlaps neither.
void count_magnitudes(const Addends& addends, uint64_t count, float* sums, Histogram& into);

}  // namespace addend::select
