// SPDX-License-Identifier: Apache-2.0
// Per vector: one load of payload, two of key, two additions, two products. Reads 3 bytes for each
// byte of payload; runs from the first-level cache.
#include "auth/payload_hash.h"

#include <algorithm>
#include <cstring>

#include "base/simd.h"
#include "wire/tag.h"

#define HWY_WANT_AVX3_DL 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "auth/payload_hash.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::auth::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Adds the products of whole vectors to `hash` and returns how many bytes that covered.
uint64_t whole_vectors(const uint32_t* HWY_RESTRICT key, const uint8_t* HWY_RESTRICT payload,
                       uint64_t bytes, uint64_t* HWY_RESTRICT hash) {
  const hn::ScalableTag<uint32_t> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  const uint64_t step = hn::Lanes(d) * 4;
  auto sum0 = hn::Zero(d64), sum1 = hn::Zero(d64);
  const auto products = [&](hn::Vec<decltype(d)> words) HWY_ATTR {
    return hn::MulEven(words, hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, words))));
  };
  uint64_t at = 0;
  for (; at + step <= bytes; at += step) {
    const auto words =
        hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, decltype(d)>(), payload + at));
    const uint32_t* k = key + at / 4;
    sum0 = hn::Add(sum0, products(hn::Add(words, hn::LoadU(d, k))));
    sum1 = hn::Add(sum1, products(hn::Add(words, hn::LoadU(d, k + ADDEND_TAG_SHIFT_WORDS))));
  }
  // Not SumOfLanes: with AVX-512 it adds as signed numbers, which must not wrap.
  HWY_ALIGN uint64_t lanes[2][HWY_MAX_BYTES / 8];
  hn::Store(sum0, d64, lanes[0]);
  hn::Store(sum1, d64, lanes[1]);
  for (uint64_t i = 0; i < hn::Lanes(d64); ++i) {
    hash[0] += lanes[0][i];
    hash[1] += lanes[1][i];
  }
  return at;
}

}  // namespace
}  // namespace addend::auth::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend::auth {
namespace {

HWY_EXPORT(whole_vectors);

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
  PayloadHash hash{};
  const uint64_t done =
      HWY_DYNAMIC_DISPATCH(whole_vectors)(key, payload.data(), payload.size(), hash.data());
  hash_tail(key, payload, done, hash);
  return hash;
}

}  // namespace addend::auth
#endif
