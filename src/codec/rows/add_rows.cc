// SPDX-License-Identifier: Apache-2.0
// Vectors for what reducers add; one element at a time for the rest, for what is left of a row, and
// for f16 on targets that cannot convert it.
#include "codec/rows/add_rows.h"

#include <type_traits>

#include "base/simd.h"
#include "wire/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/rows/add_rows.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/element-inl.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace {

template <DType kType>
HWY_INLINE void add_rows_of(uint64_t width, std::span<const uint64_t> places, const uint8_t* from,
                            uint8_t* to) {
  const hn::ScalableTag<float> d;
  const uint64_t stride = width * dtype_bytes(kType);
  for (const uint64_t place : places) {
    uint8_t* sums = to + place * stride;
    uint64_t i = 0;
    if constexpr (in_vectors<kType>()) {
      for (const uint64_t n = hn::Lanes(d); i + n <= width; i += n) {
        const auto sum = hn::Add(load_lanes<kType>(d, sums, i), load_lanes<kType>(d, from, i));
        store_lanes<kType>(d, sum, sums, i);
      }
    }
    for (; i < width; ++i)
      store_float(kType, sums, i, load_float(kType, sums, i) + load_float(kType, from, i));
    from += stride;
  }
}

void add_rows_kernel(DType dtype, uint64_t width, std::span<const uint64_t> places,
                     const uint8_t* from, uint8_t* to) {
  with_type(dtype, [&](auto type) HWY_ATTR {
    add_rows_of<decltype(type)::value>(width, places, from, to);
    return places.size();
  });
}

}  // namespace
}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend {
namespace {

HWY_EXPORT(add_rows_kernel);

template <typename T>
void add_numbers(uint64_t width, std::span<const uint64_t> places, const void* from, void* to) {
  const auto* row = static_cast<const T*>(from);
  for (const uint64_t place : places) {
    T* sums = static_cast<T*>(to) + place * width;
    for (uint64_t i = 0; i < width; ++i)
      sums[i] = static_cast<T>(sums[i] + row[i]);
    row += width;
  }
}

void add_floats(DType dtype, uint64_t width, std::span<const uint64_t> places, const void* from,
                void* to) {
  if (!scalar_forced()) {
    HWY_DYNAMIC_DISPATCH(add_rows_kernel)
    (dtype, width, places, static_cast<const uint8_t*>(from), static_cast<uint8_t*>(to));
    return;
  }
  uint64_t at = 0;
  for (const uint64_t place : places) {
    for (uint64_t i = place * width; i < (place + 1) * width; ++i, ++at)
      store_float(dtype, to, i, load_float(dtype, to, i) + load_float(dtype, from, at));
  }
}

}  // namespace

void add_rows(RowElement element, uint64_t width, std::span<const uint64_t> places,
              const void* from, void* to) {
  switch (element) {
    case RowElement::kF32:
      return add_floats(DType::kF32, width, places, from, to);
    case RowElement::kBf16:
      return add_floats(DType::kBf16, width, places, from, to);
    case RowElement::kF16:
      return add_floats(DType::kF16, width, places, from, to);
    case RowElement::kF64:
      return add_numbers<double>(width, places, from, to);
    case RowElement::kI64:  // wraps, like its unsigned kin
      return add_numbers<uint64_t>(width, places, from, to);
    case RowElement::kI32:
      return add_numbers<uint32_t>(width, places, from, to);
    case RowElement::kI8:
    case RowElement::kU8:
      return add_numbers<uint8_t>(width, places, from, to);
  }
}

}  // namespace addend
#endif
