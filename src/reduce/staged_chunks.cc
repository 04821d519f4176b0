// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/bits.h"
#include "reduce/staged.h"

namespace addend::staged {
namespace {

constexpr uint64_t kGrain = 4096;  // lanes
constexpr uint64_t kAlignment = 64;

uint64_t whole_lanes(Op op, uint64_t bytes) {
  const uint64_t grain_bytes = op_bytes(op, kGrain);
  return std::max<uint64_t>(bytes / grain_bytes, 1) * kGrain;
}

}  // namespace

std::vector<Chunk> cut(const Round& round, uint64_t chunk_bytes) {
  const bool whole = std::any_of(round.begin(), round.end(),
                                 [](const Plane& plane) { return plane.bounds != nullptr; });
  std::vector<Chunk> chunks(1);
  uint64_t room = chunk_bytes;
  for (std::size_t p = 0; p < round.size; ++p) {
    const Plane& plane = round.planes[p];
    for (uint64_t first = 0; first < plane.lanes;) {
      const uint64_t left = plane.lanes - first;
      const bool fits = whole || op_bytes(plane.op, left) <= room;
      if (!fits && (room < chunk_bytes / 2 || chunks.back().size == Round::kMaxPlanes)) {
        chunks.emplace_back();
        room = chunk_bytes;
        continue;
      }
      const uint64_t lanes = fits ? left : std::min(left, whole_lanes(plane.op, room));
      Chunk& chunk = chunks.back();
      chunk.pieces[chunk.size++] = {p, first, lanes};
      room -= std::min(room, op_bytes(plane.op, lanes));
      first += lanes;
    }
  }
  return chunks;
}

Places place(const Round& round) {
  Places places;
  const auto take = [&](uint64_t bytes) {
    const uint64_t at = places.bytes;
    places.bytes += ceil_div(bytes, kAlignment) * kAlignment;
    return at;
  };
  for (std::size_t p = 0; p < round.size; ++p) {
    const Plane& plane = round.planes[p];
    places.data[p] = take(op_bytes(plane.op, plane.lanes));
    if (is_table_sum(plane.op)) places.sums[p] = take(op_sum_bytes(plane.op, plane.lanes));
  }
  return places;
}

}  // namespace addend::staged
