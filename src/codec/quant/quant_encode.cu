// SPDX-License-Identifier: Apache-2.0
// Round 1 on a device: rotate, round, lay out the lanes, and, with feedback, what is owed after the
// step, into memory of its own: a step that fails leaves what was owed before.
#include <utility>

#include "codec/quant/device_block.cuh"
#include "codec/quant/quant_launch.cuh"
#include "codec/quant/quant_store.cuh"

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

// ---- A warp a block.

// Rounds v (elements 32 j + lane) and stores codes; with feedback v becomes what is left.
template <bool kNibbles, bool kLeaves>
__device__ __forceinline__ void round_columns(const Rounder& q, const DeviceCell* cells,
                                              const Affine& values, float inverse,
                                              DeviceCarrier carrier, uint8_t* to, uint32_t lane,
                                              float (&v)[kPerLane]) {
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
        if constexpr (kLeaves)
          x = kept((x - (r.level() * values.factor + values.offset)) * inverse);
      };
      [&]<uint32_t... kRow>(std::integer_sequence<uint32_t, kRow...>) {
        (take(std::integral_constant<uint32_t, kRow>()), ...);
      }
      (std::make_integer_sequence<uint32_t, kRows>());
      if constexpr (kNibbles) {
        store_nibbles(to, first * kWarp, words[0] | words[1] << 4, lane);
      } else {
        store_rows(carrier, to, first * kWarp, words[0], lane);
        store_rows(carrier, to, (first + 4) * kWarp, words[1], lane);
      }
    }
  }
}

// v becomes what is owed after the step (store_owed, of finite numbers).
template <Owes kOwes>
__device__ __forceinline__ void store_left(const DeviceResidual& next, uint32_t b, uint64_t place,
                                           uint32_t lane, const float (&v)[kPerLane]) {
  if constexpr (kOwes == Owes::kFloats) {
    float* to = static_cast<float*>(next.values) + place + lane;
#pragma unroll
    for (uint32_t j = 0; j < kPerLane; ++j)
      __stcs(to + j * kWarp, v[j]);
  } else {
    float most = 0;
#pragma unroll
    for (const float x : v)
      most = fmaxf(most, fabsf(x));
    most = addend_f32_from_bits(__reduce_max_sync(kAll, addend_f32_bits(most)));
    const ByteScale scale(most);
    uint8_t* to = first_store<false>(DeviceCarrier::kU8, next.values, place, lane);
#pragma unroll
    for (uint32_t j = 0; j < kPerLane; j += 4) {
      // No product leaves +-127 by a half, and added to 3 * 2^22 it is rounded to a whole number,
      // in the low bits.
      const auto bits = [&](uint32_t k) {
        return addend_f32_bits(v[j + k] * scale.inverse + 12582912.0f);
      };
      const uint32_t low = __byte_perm(bits(0), bits(1), 0x0040);
      const uint32_t high = __byte_perm(bits(2), bits(3), 0x0040);
      store_rows(DeviceCarrier::kU8, to, j * kWarp, __byte_perm(low, high, 0x5410), lane);
    }
    if (lane == 0) next.scales[b] = scale.scale;
  }
}

// A block that does not travel keeps what it owes if it is broken, and owes nothing if it is
// silent.
template <Owes kOwes>
__device__ __forceinline__ void pass_on(const DeviceStep& step, const DeviceResidual& next,
                                        uint32_t b, uint64_t place, uint32_t lane) {
  const bool silent = step.norms[b] == 0;
  const auto* owed = static_cast<const uint8_t*>(step.owed.values) + owed_at(kOwes, place);
  auto* to = static_cast<uint8_t*>(next.values) + owed_at(kOwes, place);
  for (uint32_t i = lane * 4; i < kOwedTile<kOwes>; i += kWarp * 4)
    *reinterpret_cast<uint32_t*>(to + i) =
        silent ? 0u : *reinterpret_cast<const uint32_t*>(owed + i);
  if (kOwes == Owes::kBytes && lane == 0) next.scales[b] = silent ? 0.0f : step.owed.scales[b];
}

constexpr uint32_t kNoBlock = 0xFFFFFFFFu;

// At the most: a step with fewer live blocks has fewer.
__host__ __device__ inline uint64_t sample_count(const DeviceStep& step) {
  return (step.block_count + kSampleEvery - 1) / kSampleEvery;
}

// The block of sample k of the report, if there is one and it is this kernel's kind of block.
__device__ __forceinline__ uint32_t sampled_block(const DeviceStep& step, uint64_t k,
                                                  bool by_warp) {
  const uint64_t rank = step.survey->phase + k * step.survey->every;
  if (rank >= step.survey->live) return kNoBlock;
  const uint32_t b = step.survey->all_live != 0 ? static_cast<uint32_t>(rank) : step.sampled[k];
  const DeviceBlock& block = step.blocks[b];
  return suits_warp(step.grid.rotates, block.size, block.elements) == by_warp ? b : kNoBlock;
}

__device__ __forceinline__ void put_sample(const DeviceStep& step, const BlockPart& part,
                                           uint32_t size, float energy, float lost, Sample* to) {
  const double unit = static_cast<double>(part.prescale) * static_cast<double>(part.prescale) *
                      (step.grid.rotates ? size : 1);
  *to = {static_cast<double>(energy) / unit, static_cast<double>(lost) / unit};
}

// The energies of elements 32 j + lane and of what rounding takes from them. Out of the tile, by
// loops that need few registers: there is one sample for 64 blocks.
__device__ __forceinline__ void sample_columns(const DeviceStep& step, const BlockPart& part,
                                               const Tables* tables, uint32_t lane, uint8_t* tile,
                                               const float (&v)[kPerLane], Sample* to) {
  auto* x = reinterpret_cast<float*>(tile) + lane;
  __syncwarp();
#pragma unroll
  for (uint32_t j = 0; j < kPerLane; ++j)
    x[j * kWarp] = v[j];
  const Rounder q(step, part, tables->thresholds);
  const float energy = column_energy<8>([&](uint32_t j) { return x[j * kWarp] * x[j * kWarp]; });
  const float lost = column_energy<8>([&](uint32_t j) {
    const float z = x[j * kWarp];
    const Rounded r =
        round_element(q, tables->cells, z, q.thresholds[j * kWarp % kThresholds + lane]);
    const float left = z - (r.level() * part.values.factor + part.values.offset);
    return left * left;
  });
  if (lane == 0) put_sample(step, part, kWarpBlock, energy, lost, to);
  __syncwarp();
}

// With feedback a warp needs more registers and, for floats, a second whole tile: there are fewer.
template <Owes kOwes>
constexpr uint32_t kWarpThreads = kOwes == Owes::kNothing ? 512 : 384;
template <Owes kOwes>
constexpr SharedBytes kShared = {kTableBytes, kTileBytes + kOwedTile<kOwes>};

// Blocks, and behind the last of them the report's samples. The gradient of the next block comes
// while this one is transformed and rounded, and what it owes while the next one is rotated.
template <typename Word, bool kNibbles, Owes kOwes>
__global__ void __launch_bounds__(kWarpThreads<kOwes>, 1)
    encode_warps(const DeviceStep step, void* lanes, DeviceResidual next, Sample* samples) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto* tables = reinterpret_cast<Tables*>(shared);
  load_tables(step, tables);
  const uint32_t lane = threadIdx.x % kWarp;
  uint8_t* tile = shared + kTableBytes + threadIdx.x / kWarp * (kTileBytes + kOwedTile<kOwes>);
  uint8_t* owed_tile = tile + kTileBytes;
  const bool all_live = step.survey->all_live != 0;
  const uint64_t items = step.warp_count + sample_count(step);
  const auto block_at = [&](uint64_t at) {
    if (at < step.warp_count) return step.warp_blocks[at];
    return at < items ? sampled_block(step, at - step.warp_count, true) : kNoBlock;
  };
  const auto start_gradient = [&](uint32_t b, uint64_t begin) {
    if (b != kNoBlock) start_tile(tile, static_cast<const Word*>(step.gradient) + begin, lane);
    end_copies();
  };
  const auto start_what_is_owed = [&](uint32_t b, uint64_t place) {
    if constexpr (kOwes != Owes::kNothing) {
      if (b != kNoBlock) start_owed<kOwes>(owed_tile, step.owed, place, lane);
      end_copies();
    }
  };
  constexpr int kPending = kOwes == Owes::kNothing ? 0 : 1;
  uint64_t at = first_of_warp();
  uint32_t b = block_at(at), following = block_at(at + warps_in_grid());
  if (b != kNoBlock) {
    start_gradient(b, step.parts[b].begin);
    start_what_is_owed(b, step.parts[b].place);
  }
  for (; at < items; at += warps_in_grid()) {
    // What the next copies need is asked for before there is other work.
    const uint32_t coming = following;
    const BlockPart part = step.parts[b == kNoBlock ? 0 : b];
    const BlockPart& coming_part = step.parts[coming == kNoBlock ? 0 : coming];
    const uint64_t begin = coming_part.begin,
                   place = kOwes == Owes::kNothing ? 0 : coming_part.place;
    const bool is_sample = at >= step.warp_count;
    following = block_at(at + 2 * warps_in_grid());
    if (b == kNoBlock || part.prescale == 0) {
      wait_copies<0>();
      if constexpr (kOwes != Owes::kNothing) {
        if (!is_sample) pass_on<kOwes>(step, next, b, part.place, lane);
      }
      start_gradient(coming, begin);
      start_what_is_owed(coming, place);
      b = coming;
      continue;
    }
    const float owed_scale = kOwes == Owes::kBytes ? step.owed.scales[b] : 1.0f;
    wait_copies<kPending>();
    float v[kPerLane];
    rotate_tile<Word>(step, part.signs, part.prescale, tile, lane, v, [&] {
      if (!is_sample) start_gradient(coming, begin);
    });
    if constexpr (kOwes != Owes::kNothing) {
      is_sample ? wait_copies<0>() : wait_copies<1>();
      add_owed<kOwes>(owed_tile, owed_scale, part.prescale, lane, v);
    }
    if (is_sample) {
      sample_columns(step, part, tables, lane, tile, v, samples + (at - step.warp_count));
      start_gradient(coming, begin);
      start_what_is_owed(coming, place);
      b = coming;
      continue;
    }
    start_what_is_owed(coming, place);
    const Rounder q(step, part, tables->thresholds);
    uint8_t* to =
        first_store<kNibbles>(step.carrier, lanes, all_live ? part.place : step.lanes[b], lane);
    // Division by a power of two, whose inverse is one.
    round_columns<kNibbles, kOwes != Owes::kNothing>(q, tables->cells, part.values,
                                                     1 / part.prescale, step.carrier, to, lane, v);
    if constexpr (kOwes != Owes::kNothing) store_left<kOwes>(next, b, part.place, lane, v);
    b = coming;
  }
}

// ---- A CTA a block.

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

// Sample k of the report, if a CTA codes its block: the energies of the block, or of a stretch of a
// long one, and of what rounding takes from it.
__device__ void take_sample(const DeviceStep& step, uint64_t k, Sample* samples, float* z) {
  const uint32_t b = sampled_block(step, k, false);
  if (b == kNoBlock) return;
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
  if (threadIdx.x == 0) put_sample(step, part, block.size, energy, lost, samples + k);
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

template <typename Word, bool kNibbles, Owes kOwes>
int launch_warps(const DeviceStep& step, void* lanes, const DeviceResidual& next, Sample* samples,
                 void* stream) {
  return launch_resident<encode_warps<Word, kNibbles, kOwes>, kWarpThreads<kOwes>, kShared<kOwes>>(
      step.warp_count, stream, step, lanes, next, samples);
}

template <typename Word, bool kNibbles>
int launch_warps(const DeviceStep& step, void* lanes, const DeviceResidual& next, Sample* samples,
                 void* stream) {
  if (next.values == nullptr)
    return launch_warps<Word, kNibbles, Owes::kNothing>(step, lanes, next, samples, stream);
  return next.scales == nullptr
             ? launch_warps<Word, kNibbles, Owes::kFloats>(step, lanes, next, samples, stream)
             : launch_warps<Word, kNibbles, Owes::kBytes>(step, lanes, next, samples, stream);
}

template <typename Word>
int launch_warps(const DeviceStep& step, void* lanes, const DeviceResidual& next, Sample* samples,
                 void* stream) {
  return step.carrier == DeviceCarrier::kNibbles
             ? launch_warps<Word, true>(step, lanes, next, samples, stream)
             : launch_warps<Word, false>(step, lanes, next, samples, stream);
}

}  // namespace

int launch_encode(const DeviceStep& step, void* lanes, DeviceResidual next, Sample* samples,
                  void* stream) {
  const int code = static_cast<DType>(step.dtype) == DType::kF32
                       ? launch_warps<float>(step, lanes, next, samples, stream)
                       : launch_warps<uint16_t>(step, lanes, next, samples, stream);
  if (code != 0 || step.cta_count == 0) return code;
  return launch_ctas<encode_ctas>(step, step.cta_count + sample_count(step), stream, lanes, next,
                                  samples);
}

}  // namespace addend::quant
