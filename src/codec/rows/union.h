// SPDX-License-Identifier: Apache-2.0
// The union of several workers' rows, and sums over it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "addend/rows.h"

namespace addend {

/// The union of several parts' rows. Keeps its memory for the next one.
class RowUnion {
 public:
  /// Merges row numbers, which come in any order and may repeat. Returns how many are different.
  uint64_t merge(std::span<const std::span<const int64_t>> parts);

  /// How many parts were merged.
  std::size_t parts() const { return sizes_.size(); }
  uint64_t memory_bytes() const;
  /// The different ones, ascending.
  std::span<const int64_t> rows() const { return rows_; }
  /// Where in `rows` each row given is, part after part.
  std::span<const uint64_t> places() const { return places_; }

  /// total[place] = the sum over all rows given at that place, in order. `values[p]` are the rows
  /// of part p, of `width` elements each; null: they count as zeros. As add_rows adds them.
  /// REQUIRES: as many values as parts; natural alignment.
  void sum(RowElement element, uint64_t width, std::span<const void* const> values,
           void* total) const;

 private:
  struct Entry {
    uint64_t key;    // row number less the smallest one
    uint64_t index;  // among the rows given
  };
  void merge_entries();
  void sort(uint64_t largest);

  std::vector<uint64_t> sizes_;  // of the parts
  std::vector<Entry> entries_, sorted_;
  std::vector<int64_t> rows_;
  std::vector<uint64_t> places_;
};

}  // namespace addend
