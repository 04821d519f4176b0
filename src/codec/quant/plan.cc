// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/plan.h"

#include <string>

namespace addend::quant {
namespace {

// Signs must stay while a residual lives in rotated coordinates; every so often it is turned to new
// ones, because coordinates that are clipped under one set of signs stay clipped while it lasts.
constexpr uint64_t kFeedbackSignPeriod = 8;
// What stands for bits that fill the lane in a segment's plan: they change with the world,
// and a residual does not.
constexpr uint64_t kLaneBits = 9;

}  // namespace

Status QuantPlan::make_codings() {
  std::vector<uint32_t> widths = {options_.bits};
  if (options_.bits == 0) widths.assign(kWidths.begin(), kWidths.end());
  for (const uint32_t bits : widths) {
    Result<Coding> coding = Coding::make(bits, options_, layout().world);
    ADDEND_TRY(coding);
    codings_.push_back(std::move(*coding));
  }
  return {};
}

uint64_t QuantPlan::sign_period() const { return keeps_rotated() ? kFeedbackSignPeriod : 1; }

bool QuantPlan::turns_residual() const {
  return keeps_rotated() && rotates() && (step_ + 1) % sign_period() == 0;
}

// With segments all buckets share one table of thresholds, and the place in it is the segment's.
ThresholdDraw QuantPlan::threshold_draw() const {
  Fingerprint seed;
  seed.add(layout().seed ^ uint64_t{0x726F756E64});
  if (layout().segments.empty()) seed.add(layout().bucket);
  return {seed.add(step_).value(), layout().world, layout().worker,
          options_.rounding == Rounding::kCorrelated};
}

uint64_t QuantPlan::threshold_name(const Block& block) const {
  return layout().segments.empty() ? block.number
                                   : Fingerprint().add(block.owner).add(block.number).value();
}

uint64_t QuantPlan::base_fingerprint() const {
  Fingerprint print;
  print.add("quant")
      .add(layout())
      .add(uint64_t{options_.bits})
      .add(options_.budget)
      .add(options_.block);
  for (const uint64_t choice :
       {static_cast<uint64_t>(options_.rotation), static_cast<uint64_t>(options_.rounding),
        static_cast<uint64_t>(options_.feedback), static_cast<uint64_t>(options_.carrier),
        static_cast<uint64_t>(options_.non_finite)}) {
    print.add(choice);
  }
  for (const Coding& coding : codings_) {
    for (const uint32_t level : coding.table.levels)
      print.add(uint64_t{level});
    print.add(coding.table.half_range);
  }
  if (indexed()) print.add("index").add(static_cast<uint64_t>(options_.index));
  if (options_.down != 0) print.add("down").add(uint64_t{options_.down});
  if (options_.norms == Norms::kAhead) print.add("ahead");
  return print.value();
}

// A residual is in units of the gradient, in coordinates that block and rotation give: world, and
// the tables that depend on it, bucket and scale may change under it.
uint64_t QuantPlan::segment_fingerprint(uint64_t segment) const {
  const bool whole = layout().segments.empty();
  const Segment at = segment_at(segment);
  Fingerprint print;
  print.add(whole ? "quant bucket" : "quant segment").add(layout().seed).add(at.id).add(at.count);
  print.add(options_.budget).add(options_.clipped);
  for (const uint64_t choice :
       {static_cast<uint64_t>(layout().dtype),
        options_.fills_lane ? kLaneBits : uint64_t{options_.bits}, options_.block,
        uint64_t{options_.granularity}, static_cast<uint64_t>(options_.levels),
        static_cast<uint64_t>(options_.rotation), static_cast<uint64_t>(options_.rounding),
        static_cast<uint64_t>(options_.feedback),
        static_cast<uint64_t>(options_.fills_carrier ? Carrier::kLevels : options_.carrier),
        static_cast<uint64_t>(options_.non_finite)}) {
    print.add(choice);
  }
  // How the index travels changes no result.
  if (indexed()) print.add("index");
  if (options_.norms == Norms::kAhead) print.add("ahead");
  return print.value();
}

Residual::Range QuantPlan::segment_range(uint64_t segment) const {
  if (indexed()) return positions_of(segment);
  const BlockRange blocks = blocks_.segment(segment);
  if (blocks.count == 0) return {};
  const Block &first = blocks_[blocks.first], &last = blocks_[blocks.first + blocks.count - 1];
  return {first.place, last.place + last.size - first.place, blocks.first, blocks.count};
}

Error QuantPlan::broken_blocks(uint64_t elements) {
  return make_error(
      Errc::kUndecodable,
      std::to_string(elements) + " elements lie in blocks with a NaN or Inf on some worker");
}

Status QuantPlan::take_contributors(uint32_t contributors) {
  const auto claim = [&] { return "the sums claim " + std::to_string(contributors); };
  if (contributors == 0 || contributors > layout().world) {
    return make_error(Errc::kUndecodable,
                      claim() + " contributors of " + std::to_string(layout().world));
  }
  if (draft().missing != 0 && contributors != draft().contributors) {
    return make_error(
        Errc::kUndecodable,
        claim() + " contributors, and " + std::to_string(draft().contributors) + " were expected");
  }
  draft().contributors = contributors;
  return {};
}

Status QuantPlan::do_set_missing(uint64_t workers) {
  excluded_ = layout().worker < 64 && (workers >> layout().worker & 1) != 0;
  return {};
}

}  // namespace addend::quant
