// SPDX-License-Identifier: Apache-2.0
#include "addend/control.h"
#include "control/accordion.h"
#include "control/auto.h"
#include "control/gravac.h"

namespace addend::control {

const char* reason_name(Reason reason) {
  constexpr const char* kNames[] = {"best",          "kept",   "dwell", "warm-up",
                                    "learning-rate", "floor",  "small", "nonfinite",
                                    "residual",      "slower", "gain"};
  return kNames[static_cast<uint8_t>(reason)];
}

Result<std::unique_ptr<Controller>> create_controller(const Setup& setup) {
  const auto invalid = [](const char* what) { return make_error(Errc::kInvalidArgument, what); };
  if (setup.world == 0) return invalid("adaptive: a world of no ranks");
  if (setup.candidates.empty()) return invalid("adaptive: no candidates");
  const Candidate& dense = setup.candidates.front();
  if (dense.loss != Loss::kNone || dense.factor != 1)
    return invalid("adaptive: the first candidate must be dense");
  if (!(setup.latency_s >= 0) || !(setup.bytes_per_s > 0))
    return invalid("adaptive: a link without speed");
  for (const Candidate& one : setup.candidates) {
    if (!(one.factor >= 1) || !(one.bits >= 0) || !(one.union_bits >= 0))
      return invalid("adaptive: a candidate with a negative size");
  }
  if (setup.options.policy == Policy::kGravac) return create_gravac(setup);
  if (setup.options.policy == Policy::kAccordion) return create_accordion(setup);
  return create_auto(setup);
}

}  // namespace addend::control
