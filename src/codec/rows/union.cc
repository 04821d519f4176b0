// SPDX-License-Identifier: Apache-2.0
#include "codec/rows/union.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/float_environment.h"
#include "codec/rows/add_rows.h"

namespace addend {
namespace {

constexpr uint32_t kDigitBits = 11;
constexpr uint64_t kDigits = uint64_t{1} << kDigitBits;

}  // namespace

// By key, equal keys in the order given.
void RowUnion::sort(uint64_t largest) {
  sorted_.resize(entries_.size());
  for (uint32_t shift = 0; shift < 64 && (largest >> shift) != 0; shift += kDigitBits) {
    std::array<uint64_t, kDigits> begin{};
    for (const Entry& entry : entries_)
      ++begin[entry.key >> shift & (kDigits - 1)];
    uint64_t sum = 0;
    for (uint64_t& count : begin)
      sum += std::exchange(count, sum);
    for (const Entry& entry : entries_) {
      sorted_[begin[entry.key >> shift & (kDigits - 1)]++] = entry;
    }
    entries_.swap(sorted_);
  }
}

uint64_t RowUnion::merge(std::span<const std::span<const int64_t>> parts) {
  sizes_.clear();
  entries_.clear();
  rows_.clear();
  for (const auto& part : parts) {
    for (const int64_t row : part)
      entries_.push_back({static_cast<uint64_t>(row), entries_.size()});
  }
  places_.resize(entries_.size());
  if (!entries_.empty()) merge_entries();
  // At last, so that nothing is said to be there if memory runs out on the way.
  for (const auto& part : parts)
    sizes_.push_back(part.size());
  return rows_.size();
}

void RowUnion::merge_entries() {
  const auto less = [](const Entry& a, const Entry& b) {
    return static_cast<int64_t>(a.key) < static_cast<int64_t>(b.key);
  };
  const auto [low, high] = std::minmax_element(entries_.begin(), entries_.end(), less);
  const uint64_t smallest = low->key, largest = high->key - smallest;
  for (Entry& entry : entries_)
    entry.key -= smallest;
  sort(largest);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (i == 0 || entries_[i].key != entries_[i - 1].key) {
      rows_.push_back(static_cast<int64_t>(entries_[i].key + smallest));
    }
    places_[entries_[i].index] = rows_.size() - 1;
  }
}

uint64_t RowUnion::memory_bytes() const {
  return (entries_.capacity() + sorted_.capacity()) * sizeof(Entry) +
         (sizes_.capacity() + rows_.capacity() + places_.capacity()) * sizeof(uint64_t);
}

void RowUnion::sum(RowElement element, uint64_t width, std::span<const void* const> values,
                   void* total) const {
  const FloatEnvironment ours;
  const uint64_t bytes = rows_.size() * width * row_element_bytes(element);
  if (bytes == 0) return;
  std::memset(total, 0, bytes);
  uint64_t given = 0;
  for (std::size_t part = 0; part < sizes_.size(); ++part) {
    const std::span<const uint64_t> places(places_.data() + given, sizes_[part]);
    if (values[part] != nullptr) add_rows(element, width, places, values[part], total);
    given += sizes_[part];
  }
}

}  // namespace addend
