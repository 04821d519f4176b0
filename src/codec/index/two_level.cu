// SPDX-License-Identifier: Apache-2.0
// docs/algorithms/cuda.md, "exact, two levels".
#include <cuda_runtime.h>

#include "codec/index/element.cuh"
#include "codec/index/tile.cuh"
#include "codec/index/two_level_kernels.h"
#include "cuda/launch.cuh"
#include "cuda/part.cuh"

namespace addend::index {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;

__host__ __device__ inline uint64_t blocks_of(const TwoLevelCall& c) {
  return ceil_div(c.count, c.block);
}
__host__ __device__ inline uint64_t words_of(const TwoLevelCall& c) {
  return words_for(blocks_of(c));
}

/// Bits of a word that stand for blocks.
__device__ inline uint64_t valid_in(const TwoLevelCall& c, uint64_t w) {
  const uint64_t left = blocks_of(c) - w * 64;
  return left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
}

__device__ inline uint64_t length_of(const TwoLevelCall& c, uint64_t b) {
  const uint64_t left = c.count - b * c.block;
  return left < c.block ? left : c.block;
}

template <typename T>
__device__ inline bool is_zero(T bits) {
  return static_cast<T>(bits << 1) == 0;
}

// ---- scan

/// What was found in a word of blocks; in all lanes.
struct FoundBlocks {
  uint64_t live = 0, partial = 0;
  bool negative_zeros = false;
};

/// Any blocks, wherever they lie. `nonzeros` is the lane's part.
template <typename T>
__device__ inline FoundBlocks look_at_blocks(const TwoLevelCall& c, uint64_t w, uint32_t lane,
                                             uint64_t& nonzeros) {
  FoundBlocks found;
  const auto* gradient = static_cast<const T*>(c.gradient);
  const uint64_t valid = valid_in(c, w);
  for (uint32_t k = 0; k < 64 && (valid >> k & 1) != 0; ++k) {
    const uint64_t b = w * 64 + k, length = length_of(c, b);
    const T* from = gradient + b * c.block;
    bool any = false, zero = false, signs = false;
    for (uint64_t i = lane; i < length; i += 32) {
      const T x = from[i];
      const bool is = !is_zero(x);
      any |= is;
      zero |= !is;
      signs |= x != 0;
      nonzeros += is ? 1 : 0;
    }
    if (!__any_sync(kAll, any)) {
      found.negative_zeros |= __any_sync(kAll, signs) != 0;
      continue;
    }
    found.live |= uint64_t{1} << k;
    if (__any_sync(kAll, zero)) found.partial |= uint64_t{1} << k;
  }
  return found;
}

/// Magnitude bits of the elements in a word.
template <typename T>
__device__ inline uint32_t magnitudes(uint32_t word) {
  return word & (sizeof(T) == 4 ? 0x7FFFFFFFu : 0x7FFF7FFFu);
}
template <typename T>
__device__ inline uint32_t count_zeros(const uint4& v) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  uint32_t zeros = 0;
#pragma unroll
  for (const uint32_t word : words) {
    if constexpr (sizeof(T) == 4) {
      zeros += magnitudes<T>(word) == 0 ? 1 : 0;
    } else {
      zeros += ones(__vseteq2(magnitudes<T>(word), 0));
    }
  }
  return zeros;
}

/// Blocks of kLanes times 16 bytes that lie at multiples of 16: a load of the warp has 32 / kLanes
/// of them, and lane k keeps what the votes said of load k.
template <typename T, uint32_t kLanes>
__device__ inline FoundBlocks look_at_vectors(const TwoLevelCall& c, uint64_t w, uint32_t lane,
                                              uint64_t& nonzeros) {
  constexpr uint32_t kLoads = 2 * kLanes < 32 ? 2 * kLanes : 32, kAtOnce = 8;
  constexpr uint32_t kBlocks = 32 / kLanes;  // of a load
  constexpr uint32_t kMask = kLanes == 32 ? kAll : (1u << kLanes % 32) - 1;
  FoundBlocks found;
  const auto* from =
      reinterpret_cast<const uint4*>(static_cast<const T*>(c.gradient) + w * 64 * c.block);
  for (uint32_t first = 0; first < 2 * kLanes; first += kLoads) {
    uint32_t some = 0, set = 0, zero = 0;  // of this lane's load
#pragma unroll
    for (uint32_t at = 0; at < kLoads; at += kAtOnce) {
      uint4 v[kAtOnce];
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k)
        v[k] = __ldcs(from + (first + at + k) * 32 + lane);
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        const uint32_t any = v[k].x | v[k].y | v[k].z | v[k].w;
        const uint32_t bits = __ballot_sync(kAll, any != 0);
        if (bits == 0) continue;
        const uint32_t live = __ballot_sync(kAll, magnitudes<T>(any) != 0);
        const uint32_t zeros = count_zeros<T>(v[k]);
        const uint32_t partial = __ballot_sync(kAll, zeros != 0);
        nonzeros += Tile<T>::kVector - zeros;
        if (lane == at + k) set = bits, some = live, zero = partial;
      }
    }
    uint64_t live = 0, partial = 0;
    bool negative = false;
#pragma unroll
    for (uint32_t j = 0; j < kBlocks; ++j) {
      const uint32_t mask = kMask << j * kLanes % 32;
      const bool is_live = (some & mask) != 0;
      const uint32_t bit = (lane * kBlocks + j) % 64;
      if (is_live) live |= uint64_t{1} << bit;
      if (is_live && (zero & mask) != 0) partial |= uint64_t{1} << bit;
      negative |= !is_live && (set & mask) != 0;
    }
    const auto merged = [](uint64_t bits) {
      return uint64_t{__reduce_or_sync(kAll, static_cast<uint32_t>(bits))} |
             uint64_t{__reduce_or_sync(kAll, static_cast<uint32_t>(bits >> 32))} << 32;
    };
    found.live |= merged(live) << first;
    found.partial |= merged(partial) << first;
    found.negative_zeros |= __any_sync(kAll, negative) != 0;
  }
  return found;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) scan_kernel(TwoLevelCall c) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint64_t words = words_of(c);
  const bool aligned = reinterpret_cast<uintptr_t>(c.gradient) % 16 == 0;
  const uint64_t bytes = c.block * sizeof(T);
  const uint32_t lanes =
      aligned && bytes % 16 == 0 && bytes <= 512 ? static_cast<uint32_t>(bytes / 16) : 0;
  uint64_t nonzeros = 0;
  bool negative_zeros = false;
  for (uint64_t w = uint64_t{blockIdx.x} * kWarps + warp; w < words;
       w += uint64_t{gridDim.x} * kWarps) {
    const bool is_whole = (w + 1) * 64 * c.block <= c.count;
    FoundBlocks found;
    if (is_whole && lanes == 16) {
      found = look_at_vectors<T, 16>(c, w, lane, nonzeros);
    } else if (is_whole && lanes == 32) {
      found = look_at_vectors<T, 32>(c, w, lane, nonzeros);
    } else if (is_whole && lanes == 8) {
      found = look_at_vectors<T, 8>(c, w, lane, nonzeros);
    } else {
      found = look_at_blocks<T>(c, w, lane, nonzeros);
    }
    negative_zeros |= found.negative_zeros;
    if (lane != 0) continue;
    c.live[w] = c.local_live[w] = found.live;
    c.partial[w] = found.partial;
  }
  nonzeros = sum_up_to(nonzeros, lane);
  if (lane == 31 && nonzeros > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(&c.totals->nonzeros), nonzeros);
  if (lane == 0 && negative_zeros) atomicOr(&c.totals->negative_zeros, 1u);
}

// ---- count

/// Elements of the blocks that these bits of a word stand for.
__device__ inline uint64_t elements_of(const TwoLevelCall& c, uint64_t w, uint64_t bits) {
  const uint64_t last = blocks_of(c) - 1;
  const bool has_last = w == last / 64 && (bits >> last % 64 & 1) != 0;
  return ones(bits) * c.block - (has_last ? c.block - length_of(c, last) : 0);
}

__device__ inline BlockSums sums_in_block(const BlockSums& own, BlockSums* total) {
  const uint64_t full = sum_in_block(own.full, &total->full);
  __syncthreads();
  const uint64_t bits = sum_in_block(own.bits, &total->bits);
  return {full - own.full, bits - own.bits};
}

/// The groups' sums become what lies before each; by one CTA, once.
__device__ inline BlockSums number_groups(const TwoLevelCall& c) {
  const uint64_t groups = gridDim.x, each = ceil_div(groups, uint64_t{kSumThreads});
  const uint64_t first = threadIdx.x * each, last = first + each < groups ? first + each : groups;
  const auto size_of = [&](uint64_t g) {
    return BlockSums{__ldcg(&c.groups[g].full), __ldcg(&c.groups[g].bits)};
  };
  BlockSums own{}, total{};
  for (uint64_t g = first; g < last; ++g) {
    const BlockSums size = size_of(g);
    own.full += size.full, own.bits += size.bits;
  }
  __syncthreads();
  BlockSums before = sums_in_block(own, &total);
  for (uint64_t g = first; g < last; ++g) {
    const BlockSums size = size_of(g);
    c.groups[g] = before;
    before.full += size.full, before.bits += size.bits;
  }
  return total;
}

__global__ void __launch_bounds__(kSumThreads)
    count_kernel(TwoLevelCall c, cuda::Mail* mail, uint64_t sequence) {
  static_assert(kGroupWords == kSumThreads);
  __shared__ bool is_last;
  const uint64_t w = uint64_t{blockIdx.x} * kGroupWords + threadIdx.x;
  BlockSums own{}, total{};
  bool lost = false;
  if (w < words_of(c)) {
    // A partial bit without its live bit cannot come from an honest peer and is ignored.
    const uint64_t live = c.live[w] & valid_in(c, w), partial = c.partial[w] & live;
    lost = (c.local_live[w] & ~live) != 0;
    own = {elements_of(c, w, live & ~partial), elements_of(c, w, partial)};
  }
  const BlockSums before = sums_in_block(own, &total);
  if (w < words_of(c)) c.before[w] = before;
  const bool any_lost = __syncthreads_or(lost) != 0;
  if (threadIdx.x == 0) {
    if (any_lost) atomicOr(&c.totals->lost, 1u);
    c.groups[blockIdx.x] = total;
    __threadfence();
    is_last = atomicAdd(&c.totals->tickets, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const BlockSums all = number_groups(c);
  if (threadIdx.x != 0) return;
  volatile BlockTotals* totals = c.totals;
  mail->numbers[0] = all.full;
  mail->numbers[1] = all.bits;
  mail->numbers[2] = totals->nonzeros;
  mail->numbers[3] = totals->negative_zeros;
  mail->numbers[4] = totals->lost;
  totals->all.full = all.full;
  totals->all.bits = all.bits;
  totals->nonzeros = 0;  // for the next scan
  totals->negative_zeros = 0;
  totals->lost = 0;
  totals->tickets = 0;
  cuda::send(mail, sequence);
}

// ---- mark

__device__ inline bool has_room(const TwoLevelCall& c) {
  return c.totals->all.bits != 0 && c.totals->all.bits <= c.element_room;
}

__global__ void __launch_bounds__(kThreads) clear_kernel(TwoLevelCall c) {
  const uint64_t words = has_room(c) ? words_for(c.totals->all.bits) : 0;
  for (uint64_t w = uint64_t{blockIdx.x} * kThreads + threadIdx.x; w < words;
       w += uint64_t{gridDim.x} * kThreads)
    c.elements[w] = c.local_elements[w] = 0;
}

/// `bits` of n elements from bit `at` on. By one lane.
__device__ inline void put_bits(uint64_t* to, uint64_t at, uint32_t n, uint32_t bits) {
  auto* words = reinterpret_cast<uint32_t*>(to);
  const auto shift = static_cast<uint32_t>(at % 32);
  if (shift == 0 && n == 32) {
    words[at / 32] = bits;
    return;
  }
  if (bits << shift != 0) atomicOr(words + at / 32, bits << shift);
  if (shift + n > 32 && bits >> (32 - shift) != 0)
    atomicOr(words + at / 32 + 1, bits >> (32 - shift));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) mark_kernel(TwoLevelCall c) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint64_t words = has_room(c) ? words_of(c) : 0;
  for (uint64_t w = uint64_t{blockIdx.x} * kWarps + warp; w < words;
       w += uint64_t{gridDim.x} * kWarps) {
    uint64_t at = c.before[w].bits + c.groups[w / kGroupWords].bits;
    for (uint64_t left = c.partial[w] & c.live[w] & valid_in(c, w); left != 0; left &= left - 1) {
      const uint64_t b = w * 64 + lowest(left), length = length_of(c, b);
      const T* from = static_cast<const T*>(c.gradient) + b * c.block;
      for (uint64_t i = 0; i < length; i += 32) {
        const bool is = i + lane < length && !is_zero(from[i + lane]);
        const uint32_t bits = __ballot_sync(kAll, is);
        const uint32_t n = length - i < 32 ? static_cast<uint32_t>(length - i) : 32;
        if (lane == 0) put_bits(c.elements, at + i, n, bits);
        if (lane == 1) put_bits(c.local_elements, at + i, n, bits);
      }
      at += length;
    }
  }
}

// ---- pack and unpack

/// How many element bits before bit `at` are set; for the warp as a whole.
__device__ inline uint64_t rank_of(const TwoLevelCall& c, uint64_t at, uint32_t lane) {
  if (!c.counted) return 0;
  constexpr uint64_t kTile = 1024;
  if (at >= c.totals->all.bits) return c.element_totals->size;
  const uint64_t tile = at / kTile;
  const auto below = static_cast<uint32_t>(at % kTile);
  uint32_t word = 0;
  if (lane * 32 < below) {
    word = reinterpret_cast<const uint32_t*>(c.elements)[tile * 32 + lane];
    if (below - lane * 32 < 32) word &= (1u << (below - lane * 32)) - 1;
  }
  return c.bases[at / kGroupBits] + c.offsets[tile] + __reduce_add_sync(kAll, ones(word));
}

/// 64 element bits from bit `at` on.
__device__ inline uint64_t bits_at(const uint64_t* elements, uint64_t at) {
  const uint64_t low = elements[at / 64];
  const auto shift = static_cast<uint32_t>(at % 64);
  return shift == 0 ? low : low >> shift | elements[at / 64 + 1] << (64 - shift);
}

/// Elements of a live block, and which of them are in the union.
struct Piece {
  uint64_t first;
  uint64_t rank;  // of the first that is
  uint64_t bits;
  uint32_t n;
};

constexpr uint32_t kPieces = 4;

/// Calls visit(pieces, how many) for the live blocks of a word: up to four pieces of up to 64
/// elements at a time, so that all their loads can be under way together.
template <typename Visit>
__device__ inline void walk(const TwoLevelCall& c, uint64_t w, uint32_t lane, const Visit& visit) {
  uint64_t left = c.live[w] & valid_in(c, w);
  if (left == 0) return;
  const uint64_t partial = c.partial[w];
  const BlockSums before = c.before[w], group = c.groups[w / kGroupWords];
  uint64_t at = before.bits + group.bits;
  uint64_t rank = before.full + group.full + rank_of(c, at, lane);
  uint64_t i = 0;  // in the block
  while (left != 0) {
    Piece pieces[kPieces];
    uint32_t filled = 0;
#pragma unroll
    for (uint32_t p = 0; p < kPieces; ++p) {
      if (left == 0) break;
      const uint32_t k = lowest(left);
      const uint64_t b = w * 64 + k, length = length_of(c, b);
      const bool is_partial = (partial >> k & 1) != 0;
      const uint32_t n = length - i < 64 ? static_cast<uint32_t>(length - i) : 64;
      uint64_t bits = is_partial ? bits_at(c.elements, at) : ~uint64_t{0};
      if (n < 64) bits &= (uint64_t{1} << n) - 1;
      pieces[p] = {b * c.block + i, rank, bits, n};
      rank += ones(bits);
      at += is_partial ? n : 0;
      i += n;
      if (i == length) left &= left - 1, i = 0;
      filled = p + 1;
    }
    visit(pieces, filled);
  }
}

/// Where the lane's two elements of a piece are among the values, if they are in the union.
struct Places {
  bool has[2];
  uint64_t rank[2];
};
__device__ inline Places places_of(const Piece& piece, uint32_t lane) {
  const auto low = static_cast<uint32_t>(piece.bits),
             high = static_cast<uint32_t>(piece.bits >> 32);
  const uint32_t below = (1u << lane) - 1;
  return {{(low >> lane & 1) != 0, (high >> lane & 1) != 0},
          {piece.rank + ones(low & below), piece.rank + ones(low) + ones(high & below)}};
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) pack_kernel(TwoLevelCall c) {
  using T = Element<kType>;
  const BlockSums all = c.totals->all;
  if (!c.counted && all.bits != 0) return;
  if (all.full + (c.counted ? c.element_totals->size : 0) > c.value_room) return;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto* gradient = static_cast<const T*>(c.gradient);
  T* values = static_cast<T*>(c.values);
  const uint64_t words = words_of(c);
  for (uint64_t w = uint64_t{blockIdx.x} * kWarps + warp; w < words;
       w += uint64_t{gridDim.x} * kWarps) {
    walk(c, w, lane, [&](const Piece(&pieces)[kPieces], uint32_t filled) {
      T x[kPieces][2];
#pragma unroll
      for (uint32_t p = 0; p < kPieces; ++p) {
        if (p >= filled) break;
        const uint64_t bits = pieces[p].bits >> lane;
        x[p][0] = (bits & 1) != 0 ? gradient[pieces[p].first + lane] : T{0};
        x[p][1] = (bits >> 32 & 1) != 0 ? gradient[pieces[p].first + 32 + lane] : T{0};
      }
#pragma unroll
      for (uint32_t p = 0; p < kPieces; ++p) {
        if (p >= filled) break;
        const Places to = places_of(pieces[p], lane);
        if (to.has[0]) values[to.rank[0]] = scaled<kType>(x[p][0], c.factor);
        if (to.has[1]) values[to.rank[1]] = scaled<kType>(x[p][1], c.factor);
      }
    });
  }
}

template <typename T>
__device__ inline void clear_dead(const TwoLevelCall& c, uint64_t w, uint32_t lane, T* gradient) {
  for (uint64_t left = ~c.live[w] & valid_in(c, w); left != 0; left &= left - 1) {
    const uint64_t b = w * 64 + lowest(left), length = length_of(c, b);
    for (uint64_t i = lane; i < length; i += 32)
      gradient[b * c.block + i] = 0;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(TwoLevelCall c, bool everywhere, T* gradient) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto* values = static_cast<const T*>(c.values);
  const uint64_t words = words_of(c);
  for (uint64_t w = uint64_t{blockIdx.x} * kWarps + warp; w < words;
       w += uint64_t{gridDim.x} * kWarps) {
    if (everywhere) clear_dead(c, w, lane, gradient);
    walk(c, w, lane, [&](const Piece(&pieces)[kPieces], uint32_t filled) {
      T x[kPieces][2];
#pragma unroll
      for (uint32_t p = 0; p < kPieces; ++p) {
        if (p >= filled) break;
        const Places from = places_of(pieces[p], lane);
        x[p][0] = from.has[0] ? values[from.rank[0]] : T{0};
        x[p][1] = from.has[1] ? values[from.rank[1]] : T{0};
      }
#pragma unroll
      for (uint32_t p = 0; p < kPieces; ++p) {
        if (p >= filled) break;
        if (lane < pieces[p].n) gradient[pieces[p].first + lane] = x[p][0];
        if (lane + 32 < pieces[p].n) gradient[pieces[p].first + 32 + lane] = x[p][1];
      }
    });
  }
}

__global__ void __launch_bounds__(kThreads) union_kernel(TwoLevelCall c, uint64_t* bitmap) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint64_t words = words_of(c);
  for (uint64_t w = uint64_t{blockIdx.x} * kWarps + warp; w < words;
       w += uint64_t{gridDim.x} * kWarps) {
    walk(c, w, lane, [&](const Piece(&pieces)[kPieces], uint32_t filled) {
#pragma unroll
      for (uint32_t p = 0; p < kPieces; ++p) {
        if (p >= filled) break;
        const Piece& piece = pieces[p];
        const auto low = static_cast<uint32_t>(piece.bits);
        const auto high = static_cast<uint32_t>(piece.bits >> 32);
        if (lane == 0) put_bits(bitmap, piece.first, piece.n < 32 ? piece.n : 32, low);
        if (lane == 1 && piece.n > 32) put_bits(bitmap, piece.first + 32, piece.n - 32, high);
      }
    });
  }
}

// ---- survey

/// Whether a block has a bit, and whether it has all.
struct Share {
  bool some, all;
};
__device__ inline Share share_of(const uint64_t* bitmap, uint64_t begin, uint64_t length) {
  Share share{false, true};
  for (uint64_t at = begin; at < begin + length;) {
    const auto shift = static_cast<uint32_t>(at % 64);
    const uint64_t left = begin + length - at;
    const uint32_t n = left < 64 - shift ? static_cast<uint32_t>(left) : 64 - shift;
    const uint64_t mask = n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
    const uint64_t bits = bitmap[at / 64] >> shift & mask;
    share.some |= bits != 0;
    share.all &= bits == mask;
    at += n;
  }
  return share;
}

__global__ void __launch_bounds__(kThreads) survey_kernel(SurveyCall c) {
  for (uint32_t s = 0; s < c.size_count; ++s) {
    const uint64_t block = c.sizes[s], blocks = ceil_div(c.count, block);
    uint64_t live = 0, elements = 0;
    for (uint64_t b = uint64_t{blockIdx.x} * kThreads + threadIdx.x; b < blocks;
         b += uint64_t{gridDim.x} * kThreads) {
      const uint64_t left = c.count - b * block, length = left < block ? left : block;
      const Share share = share_of(c.bitmap, b * block, length);
      live += share.some ? 1 : 0;
      elements += share.some && !share.all ? length : 0;
    }
    const uint32_t lane = threadIdx.x % 32;
    live = sum_up_to(live, lane);
    elements = sum_up_to(elements, lane);
    if (lane != 31) continue;
    atomicAdd(reinterpret_cast<unsigned long long*>(c.scratch + 2 * s), live);
    atomicAdd(reinterpret_cast<unsigned long long*>(c.scratch + 2 * s + 1), elements);
  }
}

__global__ void tell_kernel(SurveyCall c) {
  for (uint32_t k = 0; k < 2 * c.size_count; ++k)
    c.mail->numbers[k] = c.scratch[k];
  cuda::send(c.mail, c.sequence);
}

// ---- launches

template <typename Kernel, typename... Arguments>
int launch(Kernel kernel, uint64_t work, void* stream, Arguments... arguments) {
  if (work == 0) return 0;
  uint32_t ctas = 0;
  if (const int code = cuda::fill_device(kernel, kThreads, work, &ctas)) return code;
  kernel<<<ctas, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
  return cuda::launched();
}

int scan(const TwoLevelCall& c, void* stream) {
  const uint64_t work = ceil_div(words_of(c), uint64_t{kWarps});
  return c.dtype == DType::kF32 ? launch(scan_kernel<uint32_t>, work, stream, c)
                                : launch(scan_kernel<uint16_t>, work, stream, c);
}

int count(const TwoLevelCall& c, cuda::Mail* mail, uint64_t sequence, void* stream) {
  const auto groups = static_cast<uint32_t>(ceil_div(words_of(c), kGroupWords));
  count_kernel<<<groups, kSumThreads, 0, static_cast<cudaStream_t>(stream)>>>(c, mail, sequence);
  return cuda::launched();
}

int mark(const TwoLevelCall& c, void* stream) {
  const uint64_t clears = ceil_div(words_for(c.element_room), uint64_t{kThreads});
  if (const int code = launch(clear_kernel, clears, stream, c)) return code;
  const uint64_t work = ceil_div(words_of(c), uint64_t{kWarps});
  return c.dtype == DType::kF32 ? launch(mark_kernel<uint32_t>, work, stream, c)
                                : launch(mark_kernel<uint16_t>, work, stream, c);
}

int pack(const TwoLevelCall& c, void* stream) {
  const uint64_t work = ceil_div(words_of(c), uint64_t{kWarps});
  if (c.dtype == DType::kF32) return launch(pack_kernel<DType::kF32>, work, stream, c);
  if (c.dtype == DType::kBf16) return launch(pack_kernel<DType::kBf16>, work, stream, c);
  return launch(pack_kernel<DType::kF16>, work, stream, c);
}

int unpack(const TwoLevelCall& c, bool everywhere, void* gradient, void* stream) {
  const uint64_t work = ceil_div(words_of(c), uint64_t{kWarps});
  if (dtype_bytes(c.dtype) == 4)
    return launch(unpack_kernel<uint32_t>, work, stream, c, everywhere,
                  static_cast<uint32_t*>(gradient));
  return launch(unpack_kernel<uint16_t>, work, stream, c, everywhere,
                static_cast<uint16_t*>(gradient));
}

int write_union(const TwoLevelCall& c, uint64_t* bitmap, void* stream) {
  return launch(union_kernel, ceil_div(words_of(c), uint64_t{kWarps}), stream, c, bitmap);
}

int survey(const SurveyCall& c, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  if (const auto code = cudaMemsetAsync(c.scratch, 0, 2 * c.size_count * 8, queue)) return code;
  const uint64_t work = ceil_div(ceil_div(c.count, c.sizes[0]), uint64_t{kThreads});
  if (const int code = launch(survey_kernel, work, stream, c)) return code;
  tell_kernel<<<1, 1, 0, queue>>>(c);
  return cuda::launched();
}

constexpr TwoLevelKernels kKernels{scan, count, mark, pack, unpack, write_union, survey};

}  // namespace

ADDEND_CUDA_PART(TwoLevelKernels, kKernels);

}  // namespace addend::index
