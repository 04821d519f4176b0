// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/page_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

namespace addend::cli {

namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

}  // namespace

Result<PageBuffer> PageBuffer::create(uint64_t bytes) {
  PageBuffer buffer;
  // One huge page more than needed leaves room to align the start.
  const uint64_t mapped = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
  void* mapping = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) {
    return make_error(Errc::kOutOfMemory, fmt::format("cannot map {} bytes", mapped));
  }
  buffer.mapping_ = mapping;
  buffer.mapped_ = mapped;
  buffer.bytes_ = bytes;
  const uint64_t offset = reinterpret_cast<uintptr_t>(mapping) % kHugePage;
  buffer.data_ = static_cast<char*>(mapping) + (offset == 0 ? 0 : kHugePage - offset);
  // Refused by kernels without huge pages; ordinary pages do as well then. Thousands of workers
  // with a few bytes each have no room for one.
  if (bytes >= kHugePage / 2) (void)madvise(buffer.data_, mapped - kHugePage, MADV_HUGEPAGE);
  return buffer;
}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

PageBuffer::~PageBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

}  // namespace addend::cli
