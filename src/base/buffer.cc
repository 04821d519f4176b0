// SPDX-License-Identifier: Apache-2.0
#include "base/buffer.h"

#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

#include <sys/mman.h>

namespace addend {
namespace {

constexpr uint64_t kAlignment = 64;
// Below this a page mapping wastes more than it saves.
constexpr uint64_t kMapThreshold = Buffer::kZeroFrom;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

uint64_t round_up(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Buffer::~Buffer() { release(); }

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    capacity_ = std::exchange(other.capacity_, 0);
  }
  return *this;
}

void Buffer::release() {
  if (data_ == nullptr) return;
  if (capacity_ >= kMapThreshold) {
    munmap(data_, capacity_);
  } else {
    std::free(data_);
  }
  data_ = nullptr;
  capacity_ = 0;
}

Status Buffer::reserve(uint64_t bytes) {
  if (bytes <= capacity_ && data_ != nullptr) return {};
  const Error refused = make_error(
      Errc::kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes of workspace");
  if (bytes > std::numeric_limits<uint64_t>::max() / 2) return refused;
  release();
  if (bytes < kMapThreshold - kAlignment) {
    const uint64_t rounded = round_up(bytes + 1, kAlignment);
    data_ = std::aligned_alloc(kAlignment, rounded);
    if (data_ == nullptr) return refused;
    capacity_ = rounded;
    return {};
  }
  const bool huge = bytes >= kHugePage;
  const uint64_t rounded = round_up(bytes, huge ? kHugePage : kMapThreshold);
  // A huge page must start at a multiple of its size, which mmap does not promise: map one more and
  // give back the ends.
  const uint64_t mapped_bytes = huge ? rounded + kHugePage : rounded;
  void* mapped = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return refused;
  auto* start = static_cast<uint8_t*>(mapped);
  if (huge) {
    const uint64_t skip = round_up(reinterpret_cast<uintptr_t>(mapped), kHugePage) -
                          reinterpret_cast<uintptr_t>(mapped);
    if (skip > 0) munmap(start, skip);
    start += skip;
    if (skip < kHugePage) munmap(start + rounded, kHugePage - skip);
    madvise(start, rounded, MADV_HUGEPAGE);  // advice: a kernel without huge pages is as good
  }
  data_ = start;
  capacity_ = rounded;
  return {};
}

}  // namespace addend
