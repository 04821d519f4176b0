// SPDX-License-Identifier: Apache-2.0
#include "mesh/rows.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "addend/fold.h"

namespace addend {
namespace {

constexpr uint32_t kDigitBits = 11;
constexpr uint64_t kDigits = uint64_t{1} << kDigitBits;

struct Entry {
  uint64_t key;    // row number less the smallest one
  uint64_t index;  // among the rows given
};

// By key, equal keys in the order given.
void sort(std::vector<Entry>& entries, uint64_t largest) {
  std::vector<Entry> sorted(entries.size());
  for (uint32_t shift = 0; shift < 64 && (largest >> shift) != 0; shift += kDigitBits) {
    std::array<uint64_t, kDigits> begin{};
    for (const Entry& entry : entries)
      ++begin[entry.key >> shift & (kDigits - 1)];
    uint64_t sum = 0;
    for (uint64_t& count : begin)
      sum += std::exchange(count, sum);
    for (const Entry& entry : entries) {
      sorted[begin[entry.key >> shift & (kDigits - 1)]++] = entry;
    }
    entries.swap(sorted);
  }
}

}  // namespace

uint64_t merge_rows(std::span<const std::span<const int64_t>> parts, int64_t* merged,
                    uint64_t* places) {
  uint64_t count = 0;
  for (const auto& part : parts)
    count += part.size();
  if (count == 0) return 0;
  std::vector<Entry> entries;
  entries.reserve(count);
  for (const auto& part : parts) {
    for (const int64_t row : part) {
      entries.push_back({static_cast<uint64_t>(row), entries.size()});
    }
  }
  const auto less = [](const Entry& a, const Entry& b) {
    return static_cast<int64_t>(a.key) < static_cast<int64_t>(b.key);
  };
  const auto [low, high] = std::minmax_element(entries.begin(), entries.end(), less);
  const uint64_t smallest = low->key, largest = high->key - smallest;
  for (Entry& entry : entries)
    entry.key -= smallest;
  sort(entries, largest);
  uint64_t different = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (i == 0 || entries[i].key != entries[i - 1].key) {
      merged[different++] = static_cast<int64_t>(entries[i].key + smallest);
    }
    places[entries[i].index] = different - 1;
  }
  return different;
}

void add_rows(Op op, uint64_t lanes, std::span<const uint64_t> places, const void* values,
              void* total) {
  const uint64_t stride = op_bytes(op, lanes);
  const auto* from = static_cast<const uint8_t*>(values);
  auto* to = static_cast<uint8_t*>(total);
  for (const uint64_t place : places) {
    fold(op, to + place * stride, from, lanes);
    from += stride;
  }
}

}  // namespace addend
