// SPDX-License-Identifier: Apache-2.0
// Stretches of a gradient that lie far apart: waiting for the memory of each in turn takes longer
// than copying it, so the beginnings of several are fetched before the first is visited. What lies
// behind a beginning the processor fetches by itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace addend::index {

/// Calls visit(stretch), of a function that outlives it, for all that were added, in their order,
/// at the latest in flush().
template <typename Stretch, typename Visit>
class Ahead {
 public:
  explicit Ahead(const Visit& visit) : visit_(visit) {}

  /// `begin`: the first of the `bytes` that visiting it will read or write.
  void add(const Stretch& stretch, const void* begin, uint64_t bytes) {
    for (uint64_t i = 0; i < std::min(bytes, kMostBytes); i += kLineBytes)
      __builtin_prefetch(static_cast<const uint8_t*>(begin) + i);
    held_[count_++] = stretch;
    if (count_ == kMost) flush();
  }

  void flush() {
    for (uint64_t i = 0; i < count_; ++i)
      visit_(held_[i]);
    count_ = 0;
  }

 private:
  static constexpr uint64_t kMost = 32, kMostBytes = 256, kLineBytes = 64;

  const Visit& visit_;
  std::array<Stretch, kMost> held_;
  uint64_t count_ = 0;
};

}  // namespace addend::index
