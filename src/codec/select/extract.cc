// SPDX-License-Identifier: Apache-2.0
// How what was selected leaves what is owed: in the pass that adds both up where it is known by
// then what travels, or where the last step's cut says about what will; after it, otherwise.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "base/bits.h"
#include "codec/select/arithmetic.h"
#include "codec/select/select.h"
#include "codec/select/take.h"
#include "wire/element.h"

namespace addend::select {
namespace {

// Candidates beyond those that travel, for which room is left below the last cut: a tenth.
constexpr uint64_t kBeyond = 10;
// Bits of a magnitude: from 0.1 % to a quarter of an octave.
constexpr uint32_t kLeastMargin = 1u << 13, kFirstMargin = 1u << 18, kMostMargin = 1u << 21;
// Parts that are shorter are sorted as quickly.
constexpr uint64_t kLeastPart = 2048;
// What is left is sampled for the report: so many stretches of it, others each step.
constexpr uint64_t kStretch = 2048, kSampled = 128;

double square(float x) { return static_cast<double>(x) * static_cast<double>(x); }

// Four sums, so that additions do not wait for each other; what is not finite does not count.
double energy_of(const float* x, uint64_t count) {
  double sums[4] = {};
  for (uint64_t i = 0; i < count; ++i)
    sums[i % 4] += square(x[i]);
  const double energy = sums[0] + sums[1] + (sums[2] + sums[3]);
  if (std::isfinite(energy)) return energy;
  double finite = 0;
  for (uint64_t i = 0; i < count; ++i)
    finite += std::isfinite(x[i]) ? square(x[i]) : 0;
  return finite;
}

// While residuals grow, cuts rise, in each step by less: like 1/2, 1/3, 1/4 of what is there. The
// next rise is then at least 5/8 of the last, and a guess that reaches so far has few candidates
// too many.
uint32_t guess_of(uint32_t cut, int64_t rise, uint32_t margin) {
  const int64_t expected = rise > 0 ? rise * 5 / 8 : rise;
  return static_cast<uint32_t>(std::clamp<int64_t>(cut + expected - margin, 1, kInfinity));
}

void clear_bits(uint64_t begin, uint64_t end, uint64_t* bitmap) {
  for_each_piece(begin, end, [&](uint64_t at, uint64_t bits) {
    bitmap[at / 64] &= ~(low_mask(bits) << at % 64);
  });
}

}  // namespace

bool SelectCodec::take_above_last_cut(Part& part) {
  const bool by_bins = options_.selector == Selector::kThreshold;
  if (part.cut == 0 || part.count() < kLeastPart) return false;
  uint32_t least = guess_of(part.cut, part.rise, part.margin);
  if (by_bins) least = std::max(Histogram::least_bits(least >> Histogram::kShift), 1u);
  const std::span<Stretch> stretches = chosen_.stretches(part.begin, part.end);
  for_each_chunk(stretches.size(), [&](uint64_t s, uint32_t) {
    Stretch& stretch = stretches[s];
    stretch.count = take_large(addends(), least,
                               {stretch.begin, stretch.end, sums_.as<float>(), chosen_.bitmap(),
                                stretch.values, streams(), stretch.places});
  });
  const Candidates candidates{stretches, least, part.count()};
  const uint64_t found = total_of(stretches);
  uint64_t nonfinite = 0;
  const auto cutoff = by_bins ? cutoff_above(candidates, kept_of(part), scratch_, &nonfinite)
                              : cutoff_of_largest(candidates, kept_of(part), scratch_, &nonfinite);
  // A leader has told everybody how many there will be.
  const bool as_told = options_.selector != Selector::kLeader ||
                       (nonfinite <= kept_of(part) && found >= kept_of(part));
  if (!cutoff || !as_told) {
    part.margin = std::min(4 * part.margin, kMostMargin);
    clear_bits(part.begin, part.end, chosen_.bitmap());
    return false;
  }
  part.finite = nonfinite == 0;
  drop_beyond(*cutoff, stretches, sums_.as<float>(), chosen_.bitmap());
  chosen_.accept(stretches);
  learn_cut(part, stretches, found);
  return true;
}

// Without candidates beyond those that travel, nothing is learnt of the margin.
void SelectCodec::learn_cut(Part& part, std::span<const Stretch> kept, uint64_t candidates) {
  uint32_t least = std::numeric_limits<uint32_t>::max();
  uint64_t count = 0;
  for (const Stretch& stretch : kept) {
    count += stretch.count;
    for (uint64_t j = 0; j < stretch.count; ++j)
      least = std::min(least, magnitude_bits(stretch.values[j]));
  }
  part.rise = count == 0 || part.cut == 0 ? 0 : int64_t{least} - int64_t{part.cut};
  part.cut = count == 0 ? 0 : least;
  if (part.margin == 0) part.margin = kFirstMargin;
  if (candidates == 0) return;
  const uint64_t beyond = candidates - count, wanted = count / kBeyond;
  if (beyond > 2 * wanted) part.margin = std::max(part.margin / 2, kLeastMargin);
  if (2 * beyond < wanted) part.margin = std::min(part.margin * 2, kMostMargin);
}

void SelectCodec::add_up_and_extract(Part& part) {
  std::atomic<bool> finite = true;
  const std::span<Stretch> stretches = chosen_.stretches(part.begin, part.end);
  for_each_chunk(stretches.size(), [&](uint64_t s, uint32_t) {
    Stretch& stretch = stretches[s];
    bool mine = true;
    stretch.count = take_marked(addends(),
                                {stretch.begin, stretch.end, sums_.as<float>(), chosen_.bitmap(),
                                 stretch.values, streams()},
                                &mine);
    if (!mine) finite = false;
  });
  part.finite = finite;
  chosen_.accept(stretches);
}

void SelectCodec::extract(Part& part) {
  const std::span<Stretch> stretches = chosen_.stretches(part.begin, part.end);
  for_each_chunk(stretches.size(), [&](uint64_t s, uint32_t) {
    Stretch& stretch = stretches[s];
    for_each_piece(stretch.begin, stretch.end, [&](uint64_t at, uint64_t bits) {
      const uint64_t word = chosen_.bitmap()[at / 64] & low_mask(bits) << at % 64;
      for_each_bit(word, at / 64 * 64, [&](uint64_t i) {
        stretch.values[stretch.count++] = sums_.as<float>()[i];
        sums_.as<float>()[i] = 0;
        if (has_velocity()) next_velocity_.as<float>()[i] = 0;
      });
    });
  });
  chosen_.accept(stretches);
  learn_cut(part, stretches, 0);
}

void SelectCodec::round_chosen(bool zeros) {
  report_energy();
  if (layout().dtype == DType::kF32) return;
  for_each_chunk(chosen_.counts().size(),
                 [&](uint64_t chunk, uint32_t) { round_chunk(chunk, zeros); });
}

// Elements of 16 bits take the place of the floats that they were.
void SelectCodec::round_chunk(uint64_t chunk, bool zeros) {
  float* values = chosen_.values(chunk);
  uint64_t next = 0, kept = 0;
  const uint64_t end = std::min((chunk + 1) * kChunkElements, layout().count);
  for_each_piece(chunk * kChunkElements, end, [&](uint64_t at, uint64_t) {
    uint64_t& word = chosen_.bitmap()[at / 64];
    for_each_bit(word, at, [&](uint64_t i) {
      const float element = values[next++], rounded = nearest(layout().dtype, element);
      sums_.as<float>()[i] = left_of(element, rounded);
      if (rounded == 0 && !zeros) {
        word &= ~(uint64_t{1} << i % 64);
      } else {
        store_float(layout().dtype, values, kept++, rounded);
      }
    });
  });
  chosen_.counts()[chunk] = kept;
}

// What travels is known; what is left has no large elements, so that few of them tell.
void SelectCodec::report_energy() {
  double travels = 0, left = 0;
  for (uint64_t chunk = 0; chunk < chosen_.counts().size(); ++chunk)
    travels += energy_of(chosen_.values(chunk), chosen_.counts()[chunk]);
  const uint64_t stretches = ceil_div(layout().count, kStretch);
  const uint64_t every = std::max<uint64_t>(stretches / kSampled, 1);
  uint64_t seen = 0;
  for (uint64_t s = step_ % every; s < stretches; s += every) {
    const uint64_t begin = s * kStretch, length = std::min(kStretch, layout().count - begin);
    left += energy_of(sums_.as<float>() + begin, length);
    seen += length;
  }
  left *= static_cast<double>(layout().count) / static_cast<double>(std::max<uint64_t>(seen, 1));
  draft().sampled_energy = travels + left;
  draft().sampled_error = left;
}

}  // namespace addend::select
