// SPDX-License-Identifier: Apache-2.0
// Cost per element of width w at density D: scan reads w and writes 1/8 + D*w bytes, place moves
// 2*D*w, unpack writes w and reads D*w. Encode and decode together therefore move little more than
// a memcpy of the gradient (2w), which is the bar. Elements are compressed in registers and stored
// as whole vectors: compressing stores are microcoded on some CPUs.
#include "codec/index/kernels.h"

#include <bit>
#include <cstring>
#include <type_traits>

#include "base/simd.h"
#include "codec/index/kernels_reference.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/index/kernels.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "codec/index/compact-inl.h"

HWY_BEFORE_NAMESPACE();
namespace addend::index::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// An unsigned integer with one bit per lane of a compaction.
template <typename T>
using MaskBits =
    std::conditional_t<!kWide<T>, uint8_t, std::conditional_t<sizeof(T) == 4, uint16_t, uint32_t>>;

// Whether all bits of the 64 elements are zero. Sparse gradients are mostly such words, and this
// alone keeps up with memory.
template <typename T>
HWY_INLINE bool is_blank(const T* from) {
  const CompactTag<T> d;
  auto any = hn::Zero(d);
  for (uint64_t j = 0; j < 64; j += hn::Lanes(d))
    any = hn::Or(any, hn::LoadU(d, from + j));
  return hn::AllTrue(d, hn::Eq(any, hn::Zero(d)));
}

// Scans 64 elements: writes their word of the bitmap, appends the non-zeros to `kept` if kKeep, and
// collects the bits of zeros, which are signs, in `zeros`. Returns the number of non-zeros.
template <bool kKeep, typename T>
HWY_INLINE uint64_t scan_word(const T* from, uint8_t* word, T* kept,
                              hn::Vec<CompactTag<T>>& zeros) {
  const CompactTag<T> d;
  uint64_t found = 0;
  for (uint64_t j = 0; j < 64; j += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, from + j);
    const auto nonzero = hn::Ne(hn::ShiftLeft<1>(v), hn::Zero(d));
    const uint64_t bits = store_bits<decltype(d), MaskBits<T>>(d, nonzero, word + j / 8);
    zeros = hn::Or(zeros, hn::IfThenZeroElse(nonzero, v));
    if constexpr (kKeep) hn::StoreU(compress(d, v, bits), d, kept + found);
    found += static_cast<uint64_t>(std::popcount(bits));
  }
  return found;
}

template <typename T>
HWY_INLINE ScanResult scan_any(const T* HWY_RESTRICT gradient, uint64_t count,
                               uint64_t* HWY_RESTRICT bitmap, T* HWY_RESTRICT kept,
                               uint64_t kept_capacity) {
  ScanResult found;
  uint64_t i = 0;
  if constexpr (kCanCompact<T>) {
    const CompactTag<T> d;
    auto zeros = hn::Zero(d);
    auto* bytes = reinterpret_cast<uint8_t*>(bitmap);
    uint64_t out = 0;
    for (; i + 64 <= count && out + 64 <= kept_capacity; i += 64) {
      bitmap[i / 64] = 0;
      if (is_blank(gradient + i)) continue;
      out += scan_word<true>(gradient + i, bytes + i / 8, kept + out, zeros);
    }
    found = {out, out, false};
    if (out + 64 > kept_capacity) {
      for (; i + 64 <= count; i += 64)
        found.nonzeros += scan_word<false>(gradient + i, bytes + i / 8, kept, zeros);
    }
    found.negative_zeros = !hn::AllTrue(d, hn::Eq(zeros, hn::Zero(d)));
  }
  return reference::scan(gradient, i, count, bitmap, kept, kept_capacity, found);
}

template <typename T>
HWY_INLINE uint64_t pack_any(const T* HWY_RESTRICT gradient, uint64_t count,
                             const uint64_t* HWY_RESTRICT selection, T* HWY_RESTRICT packed,
                             uint64_t room) {
  uint64_t rank = 0, i = 0;
  if constexpr (kCanCompact<T>) {
    const CompactTag<T> d;
    const uint64_t n = hn::Lanes(d);
    // A word's vectors end at most 64 elements after its first.
    for (; i + 64 <= count && room - rank >= 64; i += 64) {
      uint64_t word = selection[i / 64];
      for (uint64_t j = i; word != 0; j += n, word >>= n) {
        const uint64_t bits = word & low_mask(n);
        hn::StoreU(compress(d, hn::LoadU(d, gradient + j), bits), d, packed + rank);
        rank += static_cast<uint64_t>(std::popcount(bits));
      }
    }
  }
  return reference::pack(gradient, i, count, selection, packed, rank);
}

// Where a word of the bitmap equals the selection its kept values are already the packed ones, so
// equal stretches are copied whole; elsewhere zeros are laid down and each kept value goes to its
// rank inside the word.
template <typename T>
HWY_INLINE uint64_t place_any(const T* HWY_RESTRICT kept, const uint64_t* HWY_RESTRICT bitmap,
                              uint64_t words, const uint64_t* HWY_RESTRICT selection,
                              T* HWY_RESTRICT packed, uint64_t room) {
  const hn::ScalableTag<T> d;
  const uint64_t n = hn::Lanes(d);
  uint64_t rank = 0, taken = 0, run = 0, w = 0;
  const auto copy_run = [&]() HWY_ATTR {
    if (run == 0) return;
    std::memcpy(packed + rank, kept + taken, run * sizeof(T));
    rank += run;
    taken += run;
    run = 0;
  };
  for (; w < words && room - rank - run >= 64; ++w) {
    const uint64_t wanted = selection[w], have = bitmap[w];
    if (wanted == have) {
      run += static_cast<uint64_t>(std::popcount(have));
      continue;
    }
    copy_run();
    const auto total = static_cast<uint64_t>(std::popcount(wanted));
    for (uint64_t r = 0; r < total; r += n)
      hn::StoreU(hn::Zero(d), d, packed + rank + r);
    for_each_bit(have, 0, [&](uint64_t bit) HWY_ATTR {
      packed[rank + static_cast<uint64_t>(std::popcount(wanted & low_mask(bit)))] = kept[taken++];
    });
    rank += total;
  }
  copy_run();
  return reference::place(kept, bitmap, w, words, selection, packed, {rank, taken});
}

// Words of a bitmap that are written together, and so many elements of them at the most.
constexpr uint64_t kGroup = 16;
constexpr uint64_t kFewOfGroup = kGroup * 4;

// Numbers of the set bits of a group, unless they are many; returns how many. Two of a word without
// asking whether there are so many: where they are few there are seldom more, and a branch would be
// guessed wrong every other word.
HWY_INLINE uint64_t few_bits(const uint64_t* HWY_RESTRICT words, uint16_t* HWY_RESTRICT numbers) {
  uint64_t found = 0;
  for (uint64_t w = 0; w < kGroup && found <= kFewOfGroup; ++w) {
    uint64_t word = words[w];
    for (uint64_t s = 0; s < 2; ++s) {
      numbers[found] =
          static_cast<uint16_t>(w * 64 + static_cast<uint64_t>(std::countr_zero(word)));
      found += word != 0 ? 1 : 0;
      word &= word - 1;
    }
    for (; word != 0; word &= word - 1) {
      numbers[found++] =
          static_cast<uint16_t>(w * 64 + static_cast<uint64_t>(std::countr_zero(word)));
    }
  }
  return found;
}

// Streams groups with few elements from a stretch of zeros into which those are put; stops at the
// first other group. Returns where, and moves `rank` on.
template <typename T>
HWY_INLINE uint64_t stream_few(const T* HWY_RESTRICT packed, const uint64_t* HWY_RESTRICT selection,
                               uint64_t i, uint64_t count, T* HWY_RESTRICT gradient,
                               uint64_t& rank) {
  const hn::ScalableTag<T> d;
  HWY_ALIGN T lines[kGroup * 64] = {};
  uint16_t numbers[kFewOfGroup + 66];
  for (; i + kGroup * 64 <= count; i += kGroup * 64) {
    const uint64_t found = few_bits(selection + i / 64, numbers);
    if (found > kFewOfGroup) break;
    for (uint64_t j = 0; j < found; ++j)
      lines[numbers[j]] = packed[rank + j];
    for (uint64_t j = 0; j < kGroup * 64; j += hn::Lanes(d))
      hn::Stream(hn::Load(d, lines + j), d, gradient + i + j);
    for (uint64_t j = 0; j < found; ++j)
      lines[numbers[j]] = 0;
    rank += found;
  }
  return i;
}

template <bool kIntoZeros, typename T>
HWY_INLINE void unpack_any(const T* HWY_RESTRICT packed, const uint64_t* HWY_RESTRICT selection,
                           uint64_t count, T* HWY_RESTRICT gradient, bool stream) {
  uint64_t rank = 0, i = 0;
  if constexpr (kCanCompact<T>) {
    const CompactTag<T> d;
    const uint64_t n = hn::Lanes(d);
    const hn::ScalableTag<T> whole;
    stream = stream && reinterpret_cast<uintptr_t>(gradient) % (hn::Lanes(whole) * sizeof(T)) == 0;
    for (; i + 64 <= count; i += 64) {
      if (!kIntoZeros && stream && i % (kGroup * 64) == 0) {
        i = stream_few(packed, selection, i, count, gradient, rank);
        if (i + 64 > count) break;
      }
      uint64_t word = selection[i / 64];
      if (kIntoZeros && word == 0) continue;
      for (uint64_t j = i; j < i + 64; j += n, word >>= n) {
        const uint64_t bits = word & low_mask(n);
        const auto v = expand(d, packed + rank, bits);
        if (stream) {
          hn::Stream(v, d, gradient + j);
        } else {
          hn::StoreU(v, d, gradient + j);
        }
        rank += static_cast<uint64_t>(std::popcount(bits));
      }
    }
    if (stream) hwy::FlushStream();
  }
  if constexpr (kIntoZeros) {
    reference::unpack_into_zeros(packed, selection, i, count, gradient, rank);
  } else {
    reference::unpack(packed, selection, i, count, gradient, rank);
  }
}

// Plain functions, because run-time dispatch cannot export templates.
ScanResult scan32(const uint32_t* x, uint64_t n, uint64_t* bitmap, uint32_t* kept, uint64_t cap) {
  return scan_any(x, n, bitmap, kept, cap);
}
ScanResult scan16(const uint16_t* x, uint64_t n, uint64_t* bitmap, uint16_t* kept, uint64_t cap) {
  return scan_any(x, n, bitmap, kept, cap);
}
uint64_t pack32(const uint32_t* x, uint64_t n, const uint64_t* selection, uint32_t* packed,
                uint64_t room) {
  return pack_any(x, n, selection, packed, room);
}
uint64_t pack16(const uint16_t* x, uint64_t n, const uint64_t* selection, uint16_t* packed,
                uint64_t room) {
  return pack_any(x, n, selection, packed, room);
}
uint64_t place32(const uint32_t* kept, const uint64_t* bitmap, uint64_t words,
                 const uint64_t* selection, uint32_t* packed, uint64_t room) {
  return place_any(kept, bitmap, words, selection, packed, room);
}
uint64_t place16(const uint16_t* kept, const uint64_t* bitmap, uint64_t words,
                 const uint64_t* selection, uint16_t* packed, uint64_t room) {
  return place_any(kept, bitmap, words, selection, packed, room);
}
void unpack32(const uint32_t* packed, const uint64_t* selection, uint64_t n, uint32_t* x,
              bool stream) {
  unpack_any<false>(packed, selection, n, x, stream);
}
void unpack16(const uint16_t* packed, const uint64_t* selection, uint64_t n, uint16_t* x,
              bool stream) {
  unpack_any<false>(packed, selection, n, x, stream);
}
void unpack_into32(const uint32_t* packed, const uint64_t* selection, uint64_t n, uint32_t* x,
                   bool stream) {
  unpack_any<true>(packed, selection, n, x, stream);
}
void unpack_into16(const uint16_t* packed, const uint64_t* selection, uint64_t n, uint16_t* x,
                   bool stream) {
  unpack_any<true>(packed, selection, n, x, stream);
}

}  // namespace
}  // namespace addend::index::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend::index {

HWY_EXPORT(scan32);
HWY_EXPORT(scan16);
HWY_EXPORT(pack32);
HWY_EXPORT(pack16);
HWY_EXPORT(place32);
HWY_EXPORT(place16);
HWY_EXPORT(unpack32);
HWY_EXPORT(unpack16);
HWY_EXPORT(unpack_into32);
HWY_EXPORT(unpack_into16);

namespace {

template <typename T>
const T* in(const void* p) {
  return static_cast<const T*>(p);
}
template <typename T>
T* out(void* p) {
  return static_cast<T*>(p);
}

}  // namespace

ScanResult scan(uint32_t width, const void* gradient, uint64_t count, uint64_t* bitmap, void* kept,
                uint64_t kept_capacity) {
  const auto run = [&]<typename T>(T, auto fast) {
    if (scalar_forced()) {
      return reference::scan(in<T>(gradient), 0, count, bitmap, out<T>(kept), kept_capacity, {});
    }
    return fast(in<T>(gradient), count, bitmap, out<T>(kept), kept_capacity);
  };
  return width == 4 ? run(uint32_t{}, HWY_DYNAMIC_DISPATCH(scan32))
                    : run(uint16_t{}, HWY_DYNAMIC_DISPATCH(scan16));
}

uint64_t pack(uint32_t width, const void* gradient, uint64_t count, const uint64_t* selection,
              void* packed, uint64_t room) {
  const auto run = [&]<typename T>(T, auto fast) {
    if (scalar_forced()) {
      return reference::pack(in<T>(gradient), 0, count, selection, out<T>(packed), 0);
    }
    return fast(in<T>(gradient), count, selection, out<T>(packed), room);
  };
  return width == 4 ? run(uint32_t{}, HWY_DYNAMIC_DISPATCH(pack32))
                    : run(uint16_t{}, HWY_DYNAMIC_DISPATCH(pack16));
}

uint64_t place(uint32_t width, const void* kept, const uint64_t* bitmap, uint64_t words,
               const uint64_t* selection, void* packed, uint64_t room) {
  const auto run = [&]<typename T>(T, auto fast) {
    if (scalar_forced()) {
      return reference::place(in<T>(kept), bitmap, 0, words, selection, out<T>(packed), {});
    }
    return fast(in<T>(kept), bitmap, words, selection, out<T>(packed), room);
  };
  return width == 4 ? run(uint32_t{}, HWY_DYNAMIC_DISPATCH(place32))
                    : run(uint16_t{}, HWY_DYNAMIC_DISPATCH(place16));
}

void unpack(uint32_t width, const void* packed, const uint64_t* selection, uint64_t count,
            void* gradient, bool stream) {
  const auto run = [&]<typename T>(T, auto fast) {
    if (scalar_forced()) {
      return reference::unpack(in<T>(packed), selection, 0, count, out<T>(gradient), 0);
    }
    return fast(in<T>(packed), selection, count, out<T>(gradient), stream);
  };
  width == 4 ? run(uint32_t{}, HWY_DYNAMIC_DISPATCH(unpack32))
             : run(uint16_t{}, HWY_DYNAMIC_DISPATCH(unpack16));
}

void unpack_into_zeros(uint32_t width, const void* packed, const uint64_t* selection,
                       uint64_t count, void* gradient, bool stream) {
  const auto run = [&]<typename T>(T, auto fast) {
    if (scalar_forced()) {
      return reference::unpack_into_zeros(in<T>(packed), selection, 0, count, out<T>(gradient), 0);
    }
    return fast(in<T>(packed), selection, count, out<T>(gradient), stream);
  };
  width == 4 ? run(uint32_t{}, HWY_DYNAMIC_DISPATCH(unpack_into32))
             : run(uint16_t{}, HWY_DYNAMIC_DISPATCH(unpack_into16));
}

}  // namespace addend::index
#endif
