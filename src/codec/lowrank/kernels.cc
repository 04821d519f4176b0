// SPDX-License-Identifier: Apache-2.0
#include "codec/lowrank/kernels.h"

#include <algorithm>

#include "base/simd.h"
#include "codec/lowrank/kernels_reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/lowrank/kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using lowrank::Factor;
using lowrank::kRows;
using lowrank::Row;
using lowrank::Split;
using lowrank::reference::kPartialSums;

// Vectors divide the 16 partial sums; those of a size known at run time only are taken as small.
constexpr uint64_t kLanes = HWY_HAVE_SCALABLE ? 4 : HWY_MIN(kPartialSums, HWY_LANES(float));
using D = hn::FixedTag<float, kLanes>;
using V = hn::Vec<D>;
constexpr uint64_t kVectors = kPartialSums / kLanes;
constexpr uint64_t kColumns = 4;  // at once: their partial sums fit the registers

HWY_INLINE V element(const Row& row, uint64_t j) {
  const D d;
  return hn::Add(hn::LoadU(d, row.gradient + j), hn::LoadU(d, row.residual + j));
}

// The products with kCount columns.
template <uint64_t kCount>
HWY_INLINE void multiply_columns(const Row& row, uint64_t count, const float* columns,
                                 uint64_t stride, float* products) {
  const D d;
  V sums[kCount][kVectors];
  for (uint64_t k = 0; k < kCount; ++k) {
    for (uint64_t v = 0; v < kVectors; ++v)
      sums[k][v] = hn::Zero(d);
  }
  uint64_t j = 0;
  for (; j + kPartialSums <= count; j += kPartialSums) {
    for (uint64_t v = 0; v < kVectors; ++v) {
      const V x = element(row, j + v * kLanes);
      for (uint64_t k = 0; k < kCount; ++k) {
        const V column = hn::LoadU(d, columns + k * stride + j + v * kLanes);
        sums[k][v] = hn::Add(sums[k][v], hn::Mul(x, column));
      }
    }
  }
  for (uint64_t k = 0; k < kCount; ++k) {
    HWY_ALIGN float lanes[kPartialSums];
    for (uint64_t v = 0; v < kVectors; ++v)
      hn::Store(sums[k][v], d, lanes + v * kLanes);
    for (uint64_t t = j; t < count; ++t)
      lanes[t - j] += (row.gradient[t] + row.residual[t]) * columns[k * stride + t];
    for (uint64_t half = kPartialSums / 2; half > 0; half /= 2) {
      for (uint64_t s = 0; s < half; ++s)
        lanes[s] += lanes[s + half];
    }
    products[k] = lanes[0];
  }
}

void multiply_row_kernel(const Row& row, uint64_t count, const Factor<const float>& columns,
                         float* products) {
  const uint64_t stride = columns.stride;
  for (uint64_t k = 0; k < columns.rank; k += kColumns) {
    const float* first = columns.data + k * stride;
    switch (std::min(kColumns, columns.rank - k)) {
      case 1:
        multiply_columns<1>(row, count, first, stride, products + k);
        break;
      case 2:
        multiply_columns<2>(row, count, first, stride, products + k);
        break;
      case 3:
        multiply_columns<3>(row, count, first, stride, products + k);
        break;
      default:
        multiply_columns<kColumns>(row, count, first, stride, products + k);
    }
  }
}

// Each returns how many elements it covered.
uint64_t add_rows_kernel(const Row* rows, uint64_t count, const float* weights,
                         const Factor<float>& columns) {
  static_assert(kRows == 4);
  const D d;
  const uint64_t rank = columns.rank;
  uint64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    const V x0 = element(rows[0], j), x1 = element(rows[1], j);
    const V x2 = element(rows[2], j), x3 = element(rows[3], j);
    for (uint64_t k = 0; k < rank; ++k) {
      float* column = columns.data + k * columns.stride + j;
      V sum = hn::LoadU(d, column);
      sum = hn::Add(sum, hn::Mul(x0, hn::Set(d, weights[k])));
      sum = hn::Add(sum, hn::Mul(x1, hn::Set(d, weights[rank + k])));
      sum = hn::Add(sum, hn::Mul(x2, hn::Set(d, weights[2 * rank + k])));
      sum = hn::Add(sum, hn::Mul(x3, hn::Set(d, weights[3 * rank + k])));
      hn::StoreU(sum, d, column);
    }
  }
  return j;
}

uint64_t split_row_kernel(const Row& row, uint64_t count, const Split& split) {
  const D d;
  const uint64_t rank = split.own.rank;
  uint64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    V own = hn::Mul(hn::LoadU(d, split.own.data + j), hn::Set(d, split.weights[0]));
    V sum = hn::Mul(hn::LoadU(d, split.sum.data + j), hn::Set(d, split.sum_weights[0]));
    for (uint64_t k = 1; k < rank; ++k) {
      const V own_column = hn::LoadU(d, split.own.data + k * split.own.stride + j);
      const V sum_column = hn::LoadU(d, split.sum.data + k * split.sum.stride + j);
      own = hn::Add(own, hn::Mul(own_column, hn::Set(d, split.weights[k])));
      sum = hn::Add(sum, hn::Mul(sum_column, hn::Set(d, split.sum_weights[k])));
    }
    const V kept = hn::Sub(element(row, j), own);
    hn::StoreU(hn::IfThenElseZero(hn::IsFinite(kept), kept), d, split.residual + j);
    hn::StoreU(sum, d, split.result + j);
  }
  return j;
}

}  // namespace
}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend {
HWY_EXPORT(multiply_row_kernel);
HWY_EXPORT(add_rows_kernel);
HWY_EXPORT(split_row_kernel);
}  // namespace addend

namespace addend::lowrank {

void multiply_row(const Row& row, uint64_t count, const Factor<const float>& columns,
                  float* products) {
  if (scalar_forced()) return reference::multiply_row(row, count, columns, products);
  HWY_DYNAMIC_DISPATCH(multiply_row_kernel)(row, count, columns, products);
}

void add_rows(const Row* rows, uint64_t row_count, uint64_t count, const float* weights,
              const Factor<float>& columns) {
  uint64_t done = 0;
  if (row_count == kRows && !scalar_forced())
    done = HWY_DYNAMIC_DISPATCH(add_rows_kernel)(rows, count, weights, columns);
  reference::add_rows(rows, row_count, done, count, weights, columns);
}

void split_row(const Row& row, uint64_t count, const Split& split) {
  const uint64_t done =
      scalar_forced() ? 0 : HWY_DYNAMIC_DISPATCH(split_row_kernel)(row, count, split);
  reference::split_row(row, done, count, split);
}

}  // namespace addend::lowrank
#endif
