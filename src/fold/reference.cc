// SPDX-License-Identifier: Apache-2.0
#include "fold/reference.h"

#include <algorithm>

namespace addend::reference {
namespace {

template <typename T, typename Combine>
void each(void* acc, const void* in, uint64_t lanes, Combine combine) {
  auto* a = static_cast<T*>(acc);
  const auto* b = static_cast<const T*>(in);
  for (uint64_t i = 0; i < lanes; ++i)
    a[i] = combine(a[i], b[i]);
}

template <typename T>
void each_table(void* acc, const uint8_t* indices, const void* table, uint64_t lanes) {
  auto* a = static_cast<T*>(acc);
  const auto* t = static_cast<const T*>(table);
  for (uint64_t i = 0; i < lanes; ++i)
    a[i] = static_cast<T>(a[i] + t[nibble(indices, i)]);
}

}  // namespace

void fold(Op op, void* acc, const void* in, uint64_t lanes) noexcept {
  switch (op) {
    case Op::kSumF32:
      return each<float>(acc, in, lanes, combine_f32);
    case Op::kSumBf16:
      return each<uint16_t>(acc, in, lanes, combine_bf16);
    case Op::kSumF16:
      return each<uint16_t>(acc, in, lanes, combine_f16);
    case Op::kSumI32:
      return each<uint32_t>(acc, in, lanes, combine_i32);
    case Op::kSumI64:
      return each<uint64_t>(acc, in, lanes, combine_i64);
    case Op::kSumU8:
      return each<uint8_t>(acc, in, lanes, combine_u8);
    case Op::kSumU16:
      return each<uint16_t>(acc, in, lanes, combine_u16);
    case Op::kOrU64:
      return each<uint64_t>(acc, in, lanes, combine_or);
    case Op::kMaxU32:
      return each<uint32_t>(acc, in, lanes, combine_max);
    default:  // table sums: fold_table
      return;
  }
}

void fold_table(Op op, void* acc, const uint8_t* indices, const void* table,
                uint64_t lanes) noexcept {
  if (op == Op::kTableSumU8) return each_table<uint8_t>(acc, indices, table, lanes);
  if (op == Op::kTableSumU16) return each_table<uint16_t>(acc, indices, table, lanes);
}

void add_levels(uint16_t* acc, const uint8_t* levels, uint64_t lanes) noexcept {
  for (uint64_t i = 0; i < lanes; ++i)
    acc[i] = static_cast<uint16_t>(acc[i] + levels[i]);
}

void narrow_group(const uint16_t* sums, uint64_t lanes, uint32_t bits, uint8_t* out) noexcept {
  const auto [least, most] = std::minmax_element(sums, sums + lanes);
  uint32_t seed = 0;
  for (uint32_t i = 0; i < lanes; ++i)
    seed += (2 * i + 1) * sums[i];
  const narrow::Group group = narrow_group_of(*least, *most, seed, bits);
  narrow::write_group(group, out);
  uint8_t* values = out + ADDEND_NARROW_HEADER_BYTES;
  for (uint32_t i = 0; i < lanes; ++i) {
    const auto value = static_cast<uint8_t>(narrow::narrowed(group, i, sums[i]));
    if (bits == 8) {
      values[i] = value;
    } else if (i % 2 == 0) {
      values[i / 2] = value;
    } else {
      values[i / 2] = static_cast<uint8_t>(values[i / 2] | value << 4);
    }
  }
}

}  // namespace addend::reference
