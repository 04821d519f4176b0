// SPDX-License-Identifier: Apache-2.0
// The universal hash of a payload: NH (Black, Halevi, Krawczyk, Krovetz, Rogaway, CRYPTO '99) on
// 32-bit words, twice, the second time with the key shifted by four words.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace addend::auth {

using PayloadHash = std::array<uint64_t, 2>;

/// Two equal lengths collide with probability 2^-64 over the key. REQUIRES: key has
/// ADDEND_TAG_HASH_WORDS(payload.size()) words. A last pair of words is filled up with zeros.
PayloadHash hash_payload(const uint32_t* key, std::span<const uint8_t> payload) noexcept;

/// The same of two payloads of one length, which takes less time than one after the other.
std::array<PayloadHash, 2> hash_two_payloads(const uint32_t* key, std::span<const uint8_t> a,
                                             std::span<const uint8_t> b) noexcept;

namespace reference {
PayloadHash hash_payload(const uint32_t* key, std::span<const uint8_t> payload) noexcept;
}

}  // namespace addend::auth
