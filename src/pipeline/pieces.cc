// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "addend/pipeline.h"

namespace addend {
namespace {

// Pieces begin where blocks of every codec and words of an index do.
constexpr uint64_t kGrain = 4096;
constexpr uint64_t kLeastBytes = 16 << 10;

}  // namespace

Result<std::vector<Layout>> cut_into_pieces(const Layout& layout, uint64_t piece_bytes) {
  if (!layout.segments.empty()) {
    return make_error(Errc::kInvalidArgument, "a gradient with segments cannot be cut into pieces");
  }
  if (piece_bytes < kLeastBytes) {
    return make_error(Errc::kInvalidArgument, "a piece has at least 16384 bytes");
  }
  const uint64_t most = piece_bytes / dtype_bytes(layout.dtype) / kGrain * kGrain;
  std::vector<Layout> pieces;
  uint64_t left = layout.count;
  do {
    Layout piece = layout;
    piece.count = std::min(most, left);
    piece.bucket = layout.bucket + pieces.size();
    left -= piece.count;
    pieces.push_back(std::move(piece));
  } while (left > 0);
  return pieces;
}

}  // namespace addend
