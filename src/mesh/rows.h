// SPDX-License-Identifier: Apache-2.0
// Sums of sparse tensors whose rows were gathered from all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "addend/plane.h"

namespace addend {

/// The union of several parts' rows. Keeps its memory for the next one.
class RowUnion {
 public:
  /// Merges row numbers, which come in any order and may repeat. Returns how many are different.
  uint64_t merge(std::span<const std::span<const int64_t>> parts);

  /// How many parts were merged.
  std::size_t parts() const { return sizes_.size(); }
  /// The different ones, ascending.
  std::span<const int64_t> rows() const { return rows_; }
  /// Where in `rows` each row given is, part after part.
  std::span<const uint64_t> places() const { return places_; }

  /// total[place] = the sum over all rows given at that place, in order. `values[p]` are the rows
  /// of part p, of `lanes` lanes each; null: they count as zeros. REQUIRES: as many values as
  /// parts; `op` is a sum, but not a table sum; natural alignment.
  void sum(Op op, uint64_t lanes, std::span<const void* const> values, void* total) const;

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
