// SPDX-License-Identifier: Apache-2.0
#include "reduce/service/chunks.h"

#include <algorithm>
#include <bit>

#include "base/assert.h"
#include "base/bits.h"
#include "wire/frame.h"

namespace addend::service_client {

std::span<const uint8_t> Chunk::contribution() const {
  const auto* data = static_cast<const uint8_t*>(plane->data);
  return {data + op_bytes(plane->op, first_lane), op_bytes(plane->op, lanes)};
}

std::span<uint8_t> Chunk::sums() const {
  auto* data = static_cast<uint8_t*>(is_table_sum(plane->op) ? plane->sums : plane->data);
  return {data + op_sum_bytes(plane->op, first_lane), op_sum_bytes(plane->op, lanes)};
}

void swap_lanes(Op op, std::span<uint8_t> lanes) {
  const std::size_t width = op_bytes(op, 1);
  ADDEND_ASSERT(width <= sizeof(uint64_t) && std::has_single_bit(width));
  for (std::size_t at = 0; at + width <= lanes.size(); at += width)
    std::reverse(lanes.begin() + static_cast<std::ptrdiff_t>(at),
                 lanes.begin() + static_cast<std::ptrdiff_t>(at + width));
}

uint32_t lanes_per_chunk(Op op, const FrameLimits& limits) {
  if (!is_narrow_sum(op)) {
    // Sums are never shorter than contributions; table sums come in pairs of lanes.
    return static_cast<uint32_t>(limits.payload_bytes / op_sum_bytes(op, 1)) &
           (is_table_sum(op) ? ~1u : ~0u);
  }
  const auto fits = [&](uint32_t lanes) {
    return addend_frame_fits(static_cast<uint8_t>(op), static_cast<uint32_t>(op_bytes(op, lanes)),
                             limits.payload_bytes, limits.leaf) != 0;
  };
  uint32_t lanes = 0;
  while (fits(lanes + ADDEND_NARROW_GROUP_LANES))
    lanes += ADDEND_NARROW_GROUP_LANES;
  return lanes;
}

Chunks::Chunks(Round& round, const FrameLimits& limits) : round_(&round), planes_(round.size) {
  for (std::size_t p = 0; p < planes_; ++p) {
    lanes_[p] = lanes_per_chunk(round.planes[p].op, limits);
    first_[p + 1] = first_[p] + ceil_div(round.planes[p].lanes, lanes_[p]);
  }
}

Chunk Chunks::at(uint64_t i) const {
  ADDEND_ASSERT(i < size());
  std::size_t p = 0;
  while (i >= first_[p + 1])
    ++p;
  Plane& plane = round_->planes[p];
  const uint64_t first_lane = (i - first_[p]) * lanes_[p];
  const auto lanes = static_cast<uint32_t>(std::min<uint64_t>(lanes_[p], plane.lanes - first_lane));
  return {&plane, first_lane, lanes};
}

}  // namespace addend::service_client
