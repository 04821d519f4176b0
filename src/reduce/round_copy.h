// SPDX-License-Identifier: Apache-2.0
// The bytes of a round's planes, kept while the planes themselves are written to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "addend/plane.h"
#include "base/bits.h"
#include "base/buffer.h"

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

  Status take(const Round& round, Of what) {
    ADDEND_TRY(make_room(words_of(round, what)));
    uint64_t* to = data();
    for (const Plane& plane : round) {
      const uint64_t words = words_of(plane, what);
      if (words == 0) continue;
      to[words - 1] = 0;  // its last bytes may not be the plane's
      std::memcpy(to, memory_of(plane, what), bytes_of(plane, what));
      to += words;
    }
    return {};
  }
  Status take(const RoundCopy& other) {
    ADDEND_TRY(make_room(other.words_));
    std::memcpy(data(), other.buffer_.as<uint64_t>(), words_ * sizeof(uint64_t));
    return {};
  }
  /// REQUIRES: words_of(round, what) == words().
  void give(Round& round, Of what) const {
    const uint64_t* from = buffer_.as<uint64_t>();
    for (const Plane& plane : round) {
      if (bytes_of(plane, what) == 0) continue;
      std::memcpy(memory_of(plane, what), from, bytes_of(plane, what));
      from += words_of(plane, what);
    }
  }

  /// So many words of nothing, which take no memory before they are written to if they are many.
  Status blank(uint64_t words) {
    buffer_ = Buffer();
    ADDEND_TRY(make_room(words));
    std::memset(data(), 0, std::min(words * sizeof(uint64_t), Buffer::kZeroFrom));
    return {};
  }
  void clear() { words_ = 0; }
  uint64_t words() const { return words_; }
  /// The copy itself as a plane of bits.
  Round as_bits() {
    Round round;
    round.add({Op::kOrU64, words_, data(), nullptr, nullptr});
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

  uint64_t* data() { return buffer_.as<uint64_t>(); }
  Status make_room(uint64_t words) {
    words_ = 0;
    ADDEND_TRY(buffer_.reserve(words * sizeof(uint64_t)));
    words_ = words;
    return {};
  }

  Buffer buffer_;
  uint64_t words_ = 0;
};

}  // namespace addend
