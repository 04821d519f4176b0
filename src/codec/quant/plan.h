// SPDX-License-Identifier: Apache-2.0
// What a quant codec is apart from where it runs: options, tables, blocks, names of its random
// streams, fingerprints. The codecs of the CPU and of devices share it, so that the same spec gives
// the same plan and the same bytes.
#pragma once

#include <string_view>
#include <vector>

#include "codec/feedback.h"
#include "codec/quant/blocks.h"
#include "codec/quant/coding.h"
#include "codec/quant/form.h"
#include "codec/quant/options.h"
#include "codec/quant/scales.h"
#include "codec/quant/thresholds.h"

namespace addend::quant {

class QuantPlan : public FeedbackCodec {
 public:
  std::string_view next_mode() const final { return "quant"; }

 protected:
  QuantPlan(const Layout& layout, const Options& options)
      : FeedbackCodec(layout), options_(options), form_(options.index) {}

  Status make_codings();

  bool rotates() const { return options_.rotation == Rotation::kBlock; }
  bool indexed() const { return options_.index != Index::kNone; }
  // With an index the union changes, and with it the blocks: the residual stays with the positions.
  bool keeps_rotated() const { return residual_.any() && !indexed(); }
  uint64_t sign_period() const;
  // Whether the signs change after the step in progress, and a residual with them.
  bool turns_residual() const;

  Grid grid(const Coding& coding) const {
    return {coding.table.half_range, coding.table.granularity, rotates()};
  }
  ThresholdDraw threshold_draw() const;
  // What places a block in the step's thresholds.
  uint64_t threshold_name(const Block& block) const;

  // With nonfinite=error.
  static Error broken_blocks(uint64_t elements);
  // Whether the sums may be those of so many workers; puts them into the report's draft.
  Status take_contributors(uint32_t contributors);

  uint64_t base_fingerprint() const final;

  const Options options_;
  std::vector<Coding> codings_;
  Blocks blocks_;
  mutable IndexForm form_;  // a device's is chosen when the next plan is asked for
  bool excluded_ = false;   // this worker, from the sums of the step in progress

 private:
  uint64_t segment_fingerprint(uint64_t segment) const final;
  Residual::Range segment_range(uint64_t segment) const final;
  Status do_set_missing(uint64_t workers) final;
};

}  // namespace addend::quant
