// SPDX-License-Identifier: Apache-2.0
// The bytes of a round's planes, kept while the planes themselves are written to.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "addend/plane.h"
#include "base/bits.h"

namespace addend {

class RoundCopy {
 public:
  enum class Of : uint8_t { kContribution, kSums };

  static uint64_t words_of(const Round& round, Of what) {
    uint64_t words = 0;
    for (const Plane& plane : round)
      words += words_of(plane, what);
    return words;
  }

  void take(const Round& round, Of what) {
    words_.resize(words_of(round, what));
    uint64_t* to = words_.data();
    for (const Plane& plane : round) {
      const uint64_t words = words_of(plane, what);
      if (words == 0) continue;
      to[words - 1] = 0;  // its last bytes may not be the plane's
      std::memcpy(to, memory_of(plane, what), bytes_of(plane, what));
      to += words;
    }
  }
  /// REQUIRES: words_of(round, what) == words().
  void give(Round& round, Of what) const {
    const uint64_t* from = words_.data();
    for (const Plane& plane : round) {
      if (bytes_of(plane, what) == 0) continue;
      std::memcpy(memory_of(plane, what), from, bytes_of(plane, what));
      from += words_of(plane, what);
    }
  }

  /// So many words of nothing.
  void blank(uint64_t words) { words_.assign(words, 0); }
  uint64_t words() const { return words_.size(); }
  /// The copy itself as a plane of bits.
  Round as_bits() {
    Round round;
    round.add({Op::kOrU64, words_.size(), words_.data(), nullptr, nullptr});
    return round;
  }

 private:
  static uint64_t bytes_of(const Plane& plane, Of what) {
    return what == Of::kSums ? op_sum_bytes(plane.op, plane.lanes)
                             : op_bytes(plane.op, plane.lanes);
  }
  static uint64_t words_of(const Plane& plane, Of what) {
    return ceil_div(bytes_of(plane, what), sizeof(uint64_t));
  }
  static void* memory_of(const Plane& plane, Of what) {
    return what == Of::kSums && is_table_sum(plane.op) ? plane.sums : plane.data;
  }

  std::vector<uint64_t> words_;
};

}  // namespace addend
