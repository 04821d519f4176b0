// SPDX-License-Identifier: Apache-2.0
#include "codec/select/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "codec/select/arithmetic.h"

namespace addend::select {
namespace {

double edge(uint32_t bin) {
  return static_cast<double>(addend_f32_from_bits(Histogram::least_bits(bin)));
}

// The upper edge of the last finite bin is no float.
double upper_edge(uint32_t bin) {
  return bin + 1 < Histogram::kFirstNonFinite ? edge(bin + 1) : 0x1p128;
}

}  // namespace

void Histogram::add(const Histogram& other) {
  for (uint32_t bin = 0; bin < kBins; ++bin)
    counts_[bin] += other.counts_[bin];
}

uint64_t Histogram::elements() const {
  return std::accumulate(counts_.begin(), counts_.end(), uint64_t{0});
}

uint64_t Histogram::nonfinite() const {
  return std::accumulate(counts_.begin() + kFirstNonFinite, counts_.end(), uint64_t{0});
}

Histogram::Cut Histogram::cut(uint64_t kept) const {
  Cut cut{kBins - 1, 0};
  while (cut.bin > 0 && cut.above + counts_[cut.bin] < kept)
    cut.above += counts_[cut.bin--];
  return cut;
}

uint64_t Histogram::wanted(double density) const {
  const auto all = static_cast<double>(elements());
  return static_cast<uint64_t>(std::ceil(std::clamp(density, 0.0, 1.0) * all));
}

float Histogram::threshold(double density) const {
  const uint64_t kept = wanted(density);
  const Cut at = cut(kept);
  if (kept == 0 || at.bin >= kFirstNonFinite) return std::numeric_limits<float>::infinity();
  if (at.bin == 0) return 0;
  return cut_inside(edge(at.bin), upper_edge(at.bin), at.above, counts_[at.bin], kept);
}

}  // namespace addend::select
