// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/form.h"

namespace addend::quant {

void IndexForm::add_to(Fingerprint& print) const {
  print.add(exact::mode_name(mode_));
  if (in_blocks()) print.add(seen_.block);
}

bool IndexForm::count(uint64_t union_size) {
  if (!chooses_) return false;
  ++seen_.steps;
  seen_.nonzeros = union_size;
  return exact::surveys_blocks({}, seen_);
}

void IndexForm::survey(const Layout& layout, const uint64_t* bitmap) {
  exact::survey_blocks(layout, {}, bitmap, seen_);
}

void IndexForm::survey(const Layout& layout, std::span<const exact::BlockCounts> counts) {
  exact::choose_block(layout, {}, counts, seen_);
}

// The values cost the same in either form.
void IndexForm::choose(const Layout& layout) {
  if (!chooses_) return;
  const auto seconds = [&](exact::Mode mode) {
    return exact::estimate(mode, layout, {}, seen_).seconds(layout.network);
  };
  mode_ = seconds(exact::Mode::kTwoLevel) < seconds(exact::Mode::kPacked) ? exact::Mode::kTwoLevel
                                                                          : exact::Mode::kPacked;
}

}  // namespace addend::quant
