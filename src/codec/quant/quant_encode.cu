// SPDX-License-Identifier: Apache-2.0
// Round 1 on a device: rotate, round, lay out the lanes, and, with feedback, what is owed after the
// step, into memory of its own: a step that fails leaves what was owed before.
#include <utility>

#include "codec/quant/device_block.cuh"
#include "codec/quant/quant_launch.cuh"

namespace addend::quant {
namespace {

// Before the tiles of a CTA's warps.
constexpr uint32_t kTableBytes = kDeviceCells * 8 + 2 * kThresholds * 4;

struct Tables {
  DeviceCell cells[kDeviceCells];
  float thresholds[2 * kThresholds];
};
static_assert(sizeof(Tables) == kTableBytes);

__device__ __forceinline__ void load_tables(const DeviceStep& step, Tables* tables) {
  const auto* cells = reinterpret_cast<const uint2*>(step.cells);
  for (uint32_t i = threadIdx.x; i < kDeviceCells; i += blockDim.x)
    reinterpret_cast<uint2*>(tables->cells)[i] = cells[i];
  for (uint32_t i = threadIdx.x; i < 2 * kThresholds; i += blockDim.x)
    tables->thresholds[i] = step.thresholds[i];
  __syncthreads();
}

// ---- From bytes of four rows in a lane to rows in memory.

// Byte k of lane p of four -> byte p of lane k.
__device__ __forceinline__ uint32_t transpose_bytes(uint32_t word, uint32_t lane) {
  const uint32_t far = __shfl_xor_sync(kAll, word, 2);
  word = __byte_perm(word, far, (lane & 2) != 0 ? 0x3276 : 0x5410);
  const uint32_t near = __shfl_xor_sync(kAll, word, 1);
  return __byte_perm(word, near, (lane & 1) != 0 ? 0x3715 : 0x6240);
}

// Four rows of 32 codes: byte k of `word` is row k, column `lane`.
__device__ __forceinline__ void store_rows(DeviceCarrier carrier, void* lanes, uint64_t element,
                                           uint32_t word, uint32_t lane) {
  const uint32_t four = transpose_bytes(word, lane);
  const uint64_t at = element + (lane & 3u) * kWarp + (lane & ~3u);
  if (carrier == DeviceCarrier::kU8) {
    __stcs(reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(lanes) + at), four);
  } else if (carrier == DeviceCarrier::kU16) {
    const uint2 two = {__byte_perm(four, 0, 0x4140), __byte_perm(four, 0, 0x4342)};
    __stcs(reinterpret_cast<uint2*>(static_cast<uint16_t*>(lanes) + at), two);
  } else {
    const uint4 each = {four & 0xFFu, (four >> 8) & 0xFFu, (four >> 16) & 0xFFu, four >> 24};
    __stcs(reinterpret_cast<uint4*>(static_cast<uint32_t*>(lanes) + at), each);
  }
}

// Eight rows of 32 nibbles: byte k of `word` has row k in its low half, row k + 4 in its high one.
__device__ __forceinline__ void store_nibbles(void* lanes, uint64_t element, uint32_t word,
                                              uint32_t lane) {
  const uint32_t four = transpose_bytes(word, lane);  // rows p and p + 4, columns 4 q to 4 q + 3
  uint32_t low = four & 0x0F0F0F0Fu, high = (four >> 4) & 0x0F0F0F0Fu;
  low |= low >> 4;
  high |= high >> 4;
  const uint32_t both = __byte_perm(low, high, 0x6420);
  const uint32_t other = __shfl_xor_sync(kAll, both, 4);
  const bool upper = (lane & 4u) != 0;
  const uint32_t packed = __byte_perm(both, other, upper ? 0x3276 : 0x5410);
  const uint32_t row = (lane & 3u) + (upper ? 4u : 0u);
  const uint64_t at = (element + row * kWarp + (lane & ~7u)) / 2;
  __stcs(reinterpret_cast<uint32_t*>(static_cast<uint8_t*>(lanes) + at), packed);
}

// ---- A warp a block.

// Rounds v (elements 32 j + lane) and stores codes; with feedback v becomes what is left.
template <bool kNibbles, bool kOwes>
__device__ __forceinline__ void round_columns(const Rounder& q, const DeviceCell* cells,
                                              const Affine& values, float inverse,
                                              DeviceCarrier carrier, void* lanes, uint64_t element,
                                              uint32_t lane, float (&v)[kPerLane]) {
  constexpr uint32_t kRows = 8,
                     kCycle = kThresholds / kWarp;  // rows j and j + 32 share a threshold
#pragma unroll
  for (uint32_t j = 0; j < kCycle; j += kRows) {
    float thresholds[kRows];
#pragma unroll
    for (uint32_t k = 0; k < kRows; ++k)
      thresholds[k] = q.thresholds[(j + k) * kWarp + lane];
#pragma unroll
    for (uint32_t first = j; first < kPerLane; first += kCycle) {
      uint32_t words[2] = {0, 0};
      const auto take = [&](auto row) {
        constexpr uint32_t k = decltype(row)::value;
        float& x = v[first + k];
        const Rounded r = round_element(q, cells, x, thresholds[k]);
        words[k / 4] = r.template code_in<k % 4>(words[k / 4]);
        if constexpr (kOwes) x = kept((x - (r.level() * values.factor + values.offset)) * inverse);
      };
      [&]<uint32_t... kRow>(std::integer_sequence<uint32_t, kRow...>) {
        (take(std::integral_constant<uint32_t, kRow>()), ...);
      }
      (std::make_integer_sequence<uint32_t, kRows>());
      if constexpr (kNibbles) {
        store_nibbles(lanes, element + first * kWarp, words[0] | words[1] << 4, lane);
      } else {
        store_rows(carrier, lanes, element + first * kWarp, words[0], lane);
        store_rows(carrier, lanes, element + (first + 4) * kWarp, words[1], lane);
      }
    }
  }
}

// A block that does not travel keeps what it owes if it is broken, and owes nothing if it is
// silent.
__device__ __forceinline__ void pass_on(const float* owed, float* next, uint32_t norm,
                                        uint32_t lane) {
  for (uint32_t i = lane; i < kWarpBlock; i += kWarp)
    next[i] = norm == 0 ? 0.0f : owed[i];
}

constexpr uint32_t kNoBlock = 0xFFFFFFFFu;

// With feedback a warp has a second tile, and there are fewer warps.
template <bool kOwes>
constexpr uint32_t kWarpThreads = kOwes ? 384 : 512;
template <bool kOwes>
constexpr uint32_t kWarpTiles = kOwes ? 2 : 1;
template <bool kOwes>
constexpr SharedBytes kShared = {kTableBytes, kWarpTiles<kOwes>* kTileBytes};

template <typename Word, bool kNibbles, bool kOwes>
__global__ void __launch_bounds__(kWarpThreads<kOwes>, 1)
    encode_warps(const DeviceStep step, void* lanes, float* next) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto* tables = reinterpret_cast<Tables*>(shared);
  load_tables(step, tables);
  const uint32_t lane = threadIdx.x % kWarp;
  uint8_t* tile = shared + kTableBytes + threadIdx.x / kWarp * kWarpTiles<kOwes> * kTileBytes;
  uint8_t* owed_tile = tile + kTileBytes;
  const auto* owed = static_cast<const float*>(step.owed.values);
  const bool all_live = step.survey->all_live != 0;
  const auto block_at = [&](uint64_t at) {
    return at < step.warp_count ? step.warp_blocks[at] : kNoBlock;
  };
  const auto start = [&](uint32_t b, uint64_t begin, uint64_t place) {
    if (b == kNoBlock) return;
    start_tile(tile, static_cast<const Word*>(step.gradient) + begin, lane);
    if constexpr (kOwes) start_owed(owed_tile, owed + place, lane);
  };
  uint64_t at = first_of_warp();
  uint32_t b = block_at(at), following = block_at(at + warps_in_grid());
  if (b != kNoBlock) start(b, step.parts[b].begin, step.parts[b].place);
  while (b != kNoBlock) {
    const BlockPart part = step.parts[b];
    // What the next copies need is asked for before there is other work.
    const uint32_t coming = following;
    const BlockPart& coming_part = step.parts[coming == kNoBlock ? b : coming];
    const uint64_t begin = coming_part.begin, place = kOwes ? coming_part.place : 0;
    at += warps_in_grid();
    following = block_at(at + warps_in_grid());
    wait_copies();
    if (part.prescale == 0) {
      if constexpr (kOwes) pass_on(owed + part.place, next + part.place, step.norms[b], lane);
      start(coming, begin, place);
      b = coming;
      continue;
    }
    float v[kPerLane];
    rotate_tile<Word>(step, part.signs, part.prescale, tile, lane, v, [&] {
      if constexpr (!kOwes) start(coming, begin, place);
    });
    if constexpr (kOwes) {
      add_owed(owed_tile, part.prescale, lane, v);
      start(coming, begin, place);
    }
    const Rounder q(step, part, tables->thresholds);
    // Division by a power of two, whose inverse is one.
    round_columns<kNibbles, kOwes>(q, tables->cells, part.values, 1 / part.prescale, step.carrier,
                                   lanes, all_live ? part.place : step.lanes[b], lane, v);
    if constexpr (kOwes) {
#pragma unroll
      for (uint32_t j = 0; j < kPerLane; ++j)
        __stcs(next + part.place + j * kWarp + lane, v[j]);
    }
    b = coming;
  }
}

// ---- A CTA a block.

// At the most: a step with fewer live blocks has fewer.
__host__ __device__ inline uint64_t sample_count(const DeviceStep& step) {
  return (step.block_count + kSampleEvery - 1) / kSampleEvery;
}

__device__ void pass_on_shared(const DeviceStep& step, const DeviceResidual& next, uint64_t b) {
  const DeviceBlock& block = step.blocks[b];
  const bool silent = step.norms[b] == 0;
  for (uint32_t i = threadIdx.x; i < block.size; i += blockDim.x) {
    const uint64_t at = block.place + i;
    if (next.scales == nullptr) {
      static_cast<float*>(next.values)[at] =
          silent ? 0.0f : static_cast<const float*>(step.owed.values)[at];
    } else {
      static_cast<int8_t*>(next.values)[at] =
          silent ? int8_t{0} : static_cast<const int8_t*>(step.owed.values)[at];
    }
  }
  if (next.scales != nullptr && threadIdx.x == 0)
    next.scales[b] = silent ? 0.0f : step.owed.scales[b];
}

__device__ void store_code(DeviceCarrier carrier, void* lanes, uint64_t at, uint32_t code) {
  if (carrier == DeviceCarrier::kU8) {
    static_cast<uint8_t*>(lanes)[at] = static_cast<uint8_t>(code);
  } else if (carrier == DeviceCarrier::kU16) {
    static_cast<uint16_t*>(lanes)[at] = static_cast<uint16_t>(code);
  } else {
    static_cast<uint32_t*>(lanes)[at] = code;
  }
}

__device__ void encode_shared(const DeviceStep& step, uint32_t b, void* lanes,
                              const DeviceResidual& next, float* z) {
  const DeviceBlock& block = step.blocks[b];
  const BlockPart& part = step.parts[b];
  load_shared(step, b, part.prescale, z);
  const Rounder q(step, part, step.thresholds);
  const Affine values = part.values;
  const uint64_t first = first_lane(step, b);
  for (uint32_t i = 2 * threadIdx.x; i < block.size; i += 2 * blockDim.x) {
    const Rounded even = round_element(q, step.cells, z[i], q.thresholds[i % kThresholds]);
    const Rounded odd = round_element(q, step.cells, z[i + 1], q.thresholds[(i + 1) % kThresholds]);
    if (step.carrier == DeviceCarrier::kNibbles) {
      static_cast<uint8_t*>(lanes)[(first + i) / 2] =
          static_cast<uint8_t>(even.code() | odd.code() << 4);
    } else {
      store_code(step.carrier, lanes, first + i, even.code());
      store_code(step.carrier, lanes, first + i + 1, odd.code());
    }
    z[i] = (z[i] - (even.level() * values.factor + values.offset)) / part.prescale;
    z[i + 1] = (z[i + 1] - (odd.level() * values.factor + values.offset)) / part.prescale;
  }
  __syncthreads();
  if (next.values != nullptr) store_owed(next, block, b, z);
}

// Sample k of the report: the energies of a block, or of a stretch of a long one, and of what
// rounding takes from it.
__device__ void take_sample(const DeviceStep& step, uint64_t k, Sample* samples, float* z) {
  const uint64_t every = step.survey->every, rank = step.survey->phase + k * every;
  if (rank >= step.survey->live) return;
  const uint64_t b = step.survey->all_live != 0 ? rank : step.sampled[k];
  const DeviceBlock& block = step.blocks[b];
  const BlockPart& part = step.parts[b];
  load_shared(step, b, part.prescale, z);
  const uint32_t n = block.size < kSampleLength ? block.size : kSampleLength;
  float* x = z + step.step * n % block.size;
  const float energy = shared_energy(x, n);
  const Rounder q(step, part, step.thresholds);
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
    const Rounded r = round_element(q, step.cells, x[i], q.thresholds[i % kThresholds]);
    x[i] = x[i] - (r.level() * part.values.factor + part.values.offset);
  }
  const float lost = shared_energy(x, n);
  if (threadIdx.x != 0) return;
  const double unit = static_cast<double>(part.prescale) * static_cast<double>(part.prescale) *
                      (step.grid.rotates ? block.size : 1);
  samples[k] = {static_cast<double>(energy) / unit, static_cast<double>(lost) / unit};
}

__global__ void __launch_bounds__(kCtaThreads)
    encode_ctas(const DeviceStep step, void* lanes, DeviceResidual next, Sample* samples) {
  extern __shared__ __align__(16) float z[];
  for (uint64_t at = blockIdx.x; at < step.cta_count + sample_count(step); at += gridDim.x) {
    if (at >= step.cta_count) {
      take_sample(step, at - step.cta_count, samples, z);
      continue;
    }
    const uint32_t b = step.cta_blocks[at];
    if (is_live(step.norms[b])) {
      encode_shared(step, b, lanes, next, z);
    } else if (next.values != nullptr) {
      pass_on_shared(step, next, b);
    }
  }
}

template <typename Word, bool kNibbles, bool kOwes>
int launch_warps(const DeviceStep& step, void* lanes, const DeviceResidual& next, void* stream) {
  return launch_resident<encode_warps<Word, kNibbles, kOwes>, kWarpThreads<kOwes>, kShared<kOwes>>(
      step.warp_count, stream, step, lanes, static_cast<float*>(next.values));
}

template <typename Word>
int launch_warps(const DeviceStep& step, void* lanes, const DeviceResidual& next, void* stream) {
  const bool nibbles = step.carrier == DeviceCarrier::kNibbles;
  if (next.values == nullptr) {
    return nibbles ? launch_warps<Word, true, false>(step, lanes, next, stream)
                   : launch_warps<Word, false, false>(step, lanes, next, stream);
  }
  return nibbles ? launch_warps<Word, true, true>(step, lanes, next, stream)
                 : launch_warps<Word, false, true>(step, lanes, next, stream);
}

}  // namespace

int launch_encode(const DeviceStep& step, void* lanes, DeviceResidual next, Sample* samples,
                  void* stream) {
  const int code = static_cast<DType>(step.dtype) == DType::kF32
                       ? launch_warps<float>(step, lanes, next, stream)
                       : launch_warps<uint16_t>(step, lanes, next, stream);
  if (code != 0) return code;
  return launch_ctas<encode_ctas>(step, step.cta_count + sample_count(step), stream, lanes, next,
                                  samples);
}

}  // namespace addend::quant
