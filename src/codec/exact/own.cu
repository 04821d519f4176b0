// SPDX-License-Identifier: Apache-2.0
// Messages of own non-zeros, written and read by all threads at once. docs/algorithms/cuda.md,
// "exact, own non-zeros".
#include <cuda_runtime.h>

#include "codec/exact/fixed.h"
#include "codec/exact/own_kernels.h"
#include "codec/index/counted.cuh"
#include "codec/index/element.cuh"
#include "cuda/launch.cuh"
#include "cuda/part.cuh"

namespace addend::exact {
namespace {

using index::as_float;
using index::Element;
using index::kAll;
using index::kSumThreads;
using index::lowest;
using index::sum_in_block;
using index::sum_up_to;

constexpr int kThreads = 256;
constexpr uint32_t kWarps = kThreads / 32;
constexpr uint64_t kHeaderLanes = 2;
constexpr uint32_t kDigitBits = 7;

// ---- write

/// A half word of a tile, each lane with one.
struct Word {
  uint64_t base;  // its first position
  uint32_t bits, lane;

  __device__ uint64_t end() const {
    return bits == 0 ? 0 : base + static_cast<uint64_t>(highest_bit(bits)) + 1;
  }
  __device__ uint64_t gap() const { return base + (bits == kAll ? 32 : lowest(~bits)); }
};
__device__ inline Word word_of(const WriteOwnCall& c, uint64_t t) {
  const uint32_t lane = threadIdx.x % 32;
  const uint64_t at = t * 32 + lane;
  const auto* words = reinterpret_cast<const uint32_t*>(c.bitmap);
  return {at * 32, at < 2 * words_for(c.count) ? words[at] : 0, lane};
}

__device__ inline uint32_t highest_lane(uint32_t lanes) {
  return static_cast<uint32_t>(highest_bit(lanes));
}

// A CTA has a group of 256 tiles, a warp 32 of them. What a group has to know of the others it
// reads from their sums.
static_assert(kOwnGroup == kThreads && kThreads == kSumThreads);

__device__ inline uint64_t largest_in_block(uint64_t value) {
  __shared__ uint64_t all[kWarps];
  for (uint32_t step = 16; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(kAll, value, step);
    value = other > value ? other : value;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = value;
  __syncthreads();
  for (uint32_t k = 0; k < kWarps; ++k)
    value = all[k] > value ? all[k] : value;
  return value;
}

/// Gaps are kept as what is left from them to the end of all tiles, so that the first is the
/// largest.
__device__ inline uint64_t end_of_tiles(const WriteOwnCall& c) {
  return ceil_div(c.count, kOwnTile) * kOwnTile;
}

__global__ void __launch_bounds__(kThreads) edge_kernel(WriteOwnCall c) {
  const uint64_t tiles = ceil_div(c.count, kOwnTile), stop = end_of_tiles(c);
  uint64_t own_end = 0, own_rest = 0;
  for (uint32_t k = 0; k < 32; ++k) {
    const uint64_t t = uint64_t{blockIdx.x} * kOwnGroup + threadIdx.x / 32 * 32 + k;
    if (t >= tiles) break;
    const Word word = word_of(c, t);
    const uint32_t some = __ballot_sync(kAll, word.bits != 0);
    const uint32_t holes = __ballot_sync(kAll, word.bits != kAll);
    const uint64_t last = __shfl_sync(kAll, word.end(), some == 0 ? 0 : highest_lane(some));
    const uint64_t gap = __shfl_sync(kAll, word.gap(), holes == 0 ? 0 : lowest(holes));
    const uint64_t end = some == 0 ? 0 : last, rest = holes == 0 ? 0 : stop - gap;
    if (word.lane == 0) c.tiles[t] = {end, rest, 0};
    own_end = end > own_end ? end : own_end;
    own_rest = rest > own_rest ? rest : own_rest;
  }
  own_end = largest_in_block(own_end);
  own_rest = largest_in_block(own_rest);
  if (threadIdx.x == 0) c.groups[blockIdx.x] = {own_end, own_rest, 0};
}

/// What lies before a thread's tile of the group, and after it: the largest of others' numbers.
__device__ inline OwnTile link(const WriteOwnCall& c) {
  __shared__ uint64_t ends[kThreads], rests[kThreads];
  const uint64_t t = uint64_t{blockIdx.x} * kOwnGroup + threadIdx.x;
  const bool is_tile = t < ceil_div(c.count, kOwnTile);
  uint64_t end = 0, rest = 0;
  for (uint64_t g = threadIdx.x; g < blockIdx.x; g += kThreads)
    end = c.groups[g].end > end ? c.groups[g].end : end;
  for (uint64_t g = blockIdx.x + 1 + threadIdx.x; g < gridDim.x; g += kThreads)
    rest = c.groups[g].gap > rest ? c.groups[g].gap : rest;
  end = largest_in_block(end);
  rest = largest_in_block(rest);
  ends[threadIdx.x] = is_tile ? c.tiles[t].end : 0;
  rests[threadIdx.x] = is_tile ? c.tiles[t].gap : 0;
  __syncthreads();
  for (uint32_t k = 0; k < threadIdx.x; ++k)
    end = ends[k] > end ? ends[k] : end;
  for (uint32_t k = threadIdx.x + 1; k < kThreads; ++k)
    rest = rests[k] > rest ? rests[k] : rest;
  return {end, end_of_tiles(c) - rest, 0};
}

/// Calls put(number) for the numbers of the runs that begin in the lane's half word.
template <typename Put>
__device__ inline void for_each_number(const Word& word, const OwnTile& tile, const Put& put) {
  const uint32_t before = __ballot_sync(kAll, word.bits != 0) & ((1u << word.lane) - 1);
  const uint32_t holes = __ballot_sync(kAll, word.bits != kAll);
  const uint32_t after = word.lane == 31 ? 0 : holes & (kAll << (word.lane + 1));
  const uint64_t end_before = __shfl_sync(kAll, word.end(), before == 0 ? 0 : highest_lane(before));
  const uint64_t gap_after = __shfl_sync(kAll, word.gap(), after == 0 ? 0 : lowest(after));
  uint64_t end = before == 0 ? tile.end : end_before;
  const uint64_t gap = after == 0 ? tile.gap : gap_after;
  uint32_t left = word.bits;
  if ((left & 1) != 0 && word.base > 0 && end == word.base) {  // a run that goes on
    end = word.gap();
    left &= left + 1;
  }
  while (left != 0) {
    const uint32_t first = lowest(left), rest = ~(left >> first);
    const uint32_t n = rest == 0 ? 32 : lowest(rest);
    const uint64_t begin = word.base + first;
    const uint64_t until = first + n == 32 ? gap : begin + n;
    put((begin - end) << 1 | (until - begin > 1 ? 1 : 0));
    if (until - begin > 1) put(until - begin - 2);
    end = until;
    left = first + n == 32 ? 0 : left & (kAll << (first + n));
  }
}

__device__ inline uint32_t bytes_of(uint64_t number) {
  return static_cast<uint32_t>(highest_bit(number | 1)) / kDigitBits + 1;
}

__device__ inline uint32_t bytes_of(const Word& word, const OwnTile& tile) {
  uint32_t bytes = 0;
  for_each_number(word, tile, [&](uint64_t number) { bytes += bytes_of(number); });
  return bytes;
}

__global__ void __launch_bounds__(kThreads) size_kernel(WriteOwnCall c) {
  __shared__ OwnTile linked[kThreads];
  const uint64_t first = uint64_t{blockIdx.x} * kOwnGroup, tiles = ceil_div(c.count, kOwnTile);
  linked[threadIdx.x] = link(c);
  __syncthreads();
  uint64_t total = 0;
  for (uint32_t k = 0; k < 32; ++k) {
    const uint32_t at = threadIdx.x / 32 * 32 + k;
    if (first + at >= tiles) break;
    const Word word = word_of(c, first + at);
    const uint32_t bytes = __reduce_add_sync(kAll, bytes_of(word, linked[at]));
    if (word.lane == 0) linked[at].bytes = bytes;
  }
  __syncthreads();
  const bool is_tile = first + threadIdx.x < tiles;
  const uint64_t own = is_tile ? linked[threadIdx.x].bytes : 0;
  linked[threadIdx.x].bytes = sum_in_block(own, &total) - own;
  if (is_tile) c.tiles[first + threadIdx.x] = linked[threadIdx.x];
  if (threadIdx.x == 0) c.groups[blockIdx.x].bytes = total;
}

/// The groups' bytes become those before each; by one CTA.
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(WriteOwnCall c, cuda::Mail* mail, uint64_t sequence) {
  const uint64_t groups = own_groups(c.count), each = ceil_div(groups, uint64_t{kSumThreads});
  const uint64_t first = threadIdx.x * each, last = first + each < groups ? first + each : groups;
  uint64_t own = 0, total = 0;
  for (uint64_t g = first; g < last; ++g)
    own += c.groups[g].bytes;
  uint64_t before = sum_in_block(own, &total) - own;
  for (uint64_t g = first; g < last; ++g) {
    const uint64_t bytes = c.groups[g].bytes;
    c.groups[g].bytes = before;
    before += bytes;
  }
  if (threadIdx.x != 0) return;
  mail->numbers[0] = total;
  cuda::send(mail, sequence);
}

__global__ void __launch_bounds__(kThreads) write_kernel(WriteOwnCall c) {
  auto* index = reinterpret_cast<uint8_t*>(c.lanes + kHeaderLanes);
  const uint64_t tiles = ceil_div(c.count, kOwnTile);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    c.lanes[0] = c.nonzeros;
    c.lanes[1] = c.bytes;
  }
  for (uint64_t t = uint64_t{blockIdx.x} * kWarps + threadIdx.x / 32; t < tiles;
       t += uint64_t{gridDim.x} * kWarps) {
    const Word word = word_of(c, t);
    const OwnTile tile = c.tiles[t];
    const uint32_t bytes = bytes_of(word, tile);
    uint8_t* at =
        index + c.groups[t / kOwnGroup].bytes + tile.bytes + sum_up_to(bytes, word.lane) - bytes;
    for_each_number(word, tile, [&](uint64_t number) {
      for (; number >= 0x80; number >>= kDigitBits)
        *at++ = static_cast<uint8_t>(number | 0x80);
      *at++ = static_cast<uint8_t>(number);
    });
  }
}

// ---- read

/// The index of a message, as far as its header may be believed.
struct Index {
  const uint8_t* bytes;
  uint64_t size;
  bool is_sound;
};
__device__ inline Index index_of(const ReadOwnCall& c) {
  const uint64_t room = (c.size - kHeaderLanes) * 8;
  const uint64_t nonzeros = c.lanes[0], bytes = c.lanes[1];
  const auto* index = reinterpret_cast<const uint8_t*>(c.lanes + kHeaderLanes);
  if (nonzeros > c.count || bytes > room) return {index, 0, false};
  const uint64_t lanes =
      kHeaderLanes + ceil_div(bytes, uint64_t{8}) + ceil_div(nonzeros * c.width, uint64_t{8});
  const bool ends = bytes == 0 || index[bytes - 1] < 0x80;
  return {index, bytes, lanes == c.size && ends};
}

/// Calls visit(number) for the numbers that end in a piece. False: one is too long.
template <typename Visit>
__device__ inline bool for_each_number_in(const Index& index, uint64_t piece, const Visit& visit) {
  constexpr uint32_t kMostBits = 63;
  constexpr uint64_t kLookBack = kMostBits / kDigitBits + 1;
  const uint64_t begin = piece * kOwnPiece;
  const uint64_t end = begin + kOwnPiece < index.size ? begin + kOwnPiece : index.size;
  uint64_t at = begin, number = 0;
  while (at > 0 && begin - at < kLookBack && index.bytes[at - 1] >= 0x80)
    --at;
  uint32_t shift = 0;
  for (; at < end; ++at) {
    if (shift >= kMostBits) return false;
    const uint8_t byte = index.bytes[at];
    number |= uint64_t{byte & 0x7Fu} << shift;
    shift += kDigitBits;
    if (byte >= 0x80) continue;
    visit(number);
    number = 0;
    shift = 0;
  }
  return true;
}

/// Goes over a number, and calls visit(begin, length) if it ends a run.
template <typename Visit>
__device__ inline void go_on(OwnPiece& piece, uint64_t number, const Visit& visit) {
  uint64_t length = 1;
  if (piece.inside) {
    piece.inside = false;
    length = number + 2;
  } else {
    piece.positions += number >> 1;
    piece.inside = (number & 1) != 0;
    if (piece.inside) return;
  }
  visit(piece.positions, length);
  piece.positions += length;
  piece.values += length;
}

__global__ void __launch_bounds__(kThreads) survey_kernel(ReadOwnCall c) {
  const Index index = index_of(c);
  const uint64_t pieces = ceil_div(index.size, kOwnPiece);
  for (uint64_t p = uint64_t{blockIdx.x} * kThreads + threadIdx.x; p < pieces;
       p += uint64_t{gridDim.x} * kThreads) {
    OwnPiece outside{0, 0, false}, inside{0, 0, true};
    for_each_number_in(index, p, [&](uint64_t number) {
      go_on(outside, number, [](uint64_t, uint64_t) {});
      go_on(inside, number, [](uint64_t, uint64_t) {});
    });
    c.pieces[2 * p] = outside;
    c.pieces[2 * p + 1] = inside;
  }
}

__device__ inline OwnPiece after(const OwnPiece& before, const OwnPiece* ways) {
  const OwnPiece& way = ways[before.inside ? 1 : 0];
  return {before.positions + way.positions, before.values + way.values, way.inside};
}

/// What a piece holds becomes what lies before it; by one CTA.
__global__ void __launch_bounds__(kSumThreads) follow_kernel(ReadOwnCall c) {
  __shared__ OwnPiece ways[2 * kSumThreads];
  const Index index = index_of(c);
  const uint64_t pieces = ceil_div(index.size, kOwnPiece);
  const uint64_t each = ceil_div(pieces, uint64_t{kSumThreads});
  const uint64_t first = threadIdx.x * each, last = first + each < pieces ? first + each : pieces;
  OwnPiece outside{0, 0, false}, inside{0, 0, true};
  for (uint64_t p = first; p < last; ++p) {
    outside = after(outside, c.pieces + 2 * p);
    inside = after(inside, c.pieces + 2 * p);
  }
  ways[2 * threadIdx.x] = outside;
  ways[2 * threadIdx.x + 1] = inside;
  __syncthreads();
  OwnPiece before{0, 0, false};
  for (uint32_t k = 0; k < threadIdx.x; ++k)
    before = after(before, ways + 2 * k);
  for (uint64_t p = first; p < last; ++p) {
    const OwnPiece next = after(before, c.pieces + 2 * p);
    c.pieces[2 * p] = before;
    before = next;
  }
  if (threadIdx.x != kSumThreads - 1) return;
  if (!index.is_sound || before.inside || before.values != c.lanes[0]) *c.broken = 1;
}

__device__ inline void set_run(uint64_t* bitmap, uint64_t begin, uint64_t length) {
  auto* words = reinterpret_cast<uint32_t*>(bitmap);
  while (length > 0) {
    const auto shift = static_cast<uint32_t>(begin % 32);
    const uint32_t n = length < 32 - shift ? static_cast<uint32_t>(length) : 32 - shift;
    atomicOr(words + begin / 32, kAll >> (32 - n) << shift);
    begin += n;
    length -= n;
  }
}

__global__ void __launch_bounds__(kThreads) mark_kernel(ReadOwnCall c) {
  const Index index = index_of(c);
  const uint64_t pieces = ceil_div(index.size, kOwnPiece);
  for (uint64_t p = uint64_t{blockIdx.x} * kThreads + threadIdx.x; p < pieces;
       p += uint64_t{gridDim.x} * kThreads) {
    OwnPiece piece = c.pieces[2 * p];
    bool is_sound = true;
    const auto mark = [&](uint64_t begin, uint64_t length) {
      const bool fits = begin < c.count && length <= c.count - begin;
      is_sound = is_sound && fits;
      if (fits) set_run(c.bitmap, begin, length);
    };
    const bool whole =
        for_each_number_in(index, p, [&](uint64_t number) { go_on(piece, number, mark); });
    if (!whole || !is_sound) *c.broken = 1;  // all write the same
  }
}

// ---- add

/// As the host adds: a NaN stays the one that it is.
__device__ inline float added(float a, float b) {
  constexpr uint32_t kQuiet = 0x400000u, kDefault = 0xFFC00000u;
  if (a != a) return __uint_as_float(__float_as_uint(a) | kQuiet);
  if (b != b) return __uint_as_float(__float_as_uint(b) | kQuiet);
  const float sum = __fadd_rn(a, b);
  return sum != sum ? __uint_as_float(kDefault) : sum;
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) add_kernel(AddOwnCall c) {
  using T = Element<kType>;
  const uint64_t* from = c.lanes + kHeaderLanes + ceil_div(c.lanes[1], uint64_t{8});
  const T* values = reinterpret_cast<const T*>(from);
  T* gradient = static_cast<T*>(c.gradient);
  index::for_each_position<kWarps>(c.of, [&](uint64_t i, uint64_t rank) {
    const float sum = added(as_float<kType>(gradient[i]), as_float<kType>(values[rank]));
    gradient[i] = index::as_element<kType>(sum);
  });
}

__global__ void __launch_bounds__(kThreads)
    merge_kernel(const uint64_t* from, uint64_t words, uint64_t* to) {
  for (uint64_t w = uint64_t{blockIdx.x} * kThreads + threadIdx.x; w < words;
       w += uint64_t{gridDim.x} * kThreads)
    to[w] |= from[w];
}

// ---- launches

uint64_t work_of(const WriteOwnCall& c) {
  return ceil_div(ceil_div(c.count, kOwnTile), uint64_t{kWarps});
}

int measure(const WriteOwnCall& c, cuda::Mail* mail, uint64_t sequence, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  const auto groups = static_cast<uint32_t>(own_groups(c.count));
  edge_kernel<<<groups, kThreads, 0, queue>>>(c);
  if (const int code = cuda::launched()) return code;
  size_kernel<<<groups, kThreads, 0, queue>>>(c);
  if (const int code = cuda::launched()) return code;
  sum_kernel<<<1, kSumThreads, 0, queue>>>(c, mail, sequence);
  return cuda::launched();
}

int write(const WriteOwnCall& c, void* stream) {
  return cuda::launch(write_kernel, kThreads, work_of(c), stream, c);
}

int read(const ReadOwnCall& c, void* stream) {
  const uint64_t work = ceil_div(own_pieces(c.size), uint64_t{kThreads});
  if (const int code = cuda::launch(survey_kernel, kThreads, work, stream, c)) return code;
  follow_kernel<<<1, kSumThreads, 0, static_cast<cudaStream_t>(stream)>>>(c);
  if (const int code = cuda::launched()) return code;
  return cuda::launch(mark_kernel, kThreads, work, stream, c);
}

int add(const AddOwnCall& c, void* stream) {
  const uint64_t work = ceil_div(index::tiles_for(c.of.width, c.of.count), uint64_t{kWarps});
  return index::with_type(c.dtype, [&]<DType kType>() {
    return cuda::launch(add_kernel<kType>, kThreads, work, stream, c);
  });
}

int merge(const uint64_t* from, uint64_t words, uint64_t* to, void* stream) {
  return cuda::launch(merge_kernel, kThreads, ceil_div(words, uint64_t{kThreads}), stream, from,
                      words, to);
}

constexpr OwnKernels kKernels{measure, write, read, add, merge, cuda::tell<uint32_t>};

}  // namespace

ADDEND_CUDA_PART(OwnKernels, kKernels);

}  // namespace addend::exact
