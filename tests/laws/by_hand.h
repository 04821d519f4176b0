// SPDX-License-Identifier: Apache-2.0
// One step of two workers by hand, for what Lockstep does not show: how a step is begun, where it
// is finished, and what its rounds look like.
#pragma once

#include <cstring>
#include <vector>

#include "addend/codec.h"
#include "addend/fold.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {

struct HandStep {
  bool in_place = false;   ///< begin_in_place instead of begin
  bool elsewhere = false;  ///< finish into another buffer than begin got
};

/// The rounds of worker 0, without their planes' contents.
struct HandRounds {
  std::vector<Round> rounds;
  /// Whether a plane lay in the gradient.
  bool in_gradient = false;
};

inline Status fold_pair(Round& a, Round& b) {
  if (a.size != b.size || a.last != b.last) return make_error(Errc::kMismatch, "rounds differ");
  for (std::size_t p = 0; p < a.size; ++p) {
    Plane &x = a.planes[p], &y = b.planes[p];
    if (x.op != y.op || x.lanes != y.lanes) return make_error(Errc::kMismatch, "planes differ");
    fold(x.op, x.data, y.data, x.lanes);
    std::memcpy(y.data, x.data, op_bytes(x.op, x.lanes));
  }
  return {};
}

/// Both gradients become the sum. REQUIRES: codecs without table sums.
inline Result<HandRounds> step_pair(Lockstep& workers, std::vector<Bytes>& gradients,
                                    const HandStep& how) {
  HandRounds seen;
  for (uint32_t w = 0; w < 2; ++w) {
    void* gradient = gradients[w].data();
    ADDEND_TRY(how.in_place ? workers.codec(w).begin_in_place(gradient)
                            : workers.codec(w).begin(gradient));
  }
  while (true) {
    Round rounds[2];
    bool more = false;
    for (uint32_t w = 0; w < 2; ++w) {
      const Result<bool> next = workers.codec(w).next_round(rounds[w]);
      ADDEND_TRY(next);
      more = *next;
    }
    if (!more) break;
    for (const Plane& plane : rounds[0])
      seen.in_gradient = seen.in_gradient || plane.data == gradients[0].data();
    ADDEND_TRY(fold_pair(rounds[0], rounds[1]));
    seen.rounds.push_back(rounds[0]);
  }
  for (uint32_t w = 0; w < 2; ++w) {
    Bytes other(gradients[w].size(), 0xA5);
    Bytes& to = how.elsewhere ? other : gradients[w];
    ADDEND_TRY(workers.codec(w).finish(to.data()));
    gradients[w] = to;
  }
  return seen;
}

}  // namespace addend::testing_support
