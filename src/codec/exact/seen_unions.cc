// SPDX-License-Identifier: Apache-2.0
#include "codec/exact/seen_unions.h"

#include <algorithm>

namespace addend::exact {
namespace {

// Fewer than these say little about how unions vary, and nothing about which is odd.
constexpr uint64_t kFew = 8;

}  // namespace

void SeenUnions::add(uint64_t nonzeros) { unions_[seen_++ % kRemembered] = nonzeros; }

uint64_t SeenUnions::expected() const {
  const uint64_t recent = std::min(seen_, kRecent);
  uint64_t total = 0;
  for (uint64_t i = seen_ - recent; i < seen_; ++i)
    total += unions_[i % kRemembered];
  return total / recent;
}

uint64_t SeenUnions::capacity() const {
  std::array<uint64_t, kRemembered> sorted = unions_;
  const uint64_t known = std::min(seen_, kRemembered);
  std::sort(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(known));
  if (known < kFew) return sorted[known - 1] + sorted[known - 1] / 8;
  const uint64_t median = sorted[known / 2], high = sorted[known - 2];
  return median + (high - median) * 3 / 2;
}

}  // namespace addend::exact
