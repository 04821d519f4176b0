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

namespace {

// From values to integers of a window.
struct Conversion {
  DType dtype;
  double factor;
  double limit;
  uint32_t largest = 0;  // bits of the largest finite magnitude so far

  // Whether the integers are all that the values are.
  bool operator()(const void* values, uint64_t first, uint64_t count, int64_t* quanta) {
    constexpr uint32_t kInfinity = 0x7F800000u;
    uint32_t most = largest;
    bool exact = true;
    for (uint64_t i = first; i < first + count; ++i) {
      const float value = load_float(dtype, values, i);
      const double scaled = static_cast<double>(value) * factor;
      // A value beyond the window becomes 0, which is not what it was.
      const int64_t whole = std::llrint(std::fabs(scaled) < limit ? scaled : 0.0);
      exact = exact && static_cast<double>(whole) == scaled;
      quanta[i] = whole;
      const uint32_t magnitude = addend_f32_bits(value) & 0x7FFFFFFFu;
      most = std::max(most, magnitude < kInfinity ? magnitude : 0);
    }
    largest = most;
    return exact;
  }
};

}  // namespace

// Words are looked at one by one only where many together are not all exact: they are nearly always
// exact, and a loop over one word's few values would mostly guess its end wrong.
int window_quanta(DType dtype, const Window& window, const NonZeros& nonzeros, int64_t* quanta,
                  uint64_t* escaped_words) {
  constexpr uint64_t kWordsAtOnce = 32;
  Conversion convert{dtype, std::ldexp(1.0, -window.quantum()),
                     std::ldexp(1.0, static_cast<int>(window.digit_bits))};
  const uint64_t words = words_for(nonzeros.count);
  std::memset(escaped_words, 0, words_for(words) * 8);
  uint64_t next = 0;
  for (uint64_t begin = 0; begin < words; begin += kWordsAtOnce) {
    const uint64_t end = std::min(begin + kWordsAtOnce, words);
    const uint64_t held = popcount({nonzeros.bitmap + begin, end - begin});
    if (convert(nonzeros.values, next, held, quanta)) {
      next += held;
      continue;
    }
    for (uint64_t w = begin; w < end; ++w) {
      const auto here = static_cast<uint64_t>(std::popcount(nonzeros.bitmap[w]));
      if (!convert(nonzeros.values, next, here, quanta)) {
        set_bit(escaped_words, w);
        std::fill_n(quanta + next, here, 0);
      }
      next += here;
    }
  }
  BitRange range;
  range.include(addend_f32_from_bits(convert.largest));
  return convert.largest == 0 ? Observation::kNoTop : range.top;
}

}  // namespace addend::exact
