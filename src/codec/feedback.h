// SPDX-License-Identifier: Apache-2.0
// The part of the contract that lossy codecs share: a step's number, a residual, and how both are
// saved over a restart, for the whole bucket or for one segment, with what else a codec learnt.
// docs/formats/quant.md, "State".
#pragma once

#include <vector>

#include "codec/fingerprint.h"
#include "codec/residual.h"
#include "codec/step.h"

namespace addend {

/// Base of codecs with error feedback. Such a codec says what its plan and its segments' plans are;
/// this class keeps and compares states.
class FeedbackCodec : public SteppedCodec {
 public:
  explicit FeedbackCodec(const Layout& layout) : SteppedCodec(layout), step_(layout.first_step) {}

  uint64_t fingerprint() const final;

 protected:
  /// Everything that workers must share, without the step.
  virtual uint64_t base_fingerprint() const = 0;
  /// What the plan of the next step derived from earlier sums.
  virtual void add_plan(Fingerprint&) const {}
  /// What a segment's residual depends on: not world, bucket or scale, which may change under it.
  virtual uint64_t segment_fingerprint(uint64_t segment) const = 0;
  virtual Residual::Range segment_range(uint64_t segment) const = 0;
  /// Whether a segment carries anything from step to step.
  virtual bool keeps(uint64_t) const { return residual_.any(); }
  /// What it carries ahead of its residual: of a size that the segment's plan gives.
  virtual uint64_t learnt_bytes(uint64_t) const { return 0; }
  virtual Status save_learnt(uint64_t, uint8_t*) const { return {}; }
  virtual Status load_learnt(uint64_t, const uint8_t*) { return {}; }

  /// Where the residual's bytes are: here, in memory of residual_'s own. A codec that keeps them
  /// elsewhere says how they come and go.
  virtual Status fetch_residual(const Residual::Range& range, uint8_t* to) const {
    residual_.save(range, to);
    return {};
  }
  virtual Status put_residual(const Residual::Range& range, const uint8_t* from) {
    residual_.load(range, from);
    return {};
  }
  virtual Status multiply_residual(double factor) {
    residual_.multiply(factor);
    return {};
  }

  /// A layout without segments is one: its bucket.
  Segment segment_at(uint64_t segment) const;
  /// The range of a segment where a residual belongs to the gradient's own positions.
  Residual::Range positions_of(uint64_t segment) const;

  uint64_t step_;
  Residual residual_;

 private:
  Result<std::vector<uint8_t>> do_save_state() const final;
  Status do_load_state(std::span<const uint8_t> state) final;
  Result<std::vector<uint8_t>> do_save_segment(uint64_t segment) const final;
  Status do_load_segment(uint64_t segment, std::span<const uint8_t> state) final;
  Status do_scale_residual(double factor) final { return multiply_residual(factor); }

  /// Segments that follow each other, and their residuals.
  struct Part {
    uint64_t first = 0, last = 0;
    Residual::Range range;
  };
  Part all() const;
  uint64_t bytes_of(const Part& part) const;
  template <typename Header>
  Result<std::vector<uint8_t>> write_state(const Header& header, const Part& part) const;
  Status read_state(const Part& part, const uint8_t* from);

  uint64_t state_fingerprint(uint32_t worker) const;
  Error foreign_state(uint64_t fingerprint) const;
};

}  // namespace addend
