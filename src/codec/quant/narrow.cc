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

// `ones` set bits at every `every`th place.
constexpr uint64_t repeated(uint32_t ones, uint32_t every) {
  uint64_t mask = 0;
  for (uint32_t at = 0; at < 64; at += every)
    mask |= ((uint64_t{1} << ones) - 1) << at;
  return mask;
}

// The low bits of sixteen nibbles, side by side. Neighbours move together in four steps, each of
// which halves how many there are.
template <uint32_t kBits, uint32_t kStep = 0>
uint64_t squeeze(uint64_t x) {
  if constexpr (kStep < 4) {
    constexpr uint32_t kOnes = kBits << kStep, kRoom = 4u << kStep;
    constexpr uint64_t kEven = repeated(kOnes, 2 * kRoom);
    return squeeze<kBits, kStep + 1>((x & kEven) | (x >> (kRoom - kOnes) & kEven << kOnes));
  }
  return x;
}

uint64_t little(uint64_t x) {
  if constexpr (std::endian::native == std::endian::little) return x;
  return __builtin_bswap64(x);
}

template <uint32_t kBits>
void pack(const uint8_t* nibbles, uint64_t n, uint8_t* out) {
  for (uint64_t i = 0; i < n; i += 16) {
    uint64_t word = 0;
    std::memcpy(&word, nibbles + i / 2, 8);
    const uint64_t packed = little(squeeze<kBits>(little(word)));
    std::memcpy(out + i / 8 * kBits, &packed, 2 * kBits);
  }
}

}  // namespace

void pack_indices(const uint8_t* nibbles, uint64_t n, uint32_t bits, uint8_t* out) {
  if (bits == 1) return pack<1>(nibbles, n, out);
  if (bits == 2) return pack<2>(nibbles, n, out);
  pack<3>(nibbles, n, out);
}

void dequantise_narrow(const NarrowSums& from, uint64_t n, float factor, float offset, float* x) {
  constexpr uint8_t kSame[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  uint8_t bytes[narrow::kGroupLanes];
  uint64_t first = from.lane;
  while (n > 0) {
    const auto lane = static_cast<uint32_t>(first % narrow::kGroupLanes);
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(n, narrow::kGroupLanes - lane));
    const uint8_t* at = from.sums + narrow::group_at(from.bits, first / narrow::kGroupLanes);
    const uint8_t* values = at + ADDEND_NARROW_HEADER_BYTES + uint64_t{lane} * from.bits / 8;
    if (from.bits == 4) {
      look_up(kSame, values, count, bytes);
      values = bytes;
    }
    dequantise(narrow::read_group(at), lane, values, count, factor / 2, offset, x);
    first += count;
    x += count;
    n -= count;
  }
}

// Encodes a block as its plane has it with `down`.
void QuantCodec::fill_narrow(Scratch& mine, uint64_t b, uint8_t* out) {
  if (options_.bits > 4) return encode_block(mine, b, Carrier::kLevels, out);
  if (options_.bits == 4) return encode_block(mine, b, Carrier::kIndices, out);
  auto* nibbles = mine.nibbles.as<uint8_t>();
  encode_block(mine, b, Carrier::kIndices, nibbles);
  pack_indices(nibbles, blocks_[b].size, options_.bits, out);
}

// Lanes between segments say something in the middle, so that they do not widen a group's range.
void QuantCodec::fill_gaps(LanePlane& plane) {
  if (layout().segments.empty()) return;
  const uint32_t bits = options_.bits;
  const uint32_t middle = (1u << (bits - 1)) - 1 + layout().worker % 2;
  auto* bytes = plane.data.as<uint8_t>();
  if (bits > 4) {
    std::memset(bytes, static_cast<int>(codings_[0].table.levels[middle]), plane.lanes);
    return;
  }
  // Eight indices, and as often as they fit: a group is a multiple of them. Every plane goes
  // through here in every step: memset for what is the same in all bytes, and copies of what is
  // there.
  uint32_t eight = 0;
  for (uint32_t i = 0; i < 8; ++i)
    eight |= middle << (i * bits);
  const uint64_t size = plane.lanes / 8 * bits;
  if (bits != 3) {
    std::memset(bytes, static_cast<int>(eight & 255), size);
    return;
  }
  for (uint64_t i = 0; i < std::min<uint64_t>(size, bits); ++i)
    bytes[i] = static_cast<uint8_t>(eight >> (i * 8));
  for (uint64_t done = bits; done < size; done *= 2)
    std::memcpy(bytes + done, bytes, std::min(done, size - done));
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
