// SPDX-License-Identifier: Apache-2.0
#include "fold/narrow.h"

#include <algorithm>
#include <array>

#include "addend/fold.h"
#include "base/simd.h"
#include "fold/reference.h"
#include "fold/simd_kernels.h"
#include "wire/narrow.h"

namespace addend {
namespace {

using narrow::kGroupLanes;

// A byte of 1- or 2-bit indices as the bytes of 4-bit ones that say the same.
template <uint32_t kBits>
constexpr std::array<uint32_t, 256> spread_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (uint32_t i = 0; i < 8 / kBits; ++i)
      table[byte] |= (byte >> (i * kBits) & ((1u << kBits) - 1)) << (4 * i);
  }
  return table;
}

// Bytes that a spread byte takes are 4 / kBits.
template <uint32_t kBits>
void spread(const uint8_t* packed, uint64_t bytes, uint8_t* nibbles) {
  static constexpr std::array<uint32_t, 256> kSpread = spread_table<kBits>();
  for (uint64_t i = 0; i < bytes; ++i) {
    for (uint32_t j = 0; j < 4 / kBits; ++j)
      nibbles[i * (4 / kBits) + j] = static_cast<uint8_t>(kSpread[packed[i]] >> (8 * j));
  }
}

// Three bytes are eight indices: halves move apart in three steps.
template <>
void spread<3>(const uint8_t* packed, uint64_t bytes, uint8_t* nibbles) {
  for (uint64_t i = 0; i < bytes; i += 3, nibbles += 4) {
    uint32_t x = packed[i];
    for (uint32_t j = 1; j < 3 && i + j < bytes; ++j)
      x |= static_cast<uint32_t>(packed[i + j]) << (8 * j);
    x = (x & 0x000FFF) | (x & 0xFFF000) << 4;
    x = (x & 0x003F003F) | (x & 0x0FC00FC0) << 2;
    x = (x & 0x07070707) | (x & 0x38383838) << 1;
    for (uint32_t j = 0; j < 4; ++j)
      nibbles[j] = static_cast<uint8_t>(x >> (8 * j));
  }
}

void add_levels(uint16_t* acc, std::span<const uint8_t* const> sources, uint64_t lanes) {
  if (!scalar_forced()) return simd::add_levels(acc, sources.data(), sources.size(), lanes);
  for (const uint8_t* levels : sources)
    reference::add_levels(acc, levels, lanes);
}

// As many workers' lanes are added before their sums leave the registers.
constexpr std::size_t kAtOnce = 16;

// acc += what the lanes of a group stand for, from lane `begin` on of at most kAtOnce workers.
void add_group(Op op, uint16_t* acc, std::span<const uint8_t* const> sources, uint64_t begin,
               const uint16_t* table, uint64_t lanes) {
  const uint32_t bits = addend_op_index_bits(static_cast<addend_op>(op));
  const uint64_t bytes = op_bytes(op, lanes);
  uint8_t nibbles[kAtOnce][kGroupLanes / 2];
  std::array<const uint8_t*, kAtOnce> from{};
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const uint8_t* in = sources[s] + op_bytes(op, begin);
    if (bits == 1) spread<1>(in, bytes, nibbles[s]);
    if (bits == 2) spread<2>(in, bytes, nibbles[s]);
    if (bits == 3) spread<3>(in, bytes, nibbles[s]);
    from[s] = bits < 4 ? nibbles[s] : in;
  }
  if (bits == 8) return add_levels(acc, {from.data(), sources.size()}, lanes);
  fold_tables(Op::kTableSumU16, acc, from.data(), sources.size(), table, lanes);
}

void write_group(Op op, const uint16_t* sums, uint64_t lanes, uint8_t* out) {
  const uint32_t bits = addend_op_narrow_bits(static_cast<addend_op>(op));
  if (scalar_forced()) return reference::narrow_group(sums, lanes, bits, out);
  simd::narrow_group(sums, lanes, bits, out);
}

std::array<uint16_t, 16> widened(Op op, const void* table) {
  std::array<uint16_t, 16> levels{};
  if (op_table_bytes(op) != 0) std::copy_n(static_cast<const uint8_t*>(table), 16, levels.begin());
  return levels;
}

uint64_t lanes_of_group(uint64_t lanes, uint64_t begin) {
  return std::min<uint64_t>(kGroupLanes, lanes - begin);
}

}  // namespace

void grow_narrow(Op op, uint16_t* acc, const uint8_t* in, const void* table,
                 uint64_t lanes) noexcept {
  const std::array<uint16_t, 16> levels = widened(op, table);
  for (uint64_t begin = 0; begin < lanes; begin += kGroupLanes)
    add_group(op, acc + begin, {&in, 1}, begin, levels.data(), lanes_of_group(lanes, begin));
}

void narrow_sums(Op op, const uint16_t* sums, uint64_t lanes, uint8_t* out) noexcept {
  for (uint64_t begin = 0; begin < lanes; begin += kGroupLanes)
    write_group(op, sums + begin, lanes_of_group(lanes, begin), out + op_sum_bytes(op, begin));
}

void fold_narrow(Op op, uint8_t* out, std::span<const uint8_t* const> sources, const void* table,
                 uint64_t lanes) noexcept {
  const std::array<uint16_t, 16> levels = widened(op, table);
  std::array<uint16_t, kGroupLanes> sums;
  for (uint64_t begin = 0; begin < lanes; begin += kGroupLanes) {
    const uint64_t count = lanes_of_group(lanes, begin);
    sums.fill(0);
    for (std::size_t s = 0; s < sources.size(); s += kAtOnce) {
      const auto some = sources.subspan(s, std::min(kAtOnce, sources.size() - s));
      add_group(op, sums.data(), some, begin, levels.data(), count);
    }
    write_group(op, sums.data(), count, out + op_sum_bytes(op, begin));
  }
}

}  // namespace addend
