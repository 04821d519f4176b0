// SPDX-License-Identifier: Apache-2.0
// What the next step of an exact codec does, and what it learns from the sums of the last one. Host
// and device codecs share it: workers of both kinds that see the same sums make the same plans.
#pragma once

#include <span>

#include "addend/codec.h"
#include "codec/exact/choose.h"
#include "codec/exact/options.h"
#include "codec/exact/seen_unions.h"
#include "codec/exact/sketch.h"
#include "codec/exact/sketch_values.h"

namespace addend::exact {

/// From this union density on, gathering values costs more than the few zeros (0.1 %) it would
/// save.
constexpr bool nearly_dense(uint64_t nonzeros, uint64_t count) {
  return nonzeros >= count - count / 1024;
}

class Plan {
 public:
  /// `layout` must outlive it.
  Plan(const Layout& layout, const Options& options);

  const Options& options() const { return options_; }
  const Observation& seen() const { return seen_; }
  Mode mode() const { return mode_; }
  const SketchShape& shape() const { return shape_; }
  const index::BloomShape& filter() const { return filter_; }
  const Window& window() const { return window_; }
  /// Whether a lane of the step tells how long messages of own non-zeros would be.
  bool counts_own() const { return counts_own_; }
  uint64_t fingerprint() const;

  /// A dense step was done, here or elsewhere.
  void count_dense_step();

  /// Before count_step. Whether the sums would change the plan so much that they should be finite:
  /// training skips a step that is not, and such gradients are often dense. A look that it spoils
  /// is repeated.
  bool wants_look(uint64_t union_size) const;
  /// The same of wants_survey.
  bool will_want_survey() const;

  /// After any other step, in this order: count_step; learn, and survey where it is wanted, or
  /// neither if the sums are not to be learned from; decide.

  /// Returns wants_look.
  bool count_step(uint64_t union_size);
  /// `top`: the largest addend's exponent where the step was a sketch, plus kTopBias; 0 if none.
  void learn(uint64_t union_size, uint32_t top);
  /// Where the step showed it: lanes of the longest message of own non-zeros.
  void learn_own(uint64_t lanes) { seen_.own_lanes = lanes; }
  bool wants_survey() const { return surveys_blocks(options_, seen_); }
  /// What the two-level form of this union would cost; null: the union is empty.
  void survey(const uint64_t* bitmap);
  /// The same, where a device has counted.
  void survey(std::span<const BlockCounts> counts) {
    choose_block(layout_, options_, counts, seen_);
  }
  void decide();
  void decide_without_learning() { make(); }

 private:
  void make();

  const Layout& layout_;
  const Options options_;
  Observation seen_;
  SeenUnions unions_;
  bool looked_ = false;  // the step ended a run of dense ones

  // Functions of the above alone.
  Mode mode_ = Mode::kPacked;
  SketchShape shape_;
  index::BloomShape filter_;
  bool counts_own_ = false;
  Window window_;
};

}  // namespace addend::exact
