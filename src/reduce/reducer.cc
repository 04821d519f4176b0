// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdio>

#include "addend/reduce.h"

namespace addend {
namespace {

std::string hex(uint64_t word) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%016llx", static_cast<unsigned long long>(word));
  return text.data();
}

}  // namespace

// All workers hold w iff max(w) == w and max(~w) == ~w: one max plane of fixed size shows it to all
// of them alike. Words are sent in 32-bit halves, each compared on its own, and the plane always
// has room for kMaxAgreeWords.
Status Reducer::agree(std::span<const uint64_t> words, Deadline deadline) {
  constexpr std::size_t kLanesPerWord = 4;
  if (words.size() > kMaxAgreeWords) {
    return make_error(Errc::kInvalidArgument, "agree takes at most 8 words");
  }
  std::array<uint32_t, kMaxAgreeWords * kLanesPerWord> mine{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto low = static_cast<uint32_t>(words[i]), high = static_cast<uint32_t>(words[i] >> 32);
    mine[i * kLanesPerWord] = low;
    mine[i * kLanesPerWord + 1] = ~low;
    mine[i * kLanesPerWord + 2] = high;
    mine[i * kLanesPerWord + 3] = ~high;
  }
  std::array<uint32_t, mine.size()> seen = mine;
  Round round;
  round.add({Op::kMaxU32, seen.size(), seen.data(), nullptr, nullptr});
  ADDEND_TRY(reduce(round, deadline));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    // Lane 2k+1 holds complements: two workers differ in a half iff its maximum and the maximum of
    // its complement do not match.
    const uint32_t largest = seen[i - i % 2], smallest = ~seen[i - i % 2 + 1];
    if (i / kLanesPerWord >= words.size() || largest == smallest) continue;
    return make_error(Errc::kMismatch, "workers do not share one plan or layout: worker " +
                                           std::to_string(worker()) + " of " +
                                           std::to_string(world()) + " has word " +
                                           std::to_string(i / kLanesPerWord) + " = " +
                                           hex(words[i / kLanesPerWord]) + ", others differ");
  }
  return {};
}

}  // namespace addend
