// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/reproducible.h"

#include <algorithm>

#include "base/bits.h"

namespace addend::exact {
namespace {

// Calls visit(block, position) for every selected position.
template <typename Visit>
void for_each_selected(const uint64_t* selection, uint64_t count, Visit&& visit) {
  for (uint64_t w = 0; w < words_for(count); ++w) {
    const uint64_t block = w * 64 / kRangeBlock;
    for_each_bit(selection[w], w * 64, [&](uint64_t position) { visit(block, position); });
  }
}

}  // namespace

void measure_ranges(DType dtype, const NonZeros& nonzeros, uint32_t* lanes) {
  uint64_t next = 0;
  for (uint64_t begin = 0; begin < nonzeros.count; begin += kRangeBlock, lanes += kRangeLanes) {
    BitRange range;
    const uint64_t end = std::min(begin + kRangeBlock, nonzeros.count);
    const uint64_t stop = next + popcount_range(nonzeros.bitmap, begin, end);
    for (; next < stop; ++next)
      range.include(load_float(dtype, nonzeros.values, next));
    write_range(range, lanes);
  }
}

Status ReproducibleValues::set_ranges(const uint32_t* lanes, uint64_t count,
                                      const RangeRules& rules) {
  count_ = count;
  blocks_ = ceil_div(count, kRangeBlock);
  ADDEND_TRY(formats_.reserve(blocks_ * sizeof(BlockFormat)));
  auto* formats = formats_.as<BlockFormat>();
  for (uint64_t b = 0; b < blocks_; ++b) {
    formats[b] = block_format(lanes + b * kRangeLanes, rules);
  }
  return {};
}

Status ReproducibleValues::pack(DType dtype, const void* gradient, const uint64_t* selection) {
  narrow_lanes_ = wide_lanes_ = escaped_ = 0;
  const auto* formats = formats_.as<BlockFormat>();
  for (uint64_t b = 0; b < blocks_; ++b) {
    const uint64_t begin = b * kRangeBlock, end = std::min(begin + kRangeBlock, count_);
    const uint64_t values = popcount_range(selection, begin, end);
    const uint32_t words = formats[b].fixed.words();
    (formats[b].narrow ? narrow_lanes_ : wide_lanes_) +=
        formats[b].narrow ? values : values * words;
    escaped_ += !formats[b].narrow && words > 1 ? values : 0;
  }
  ADDEND_TRY(narrow_.reserve(narrow_lanes_ * 4));
  ADDEND_TRY(wide_.reserve(wide_lanes_ * 8));
  auto* narrow = narrow_.as<int32_t>();
  auto* wide = wide_.as<int64_t>();
  for_each_selected(selection, count_, [&](uint64_t block, uint64_t position) {
    const BlockFormat& format = formats[block];
    const float value = load_float(dtype, gradient, position);
    if (format.narrow) {
      *narrow++ = static_cast<int32_t>(to_quanta(value, format.to_quanta));
    } else if (format.single()) {
      *wide++ = to_quanta(value, format.to_quanta);
    } else {
      to_fixed(format.fixed, value, wide);
      wide += format.fixed.words();
    }
  });
  return {};
}

Plane ReproducibleValues::narrow_plane() {
  return {Op::kSumI32, narrow_lanes_, narrow_.as<void>(), nullptr, nullptr};
}
Plane ReproducibleValues::wide_plane() {
  return {Op::kSumI64, wide_lanes_, wide_.as<void>(), nullptr, nullptr};
}

void ReproducibleValues::unpack(DType dtype, const uint64_t* selection, float scale,
                                void* packed) const {
  const DType decoded = scaled_sum_type(dtype, scale);
  const auto* formats = formats_.as<BlockFormat>();
  const auto* narrow = narrow_.as<int32_t>();
  const auto* wide = wide_.as<int64_t>();
  uint64_t rank = 0;
  for_each_selected(selection, count_, [&](uint64_t block, uint64_t) {
    const BlockFormat& format = formats[block];
    float value = 0;
    if (format.single()) {
      const int64_t quanta = format.narrow ? *narrow++ : *wide++;
      value = from_quanta(decoded, quanta, format.fixed.quantum, format.from_quanta);
    } else {
      value = from_fixed(format.fixed, decoded, wide);
      wide += format.fixed.words();
    }
    store_float(dtype, packed, rank++, value * scale);
  });
}

uint64_t ReproducibleValues::memory_bytes() const {
  return formats_.capacity() + narrow_.capacity() + wide_.capacity();
}

}  // namespace addend::exact
