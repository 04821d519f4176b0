// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/narrow.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "codec/quant/quant.h"
#include "wire/narrow.h"

namespace addend::quant {
namespace {

// The low bits of sixteen nibbles, side by side. Neighbours move together in four steps, each of
// which halves how many there are.
uint32_t squeeze(uint64_t x, uint32_t bits) {
  constexpr uint64_t kMasks[2][4] = {
      {0x0303030303030303, 0x000F000F000F000F, 0x000000FF000000FF, 0xFFFF},
      {0x0F0F0F0F0F0F0F0F, 0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0xFFFFFFFF}};
  uint32_t shift = 4 - bits;
  for (const uint64_t mask : kMasks[bits - 1]) {
    x = (x | x >> shift) & mask;
    shift *= 2;
  }
  return static_cast<uint32_t>(x);
}

uint64_t little(uint64_t x) {
  if constexpr (std::endian::native == std::endian::little) return x;
  return __builtin_bswap64(x);
}

}  // namespace

void pack_indices(const uint8_t* nibbles, uint64_t n, uint32_t bits, uint8_t* out) {
  for (uint64_t i = 0; i < n; i += 16) {
    uint64_t word = 0;
    std::memcpy(&word, nibbles + i / 2, 8);
    const uint32_t packed = squeeze(little(word), bits);
    for (uint32_t byte = 0; byte < 2 * bits; ++byte)
      out[i * bits / 8 + byte] = static_cast<uint8_t>(packed >> (8 * byte));
  }
}

void widen(const uint8_t* sums, uint32_t bits, uint64_t first, uint64_t n, uint32_t* twice) {
  uint8_t bytes[narrow::kGroupLanes];
  while (n > 0) {
    const auto lane = static_cast<uint32_t>(first % narrow::kGroupLanes);
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(n, narrow::kGroupLanes - lane));
    const uint8_t* at = sums + narrow::group_at(bits, first / narrow::kGroupLanes);
    const uint8_t* values = at + ADDEND_NARROW_HEADER_BYTES + uint64_t{lane} * bits / 8;
    for (uint32_t i = 0; bits == 4 && i < count / 2; ++i) {
      bytes[2 * i] = values[i] & 15;
      bytes[2 * i + 1] = values[i] >> 4;
    }
    widen(narrow::read_group(at), lane, bits == 4 ? bytes : values, count, twice);
    first += count;
    twice += count;
    n -= count;
  }
}

// Encodes a block as its plane has it with `down`.
void QuantCodec::fill_narrow(Scratch& mine, uint64_t b, uint8_t* out) {
  if (options_.bits > 4) return encode_block(mine, b, Carrier::kLevels, out);
  if (options_.bits > 2) return encode_block(mine, b, Carrier::kIndices, out);
  auto* nibbles = mine.wide.as<uint8_t>();
  encode_block(mine, b, Carrier::kIndices, nibbles);
  pack_indices(nibbles, blocks_[b].size, options_.bits, out);
}

// Lanes between segments say something in the middle, so that they do not widen a group's range.
void QuantCodec::fill_gaps(LanePlane& plane) {
  if (layout().segments.empty()) return;
  const uint32_t middle = (1u << (options_.bits - 1)) - 1 + layout().worker % 2;
  uint32_t byte = options_.bits > 4 ? codings_[0].table.levels[middle] : middle;
  if (options_.bits <= 4) byte |= byte << 4;
  if (options_.bits <= 2) byte |= byte << 2;
  if (options_.bits == 1) byte |= byte << 1;
  std::memset(plane.data.as<void>(), static_cast<int>(byte & 0xFF), plane.data.capacity());
}

// An adder's steps are not 0. Whatever else stands in a group is a sum.
Status QuantCodec::check_narrow() const {
  for (const LanePlane& plane : planes_) {
    for (uint64_t lane = 0; lane < plane.lanes; lane += narrow::kGroupLanes) {
      const uint8_t* at =
          plane.sums.as<uint8_t>() + narrow::group_at(options_.down, lane / narrow::kGroupLanes);
      if (narrow::read_group(at).step != 0) continue;
      return make_error(Errc::kUndecodable, "narrow sums from lane " + std::to_string(lane) +
                                                " on have step 0, which no adder writes");
    }
  }
  return {};
}

}  // namespace addend::quant
