// SPDX-License-Identifier: Apache-2.0
// compress(d, v, bits): the selected lanes of v, in order, then anything. expand(d, from, bits):
// lane l is the next element of `from` if bit l is set, else zero. Highway 1.0.3 has no expand
// (later releases do), and its compress below AVX-512 makes g++ 12 copy a table to the stack per
// call; hence one table of ours for eight lanes, and the instructions where they exist. Re-included
// per target, hence the toggled guard.
#if defined(ADDEND_COMPACT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ADDEND_COMPACT_INL_H_
#undef ADDEND_COMPACT_INL_H_
#else
#define ADDEND_COMPACT_INL_H_
#endif

#include <hwy/highway.h>

#include "codec/index/compact_table.h"

HWY_BEFORE_NAMESPACE();
namespace addend::index::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// AVX-512 compacts 32-bit lanes in hardware; 16-bit lanes need VBMI2 (the _DL target).
constexpr bool kWide32 = true;
constexpr bool kWide16 = HWY_TARGET <= HWY_AVX3_DL;
#else
constexpr bool kWide32 = false;
constexpr bool kWide16 = false;
#endif

template <typename T>
constexpr bool kWide = sizeof(T) == 4 ? kWide32 : kWide16;

/// As many lanes as one compaction handles: a whole vector, or eight.
template <typename T>
using CompactTag = hn::CappedTag<T, kWide<T> ? 64 / sizeof(T) : 8>;

/// Targets with fewer than eight lanes of T have no compaction; callers run the scalar reference.
template <typename T>
constexpr bool kCanCompact = HWY_MAX_BYTES >= 8 * sizeof(T) && HWY_TARGET != HWY_SCALAR;

/// Stores the mask as bitmap bits and returns them. REQUIRES: 8, 16 or 32 lanes.
template <class D, typename Bits>
HWY_INLINE uint64_t store_bits(D d, hn::Mask<D> mask, uint8_t* to) {
  hn::StoreMaskBits(d, mask, to);
  Bits bits;  // exactly as wide as the mask, so that the compiler keeps it in a register
  std::memcpy(&bits, to, sizeof(bits));
  return bits;
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
using Tag32 = hn::CappedTag<uint32_t, 16>;
HWY_INLINE hn::Vec<Tag32> compress(Tag32, hn::Vec<Tag32> v, uint64_t bits) {
  return hn::Vec<Tag32>{_mm512_maskz_compress_epi32(static_cast<__mmask16>(bits), v.raw)};
}
HWY_INLINE hn::Vec<Tag32> expand(Tag32 d, const uint32_t* from, uint64_t bits) {
  const auto v = hn::LoadU(d, from);
  return hn::Vec<Tag32>{_mm512_maskz_expand_epi32(static_cast<__mmask16>(bits), v.raw)};
}
#else
template <class D, hwy::EnableIf<sizeof(hn::TFromD<D>) == 4>* = nullptr>
HWY_INLINE hn::Vec<D> permute(D d, hn::Vec<D> v, const uint8_t* lanes) {
  const hn::Rebind<uint8_t, D> d8;
  const auto indices = hn::PromoteTo(d, hn::LoadU(d8, lanes));
  return hn::TableLookupLanes(v, hn::IndicesFromVec(d, indices));
}
template <class D, hwy::EnableIf<sizeof(hn::TFromD<D>) == 4>* = nullptr>
HWY_INLINE hn::Vec<D> compress(D d, hn::Vec<D> v, uint64_t bits) {
  return permute(d, v, kCompact.compress_lanes[bits]);
}
template <class D, hwy::EnableIf<sizeof(hn::TFromD<D>) == 4>* = nullptr>
HWY_INLINE hn::Vec<D> expand(D d, const uint32_t* from, uint64_t bits) {
  return hn::IfThenElseZero(hn::LoadMaskBits(d, kCompact.bits + bits),
                            permute(d, hn::LoadU(d, from), kCompact.expand_lanes[bits]));
}
#endif

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
using Tag16 = hn::CappedTag<uint16_t, 32>;
HWY_INLINE hn::Vec<Tag16> compress(Tag16, hn::Vec<Tag16> v, uint64_t bits) {
  return hn::Vec<Tag16>{_mm512_maskz_compress_epi16(static_cast<__mmask32>(bits), v.raw)};
}
HWY_INLINE hn::Vec<Tag16> expand(Tag16 d, const uint16_t* from, uint64_t bits) {
  const auto v = hn::LoadU(d, from);
  return hn::Vec<Tag16>{_mm512_maskz_expand_epi16(static_cast<__mmask32>(bits), v.raw)};
}
#else
// Eight 16-bit lanes are one 128-bit block: a byte shuffle, in which an index of 0x80 or more gives
// zero.
template <class D, hwy::EnableIf<sizeof(hn::TFromD<D>) == 2>* = nullptr>
HWY_INLINE hn::Vec<D> shuffle(D d, hn::Vec<D> v, const uint8_t* bytes) {
  const hn::Repartition<uint8_t, D> d8;
  return hn::BitCast(d, hn::TableLookupBytesOr0(hn::BitCast(d8, v), hn::LoadU(d8, bytes)));
}
template <class D, hwy::EnableIf<sizeof(hn::TFromD<D>) == 2>* = nullptr>
HWY_INLINE hn::Vec<D> compress(D d, hn::Vec<D> v, uint64_t bits) {
  return shuffle(d, v, kCompact.compress_bytes[bits]);
}
template <class D, hwy::EnableIf<sizeof(hn::TFromD<D>) == 2>* = nullptr>
HWY_INLINE hn::Vec<D> expand(D d, const uint16_t* from, uint64_t bits) {
  return shuffle(d, hn::LoadU(d, from), kCompact.expand_bytes[bits]);
}
#endif

}  // namespace addend::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
