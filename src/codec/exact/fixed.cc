// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/fixed.h"

namespace addend::exact {

uint32_t most_digits(uint32_t world) {
  return Fixed::holding({kHighestBit, kLowestBit, false}, world).digits;
}

bool Fixed::holds(float value) const {
  if (!is_finite(value)) return special;
  BitRange range;
  range.include(value);
  return range.top < range.low ||
         (range.low >= quantum && range.top < quantum + static_cast<int>(digits * digit_bits));
}

}  // namespace addend::exact
