// SPDX-License-Identifier: Apache-2.0
#include "codec/index/union_index.h"

#include <cstring>

#include "codec/index/kernels.h"

namespace addend::index {
namespace {

// Non-zeros are kept during the scan while they are at most a quarter of the gradient; beyond, they
// are read from it again.
constexpr uint64_t kKeptShare = 4;

// Two levels go by live blocks while the union is less than an eighth of the gradient. Beyond, one
// bitmap and the kernels that stream over all of it are faster than many short copies.
constexpr uint64_t kLiveShare = 8;

}  // namespace

void UnionIndex::start(uint32_t width, const void* gradient, uint64_t count) {
  width_ = width;
  count_ = count;
  gradient_ = gradient;
  scanned_ = two_levels_ = by_blocks_ = kept_all_ = negative_zeros_ = false;
  nonzeros_ = size_ = 0;
}

Status UnionIndex::scan() {
  const uint64_t capacity = count_ / kKeptShare + 64;
  ADDEND_TRY(local_.reserve(words() * 8));
  ADDEND_TRY(kept_.reserve(capacity * width_ + Buffer::kSlack));
  const ScanResult found =
      index::scan(width_, gradient_, count_, local_.as<uint64_t>(), kept_.as<void>(), capacity);
  nonzeros_ = found.nonzeros;
  kept_all_ = found.kept == found.nonzeros;
  negative_zeros_ = found.negative_zeros;
  scanned_ = true;
  return {};
}

Status UnionIndex::open_bitmap(Round& round) {
  ADDEND_TRY(reserve_bitmap());
  std::memcpy(bitmap(), local(), words() * 8);
  round.add({Op::kOrU64, words(), bitmap(), nullptr, nullptr});
  return {};
}

// Bits past the end are dropped, as everyone does.
void UnionIndex::close_bitmap() {
  if (count_ % 64 != 0) bitmap()[words() - 1] &= low_mask(count_ % 64);
  size_ = popcount({bitmap(), words()});
}

Status UnionIndex::open_blocks(uint64_t block, Round& round) {
  two_levels_ = true;
  ADDEND_TRY(two_level_.set_blocks(width_, gradient_, count_, block));
  if (!scanned_) {
    nonzeros_ = two_level_.local().nonzeros;
    negative_zeros_ = two_level_.local().negative_zeros;
  }
  round.add(two_level_.live_plane());
  round.add(two_level_.partial_plane());
  return {};
}

Result<bool> UnionIndex::close_blocks(Round& round) {
  ADDEND_TRY(two_level_.set_elements(gradient_));
  const Plane elements = two_level_.element_plane();
  if (elements.lanes == 0) {
    ADDEND_TRY(close_elements());
    return false;
  }
  round.add(elements);
  return true;
}

Status UnionIndex::close_elements() {
  size_ = two_level_.count_union();
  by_blocks_ = !scanned_ && size_ < count_ / kLiveShare;
  if (by_blocks_) return {};
  ADDEND_TRY(reserve_bitmap());
  write_bitmap();
  // Words without a non-zero may now lie in live blocks, where a -0.0 was not looked for.
  if (!scanned_ && two_level_.element_plane().lanes > 0) negative_zeros_ = true;
  return {};
}

bool UnionIndex::holds_local() const {
  if (two_levels_) return two_level_.holds_local();
  uint64_t lost = 0;
  for (uint64_t w = 0; w < words(); ++w)
    lost |= local()[w] & ~bitmap_.as<uint64_t>()[w];
  return lost == 0;
}

// Its zeros do not stand, and kept values go with all of its own positions.
void UnionIndex::leave_out() {
  negative_zeros_ = true;
  kept_all_ = false;
}

void UnionIndex::write_bitmap() { two_level_.write_union(bitmap()); }

void UnionIndex::gather(void* values) const {
  if (by_blocks_) {
    two_level_.pack_values(gradient_, values);
  } else if (kept_all_) {
    place(width_, kept_.as<void>(), local(), words(), bitmap_.as<uint64_t>(), values);
  } else {
    pack(width_, gradient_, count_, bitmap_.as<uint64_t>(), values);
  }
}

// The gradient of the step is zero outside the union already, and is not written there again; but
// a -0.0 would stay where other workers write +0.0.
void UnionIndex::scatter(const void* values, void* gradient) const {
  const bool zeros_stand = gradient == gradient_ && !negative_zeros_;
  if (size_ == 0) {
    if (!zeros_stand) std::memset(gradient, 0, count_ * width_);
  } else if (by_blocks_) {
    two_level_.unpack_values(values, zeros_stand ? Outside::kZeros : Outside::kAnything, gradient);
  } else if (zeros_stand) {
    unpack_into_zeros(width_, values, bitmap_.as<uint64_t>(), count_, gradient);
  } else {
    unpack(width_, values, bitmap_.as<uint64_t>(), count_, gradient);
  }
}

Error lost_index_bits() {
  return make_error(
      Errc::kUndecodable,
      "the union that came back lacks non-zeros of this worker: an adder lost index bits");
}

uint64_t UnionIndex::memory_bytes() const {
  return two_level_.memory_bytes() + local_.capacity() + kept_.capacity() + bitmap_.capacity();
}

}  // namespace addend::index
