// SPDX-License-Identifier: Apache-2.0
// What codecs that select do, wherever they run: how many elements travel, draws, fingerprints.
#pragma once

#include <cmath>

#include "codec/feedback.h"
#include "codec/select/options.h"

namespace addend::select {

class SelectPlan : public FeedbackCodec {
 public:
  SelectPlan(const Layout& layout, const Options& options)
      : FeedbackCodec(layout), options_(options) {}

  std::string_view next_mode() const final { return selector_name(options_.selector); }

 protected:
  /// How many elements of a segment travel in this step, exactly or about.
  uint64_t kept_of(uint64_t count) const { return select::kept_of(options_, count, step_); }
  /// Names a segment's draws; with the step added, those of a step. The same on all workers.
  Fingerprint draws_of(uint64_t id) const {
    return Fingerprint().add("select draw").add(layout().seed).add(id);
  }
  bool has_velocity() const { return options_.selector == Selector::kDgc; }
  /// Where dgc clips: the norm of a worker's gradient of a segment, so that all of them together
  /// have no larger one than was asked for, if they are alike. 0: nowhere.
  double most_norm() const {
    return options_.clip / std::sqrt(static_cast<double>(layout().world));
  }

  uint64_t learnt_bytes(uint64_t segment) const final {
    return has_velocity() ? segment_at(segment).count * 4 : 0;
  }

  const Options options_;

 private:
  uint64_t base_fingerprint() const final;
  uint64_t segment_fingerprint(uint64_t segment) const final;
  Residual::Range segment_range(uint64_t segment) const final { return positions_of(segment); }
};

}  // namespace addend::select
