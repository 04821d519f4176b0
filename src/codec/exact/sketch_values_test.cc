// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/sketch_values.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/bits.h"
#include "codec/exact/choose.h"
#include "wire/hash.h"

namespace addend::exact {
namespace {

// What the header promises, a word at a time.
struct Expected {
  std::vector<int64_t> quanta;
  std::vector<uint64_t> escaped;
  int top = Observation::kNoTop;
};

Expected word_by_word(const Window& window, const std::vector<uint64_t>& bitmap,
                      const std::vector<float>& values) {
  Expected expected{std::vector<int64_t>(values.size()),
                    std::vector<uint64_t>(words_for(bitmap.size())), Observation::kNoTop};
  uint64_t next = 0;
  for (uint64_t w = 0; w < bitmap.size(); ++w) {
    const uint64_t first = next;
    bool exact = true;
    for_each_bit(bitmap[w], 0, [&](uint64_t) {
      exact = window.quanta(values[next], &expected.quanta[next]) && exact;
      if (std::isfinite(values[next]))
        expected.top = std::max(expected.top, std::ilogb(values[next]));
      ++next;
    });
    if (exact) continue;
    set_bit(expected.escaped.data(), w);
    std::fill(expected.quanta.begin() + static_cast<int64_t>(first),
              expected.quanta.begin() + static_cast<int64_t>(next), 0);
  }
  return expected;
}

TEST(SketchValues, EscapeByWordsAndNowhereElse) {
  constexpr float kOdd[] = {1e30f, -1e30f, std::numeric_limits<float>::infinity(), 1e-30f,
                            std::numeric_limits<float>::quiet_NaN()};
  const Window window = Window::at(6, 4);
  for (const uint64_t words : {1, 31, 32, 33, 200}) {
    for (const uint64_t odd : {0, 1, 3, 60}) {
      std::vector<uint64_t> bitmap(words);
      std::vector<float> values;
      for (uint64_t i = 0; i < words * 64; ++i) {
        if (addend_random(words, i) % 10 != 0) continue;
        set_bit(bitmap.data(), i);
        values.push_back(std::ldexp(static_cast<float>(addend_random(odd, i) % 1000 + 1), -4));
      }
      for (uint64_t k = 0; k < odd; ++k)
        values[addend_random(words + odd, k) % values.size()] = kOdd[k % std::size(kOdd)];
      const Expected expected = word_by_word(window, bitmap, values);
      std::vector<int64_t> quanta(values.size());
      std::vector<uint64_t> escaped(words_for(words), ~uint64_t{0});
      const int top = window_quanta(DType::kF32, window, {bitmap.data(), values.data(), words * 64},
                                    quanta.data(), escaped.data());
      EXPECT_EQ(quanta, expected.quanta) << words << " words, " << odd << " odd values";
      EXPECT_EQ(escaped, expected.escaped) << words << " words, " << odd << " odd values";
      EXPECT_EQ(top, expected.top) << words << " words, " << odd << " odd values";
    }
  }
}

}  // namespace
}  // namespace addend::exact
