// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/sketch_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bits.h"
#include "codec/exact/choose.h"

namespace addend::exact {

Window Window::at(int top, uint32_t world) { return {top, 63 - ceil_log2(world)}; }

int window_quanta(DType dtype, const Window& window, const NonZeros& nonzeros, int64_t* quanta,
                  uint64_t* escaped_words) {
  const double scale = std::ldexp(1.0, -window.quantum());
  const double limit = std::ldexp(1.0, static_cast<int>(window.digit_bits));
  const uint64_t words = words_for(nonzeros.count);
  std::memset(escaped_words, 0, words_for(words) * 8);
  uint32_t largest = 0;
  uint64_t next = 0;
  for (uint64_t w = 0; w < words; ++w) {
    const uint64_t stop = next + static_cast<uint64_t>(std::popcount(nonzeros.bitmap[w]));
    const uint64_t first = next;
    bool exact = true;
    for (; next < stop; ++next) {
      const float value = load_float(dtype, nonzeros.values, next);
      const double scaled = static_cast<double>(value) * scale;
      // A value beyond the window converts to a number that does not convert back.
      const bool inside = std::fabs(scaled) < limit;
      const int64_t whole = inside ? std::llrint(scaled) : 0;
      exact = exact && inside && static_cast<double>(whole) == scaled;
      quanta[next] = whole;
      if (is_finite(value)) largest = std::max(largest, addend_f32_bits(value) & 0x7FFFFFFFu);
    }
    if (exact) continue;
    set_bit(escaped_words, w);
    std::fill(quanta + first, quanta + stop, 0);
  }
  BitRange range;
  range.include(addend_f32_from_bits(largest));
  return largest == 0 ? Observation::kNoTop : range.top;
}

}  // namespace addend::exact
