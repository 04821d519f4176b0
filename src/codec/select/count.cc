// SPDX-License-Identifier: Apache-2.0
// The pass that counts magnitudes. Bins are found in vectors; counts go up one at a time, in four
// tables in turn, so that equal neighbours do not wait for each other.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/simd.h"
#include "codec/select/histogram.h"
#include "wire/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/select/count.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/element-inl.h"

#ifndef ADDEND_CODEC_SELECT_COUNT_TABLES_
#define ADDEND_CODEC_SELECT_COUNT_TABLES_
namespace addend::select {
constexpr uint32_t kTables = 4;
struct Tables {
  uint32_t counts[kTables][Histogram::kBins];
};
}  // namespace addend::select
#endif

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace {

using select::Addends;

// Returns how many elements it covered.
template <DType kType, bool kOwed>
HWY_INLINE uint64_t count_type(const Addends& a, uint64_t count, float* HWY_RESTRICT sums,
                               select::Tables& tables) {
  uint64_t i = 0;
  if constexpr (in_vectors<kType>()) {
    const hn::ScalableTag<float> d;
    const hn::RebindToUnsigned<decltype(d)> du;
    const uint64_t n = hn::Lanes(d);
    HWY_ALIGN uint32_t bins[hn::MaxLanes(d)];
    for (; i + n <= count; i += n) {
      auto x = load_lanes<kType>(d, a.gradient, i);
      if constexpr (kOwed) x = hn::Add(x, hn::LoadU(d, a.residual + i));
      if (sums != nullptr) hn::StoreU(x, d, sums + i);
      // The sign goes out on the left.
      const auto shifted = hn::ShiftLeft<1>(hn::BitCast(du, x));
      hn::Store(hn::ShiftRight<select::Histogram::kShift + 1>(shifted), du, bins);
      for (uint64_t j = 0; j < n; ++j)
        ++tables.counts[j % select::kTables][bins[j]];
    }
  }
  return i;
}

// A plain function, because run-time dispatch cannot export templates.
uint64_t count_kernel(const Addends& a, uint64_t count, float* sums, select::Tables& tables) {
  return with_type(a.dtype, [&](auto type) HWY_ATTR {
    return a.residual == nullptr ? count_type<decltype(type)::value, false>(a, count, sums, tables)
                                 : count_type<decltype(type)::value, true>(a, count, sums, tables);
  });
}

}  // namespace
}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend {
HWY_EXPORT(count_kernel);
}  // namespace addend

namespace addend::select {
namespace {

// Few enough for counts of 32 bits.
constexpr uint64_t kMostAtOnce = uint64_t{1} << 30;
// Below, clearing and adding up tables costs more than they save.
constexpr uint64_t kLeastInTables = 4 * Histogram::kBins;

uint64_t count_in_tables(const Addends& addends, uint64_t count, float* sums, Histogram& into) {
  Tables tables;
  std::memset(&tables, 0, sizeof(tables));
  const uint64_t done = HWY_DYNAMIC_DISPATCH(count_kernel)(addends, count, sums, tables);
  for (uint32_t bin = 0; bin < Histogram::kBins; ++bin) {
    for (const auto& table : tables.counts)
      into[bin] += table[bin];
  }
  return done;
}

}  // namespace

void count_magnitudes(const Addends& addends, uint64_t count, float* sums, Histogram& into) {
  uint64_t i = 0;
  while (!scalar_forced() && count - i >= kLeastInTables) {
    const Addends rest{
        addends.dtype,
        static_cast<const uint8_t*>(addends.gradient) + i * dtype_bytes(addends.dtype),
        addends.residual == nullptr ? nullptr : addends.residual + i};
    const uint64_t done = count_in_tables(rest, std::min(count - i, kMostAtOnce),
                                          sums == nullptr ? nullptr : sums + i, into);
    if (done == 0) break;
    i += done;
  }
  for (; i < count; ++i) {
    float x = load_float(addends.dtype, addends.gradient, i);
    if (addends.residual != nullptr) x += addends.residual[i];
    if (sums != nullptr) sums[i] = x;
    ++into[addend_f32_bits(x) << 1 >> (Histogram::kShift + 1)];
  }
}

}  // namespace addend::select
#endif
