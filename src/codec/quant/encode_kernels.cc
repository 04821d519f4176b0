// SPDX-License-Identifier: Apache-2.0
// What encoding does to a block (block.h), on the best instruction set. A block stays in a
// first-level cache, so the cost is arithmetic: per vector of sixteen elements about 8 operations
// inside it and 1 per further stage for the transform, and about 15 for rounding. Vectors narrower
// than sixteen lanes add up their part of the sixteen running sums one after the other.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/simd.h"
#include "codec/quant/block.h"
#include "codec/quant/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/quant/encode_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/quant/transform-inl.h"

HWY_BEFORE_NAMESPACE();
namespace addend::quant::HWY_NAMESPACE {
namespace {

// The energy of what `element(i)` gives for the vectors from 0 to n.
template <typename Element>
HWY_INLINE float energy_of(uint64_t n, Element element) {
  const DF d;
  VF running[kGroups];
  for (VF& sum : running)
    sum = hn::Zero(d);
  for (uint64_t i = 0; i < n; i += kLanes) {
    for (uint32_t g = 0; g < kGroups; ++g) {
      const VF v = element(i + g * kWidth);
      running[g] = hn::Add(running[g], hn::Mul(v, v));
    }
  }
  HWY_ALIGN float sums[kLanes];
  for (uint32_t g = 0; g < kGroups; ++g)
    hn::Store(running[g], d, sums + g * kWidth);
  for (uint32_t half = kLanes / 2; half > 0; half /= 2) {
    for (uint32_t l = 0; l < half; ++l)
      sums[l] += sums[l + half];
  }
  return sums[0];
}

float energy_kernel(const float* x, uint64_t n) {
  return energy_of(n, [&](uint64_t i) HWY_ATTR { return hn::LoadU(DF(), x + i); });
}

float add_owed_kernel(const float* x, const float* owed, uint64_t n, float* sum, bool past) {
  const DF d;
  const VF zero = hn::Zero(d);
  past = past && can_stream(sum);
  return energy_of(n, [&](uint64_t i) HWY_ATTR {
    const VF v = hn::Add(hn::LoadU(d, x + i), hn::Add(zero, hn::LoadU(d, owed + i)));
    write(v, sum + i, past);
    return v;
  });
}

void rotate_kernel(const float* x, const uint64_t* signs, uint64_t n, float* y, const float* next) {
  if (next == nullptr) next = x;
  first_stages(n, y, [&](uint64_t i) HWY_ATTR {
    if (i % (2 * kLanes) == 0) hwy::Prefetch(next + i / 2);
    return flipped(hn::LoadU(DF(), x + i), signs, i);
  });
  stages_from(y, n, kAfterFirst, [y](VF v, uint64_t i) HWY_ATTR { hn::StoreU(v, DF(), y + i); });
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
// table[cell], for tables that fit registers (kRegisters of 16 cells) or, with kRegisters 0, from
// memory.
template <uint32_t kRegisters>
class Lookup {
 public:
  using Cells = VI;

  HWY_INLINE explicit Lookup(const float* table) : table_(table) {
    for (uint32_t r = 0; r < kRegisters; ++r)
      registers_[r] = hn::LoadU(DF(), table + r * kLanes);
  }
  static HWY_INLINE Cells cells(VI cell) { return cell; }
  HWY_INLINE VF operator()(VI cell) const {
    const DF d;
    // Two registers hold 32 entries, four hold 64; Highway 1.0.3 has no two-table lookup.
    if constexpr (kRegisters >= 2) {
      const VF low{_mm512_permutex2var_ps(registers_[0].raw, cell.raw, registers_[1].raw)};
      if constexpr (kRegisters == 2) return low;
      const VF high{_mm512_permutex2var_ps(registers_[2].raw, cell.raw, registers_[3].raw)};
      return hn::IfThenElse(hn::RebindMask(d, hn::Gt(cell, hn::Set(DI(), 31))), high, low);
    }
    return hn::GatherIndex(d, table_, cell);
  }

 private:
  const float* table_;
  VF registers_[kRegisters == 0 ? 1 : kRegisters];
};
#else
// The same where vectors are shorter and gathers slow. Entries are whole numbers below 256, so 16
// of them fit a register of bytes. A shuffle of bytes looks up those of one register and gives zero
// for an index above 127: each register gets indices that are so outside its 16 cells, and in the
// three upper bytes of every lane.
template <uint32_t kRegisters>
class Lookup {
 public:
  struct Cells {
    VI cell;
    VI bytes[kRegisters == 0 ? 1 : kRegisters];
  };

  HWY_INLINE explicit Lookup(const float* table) : table_(table) {
    const hn::CappedTag<uint8_t, kWidth * 4> d8;
    for (uint32_t r = 0; r < kRegisters; ++r) {
      HWY_ALIGN uint8_t entries[kLanes];
      for (uint32_t l = 0; l < kLanes; ++l)
        entries[l] = static_cast<uint8_t>(static_cast<int32_t>(table[r * kLanes + l]));
      registers_[r] = hn::BitCast(DI(), hn::LoadDup128(d8, entries));
    }
  }
  static HWY_INLINE Cells cells(VI cell) {
    Cells made;
    made.cell = cell;
    const VI outside = hn::Set(DI(), static_cast<int32_t>(0x80808070u));
    for (uint32_t r = 0; r < kRegisters; ++r)
      made.bytes[r] =
          hn::Add(hn::Xor(cell, hn::Set(DI(), static_cast<int32_t>(r * kLanes))), outside);
    return made;
  }
  HWY_INLINE VF operator()(const Cells& cells) const {
    const DF d;
    if constexpr (kRegisters == 0) {
      return hn::GatherIndex(d, table_, cells.cell);
    } else {
      VI found = hn::TableLookupBytesOr0(registers_[0], cells.bytes[0]);
      for (uint32_t r = 1; r < kRegisters; ++r)
        found = hn::Or(found, hn::TableLookupBytesOr0(registers_[r], cells.bytes[r]));
      return hn::ConvertTo(d, found);
    }
  }

 private:
  const float* table_;
  VI registers_[kRegisters == 0 ? 1 : kRegisters];
};
#endif

// The low byte of every lane. Highway 1.0.3 gets its own truncation wrong on one target.
HWY_INLINE hn::Vec<D8> low_bytes(VI v) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return hn::Vec<D8>{_mm512_cvtepi32_epi8(v.raw)};
#else
  return hn::DemoteTo(D8(), hn::And(v, hn::Set(DI(), 0xFF)));
#endif
}

// The low nibbles of neighbouring lanes, two a byte, the even lane low.
HWY_INLINE void store_nibbles(VI v, uint8_t* to) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // Two 32-bit lanes are one 64-bit lane whose low byte collects both.
  const __m512i nibbles = _mm512_and_si512(v.raw, _mm512_set1_epi32(15));
  const __m512i pairs = _mm512_or_si512(nibbles, _mm512_srli_epi64(nibbles, 28));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm512_cvtepi64_epi8(pairs));
#else
  // The same; then those bytes, two in every 16, go to the front of them.
  const hn::Repartition<uint64_t, DF> d64;
  const hn::Repartition<uint8_t, DF> d8;
  const auto nibbles = hn::BitCast(d64, hn::And(v, hn::Set(DI(), 15)));
  const auto pairs = hn::Or(nibbles, hn::ShiftRight<28>(nibbles));
  const auto front = hn::BitCast(d8, hn::Set(hn::Repartition<uint16_t, DF>(), 8 << 8));
  HWY_ALIGN uint8_t bytes[kLanes * 4];
  hn::Store(hn::TableLookupBytes(hn::BitCast(d8, pairs), front), d8, bytes);
  for (uint32_t j = 0; j < kWidth / 4; ++j)
    std::memcpy(to + 2 * j, bytes + 16 * j, 2);
#endif
}

struct Constants {
  VF scale, middle, top;
};

template <uint32_t kRegisters>
struct Tables {
  HWY_INLINE explicit Tables(const Quantiser& q) : lower(q.lower), gap(q.gap), index(q.index) {}
  Lookup<kRegisters> lower, gap, index;
};

// Levels that are 0, 1, 2, ...: nothing to look up.
struct Uniform {};

HWY_INLINE VF clamped(const Constants& k, VF x) {
  return hn::Min(hn::Max(hn::Add(hn::Mul(x, k.scale), k.middle), hn::Zero(DF())), k.top);
}
HWY_INLINE VF to_cell(VF y) { return hn::Add(y, hn::Set(DF(), kToCell)); }
HWY_INLINE VI cell_of(VF y) {
  return hn::And(hn::ShiftRight<kCellShift>(hn::BitCast(DI(), to_cell(y))), hn::Set(DI(), 0xFF));
}

// The level, or its index, in the low byte of each lane; see kToByte.
template <bool kIndices, uint32_t kRegisters>
HWY_INLINE VI round_to_level(const Tables<kRegisters>& tables, const Constants& k, VF x,
                             VF threshold) {
  const DF d;
  const VF y = clamped(k, x);
  const auto cells = Lookup<kRegisters>::cells(cell_of(y));
  const VF lower = tables.lower(cells), gap = tables.gap(cells);
  const auto up = hn::Gt(hn::Sub(y, lower), hn::Mul(threshold, gap));
  const VF value = kIndices ? hn::Add(tables.index(cells), hn::IfThenElseZero(up, hn::Set(d, 1.0f)))
                            : hn::Add(lower, hn::IfThenElseZero(up, gap));
  return hn::BitCast(DI(), hn::Add(value, hn::Set(d, kToByte)));
}

// At the top nothing is left to round up: y is at most g, and no threshold is below 0.
template <bool kIndices>
HWY_INLINE VI round_to_level(const Uniform&, const Constants& k, VF x, VF threshold) {
  const DF d;
  const VF y = clamped(k, x);
  const VI cell = cell_of(y);
  const auto up = hn::Gt(hn::Sub(y, hn::ConvertTo(d, cell)), threshold);
  return hn::Sub(cell, hn::VecFromMask(DI(), hn::RebindMask(DI(), up)));
}

template <bool kIndices, typename Levels>
HWY_INLINE void quantise_with(const Levels& levels, const Quantiser& q, const float* HWY_RESTRICT x,
                              uint64_t n, uint8_t* HWY_RESTRICT out) {
  const DF d;
  const Constants k{hn::Set(d, q.scale), hn::Set(d, q.middle), hn::Set(d, q.top)};
  const float* next = q.next == nullptr ? x : q.next;
  const int half = q.next_half ? 1 : 0;
  for (uint64_t i = 0; i < n; i += kWidth) {
    if (i % kLanes == 0) hwy::Prefetch(next + (i >> half));
    const VF threshold = hn::LoadU(d, q.thresholds + i % kThresholds);
    const VI level = round_to_level<kIndices>(levels, k, hn::LoadU(d, x + i), threshold);
    kIndices ? store_nibbles(level, out + i / 2) : hn::StoreU(low_bytes(level), D8(), out + i);
  }
}

#if HWY_TARGET == HWY_AVX2
// Four vectors at once, whose cells are the bytes of one: a shuffle then looks up 32 of them. Lane
// i of vector k has byte k of lane i, so that bytes go there and back without leaving their lane.
HWY_INLINE __m256i woven(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i even = _mm256_blend_epi16(a, c, 0xAA), odd = _mm256_blend_epi16(b, d, 0xAA);
  return _mm256_blendv_epi8(even, odd, _mm256_set1_epi16(static_cast<short>(0xFF00)));
}
// Byte k of each of the four lanes of a half, and zeros.
HWY_INLINE __m256i lane_bytes(uint32_t k) {
  const auto from = [k](uint32_t lane) { return static_cast<int>(0x80808000u + 4 * lane + k); };
  return _mm256_broadcastsi128_si256(_mm_setr_epi32(from(0), from(1), from(2), from(3)));
}
HWY_INLINE void unwoven(__m256i bytes, VF v[4]) {
  v[0] = VF{_mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(0xFF)))};
  v[1] = VF{_mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes, lane_bytes(1)))};
  v[2] = VF{_mm256_cvtepi32_ps(_mm256_shuffle_epi8(bytes, lane_bytes(2)))};
  v[3] = VF{_mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 24))};
}
HWY_INLINE void store_woven(__m256i bytes, bool as_nibbles, uint8_t* to) {
  const __m256i by_vector = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i in_order = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(bytes, by_vector),
                                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  if (!as_nibbles) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), in_order);
  const __m256i pairs = _mm256_maddubs_epi16(in_order, _mm256_set1_epi16(0x1001));
  const __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs, pairs), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(both));
}

// A table of up to 16 kRegisters entries. For a register a shuffle gives 0 where an index is above
// 127, as all outside its 16 cells are made.
template <uint32_t kRegisters>
struct ByteTable {
  HWY_INLINE explicit ByteTable(const float* table) {
    for (uint32_t r = 0; r < kRegisters; ++r) {
      const float* from = table + r * 16;
      const __m256i words = _mm256_permute4x64_epi64(
          _mm256_packus_epi32(_mm256_cvttps_epi32(_mm256_loadu_ps(from)),
                              _mm256_cvttps_epi32(_mm256_loadu_ps(from + 8))),
          0xD8);
      registers[r] = _mm256_broadcastsi128_si256(
          _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
  }
  HWY_INLINE __m256i operator()(const __m256i at[kRegisters]) const {
    __m256i found = _mm256_shuffle_epi8(registers[0], at[0]);
    for (uint32_t r = 1; r < kRegisters; ++r)
      found = _mm256_or_si256(found, _mm256_shuffle_epi8(registers[r], at[r]));
    return found;
  }
  __m256i registers[kRegisters];
};

template <uint32_t kRegisters>
struct ByteTables {
  HWY_INLINE explicit ByteTables(const Quantiser& q) : lower(q.lower), gap(q.gap), index(q.index) {}
  ByteTable<kRegisters> lower, gap, index;
};

// All ones in the bytes of the lanes that are rounded up.
HWY_INLINE __m256i rounded_up(const VF y[4], const VF lower[4], const VF step[4]) {
  __m256i up[4];
  for (uint32_t j = 0; j < 4; ++j)
    up[j] = hn::BitCast(DI(), hn::VecFromMask(DF(), hn::Gt(hn::Sub(y[j], lower[j]), step[j]))).raw;
  return woven(up[0], up[1], up[2], up[3]);
}

// The levels, or indices, of four vectors, woven.
template <bool kIndices, uint32_t kRegisters>
HWY_INLINE __m256i round_four(const ByteTables<kRegisters>& tables, const VF y[4], __m256i cells,
                              const VF threshold[4]) {
  __m256i at[kRegisters];
  for (uint32_t r = 0; r < kRegisters; ++r) {
    const auto first = _mm256_set1_epi8(static_cast<char>(r * 16));
    at[r] = _mm256_adds_epu8(_mm256_xor_si256(cells, first), _mm256_set1_epi8(0x70));
  }
  const __m256i lower = tables.lower(at), gap = tables.gap(at);
  VF lowers[4], gaps[4];
  unwoven(lower, lowers);
  unwoven(gap, gaps);
  for (uint32_t j = 0; j < 4; ++j)
    gaps[j] = hn::Mul(threshold[j], gaps[j]);
  const __m256i ups = rounded_up(y, lowers, gaps);
  if (kIndices) return _mm256_sub_epi8(tables.index(at), ups);
  return _mm256_add_epi8(lower, _mm256_and_si256(ups, gap));
}

template <bool kIndices>
HWY_INLINE __m256i round_four(const Uniform&, const VF y[4], __m256i cells, const VF threshold[4]) {
  const auto whole = hn::BitCast(DF(), hn::Set(DI(), -(1 << kCellShift)));
  VF lowers[4];
  for (uint32_t j = 0; j < 4; ++j)
    lowers[j] = hn::Sub(hn::And(to_cell(y[j]), whole), hn::Set(DF(), kToCell));
  return _mm256_sub_epi8(cells, rounded_up(y, lowers, threshold));
}

// Four vectors as far as their cells, which are woven.
struct Four {
  VF y[4];
  __m256i cells;
};
HWY_INLINE Four cells_of_four(const Constants& k, const float* x) {
  const DF d;
  Four four;
  __m256i bits[4];
  for (uint32_t j = 0; j < 4; ++j) {
    four.y[j] = clamped(k, hn::LoadU(d, x + j * kWidth));
    bits[j] = hn::BitCast(DI(), to_cell(four.y[j])).raw;
  }
  four.cells = woven(
      _mm256_srli_epi32(bits[0], kCellShift), _mm256_srli_epi32(bits[1], kCellShift - 8),
      _mm256_slli_epi32(bits[2], 16 - kCellShift), _mm256_slli_epi32(bits[3], 24 - kCellShift));
  return four;
}

// Where levels are looked up, cells are found one four ahead: either half of the work is a long
// chain of operations, and so there are two chains at a time.
template <bool kIndices, typename Levels>
HWY_INLINE void quantise_fours(const Levels& levels, const Quantiser& q,
                               const float* HWY_RESTRICT x, uint64_t n, uint8_t* HWY_RESTRICT out) {
  const DF d;
  constexpr uint64_t kFour = 4 * kWidth;
  constexpr bool kAhead = !std::is_same_v<Levels, Uniform>;
  const Constants k{hn::Set(d, q.scale), hn::Set(d, q.middle), hn::Set(d, q.top)};
  const float* next = q.next == nullptr ? x : q.next;
  const int half = q.next_half ? 1 : 0;
  Four ahead = cells_of_four(k, x);
  for (uint64_t i = 0; i < n; i += kFour) {
    hwy::Prefetch(next + (i >> half));
    hwy::Prefetch(next + ((i + kLanes) >> half));
    const Four four = kAhead ? ahead : cells_of_four(k, x + i);
    if (kAhead) ahead = cells_of_four(k, x + std::min(i + kFour, n - kFour));
    VF threshold[4];
    for (uint32_t j = 0; j < 4; ++j)
      threshold[j] = hn::LoadU(d, q.thresholds + i % kThresholds + j * kWidth);
    store_woven(round_four<kIndices>(levels, four.y, four.cells, threshold), kIndices,
                out + (kIndices ? i / 2 : i));
  }
}
#endif

template <bool kIndices>
HWY_INLINE void quantise_any(const Quantiser& q, const float* x, uint64_t n, uint8_t* out) {
#if HWY_TARGET == HWY_AVX2
  if (q.uniform) return quantise_fours<kIndices>(Uniform(), q, x, n, out);
  if (q.cells <= 32) return quantise_fours<kIndices>(ByteTables<2>(q), q, x, n, out);
  if (q.cells <= 64) return quantise_fours<kIndices>(ByteTables<4>(q), q, x, n, out);
#elif HWY_TARGET != HWY_SCALAR
  if (q.uniform) return quantise_with<kIndices>(Uniform(), q, x, n, out);
  if (q.cells <= 32) return quantise_with<kIndices>(Tables<2>(q), q, x, n, out);
  if (q.cells <= 64) return quantise_with<kIndices>(Tables<4>(q), q, x, n, out);
#else
  if (q.uniform) return quantise_with<kIndices>(Uniform(), q, x, n, out);
#endif
  quantise_with<kIndices>(Tables<0>(q), q, x, n, out);
}

void quantise_levels_kernel(const Quantiser& q, const float* x, uint64_t n, uint8_t* levels) {
  quantise_any<false>(q, x, n, levels);
}
void quantise_indices_kernel(const Quantiser& q, const float* x, uint64_t n, uint8_t* indices) {
  quantise_any<true>(q, x, n, indices);
}

}  // namespace
}  // namespace addend::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend::quant {

HWY_EXPORT(energy_kernel);
HWY_EXPORT(add_owed_kernel);
HWY_EXPORT(rotate_kernel);
HWY_EXPORT(quantise_levels_kernel);
HWY_EXPORT(quantise_indices_kernel);

float energy(const float* x, uint64_t n) {
  return scalar_forced() ? reference::energy(x, n) : HWY_DYNAMIC_DISPATCH(energy_kernel)(x, n);
}

float add_owed(const float* x, const float* owed, uint64_t n, float* sum, bool past_caches) {
  if (scalar_forced()) return reference::add_owed(x, owed, n, sum);
  return HWY_DYNAMIC_DISPATCH(add_owed_kernel)(x, owed, n, sum, past_caches);
}

void rotate(const float* x, const uint64_t* signs, uint64_t n, float* y, const float* next) {
  if (scalar_forced()) return reference::rotate(x, signs, n, y);
  HWY_DYNAMIC_DISPATCH(rotate_kernel)(x, signs, n, y, next);
}

void quantise_levels(const Quantiser& quantiser, const float* x, uint64_t n, uint8_t* levels) {
  if (scalar_forced()) return reference::quantise<false>(quantiser, x, n, levels);
  HWY_DYNAMIC_DISPATCH(quantise_levels_kernel)(quantiser, x, n, levels);
}

void quantise_indices(const Quantiser& quantiser, const float* x, uint64_t n, uint8_t* indices) {
  if (scalar_forced()) return reference::quantise<true>(quantiser, x, n, indices);
  HWY_DYNAMIC_DISPATCH(quantise_indices_kernel)(quantiser, x, n, indices);
}

}  // namespace addend::quant
#endif
