// SPDX-License-Identifier: Apache-2.0
// How a round is cut into chunks, and where they lie on the host.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "addend/reduce.h"

namespace addend::staged {

/// A part of a plane.
struct Piece {
  std::size_t plane = 0;
  uint64_t first = 0;  ///< lane
  uint64_t lanes = 0;
};

struct Chunk {
  std::array<Piece, Round::kMaxPlanes> pieces;
  std::size_t size = 0;
};

/// Chunks of about `chunk_bytes`: a function of the planes' operations and lengths alone, so the
/// same on all workers. At least one, which may be empty. Pieces begin at multiples of 4096 lanes,
/// where bytes of every operation do. A round with bounds, whose lanes are workers', stays whole.
std::vector<Chunk> cut(const Round& round, uint64_t chunk_bytes);

/// Where the planes of a round lie in one block of memory, each at a multiple of 64.
struct Places {
  std::array<uint64_t, Round::kMaxPlanes> data{}, sums{};
  uint64_t bytes = 0;
};
Places place(const Round& round);

}  // namespace addend::staged
