// SPDX-License-Identifier: Apache-2.0
// Between gradients and sketch cells: every key is one integer number of quanta. In float mode all
// keys share one planned quantum, and a word of 64 elements with a value that it cannot hold
// exactly escapes: its bit is set in a small OR plane and its values are fetched as floats in the
// fix-up round. In reproducible mode the block formats give the quanta, and blocks that need more
// than one integer escape.
#pragma once

#include <cstdint>

#include "codec/exact/reproducible.h"

namespace addend::exact {

/// Makes the max lane of the largest exponent positive; 0 means that there is none.
inline constexpr int kTopBias = 256;

/// The shared quantum of float mode.
struct Window {
  int top = 0;               ///< exponent of the highest bit a value may have
  uint32_t digit_bits = 62;  ///< magnitude bits of one addend

  ADDEND_HOST_DEVICE int quantum() const { return top - static_cast<int>(digit_bits) + 1; }
  /// Whether `value` is a whole number of quanta inside the window; stores it if so.
  ADDEND_HOST_DEVICE bool quanta(float value, int64_t* out) const {
    const double inverse = power_of_two(-quantum());
    const double limit = power_of_two(static_cast<int>(digit_bits));
    const double scaled = static_cast<double>(value) * inverse;
    if (!(scaled < limit && scaled > -limit)) return false;  // also NaN
    *out = to_quanta(value, inverse);
    return static_cast<double>(*out) == scaled;
  }

  static Window at(int top, uint32_t world);
};

/// Writes one integer per non-zero; sets the bit of each word that escapes, whose integers are then
/// zero. Returns the exponent of the largest value's highest bit (for the next step's window), or
/// Observation::kNoTop.
int window_quanta(DType dtype, const Window& window, const NonZeros& nonzeros, int64_t* quanta,
                  uint64_t* escaped_words);

}  // namespace addend::exact
