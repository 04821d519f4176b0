// SPDX-License-Identifier: Apache-2.0
// acc (op)= in over whole vectors, the tail through the scalar reference. Per lane: two loads, one
// store, no reuse; every kernel is meant to run at memory speed. Bytes moved per lane of width w:
// 3w (table sums: w/4 or w/2 less).
#include "fold/simd_kernels.h"

#include <algorithm>

#include "base/simd.h"
#include "fold/reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fold/simd_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Runs `combine` over whole vectors of T and returns how many lanes that covered.
template <typename T, typename Combine>
HWY_INLINE uint64_t whole_vectors(void* acc, const void* in, uint64_t lanes, Combine combine) {
  const hn::ScalableTag<T> d;
  const uint64_t n = hn::Lanes(d);
  auto* HWY_RESTRICT a = static_cast<T*>(acc);
  const auto* HWY_RESTRICT b = static_cast<const T*>(in);
  uint64_t i = 0;
  for (; i + n <= lanes; i += n) {
    hn::StoreU(combine(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, a + i);
  }
  return i;
}

template <typename T, typename Combine>
HWY_INLINE void run(Op op, void* acc, const void* in, uint64_t lanes, Combine combine) {
  const uint64_t done = whole_vectors<T>(acc, in, lanes, combine);
  reference::fold(op, static_cast<T*>(acc) + done, static_cast<const T*>(in) + done, lanes - done);
}

// bf16 is the upper half of f32: widen by shifting, add, round to nearest even in integers as
// wire/half.h does.
HWY_INLINE void run_bf16(void* acc, const void* in, uint64_t lanes) {
  const hn::ScalableTag<float> df;
  const hn::RebindToUnsigned<decltype(df)> du;
  const hn::Rebind<uint16_t, decltype(df)> dh;
  const hn::RebindToSigned<decltype(df)> di;
  const uint64_t n = hn::Lanes(df);
  auto* HWY_RESTRICT a = static_cast<uint16_t*>(acc);
  const auto* HWY_RESTRICT b = static_cast<const uint16_t*>(in);
  const auto widen = [&](const uint16_t* p) HWY_ATTR {
    return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(dh, p))));
  };
  uint64_t i = 0;
  for (; i + n <= lanes; i += n) {
    const auto sum = hn::Add(widen(a + i), widen(b + i));
    const auto bits = hn::BitCast(du, sum);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFF)), odd));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
    const auto nan = hn::RebindMask(du, hn::Ne(sum, sum));
    const auto half = hn::BitCast(di, hn::IfThenElse(nan, quiet, rounded));
    hn::StoreU(hn::DemoteTo(dh, half), dh, a + i);
  }
  reference::fold(Op::kSumBf16, a + i, b + i, lanes - i);
}

// Hardware binary16 conversion is exact and rounds to nearest even; targets without it run the
// scalar reference.
HWY_INLINE void run_f16(void* acc, const void* in, uint64_t lanes) {
  uint64_t i = 0;
  auto* HWY_RESTRICT a = static_cast<uint16_t*>(acc);
  const auto* HWY_RESTRICT b = static_cast<const uint16_t*>(in);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
  const hn::ScalableTag<float> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  const uint64_t n = hn::Lanes(df);
  const auto widen = [&](const uint16_t* p) HWY_ATTR {
    return hn::PromoteTo(df, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(p)));
  };
  for (; i + n <= lanes; i += n) {
    const auto sum = hn::Add(widen(a + i), widen(b + i));
    hn::StoreU(hn::DemoteTo(dh, sum), dh, reinterpret_cast<hwy::float16_t*>(a + i));
  }
#endif
  reference::fold(Op::kSumF16, a + i, b + i, lanes - i);
}

void fold_kernel(Op op, void* acc, const void* in, uint64_t lanes) {
  const auto add = [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); };
  switch (op) {
    case Op::kSumF32:
      return run<float>(op, acc, in, lanes, add);
    case Op::kSumBf16:
      return run_bf16(acc, in, lanes);
    case Op::kSumF16:
      return run_f16(acc, in, lanes);
    case Op::kSumI32:
      return run<uint32_t>(op, acc, in, lanes, add);
    case Op::kSumI64:
      return run<uint64_t>(op, acc, in, lanes, add);
    case Op::kSumU8:
      return run<uint8_t>(op, acc, in, lanes, add);
    case Op::kSumU16:
      return run<uint16_t>(op, acc, in, lanes, add);
    case Op::kOrU64:
      return run<uint64_t>(op, acc, in, lanes,
                           [](auto a, auto b) HWY_ATTR { return hn::Or(a, b); });
    case Op::kMaxU32:
      return run<uint32_t>(op, acc, in, lanes,
                           [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); });
    default:  // table sums: fold_tables_kernel
      return;
  }
}

// n bytes of 4-bit indices, in lane order, from n/2 packed bytes: widening puts a packed byte in a
// u16, and (b | b << 4) & 0x0F0F leaves the even lane's nibble in the low byte and the odd lane's
// in the high byte.
template <class D8>
HWY_INLINE hn::Vec<D8> unpack_nibbles(D8 d8, const uint8_t* packed) {
  const hn::Repartition<uint16_t, D8> d16;
  const hn::Rebind<uint8_t, decltype(d16)> dhalf;
  const auto wide = hn::PromoteTo(d16, hn::LoadU(dhalf, packed));
  const auto spread = hn::Or(wide, hn::ShiftLeft<4>(wide));
  return hn::BitCast(d8, hn::And(spread, hn::Set(d16, 0x0F0F)));
}

HWY_INLINE uint64_t table_u8(uint8_t* HWY_RESTRICT acc, const uint8_t* const* indices,
                             std::size_t sources, const uint8_t* table, uint64_t lanes) {
  const hn::ScalableTag<uint8_t> d8;
  const uint64_t n = hn::Lanes(d8);
  const auto entries = hn::LoadDup128(d8, table);
  uint64_t i = 0;
  for (; i + n <= lanes; i += n) {
    auto sum = hn::LoadU(d8, acc + i);
    for (std::size_t s = 0; s < sources; ++s) {
      sum = hn::Add(sum, hn::TableLookupBytes(entries, unpack_nibbles(d8, indices[s] + i / 2)));
    }
    hn::StoreU(sum, d8, acc + i);
  }
  return i;
}

// A u16 entry is looked up as two bytes, from a table of low and a table of high bytes.
HWY_INLINE uint64_t table_u16(uint16_t* HWY_RESTRICT acc, const uint8_t* const* indices,
                              std::size_t sources, const uint16_t* table, uint64_t lanes) {
  const hn::ScalableTag<uint16_t> d16;
  const hn::Repartition<uint8_t, decltype(d16)> d8;
  const hn::Rebind<uint8_t, decltype(d16)> dhalf;
  const uint64_t n = hn::Lanes(d16);
  HWY_ALIGN uint8_t low[16];
  HWY_ALIGN uint8_t high[16];
  for (int e = 0; e < 16; ++e) {
    low[e] = static_cast<uint8_t>(table[e] & 0xFF);
    high[e] = static_cast<uint8_t>(table[e] >> 8);
  }
  const auto low_entries = hn::LoadDup128(d8, low);
  const auto high_entries = hn::LoadDup128(d8, high);
  uint64_t i = 0;
  for (; i + n <= lanes; i += n) {
    auto sum = hn::LoadU(d16, acc + i);
    for (std::size_t s = 0; s < sources; ++s) {
      const auto index = hn::PromoteTo(d16, unpack_nibbles(dhalf, indices[s] + i / 2));
      const auto both = hn::BitCast(d8, hn::Or(index, hn::ShiftLeft<8>(index)));
      const auto low_bytes = hn::BitCast(d16, hn::TableLookupBytes(low_entries, both));
      const auto high_bytes = hn::BitCast(d16, hn::TableLookupBytes(high_entries, both));
      sum = hn::Add(sum, hn::Or(hn::And(low_bytes, hn::Set(d16, 0x00FF)),
                                hn::And(high_bytes, hn::Set(d16, 0xFF00))));
    }
    hn::StoreU(sum, d16, acc + i);
  }
  return i;
}

void fold_tables_kernel(Op op, void* acc, const uint8_t* const* indices, std::size_t sources,
                        const void* table, uint64_t lanes) {
  const bool narrow = op == Op::kTableSumU8;
  const uint64_t done = narrow ? table_u8(static_cast<uint8_t*>(acc), indices, sources,
                                          static_cast<const uint8_t*>(table), lanes)
                               : table_u16(static_cast<uint16_t*>(acc), indices, sources,
                                           static_cast<const uint16_t*>(table), lanes);
  // The vector length is even, so the scalar tail starts on a whole byte of indices.
  auto* tail = static_cast<uint8_t*>(acc) + done * (narrow ? 1 : 2);
  for (std::size_t s = 0; s < sources; ++s) {
    reference::fold_table(op, tail, indices[s] + done / 2, table, lanes - done);
  }
}

void add_levels_kernel(uint16_t* HWY_RESTRICT acc, const uint8_t* const* levels,
                       std::size_t sources, uint64_t lanes) {
  const hn::ScalableTag<uint16_t> d16;
  const hn::Rebind<uint8_t, decltype(d16)> d8;
  const uint64_t n = hn::Lanes(d16);
  uint64_t i = 0;
  for (; i + n <= lanes; i += n) {
    auto sum = hn::LoadU(d16, acc + i);
    for (std::size_t s = 0; s < sources; ++s)
      sum = hn::Add(sum, hn::PromoteTo(d16, hn::LoadU(d8, levels[s] + i)));
    hn::StoreU(sum, d16, acc + i);
  }
  for (std::size_t s = 0; s < sources; ++s)
    reference::add_levels(acc + i, levels[s] + i, lanes - i);
}

// Least and most of the sums, and the seed, of a whole group.
HWY_INLINE narrow::Group group_of(const uint16_t* sums, uint32_t bits) {
  const hn::ScalableTag<uint16_t> d;
  const uint64_t n = hn::Lanes(d);
  auto least = hn::LoadU(d, sums), most = least, seed = hn::Zero(d);
  auto weight = hn::Add(hn::Iota(d, 0), hn::Iota(d, 1));
  const auto next = hn::Set(d, static_cast<uint16_t>(2 * n));
  for (uint64_t i = 0; i < narrow::kGroupLanes; i += n) {
    const auto sum = hn::LoadU(d, sums + i);
    least = hn::Min(least, sum);
    most = hn::Max(most, sum);
    seed = hn::Add(seed, hn::Mul(sum, weight));
    weight = hn::Add(weight, next);
  }
  const auto first = [](auto v) HWY_ATTR { return uint32_t{hn::GetLane(v)}; };
  return reference::narrow_group_of(first(hn::MinOfLanes(d, least)), first(hn::MaxOfLanes(d, most)),
                                    first(hn::SumOfLanes(d, seed)), bits);
}

// Quotients by multiplication with 2^16 over the step, rounded up: at most 1 too large, since what
// is above the base has 16 bits (with a step of 1, whose inverse does not fit: 1 too small). The
// remainder tells, and with the dither whether one more step is full; it has a sign, and a step 13
// bits at the most.
HWY_INLINE void narrow_lanes(const narrow::Group& group, const uint16_t* sums, uint8_t* values) {
  const hn::ScalableTag<uint16_t> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const auto set = [&](uint32_t x) HWY_ATTR { return hn::Set(d, static_cast<uint16_t>(x)); };
  const auto n = static_cast<uint32_t>(hn::Lanes(d));
  const auto step = set(group.step), base = set(group.base);
  const auto inverse = set(group.step == 1 ? 0xFFFF : (0xFFFF + group.step) / group.step);
  const auto last = hn::BitCast(di, set(group.step - 1));
  auto drawn = hn::Add(hn::Mul(hn::Iota(d, 0), set(narrow::kSpread)), set(group.seed << 8));
  for (uint32_t i = 0; i < narrow::kGroupLanes; i += n) {
    const auto above = hn::Sub(hn::LoadU(d, sums + i), base);
    const auto about = hn::MulHigh(above, inverse);
    const auto dither = hn::MulHigh(drawn, step);
    const auto rest = hn::BitCast(di, hn::Add(hn::Sub(above, hn::Mul(about, step)), dither));
    const auto less = hn::VecFromMask(di, hn::Lt(rest, hn::Zero(di)));
    const auto more = hn::VecFromMask(di, hn::Gt(rest, last));
    const auto value = hn::Sub(hn::Add(hn::BitCast(di, about), less), more);
    hn::StoreU(hn::DemoteTo(d8, value), d8, values + i);
    drawn = hn::Add(drawn, set(n * narrow::kSpread));
  }
}

// Two values a byte, the even one low: they are neighbours in a lane of 16 bits.
HWY_INLINE void pack_nibbles(const uint8_t* bytes, uint8_t* packed) {
  const hn::ScalableTag<uint8_t> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  const hn::RebindToSigned<decltype(d16)> di;
  const hn::Rebind<uint8_t, decltype(d16)> dhalf;
  for (uint32_t i = 0; i < narrow::kGroupLanes; i += static_cast<uint32_t>(hn::Lanes(d))) {
    const auto pairs = hn::BitCast(d16, hn::LoadU(d, bytes + i));
    const auto both = hn::And(hn::Or(pairs, hn::ShiftRight<4>(pairs)), hn::Set(d16, 0xFF));
    hn::StoreU(hn::DemoteTo(dhalf, hn::BitCast(di, both)), dhalf, packed + i / 2);
  }
}

void narrow_group_kernel(const uint16_t* sums, uint64_t lanes, uint32_t bits, uint8_t* out) {
  if (lanes != narrow::kGroupLanes) return reference::narrow_group(sums, lanes, bits, out);
  const narrow::Group group = group_of(sums, bits);
  narrow::write_group(group, out);
  uint8_t* values = out + ADDEND_NARROW_HEADER_BYTES;
  if (bits == 8) return narrow_lanes(group, sums, values);
  uint8_t bytes[narrow::kGroupLanes];
  narrow_lanes(group, sums, bytes);
  pack_nibbles(bytes, values);
}

}  // namespace
}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend {
HWY_EXPORT(fold_kernel);
HWY_EXPORT(fold_tables_kernel);
HWY_EXPORT(add_levels_kernel);
HWY_EXPORT(narrow_group_kernel);
}  // namespace addend

namespace addend::simd {

void fold(Op op, void* acc, const void* in, uint64_t lanes) noexcept {
  HWY_DYNAMIC_DISPATCH(addend::fold_kernel)(op, acc, in, lanes);
}

void fold_tables(Op op, void* acc, const uint8_t* const* indices, std::size_t sources,
                 const void* table, uint64_t lanes) noexcept {
  HWY_DYNAMIC_DISPATCH(addend::fold_tables_kernel)(op, acc, indices, sources, table, lanes);
}

void add_levels(uint16_t* acc, const uint8_t* const* levels, std::size_t sources,
                uint64_t lanes) noexcept {
  HWY_DYNAMIC_DISPATCH(addend::add_levels_kernel)(acc, levels, sources, lanes);
}

void narrow_group(const uint16_t* sums, uint64_t lanes, uint32_t bits, uint8_t* out) noexcept {
  HWY_DYNAMIC_DISPATCH(addend::narrow_group_kernel)(sums, lanes, bits, out);
}

}  // namespace addend::simd
#endif
