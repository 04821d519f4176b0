// SPDX-License-Identifier: Apache-2.0
// An aggregator in small: it links fold and nothing that could decode. The test looks at its
// symbols.
#include <cstdint>

#include "addend/fold.h"

int main() {
  uint64_t sum[2] = {1, 2};
  const uint64_t other[2] = {4, 8};
  addend::Plane acc{addend::Op::kOrU64, 2, sum, nullptr, nullptr};
  const addend::Plane in{addend::Op::kOrU64, 2, const_cast<uint64_t*>(other), nullptr, nullptr};
  return addend::fold(acc, in) && sum[0] == 5 && sum[1] == 10 ? 0 : 1;
}
