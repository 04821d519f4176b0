// SPDX-License-Identifier: Apache-2.0
#include "codec/quant/thresholds.h"

namespace addend::quant {

Status Thresholds::set(const ThresholdDraw& draw) {
  ADDEND_TRY(table_.reserve(2 * kThresholds * 4));
  seed_ = draw.seed;
  auto* table = table_.as<float>();
  for (uint64_t i = 0; i < kThresholds; ++i)
    table[i] = table[i + kThresholds] = draw_threshold(draw, i);
  return {};
}

}  // namespace addend::quant
