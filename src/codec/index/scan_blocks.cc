// SPDX-License-Identifier: Apache-2.0
// Dead blocks cost one load and one OR a vector and one branch a block; only live ones are looked
// at again, in the first-level cache, to tell full from partial.
#include "codec/index/scan_blocks.h"

#include <algorithm>
#include <bit>

#include "base/bits.h"
#include "base/simd.h"
#include "codec/index/kernels_reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/index/scan_blocks.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::index::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Blocks shorter than this are looked at in groups first: a branch a block would cost more than
// reading it.
constexpr uint64_t kGroupElements = 64;

// More than a second-level cache holds is read at so many places at once. One sequential read waits
// for the page after the one it is in; several keep the memory busy, if each has instructions of
// its own: processors foresee what an instruction reads next by what it read before.
constexpr uint64_t kStreams = 6;
constexpr uint64_t kStreamedBytes = 1u << 19;

// Whether a bit is set, signs included.
template <typename T>
HWY_INLINE bool any_bits(const T* from, uint64_t n) {
  const hn::ScalableTag<T> d;
  const uint64_t lanes = hn::Lanes(d);
  if (n < lanes) {
    T any = 0;
    for (uint64_t i = 0; i < n; ++i)
      any = static_cast<T>(any | from[i]);
    return any != 0;
  }
  auto any = hn::LoadU(d, from + n - lanes);  // may overlap the others, which an OR does not mind
  for (uint64_t i = 0; i + lanes <= n; i += lanes)
    any = hn::Or(any, hn::LoadU(d, from + i));
  return !hn::AllTrue(d, hn::Eq(any, hn::Zero(d)));
}

template <typename T>
HWY_INLINE uint64_t count_nonzeros(const T* from, uint64_t n) {
  const hn::ScalableTag<T> d;
  uint64_t found = 0, i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) {
    const auto magnitude = hn::ShiftLeft<1>(hn::LoadU(d, from + i));
    found += hn::CountTrue(d, hn::Ne(magnitude, hn::Zero(d)));
  }
  for (; i < n; ++i)
    found += reference::is_zero(from[i]) ? 0 : 1;
  return found;
}

template <typename T>
HWY_INLINE BlockScan scan_blocks_any(const T* HWY_RESTRICT gradient, uint64_t count, uint64_t block,
                                     uint64_t* HWY_RESTRICT live, uint64_t* HWY_RESTRICT partial) {
  BlockScan found;
  const uint64_t blocks = ceil_div(count, block);
  const uint64_t group = ceil_div(kGroupElements, block);
  std::fill_n(live, words_for(blocks), 0);
  std::fill_n(partial, words_for(blocks), 0);
  const auto look = [&](uint64_t first) HWY_ATTR {
    const uint64_t last = std::min(first + group, blocks);
    const uint64_t begin = first * block;
    if (!any_bits(gradient + begin, std::min(last * block, count) - begin)) return;
    for (uint64_t b = first; b < last; ++b) {
      const T* from = gradient + b * block;
      const uint64_t length = std::min(block, count - b * block);
      const uint64_t nonzeros = count_nonzeros(from, length);
      found.nonzeros += nonzeros;
      if (nonzeros == 0) {
        found.negative_zeros = found.negative_zeros || any_bits(from, length);
        continue;
      }
      set_bit(live, b);
      if (nonzeros < length) set_bit(partial, b);
    }
  };
  const uint64_t groups = ceil_div(blocks, group);
  const uint64_t stream = count * sizeof(T) >= kStreamedBytes ? ceil_div(groups, kStreams) : groups;
  for (uint64_t g = 0; g < stream; ++g) {
#pragma GCC unroll kStreams
    for (uint64_t s = 0; s < kStreams; ++s) {
      if (g + s * stream < groups) look((g + s * stream) * group);
    }
  }
  return found;
}

// Plain functions, because run-time dispatch cannot export templates.
BlockScan scan_blocks32(const uint32_t* x, uint64_t n, uint64_t block, uint64_t* live,
                        uint64_t* partial) {
  return scan_blocks_any(x, n, block, live, partial);
}
BlockScan scan_blocks16(const uint16_t* x, uint64_t n, uint64_t block, uint64_t* live,
                        uint64_t* partial) {
  return scan_blocks_any(x, n, block, live, partial);
}

}  // namespace
}  // namespace addend::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend::index {

HWY_EXPORT(scan_blocks32);
HWY_EXPORT(scan_blocks16);

BlockScan scan_blocks(uint32_t width, const void* gradient, uint64_t count, uint64_t block,
                      uint64_t* live, uint64_t* partial) {
  const auto run = [&]<typename T>(T, auto fast) {
    const auto* from = static_cast<const T*>(gradient);
    if (scalar_forced()) return reference::scan_blocks(from, count, block, live, partial);
    return fast(from, count, block, live, partial);
  };
  return width == 4 ? run(uint32_t{}, HWY_DYNAMIC_DISPATCH(scan_blocks32))
                    : run(uint16_t{}, HWY_DYNAMIC_DISPATCH(scan_blocks16));
}

BlockScan scan_blocks(const uint64_t* nonzeros, uint64_t count, uint64_t block, uint64_t* live,
                      uint64_t* partial) {
  BlockScan found;
  const uint64_t blocks = ceil_div(count, block);
  std::fill_n(live, words_for(blocks), 0);
  std::fill_n(partial, words_for(blocks), 0);
  for (uint64_t b = 0; b < blocks; ++b) {
    const uint64_t begin = b * block, length = std::min(block, count - begin);
    const uint64_t here = block == 64 ? static_cast<uint64_t>(std::popcount(nonzeros[b]))
                                      : popcount_range(nonzeros, begin, begin + length);
    found.nonzeros += here;
    live[b / 64] |= uint64_t{here > 0} << b % 64;
    partial[b / 64] |= uint64_t{here > 0 && here < length} << b % 64;
  }
  return found;
}

}  // namespace addend::index
#endif
