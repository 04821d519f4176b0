// SPDX-License-Identifier: Apache-2.0
#include "codec/select/plan.h"

namespace addend::select {

uint64_t SelectPlan::base_fingerprint() const {
  Fingerprint print;
  print.add(selector_name(options_.selector)).add(layout()).add(options_.density);
  for (const auto& [key, value] : options_.carrier.options)
    print.add(key).add(value);
  if (has_velocity()) print.add(options_.momentum).add(options_.clip).add(options_.warmup);
  return print.value();
}

// What is owed to an element is so many units of its gradient, whoever selects next and how much.
uint64_t SelectPlan::segment_fingerprint(uint64_t segment) const {
  const Segment owner = segment_at(segment);
  Fingerprint print;
  print.add(layout().segments.empty() ? "select bucket" : "select segment");
  print.add(owner.id).add(owner.count).add(static_cast<uint64_t>(layout().dtype));
  if (has_velocity()) print.add("velocity");
  return print.value();
}

}  // namespace addend::select
