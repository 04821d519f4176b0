// SPDX-License-Identifier: Apache-2.0
// For fuzzers: numbers taken from the front of an input; zeros when it is used up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

namespace addend::fuzz {

inline void require(bool condition) {
  if (!condition) std::abort();
}

class Input {
 public:
  Input(const uint8_t* data, std::size_t size) : rest_(data, size), all_(data, size) {}

  bool empty() const { return rest_.empty(); }

  template <typename T>
  T take() {
    T value{};
    const std::size_t bytes = std::min(sizeof(T), rest_.size());
    if (bytes > 0) std::memcpy(&value, rest_.data(), bytes);
    rest_ = rest_.subspan(bytes);
    return value;
  }
  /// A number in [least, most].
  uint64_t between(uint64_t least, uint64_t most) {
    return least + take<uint32_t>() % (most - least + 1);
  }
  /// Fills `bytes` bytes with the whole input over and over, going on where the last call stopped.
  void cycle(void* to, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; ++i) {
      static_cast<uint8_t*>(to)[i] = all_.empty() ? uint8_t{0} : all_[next_++ % all_.size()];
    }
  }

 private:
  std::span<const uint8_t> rest_, all_;
  std::size_t next_ = 0;
};

}  // namespace addend::fuzz
