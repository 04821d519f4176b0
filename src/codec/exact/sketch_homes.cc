// SPDX-License-Identifier: Apache-2.0
// A lane of 64 bits a key. Products with constants take three of 32 bits.
#include "codec/exact/sketch_homes.h"

#include <algorithm>
#include <bit>

#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/exact/sketch_homes.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::exact::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<uint64_t>;
using V = hn::Vec<D>;

// The product of the lower halves.
HWY_INLINE V product(V a, V b) {
  const hn::Repartition<uint32_t, D> d32;
  return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
}

HWY_INLINE V times(V x, uint64_t factor) {
  const V low = hn::Set(D(), factor), high = hn::Set(D(), factor >> 32);
  const V crossed = hn::Add(product(hn::ShiftRight<32>(x), low), product(x, high));
  return hn::Add(product(x, low), hn::ShiftLeft<32>(crossed));
}

// addend_mix64
HWY_INLINE V mixed(V x) {
  x = times(hn::Xor(x, hn::ShiftRight<30>(x)), 0xBF58476D1CE4E5B9ull);
  x = times(hn::Xor(x, hn::ShiftRight<27>(x)), 0x94D049BB133111EBull);
  return hn::Xor(x, hn::ShiftRight<31>(x));
}

// addend_reduce32 of the lower halves.
HWY_INLINE V reduced(V random, V range) { return hn::ShiftRight<32>(product(random, range)); }

// Returns how many keys it covered.
uint64_t homes_kernel(const SketchShape& shape, const uint64_t* HWY_RESTRICT positions,
                      uint64_t count, uint64_t* HWY_RESTRICT chunks, uint16_t* HWY_RESTRICT homes) {
  const D d;
  const hn::Repartition<uint16_t, D> d16;
  constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;
  const V step = hn::Set(d, kStep), one = hn::Set(d, 1);
  const V start = hn::Set(d, shape.seed);
  const V in_row = hn::Set(d, shape.lanes - 1);
  const V row_bits = hn::Set(d, static_cast<uint64_t>(std::countr_zero(shape.lanes)));
  const V all_chunks = hn::Set(d, shape.chunks), rows = hn::Set(d, shape.table_rows);
  const uint64_t table = uint64_t{shape.table_rows} * shape.lanes;
  const V tables = hn::Set(d, table << 16 | table * 2 << 32 | table * 3 << 48);
  const bool fourth = shape.hashes == 4;
  uint64_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const V position = hn::LoadU(d, positions + i);
    const V row = hn::Shr(position, row_bits);
    const V hash = mixed(hn::Add(start, times(hn::Add(row, one), kStep)));
    const V second = mixed(hn::Add(hash, step));
    hn::StoreU(reduced(hn::ShiftRight<32>(hash), all_chunks), d, chunks + i);
    V cells = hn::Shl(reduced(hash, rows), row_bits);
    cells = hn::Or(cells,
                   hn::ShiftLeft<16>(hn::Shl(reduced(hn::ShiftRight<32>(second), rows), row_bits)));
    cells = hn::Or(cells, hn::ShiftLeft<32>(hn::Shl(reduced(second, rows), row_bits)));
    if (fourth) {
      const V third = reduced(mixed(hn::Add(second, hash)), rows);
      cells = hn::Or(cells, hn::ShiftLeft<48>(hn::Shl(third, row_bits)));
    }
    V lanes = hn::And(position, in_row);
    lanes = hn::Or(lanes, hn::ShiftLeft<16>(lanes));
    lanes = hn::Or(lanes, hn::ShiftLeft<32>(lanes));
    cells = hn::Add(hn::Add(cells, tables), lanes);
    hn::StoreU(hn::BitCast(d16, cells), d16, homes + 4 * i);
  }
  return i;
}

}  // namespace
}  // namespace addend::exact::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend::exact {

HWY_EXPORT(homes_kernel);

void find_short_homes(const SketchShape& shape, const uint64_t* positions, uint64_t count,
                      uint64_t* chunks, uint16_t* homes) {
  const auto find = [&]<uint32_t kHashes>(uint64_t i) {
    const uint64_t hash = addend_sketch_hash(shape.seed, positions[i] / shape.lanes);
    const auto found = homes_of<uint16_t, kHashes>(shape, hash, positions[i]);
    chunks[i] = addend_sketch_chunk(hash, shape.chunks);
    std::copy_n(found.cell, 4, homes + 4 * i);
  };
  uint64_t i = 0;
  if (!scalar_forced())
    i = HWY_DYNAMIC_DISPATCH(homes_kernel)(shape, positions, count, chunks, homes);
  for (; i < count; ++i)
    shape.hashes == 3 ? find.operator()<3>(i) : find.operator()<4>(i);
}

}  // namespace addend::exact
#endif
