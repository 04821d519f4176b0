// SPDX-License-Identifier: Apache-2.0
// A 64-bit digest of everything that workers must share for a step. Not cryptographic: it finds
// mistakes, not attackers.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "addend/codec.h"
#include "wire/hash.h"

namespace addend {

class Fingerprint {
 public:
  ADDEND_HOST_DEVICE Fingerprint& add(uint64_t word) {
    state_ = addend_mix64(state_ + 0x9E3779B97F4A7C15ull + word);
    return *this;
  }
  Fingerprint& add(double number) {
    uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof(bits));
    return add(bits);
  }
  Fingerprint& add(std::string_view text) {
    add(uint64_t{text.size()});
    for (const char c : text)
      add(uint64_t{static_cast<unsigned char>(c)});
    return *this;
  }
  Fingerprint& add(const Layout& layout) {
    add(static_cast<uint64_t>(layout.dtype)).add(layout.count).add(uint64_t{layout.world});
    add(layout.seed).add(layout.bucket);
    // Layouts that use neither keep the fingerprints they had before there were these fields.
    if (layout.scale != 1) add("scale").add(layout.scale);
    if (layout.segments.empty()) return *this;
    add("segments").add(uint64_t{layout.segments.size()});
    for (const Segment& segment : layout.segments)
      add(segment.id).add(segment.count);
    return *this;
  }
  ADDEND_HOST_DEVICE uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x414444454E440001ull;  // "ADDEND", plan format 1
};

}  // namespace addend
