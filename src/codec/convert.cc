// SPDX-License-Identifier: Apache-2.0
// One load, one store and few operations a vector, for memory speed; the tail, and f16 on targets
// that cannot convert it, one element at a time.
#include "codec/convert.h"

#include <cstring>
#include <type_traits>

#include "base/chunks.h"
#include "base/simd.h"
#include "wire/element.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/convert.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/element-inl.h"

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace {

template <DType kFrom, DType kTo>
HWY_INLINE uint64_t convert_types(const void* from, uint64_t count, float factor, void* to) {
  uint64_t i = 0;
  if constexpr (in_vectors<kFrom>() && in_vectors<kTo>()) {
    const hn::ScalableTag<float> d;
    const uint64_t n = hn::Lanes(d);
    const auto f = hn::Set(d, factor);
    for (; i + n <= count; i += n)
      store_lanes<kTo>(d, hn::Mul(load_lanes<kFrom>(d, from, i), f), to, i);
  }
  return i;
}

// Returns how many elements it covered.
uint64_t convert_kernel(DType from_type, const void* from, uint64_t count, float factor,
                        DType to_type, void* to) {
  return with_type(from_type, [&](auto f) HWY_ATTR {
    return with_type(to_type, [&](auto t) HWY_ATTR {
      return convert_types<decltype(f)::value, decltype(t)::value>(from, count, factor, to);
    });
  });
}

}  // namespace
}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend {

HWY_EXPORT(convert_kernel);

namespace {

void convert_part(DType from_type, const void* from, uint64_t count, float factor, DType to_type,
                  void* to) {
  uint64_t i = 0;
  if (!scalar_forced()) {
    i = HWY_DYNAMIC_DISPATCH(convert_kernel)(from_type, from, count, factor, to_type, to);
  }
  for (; i < count; ++i)
    store_float(to_type, to, i, load_float(from_type, from, i) * factor);
}

const uint8_t* at(const void* elements, DType dtype, uint64_t i) {
  return static_cast<const uint8_t*>(elements) + i * dtype_bytes(dtype);
}
uint8_t* at(void* elements, DType dtype, uint64_t i) {
  return static_cast<uint8_t*>(elements) + i * dtype_bytes(dtype);
}

}  // namespace

void convert(DType from_type, const void* from, uint64_t count, float factor, DType to_type,
             void* to) {
  for_each_part(count, kChunkElements, [&](uint64_t begin, uint64_t end) {
    convert_part(from_type, at(from, from_type, begin), end - begin, factor, to_type,
                 at(to, to_type, begin));
  });
}

void multiply(DType dtype, const void* from, uint64_t count, float factor, void* to) {
  if (factor != 1) return convert(dtype, from, count, factor, dtype, to);
  if (to == from || count == 0) return;
  // One thread copies all at once: memcpy goes past the caches where that is much.
  for_each_part(count, loop_threads() == 1 ? count : kChunkElements,
                [&](uint64_t begin, uint64_t end) {
                  std::memcpy(at(to, dtype, begin), at(from, dtype, begin),
                              (end - begin) * dtype_bytes(dtype));
                });
}

}  // namespace addend
#endif
