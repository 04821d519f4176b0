// SPDX-License-Identifier: Apache-2.0
#include "codec/index/bloom.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/bits.h"
#include "base/simd.h"
#include "codec/index/bloom_probe.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/index/bloom.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::index::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Hashes after which some word is likely to hold nothing; before, nobody asks.
constexpr uint32_t kFirstHashes = 6;

// One word a lane of two vectors, whose gathers overlap, until nothing is held. The bit of a filter
// is shifted from the product with its words, not its bits: factors have 32 bits.
void find_words(const BloomShape& shape, const uint64_t* HWY_RESTRICT filter, uint64_t words,
                uint64_t* HWY_RESTRICT bitmap) {
  const hn::CappedTag<uint64_t, 8> d;
  using Words = hn::Vec<decltype(d)>;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Repartition<uint32_t, decltype(d)> d32;
  const uint64_t n = hn::Lanes(d);
  const auto low_half = hn::Set(d, 0xFFFFFFFFu), multiplier = hn::Set(d, BloomProbe::kMultiplier);
  const auto filter_words = hn::Set(d, shape.words), rotation = hn::Set(d, 63);
  const auto multiply = [&](Words a, Words b) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
  };
  const auto look = [&](Words state) HWY_ATTR {
    const auto bit = hn::ShiftRight<26>(multiply(state, filter_words));
    const auto from = hn::GatherIndex(d, filter, hn::BitCast(di, hn::ShiftRight<6>(bit)));
    const auto left = hn::And(hn::Sub(hn::Zero(d), bit), rotation);
    return hn::Or(hn::Shr(from, hn::And(bit, rotation)), hn::Shl(from, left));
  };
  const auto next = [&](Words state, Words increment) HWY_ATTR {
    return hn::And(hn::Add(multiply(state, multiplier), increment), low_half);
  };
  uint64_t w = 0;
  for (; w + 2 * n <= words; w += 2 * n) {
    alignas(64) std::array<uint64_t, 16> hashes;
    for (uint64_t lane = 0; lane < 2 * n; ++lane)
      hashes[lane] = addend_random(shape.seed, w + lane);
    const auto hash_a = hn::Load(d, hashes.data()), hash_b = hn::LoadU(d, hashes.data() + n);
    auto a = hn::And(hash_a, low_half), b = hn::And(hash_b, low_half);
    const auto add_a = hn::ShiftRight<32>(hash_a), add_b = hn::ShiftRight<32>(hash_b);
    auto held_a = look(a), held_b = look(b);
    for (uint32_t j = 1; j < shape.hashes; ++j) {
      a = next(a, add_a);
      b = next(b, add_b);
      held_a = hn::And(held_a, look(a));
      held_b = hn::And(held_b, look(b));
      if (j >= kFirstHashes && hn::AllTrue(d, hn::Eq(hn::Or(held_a, held_b), hn::Zero(d)))) break;
    }
    hn::StoreU(held_a, d, bitmap + w);
    hn::StoreU(held_b, d, bitmap + w + n);
  }
  for (; w < words; ++w)
    bitmap[w] = bloom_word(shape, filter, w);
}

}  // namespace
}  // namespace addend::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend::index {

HWY_EXPORT(find_words);

// With half of the filter's bits set, k hashes let through 2^-k of the other positions and take k /
// ln 2 bits a key. The sum is least at 2^-k = keys / (count * value_bits * ln^2 2); k is the
// nearest integer.
BloomShape BloomShape::plan(uint64_t keys, uint64_t count, uint32_t value_bits, uint64_t seed) {
  constexpr double kNearest = 2.94;  // sqrt 2 / ln^2 2
  constexpr double kBitsOfHash = 1.4427;
  BloomShape shape;
  shape.seed = seed;
  const auto held = static_cast<double>(std::max<uint64_t>(keys, 1));
  double passed = held * kNearest * 2;
  for (; shape.hashes < kMaxHashes && passed < static_cast<double>(count) * value_bits; passed *= 2)
    ++shape.hashes;
  const double words = std::ceil(held * shape.hashes * kBitsOfHash / 64);
  shape.words = words < static_cast<double>(kMaxWords) ? static_cast<uint64_t>(words) : kMaxWords;
  return shape;
}

void bloom_insert(const BloomShape& shape, const uint64_t* bitmap, uint64_t bitmap_words,
                  uint64_t* filter) {
  std::fill_n(filter, shape.words, 0);
  for (uint64_t w = 0; w < bitmap_words; ++w) {
    if (bitmap[w] == 0) continue;
    BloomProbe probe(shape.seed, w);
    for (uint32_t j = 0; j < shape.hashes; ++j, probe.next()) {
      const uint64_t bit = probe.bit(shape.words * 64);
      filter[bit / 64] |= rotated_left(bitmap[w], bit % 64);
    }
  }
}

void bloom_find(const BloomShape& shape, const uint64_t* filter, uint64_t bitmap_words,
                uint64_t* bitmap) {
  if (!scalar_forced()) {
    HWY_DYNAMIC_DISPATCH(find_words)(shape, filter, bitmap_words, bitmap);
    return;
  }
  for (uint64_t w = 0; w < bitmap_words; ++w)
    bitmap[w] = bloom_word(shape, filter, w);
}

// A position that was not put in passes with the probability fill^hashes, so of n that were put in
// found = n + (count - n) * passing. No libm: all workers must come to the same figure.
double bloom_false(const BloomShape& shape, uint64_t set, uint64_t count, uint64_t found) {
  const auto bits = static_cast<double>(shape.words * 64);
  const double fill = static_cast<double>(set) / bits;
  double passing = 1;
  for (uint32_t j = 0; j < shape.hashes; ++j)
    passing *= fill;
  const auto all = static_cast<double>(count), held = static_cast<double>(found);
  if (passing >= 1) return held;
  return std::clamp(held - (held - all * passing) / (1 - passing), 0.0, held);
}

}  // namespace addend::index
#endif
