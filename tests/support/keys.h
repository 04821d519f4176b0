// SPDX-License-Identifier: Apache-2.0
// Keys that are easy to tell apart: one byte, repeated.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "addend/access.h"
#include "auth/frame_key.h"

namespace addend::testing_support {

inline ServiceKey key_of(uint8_t fill) {
  ServiceKey key;
  key.bytes.fill(fill);
  return key;
}

inline auth::Secret secret_of(uint8_t fill) {
  std::array<uint8_t, auth::Secret::kBytes> bytes;
  bytes.fill(fill);
  return auth::Secret{std::span<const uint8_t, auth::Secret::kBytes>(bytes)};
}

}  // namespace addend::testing_support
