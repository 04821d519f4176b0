// SPDX-License-Identifier: Apache-2.0
// An aggregator in small, with every module that may not decode linked in whole and no codec beside
// them. The test looks at its symbols.
#include <cstdint>

#include "addend/fold.h"
#include "aggregate/slots.h"

int main() {
  addend::aggregate::SlotsOptions options;
  options.ops = 1u << ADDEND_OP_OR_U64;
  const auto slots = addend::aggregate::Slots::create(options);
  uint64_t sum[2] = {1, 2};
  const uint64_t other[2] = {4, 8};
  addend::Plane acc{addend::Op::kOrU64, 2, sum, nullptr, nullptr};
  const addend::Plane in{addend::Op::kOrU64, 2, const_cast<uint64_t*>(other), nullptr, nullptr};
  return slots && addend::fold(acc, in) && sum[0] == 5 && sum[1] == 10 ? 0 : 1;
}
