// SPDX-License-Identifier: Apache-2.0
#include "codec/select/chosen.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>

#include "base/bits.h"
#include "codec/select/arithmetic.h"

namespace addend::select {
namespace {

// Candidates are counted by their distance from the least one, in steps of so many bits; what is
// four octaves above it or more, together.
constexpr uint32_t kFineShift = 9;
constexpr uint32_t kFineBins = 1u << 16;
// Fewer are sorted at once.
constexpr uint64_t kFew = uint64_t{1} << 14;

uint32_t fine_bin(uint32_t bits, uint32_t least) {
  return std::min((bits - least) >> kFineShift, kFineBins - 1);
}

template <typename Visit>
void for_each_bits(std::span<const Stretch> stretches, const Visit& visit) {
  for (const Stretch& stretch : stretches) {
    for (uint64_t j = 0; j < stretch.count; ++j)
      visit(magnitude_bits(stretch.values[j]));
  }
}

// Returns how many are not finite.
uint64_t count_finely(const Candidates& candidates, Scratch& scratch) {
  scratch.counts.assign(kFineBins, 0);
  uint64_t nonfinite = 0;
  for_each_bits(candidates.stretches, [&](uint32_t bits) {
    ++scratch.counts[fine_bin(bits, candidates.least)];
    nonfinite += bits >= kInfinity ? 1 : 0;
  });
  return nonfinite;
}

// Above the wanted-th largest of the bits in `scratch`, and as many like it as are wanted.
Cutoff cut_at(uint64_t wanted, Scratch& scratch) {
  std::vector<uint32_t>& bits = scratch.bits;
  const auto at = bits.begin() + static_cast<std::ptrdiff_t>(wanted - 1);
  std::nth_element(bits.begin(), at, bits.end(), std::greater<>());
  const auto equal = std::count(bits.begin(), at + 1, *at);
  if (std::count(at + 1, bits.end(), *at) == 0) return {*at - 1, 0};
  return {*at, static_cast<uint64_t>(equal)};
}

}  // namespace

uint64_t total_of(std::span<const Stretch> stretches) {
  uint64_t total = 0;
  for (const Stretch& stretch : stretches)
    total += stretch.count;
  return total;
}

Status Chosen::reserve(uint64_t count, bool places) {
  const uint64_t chunks = ceil_div(count, kChunkElements);
  room_ = ceil_div(std::min(count, kChunkElements), 16) * 16 + Buffer::kSlack / 4;
  counts_.assign(chunks, 0);
  ADDEND_TRY(places_.reserve(places ? chunks * room_ * 2 : 0));
  return values_.reserve(chunks * room_ * 4);
}

void Chosen::start(uint64_t* bitmap) {
  bitmap_ = bitmap;
  std::fill(counts_.begin(), counts_.end(), 0);
}

std::span<Stretch> Chosen::stretches(uint64_t begin, uint64_t end) {
  stretches_.clear();
  while (begin < end) {
    const uint64_t chunk = begin / kChunkElements;
    const uint64_t up_to = std::min(end, (chunk + 1) * kChunkElements);
    uint16_t* places =
        places_.capacity() == 0 ? nullptr : places_.as<uint16_t>() + chunk * room_ + counts_[chunk];
    stretches_.push_back({begin, up_to, values(chunk) + counts_[chunk], places, 0});
    begin = up_to;
  }
  return stretches_;
}

void Chosen::accept(std::span<const Stretch> filled) {
  for (const Stretch& stretch : filled)
    counts_[stretch.begin / kChunkElements] += stretch.count;
}

uint64_t Chosen::size() const {
  return std::accumulate(counts_.begin(), counts_.end(), uint64_t{0});
}

uint64_t Chosen::memory_bytes() const {
  return values_.capacity() + places_.capacity() + counts_.capacity() * 8 +
         stretches_.capacity() * sizeof(Stretch);
}

std::optional<Cutoff> cutoff_of_largest(const Candidates& candidates, uint64_t most,
                                        Scratch& scratch, uint64_t* nonfinite) {
  const uint64_t found = total_of(candidates.stretches);
  const bool few = found <= kFew;
  scratch.bits.clear();
  if (few) {
    *nonfinite = 0;
    for_each_bits(candidates.stretches, [&](uint32_t bits) {
      scratch.bits.push_back(bits);
      *nonfinite += bits >= kInfinity ? 1 : 0;
    });
  } else {
    *nonfinite = count_finely(candidates, scratch);
  }
  uint64_t wanted = std::max(most, *nonfinite);
  if (found < wanted && candidates.least > 1) return std::nullopt;
  if (found <= wanted) return Cutoff{};
  if (few) return cut_at(wanted, scratch);
  uint32_t bin = kFineBins - 1;
  while (scratch.counts[bin] < wanted)
    wanted -= scratch.counts[bin--];
  for_each_bits(candidates.stretches, [&](uint32_t bits) {
    if (fine_bin(bits, candidates.least) == bin) scratch.bits.push_back(bits);
  });
  return cut_at(wanted, scratch);
}

std::optional<Cutoff> cutoff_above(const Candidates& candidates, uint64_t about, Scratch& scratch,
                                   uint64_t* nonfinite) {
  *nonfinite = count_finely(candidates, scratch);
  if (*nonfinite > 0 || candidates.least % Histogram::least_bits(1) != 0) return std::nullopt;
  Histogram histogram;
  for (uint32_t bin = 0; bin < kFineBins; ++bin) {
    const uint32_t bits = candidates.least + (bin << kFineShift);
    histogram[std::min(bits, kInfinity - 1) >> Histogram::kShift] += scratch.counts[bin];
  }
  histogram[0] += candidates.count - total_of(candidates.stretches);
  const uint32_t bin = histogram.cut(about).bin;
  const uint32_t counted = candidates.least + ((kFineBins - 1) << kFineShift);
  if (Histogram::least_bits(bin) < candidates.least || Histogram::least_bits(bin + 1) > counted)
    return std::nullopt;
  const double density = static_cast<double>(about) / static_cast<double>(candidates.count);
  const uint32_t least = addend_f32_bits(histogram.threshold(density));
  uint64_t kept = 0;
  for_each_bits(candidates.stretches, [&](uint32_t bits) { kept += bits >= least ? 1 : 0; });
  if (2 * kept < about) return std::nullopt;
  return Cutoff{least - 1, 0};
}

namespace {

// Closes the ranks without asking of each element on which side it is. Returns how many of those
// equal to the cutoff travel.
uint64_t drop(const Cutoff& cutoff, Stretch& stretch, float* left, uint64_t* bitmap) {
  constexpr uint64_t kAhead = 16;
  const auto dropped = std::make_unique_for_overwrite<float[]>(stretch.count);
  uint64_t kept = 0, equal = 0, out = 0;
  for (uint64_t j = 0; j < stretch.count; ++j) {
    const float e = stretch.values[j];
    const uint32_t found = magnitude_bits(e);
    const uint64_t tied = found == cutoff.at && equal < cutoff.equal ? 1 : 0;
    const uint64_t travels = found > cutoff.at ? 1 : tied;
    stretch.values[kept] = e;
    stretch.places[out] = stretch.places[j];
    dropped[out] = e;
    kept += travels;
    out += 1 - travels;
    equal += tied;
  }
  stretch.count = kept;
  float* to = left + stretch.begin;
  for (uint64_t j = 0; j < out; ++j) {
    if (j + kAhead < out) __builtin_prefetch(to + stretch.places[j + kAhead], 1);
    const uint64_t at = stretch.begin + stretch.places[j];
    bitmap[at / 64] &= ~(uint64_t{1} << at % 64);
    left[at] = dropped[j];
  }
  return equal;
}

}  // namespace

void drop_beyond(const Cutoff& cutoff, std::span<Stretch> stretches, float* left,
                 uint64_t* bitmap) {
  if (cutoff.at == 0) return;
  // Whether those at the cut go on in order, or none of them does.
  if (cutoff.equal > 0) {
    Cutoff rest = cutoff;
    for (Stretch& stretch : stretches)
      rest.equal -= drop(rest, stretch, left, bitmap);
    return;
  }
  for_each_chunk(stretches.size(),
                 [&](uint64_t s, uint32_t) { drop(cutoff, stretches[s], left, bitmap); });
}

}  // namespace addend::select
