// SPDX-License-Identifier: Apache-2.0
// From bytes of four rows in a lane to rows in memory.
#pragma once

#include "codec/quant/device_block.cuh"

namespace addend::quant {

// Byte k of lane p of four -> byte p of lane k.
__device__ __forceinline__ uint32_t transpose_bytes(uint32_t word, uint32_t lane) {
  const uint32_t far = __shfl_xor_sync(kAll, word, 2);
  word = __byte_perm(word, far, (lane & 2) != 0 ? 0x3276 : 0x5410);
  const uint32_t near = __shfl_xor_sync(kAll, word, 1);
  return __byte_perm(word, near, (lane & 1) != 0 ? 0x3715 : 0x6240);
}

// Where this lane stores codes of the first rows of a block whose lanes start at `element`; of
// later rows, so many elements on. Four rows become four bytes a lane, eight rows of nibbles, too.
template <bool kNibbles>
__device__ __forceinline__ uint8_t* first_store(DeviceCarrier carrier, void* lanes,
                                                uint64_t element, uint32_t lane) {
  auto* to = static_cast<uint8_t*>(lanes);
  if constexpr (kNibbles) return to + (element + (lane & 7u) * kWarp + (lane & ~7u)) / 2;
  const uint64_t at = element + (lane & 3u) * kWarp + (lane & ~3u);
  return to + (carrier == DeviceCarrier::kU8    ? at
               : carrier == DeviceCarrier::kU16 ? 2 * at
                                                : 4 * at);
}

// Four rows of 32 codes: byte k of `word` is row k, column `lane`.
__device__ __forceinline__ void store_rows(DeviceCarrier carrier, uint8_t* to, uint32_t elements,
                                           uint32_t word, uint32_t lane) {
  const uint32_t four = transpose_bytes(word, lane);
  if (carrier == DeviceCarrier::kU8) {
    __stcs(reinterpret_cast<uint32_t*>(to + elements), four);
  } else if (carrier == DeviceCarrier::kU16) {
    const uint2 two = {__byte_perm(four, 0, 0x4140), __byte_perm(four, 0, 0x4342)};
    __stcs(reinterpret_cast<uint2*>(to + 2 * elements), two);
  } else {
    const uint4 each = {four & 0xFFu, (four >> 8) & 0xFFu, (four >> 16) & 0xFFu, four >> 24};
    __stcs(reinterpret_cast<uint4*>(to + 4 * elements), each);
  }
}

// Eight rows of 32 nibbles: byte k of `word` has row k in its low half, row k + 4 in its high one.
__device__ __forceinline__ void store_nibbles(uint8_t* to, uint32_t elements, uint32_t word,
                                              uint32_t lane) {
  const uint32_t four = transpose_bytes(word, lane);  // rows p and p + 4, columns 4 q to 4 q + 3
  uint32_t low = four & 0x0F0F0F0Fu, high = (four >> 4) & 0x0F0F0F0Fu;
  low |= low >> 4;
  high |= high >> 4;
  const uint32_t both = __byte_perm(low, high, 0x6420);
  const uint32_t other = __shfl_xor_sync(kAll, both, 4);
  const uint32_t packed = __byte_perm(both, other, (lane & 4u) != 0 ? 0x3276 : 0x5410);
  __stcs(reinterpret_cast<uint32_t*>(to + elements / 2), packed);
}

}  // namespace addend::quant
