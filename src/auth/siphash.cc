// SPDX-License-Identifier: Apache-2.0
// A vector holds one word of the state of as many frames as it has lanes. 14 rounds for the words,
// 4 to finish, 14 operations each.
#include "auth/siphash.h"

#include <cstring>

#include "base/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "auth/siphash.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::auth::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<uint64_t, kTagsAtOnce>;
using V = hn::Vec<D>;

template <int kBits>
HWY_INLINE V rotate_left(V v) {
  return hn::RotateRight<64 - kBits>(v);
}

HWY_INLINE void sip_round(V& v0, V& v1, V& v2, V& v3) {
  v0 = hn::Add(v0, v1);
  v2 = hn::Add(v2, v3);
  v1 = hn::Xor(rotate_left<13>(v1), v0);
  v3 = hn::Xor(rotate_left<16>(v3), v2);
  v0 = rotate_left<32>(v0);
  v2 = hn::Add(v2, v1);
  v0 = hn::Add(v0, v3);
  v1 = hn::Xor(rotate_left<17>(v1), v2);
  v3 = hn::Xor(rotate_left<21>(v3), v0);
  v2 = rotate_left<32>(v2);
}

// All columns; those that hold no frame give tags that nobody looks at.
void all_columns(const TagColumns& columns, std::size_t count, uint64_t* HWY_RESTRICT tags) {
  const D d;
  constexpr uint64_t kWords = ADDEND_TAG_HEADER_WORDS + 2;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    const V k0 = hn::Load(d, columns.key[0] + i), k1 = hn::Load(d, columns.key[1] + i);
    V v0 = hn::Xor(k0, hn::Set(d, 0x736F6D6570736575ull));
    V v1 = hn::Xor(k1, hn::Set(d, 0x646F72616E646F6Dull));
    V v2 = hn::Xor(k0, hn::Set(d, 0x6C7967656E657261ull));
    V v3 = hn::Xor(k1, hn::Set(d, 0x7465646279746573ull));
    for (uint64_t w = 0; w <= kWords; ++w) {
      const V word = w < kWords ? hn::Load(d, columns.words[w] + i) : hn::Set(d, kWords * 8 << 56);
      v3 = hn::Xor(v3, word);
      sip_round(v0, v1, v2, v3);
      sip_round(v0, v1, v2, v3);
      v0 = hn::Xor(v0, word);
    }
    v2 = hn::Xor(v2, hn::Set(d, uint64_t{0xFF}));
    for (int r = 0; r < 4; ++r)
      sip_round(v0, v1, v2, v3);
    hn::Store(hn::Xor(hn::Xor(v0, v1), hn::Xor(v2, v3)), d, tags + i);
  }
}

}  // namespace
}  // namespace addend::auth::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend::auth {
namespace {
HWY_EXPORT(all_columns);
}

void reference::finish_tags(const TagColumns& columns, std::size_t count, uint64_t* tags) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    const uint64_t key[2] = {columns.key[0][i], columns.key[1][i]};
    uint64_t header[ADDEND_TAG_HEADER_WORDS];
    for (std::size_t w = 0; w < ADDEND_TAG_HEADER_WORDS; ++w)
      header[w] = columns.words[w][i];
    tags[i] = addend_tag_finish(key, header, columns.words[ADDEND_TAG_HEADER_WORDS][i],
                                columns.words[ADDEND_TAG_HEADER_WORDS + 1][i]);
  }
}

void finish_tags(const TagColumns& columns, std::size_t count, uint64_t* tags) noexcept {
  // One alone is done sooner in plain registers.
  if (count < 2 || scalar_forced()) return reference::finish_tags(columns, count, tags);
  alignas(64) uint64_t all[kTagsAtOnce];
  HWY_DYNAMIC_DISPATCH(all_columns)(columns, count, all);
  std::memcpy(tags, all, count * sizeof(uint64_t));
}

}  // namespace addend::auth
#endif
