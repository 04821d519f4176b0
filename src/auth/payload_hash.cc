// SPDX-License-Identifier: Apache-2.0
// Per vector: one load of payload, two of key (for two payloads at once: one), two additions, two
// shifts, two products, two sums. Bound by the arithmetic where a vector has 64 bytes; runs from
// the first-level cache.
#include "auth/payload_hash.h"

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/simd.h"
#include "wire/tag.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "auth/payload_hash.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::auth::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<uint32_t>;
using D64 = hn::Repartition<uint64_t, D>;

// Loads once. GCC would rather read memory again for the second sum than keep the vector, and most
// of these loads cross a cache line.
HWY_INLINE hn::Vec<D> load(const void* from) {
  auto words =
      hn::BitCast(D(), hn::LoadU(hn::Repartition<uint8_t, D>(), static_cast<const uint8_t*>(from)));
#if HWY_ARCH_X86
  asm("" : "+x"(words.raw));
#endif
  return words;
}

HWY_INLINE hn::Vec<D64> products(hn::Vec<D> words) {
  return hn::MulEven(words, hn::BitCast(D(), hn::ShiftRight<32>(hn::BitCast(D64(), words))));
}

// Not SumOfLanes: with AVX-512 it adds as signed numbers, which must not wrap.
HWY_INLINE PayloadHash sums_of(hn::Vec<D64> sum0, hn::Vec<D64> sum1) {
  HWY_ALIGN uint64_t pairs[HWY_MAX_BYTES / 8];
  hn::Store(hn::Add(hn::InterleaveLower(D64(), sum0, sum1), hn::InterleaveUpper(D64(), sum0, sum1)),
            D64(), pairs);
  PayloadHash sums{};
  for (uint64_t i = 0; i < hn::Lanes(D64()); i += 2) {
    sums[0] += pairs[i];
    sums[1] += pairs[i + 1];
  }
  return sums;
}

// Both hash whole vectors and return how many bytes that covered.
uint64_t hash_one_kernel(const uint32_t* HWY_RESTRICT key, const uint8_t* HWY_RESTRICT payload,
                         uint64_t bytes, PayloadHash& hash) {
  const uint64_t step = hn::Lanes(D()) * 4;
  auto sum0 = hn::Zero(D64()), sum1 = sum0;
  uint64_t at = 0;
  for (; at + step <= bytes; at += step) {
    const auto words = load(payload + at);
    const uint32_t* k = key + at / 4;
    sum0 = hn::Add(sum0, products(hn::Add(words, hn::LoadU(D(), k))));
    sum1 = hn::Add(sum1, products(hn::Add(words, hn::LoadU(D(), k + ADDEND_TAG_SHIFT_WORDS))));
  }
  hash = sums_of(sum0, sum1);
  return at;
}

uint64_t hash_two_kernel(const uint32_t* HWY_RESTRICT key, const uint8_t* HWY_RESTRICT a,
                         const uint8_t* HWY_RESTRICT b, uint64_t bytes, PayloadHash* hashes) {
  const uint64_t step = hn::Lanes(D()) * 4;
  // Frames of a super-packet lie in a row: the next two are at the same distance again. Only a
  // guess, which costs nothing where it is wrong.
  const auto next_a = reinterpret_cast<uintptr_t>(b) * 2 - reinterpret_cast<uintptr_t>(a);
  const auto next_b = next_a + (reinterpret_cast<uintptr_t>(b) - reinterpret_cast<uintptr_t>(a));
  auto a0 = hn::Zero(D64()), a1 = a0, b0 = a0, b1 = a0;
  uint64_t at = 0;
  for (; at + step <= bytes; at += step) {
    hwy::Prefetch(reinterpret_cast<const uint8_t*>(next_a + at));
    hwy::Prefetch(reinterpret_cast<const uint8_t*>(next_b + at));
    const auto k0 = load(key + at / 4), k1 = load(key + at / 4 + ADDEND_TAG_SHIFT_WORDS);
    const auto words_a = load(a + at), words_b = load(b + at);
    a0 = hn::Add(a0, products(hn::Add(words_a, k0)));
    a1 = hn::Add(a1, products(hn::Add(words_a, k1)));
    b0 = hn::Add(b0, products(hn::Add(words_b, k0)));
    b1 = hn::Add(b1, products(hn::Add(words_b, k1)));
  }
  hashes[0] = sums_of(a0, a1);
  hashes[1] = sums_of(b0, b1);
  return at;
}

}  // namespace
}  // namespace addend::auth::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend::auth {
namespace {

HWY_EXPORT(hash_one_kernel);
HWY_EXPORT(hash_two_kernel);

void hash_tail(const uint32_t* key, std::span<const uint8_t> payload, uint64_t at,
               PayloadHash& hash) {
  for (; at < payload.size(); at += 8) {
    uint64_t pair = 0;
    std::memcpy(&pair, payload.data() + at, std::min<uint64_t>(8, payload.size() - at));
    hash[0] += addend_tag_hash_pair(pair, key + at / 4);
    hash[1] += addend_tag_hash_pair(pair, key + at / 4 + ADDEND_TAG_SHIFT_WORDS);
  }
}

}  // namespace

PayloadHash reference::hash_payload(const uint32_t* key,
                                    std::span<const uint8_t> payload) noexcept {
  PayloadHash hash{};
  hash_tail(key, payload, 0, hash);
  return hash;
}

PayloadHash hash_payload(const uint32_t* key, std::span<const uint8_t> payload) noexcept {
  if (scalar_forced()) return reference::hash_payload(key, payload);
  PayloadHash hash;
  const uint64_t done =
      HWY_DYNAMIC_DISPATCH(hash_one_kernel)(key, payload.data(), payload.size(), hash);
  hash_tail(key, payload, done, hash);
  return hash;
}

std::array<PayloadHash, 2> hash_two_payloads(const uint32_t* key, std::span<const uint8_t> a,
                                             std::span<const uint8_t> b) noexcept {
  ADDEND_ASSERT(a.size() == b.size());
  if (scalar_forced()) return {reference::hash_payload(key, a), reference::hash_payload(key, b)};
  std::array<PayloadHash, 2> hashes;
  const uint64_t done =
      HWY_DYNAMIC_DISPATCH(hash_two_kernel)(key, a.data(), b.data(), a.size(), hashes.data());
  hash_tail(key, a, done, hashes[0]);
  hash_tail(key, b, done, hashes[1]);
  return hashes;
}

}  // namespace addend::auth
#endif
