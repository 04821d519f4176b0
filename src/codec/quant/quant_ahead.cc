// SPDX-License-Identifier: Apache-2.0
// A step with the last one's norms for scales, in one round: levels, and beside them this step's
// norms, which say what is broken now and are the next step's scales.
#include <algorithm>
#include <limits>

#include "codec/quant/quant.h"

namespace addend::quant {
namespace {

// Norms of gradients differ from step to step; what grows by more is clipped, and sent later.
constexpr float kHeadRoom = 1.125f;

}  // namespace

// Residual::kNoNorm is none, and so is whatever else a damaged state has in place of a norm.
bool QuantCodec::knows_norms() const {
  const auto norms = residual_.norms();
  return !norms.empty() &&
         std::all_of(norms.begin(), norms.end(), [](uint32_t norm) { return norm < kFirstBroken; });
}

Status QuantCodec::open_ahead(Round& round) {
  ahead_ = true;
  waiting_ = Waiting::kLast;
  auto* lanes = norms_.as<uint32_t>();
  for_each_block([&](uint64_t b, Scratch& mine) {
    lanes[b] = norm_lane(mine, b);
    parts_[b] = Part{};
    parts_[b].norm = std::min(addend_f32_from_bits(residual_.norms()[b]) * kHeadRoom,
                              std::numeric_limits<float>::max());
  });
  place_all_lanes();
  ADDEND_TRY(thresholds_.set(threshold_draw()));
  ADDEND_TRY(encode(round));
  round.add({Op::kMaxU32, blocks_.size(), lanes, nullptr, nullptr});
  return {};
}

// Of a broken block the norm before stays.
void QuantCodec::keep_norms() {
  const auto* lanes = norms_.as<uint32_t>();
  for (uint64_t b = 0; b < residual_.norms().size(); ++b) {
    if (!parts_[b].broken) residual_.norms()[b] = lanes[b];
  }
}

}  // namespace addend::quant
