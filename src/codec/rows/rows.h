// SPDX-License-Identifier: Apache-2.0
// Sums of sparse rows: what a step sends.
//
//             .---- all fit ---------------------------------.
//             |                                              v
//   begin --> [ meet ] -- some do not --> [ exact ] ------> gather way: decode
//              counts,                     rows of           |
//              rows (and values)           everybody,        v
//              in the room that was        exact bounds      union way: packed values
//              planned                                       [ sum ] or [ inner codec's rounds ]
//
// What is planned (the way, and the room) follows from what the last step's sums showed, so all
// workers plan alike. docs/formats/rows.md has the planes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "addend/rows.h"
#include "base/buffer.h"
#include "codec/rows/union.h"
#include "codec/step.h"

namespace addend::rows {

/// A little more than `count`, so that sizes that wander stay the same for a while.
uint64_t roomy(uint64_t count);

class RowSums final : public Stepped<RowCodec> {
 public:
  /// `plain`: packed values are added as they are, not coded.
  RowSums(const CodecSpec& spec, const RowLayout& layout, const Layout& base, bool plain);

  uint64_t fingerprint() const override;
  std::string_view next_mode() const override { return mode(gathers(most_)); }
  uint64_t memory_bytes() const override;
  std::span<const int64_t> rows() const override { return result_; }
  const void* sums() const override { return sums_.as<void>(); }

 private:
  enum class Stage : uint8_t { kMeet, kMet, kRows, kInner, kSummed };

  Status do_begin(const void* gradient) override;
  Result<bool> do_round(Round& round) override;
  Status do_finish(void* gradient) override;

  static std::string_view mode(bool gathered) { return gathered ? "gather" : "union"; }
  /// Whether sending all values to all workers is the cheaper way, if the one that has most rows
  /// has so many.
  bool gathers(uint64_t most) const;
  /// Rows that a worker can send before all know how many it has; 0 where that does not pay.
  uint64_t room(uint64_t most) const;

  // The plane of rows. Of each worker: its count (in the first round), rows, values (if gathered).
  uint64_t capacity(uint32_t worker) const { return counted_ ? counts_[worker] : room_; }
  uint64_t rows_at(uint32_t worker) const { return bounds_[worker] + (counted_ ? 0 : 1); }
  Status add_rows_plane(Round& round);
  Status read_counts();
  void merge_rows();

  Result<bool> after_rows(Round& round);
  Status sum_own_rows();
  Result<bool> begin_inner(Round& round);
  Status sum_all_rows();

  const CodecSpec spec_;
  const RowLayout rows_;
  const bool plain_;
  const uint64_t row_bytes_;

  // What plans depend on: as of the last step that was finished.
  uint64_t most_ = 0;   // rows of the worker that had most
  uint64_t union_ = 0;  // rows of all together
  uint64_t step_;

  // Of the step in progress.
  Stage stage_ = Stage::kMeet;
  RowGradient given_;
  bool gathered_ = false;  // values travel with the rows
  bool counted_ = false;   // everybody's count is known
  uint64_t room_ = 0;
  uint64_t most_now_ = 0;
  std::vector<uint64_t> counts_, bounds_;  // by worker
  Buffer plane_, scaled_, sums_;
  RowUnion merged_;
  std::span<const int64_t> result_;

  std::unique_ptr<Codec> inner_;
  uint64_t inner_step_ = 0;  // that it does next
};

}  // namespace addend::rows
