// SPDX-License-Identifier: Apache-2.0
// What cast does, wherever it runs: options, fingerprints, and which elements a report samples.
#pragma once

#include <algorithm>

#include "base/bits.h"
#include "codec/feedback.h"
#include "codec/options.h"

namespace addend::cast {

struct Options {
  DType to = DType::kBf16;
  Feedback feedback = Feedback::kNone;
};

Result<Options> read_options(const CodecSpec& spec);

/// Nothing to round, nothing to keep: that is dense, whose planes may lie in the gradient.
inline bool is_dense(const Options& options, const Layout& layout) {
  return layout.dtype == options.to && options.feedback == Feedback::kNone;
}

class CastPlan : public FeedbackCodec {
 public:
  CastPlan(const Layout& layout, const Options& options)
      : FeedbackCodec(layout), options_(options) {}

  std::string_view next_mode() const final { return "cast"; }

 protected:
  /// One stretch in so many is sampled for the report, another one each step.
  static constexpr uint64_t kStretch = 2048;
  uint64_t stretches() const { return ceil_div(layout().count, kStretch); }
  uint64_t sample_every() const {
    constexpr uint64_t kEvery = 512;
    return std::clamp<uint64_t>(stretches(), 1, kEvery);
  }
  uint64_t first_sample() const { return step_ % sample_every(); }

  const Options options_;
  const void* gradient_ = nullptr;
  bool opened_ = false;  ///< the only round

 private:
  Status do_begin(const void* gradient) final {
    gradient_ = gradient;
    opened_ = false;
    draft().mode = next_mode();
    return {};
  }
  uint64_t base_fingerprint() const final {
    return Fingerprint().add("cast").add(layout()).add(to()).add(feedback()).value();
  }
  uint64_t segment_fingerprint(uint64_t segment) const final {
    const Segment owner = segment_at(segment);
    Fingerprint print;
    print.add(layout().segments.empty() ? "cast bucket" : "cast segment");
    print.add(layout().seed).add(owner.id).add(owner.count);
    return print.add(static_cast<uint64_t>(layout().dtype)).add(to()).add(feedback()).value();
  }
  Residual::Range segment_range(uint64_t segment) const final { return positions_of(segment); }

  uint64_t to() const { return static_cast<uint64_t>(options_.to); }
  uint64_t feedback() const { return static_cast<uint64_t>(options_.feedback); }
};

}  // namespace addend::cast
