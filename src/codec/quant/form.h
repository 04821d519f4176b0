// SPDX-License-Identifier: Apache-2.0
// How a quant codec's index travels, and what earlier unions say about that. Only sums decide, so
// all workers choose alike, on the CPU and on devices; no result depends on it.
#pragma once

#include <span>

#include "codec/exact/choose.h"
#include "codec/fingerprint.h"
#include "codec/quant/options.h"

namespace addend::quant {

class IndexForm {
 public:
  explicit IndexForm(Index index)
      : chooses_(index == Index::kAuto),
        mode_(index == Index::kTwoLevel ? exact::Mode::kTwoLevel : exact::Mode::kPacked) {}

  bool in_blocks() const { return mode_ == exact::Mode::kTwoLevel; }
  uint64_t block() const { return seen_.block; }
  void add_to(Fingerprint& print) const;

  /// After a step: count, then the survey where count asks for one, then choose.
  bool count(uint64_t union_size);
  static std::span<const uint64_t> sizes() { return exact::surveyed_sizes({}); }
  void survey(const Layout& layout, const uint64_t* bitmap);
  void survey(const Layout& layout, std::span<const exact::BlockCounts> counts);
  void choose(const Layout& layout);

 private:
  bool chooses_;
  exact::Mode mode_;
  exact::Observation seen_;
};

}  // namespace addend::quant
