// SPDX-License-Identifier: Apache-2.0
#include "control/ladder.h"

#include <algorithm>
#include <string>

namespace addend::control {

// The exponential ladder multiplies the first factor by 2, 4, 16, 256; the geometric one by 2 again
// and again. Both end with the last factor.
std::vector<double> factors(const Options& options) {
  std::vector<double> out{options.least};
  double times = 2;
  while (options.policy != Policy::kAccordion && options.least * times < options.most) {
    out.push_back(options.least * times);
    times *= options.scaling == Scaling::kGeometric ? 2 : times;
  }
  if (out.back() < options.most) out.push_back(options.most);
  return out;
}

Result<std::vector<uint32_t>> ladder_of(const Setup& setup) {
  std::vector<uint32_t> ladder;
  for (const double factor : factors(setup.options)) {
    const auto found = std::find_if(setup.candidates.begin(), setup.candidates.end(),
                                    [&](const Candidate& one) { return one.factor == factor; });
    if (found == setup.candidates.end()) {
      return make_error(Errc::kInvalidArgument,
                        "adaptive: no candidate has the factor " + std::to_string(factor));
    }
    ladder.push_back(static_cast<uint32_t>(found - setup.candidates.begin()));
  }
  return ladder;
}

Status check_shape(const Setup& setup, const Observation& seen) {
  if (seen.buckets.size() == setup.buckets.size() &&
      seen.candidates.size() == setup.buckets.size() * setup.candidates.size()) {
    return {};
  }
  return make_error(Errc::kInvalidArgument, "an observation of other buckets or candidates");
}

}  // namespace addend::control
