// SPDX-License-Identifier: Apache-2.0
#include "codec/select/cut.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/bits.h"
#include "base/chunks.h"
#include "codec/select/arithmetic.h"
#include "codec/select/mark.h"
#include "wire/hash.h"

namespace addend::select {
namespace {

// Zeros do not travel; what is not finite does.
uint32_t in_reach(uint32_t least) { return std::clamp(least, 1u, kInfinity); }

// Parts end at multiples of a bitmap's words, so that each word has one owner.
template <typename Body>
void for_each_stretch(uint64_t begin, uint64_t end, const Body& body) {
  const uint64_t first = begin / kChunkElements, last = ceil_div(end, kChunkElements);
  for_each_chunk(last - first, [&](uint64_t chunk, uint32_t) {
    const uint64_t from = (first + chunk) * kChunkElements;
    body(std::max(begin, from), std::min(end, from + kChunkElements));
  });
}

uint64_t mark_all(const Field& field, uint32_t least) {
  std::atomic<uint64_t> marked = 0;
  for_each_stretch(field.begin, field.end, [&](uint64_t begin, uint64_t end) {
    marked += mark(field.elements, begin, end, in_reach(least), field.kept);
  });
  return marked;
}

// Visits the field's words of the bitmap: visit(word, first position of the word, which of its bits
// are the field's).
template <typename Visit>
void for_each_word(const Field& field, const Visit& visit) {
  for_each_piece(field.begin, field.end, [&](uint64_t at, uint64_t bits) {
    visit(field.kept[at / 64], at / 64 * 64, low_mask(bits) << at % 64);
  });
}

void clear(const Field& field) {
  for_each_word(field, [](uint64_t& word, uint64_t, uint64_t mine) { word &= ~mine; });
}

// Marks again, from another threshold on.
uint64_t mark_again(const Field& field, uint32_t least) {
  clear(field);
  return mark_all(field, least);
}

uint32_t bits_of(double threshold) {
  return addend_f32_bits(static_cast<float>(std::max(threshold, 0.0)));
}

// Of the marked elements below `end_of_bin`, drops all but the `wanted` largest. Returns how many.
uint64_t drop_small(const Field& field, uint32_t end_of_bin, uint64_t wanted) {
  std::vector<uint64_t>& positions = field.scratch->positions;
  std::vector<uint32_t>&bits = field.scratch->bits, &sorted = field.scratch->sorted;
  positions.clear();
  bits.clear();
  for_each_word(field, [&](uint64_t word, uint64_t base, uint64_t mine) {
    for_each_bit(word & mine, base, [&](uint64_t i) {
      const uint32_t found = magnitude_bits(field.elements[i]);
      if (found >= end_of_bin) return;
      positions.push_back(i);
      bits.push_back(found);
    });
  });
  if (bits.size() <= wanted) return 0;
  sorted = bits;
  const auto cut = sorted.begin() + static_cast<std::ptrdiff_t>(wanted);
  std::nth_element(sorted.begin(), cut, sorted.end(), std::greater<>());
  // Elements like the largest that is dropped travel while there is room, in order.
  const uint32_t equal = *cut;
  auto room = std::count(sorted.begin(), cut, equal);
  for (std::size_t j = 0; j < bits.size(); ++j) {
    if (bits[j] > equal) continue;
    if (bits[j] == equal && room > 0) {
      --room;
    } else {
      field.kept[positions[j] / 64] &= ~(uint64_t{1} << positions[j] % 64);
    }
  }
  return bits.size() - wanted;
}

}  // namespace

uint64_t keep_largest(const Field& field, const Histogram& histogram, uint64_t most) {
  const uint64_t wanted = std::max(most, histogram.nonfinite());
  const Histogram::Cut cut = histogram.cut(wanted);
  const uint64_t marked = mark_all(field, Histogram::least_bits(cut.bin));
  if (marked <= wanted) return marked;
  return marked - drop_small(field, Histogram::least_bits(cut.bin + 1), wanted - cut.above);
}

uint64_t keep_above(const Field& field, const Histogram& histogram, uint64_t about) {
  const double density = static_cast<double>(about) / static_cast<double>(field.end - field.begin);
  const uint64_t kept = mark_all(field, addend_f32_bits(histogram.threshold(density)));
  if (2 * kept >= about) return kept;
  return mark_again(field, Histogram::least_bits(histogram.cut(about).bin));
}

namespace {

// The threshold that a sample of the field has for `about` of all.
double sampled_threshold(const Field& field, uint64_t about, uint64_t draw) {
  const uint64_t count = field.end - field.begin, size = sample_size(count, about);
  std::vector<uint32_t>& sample = field.scratch->bits;
  sample.resize(size);
  for (uint64_t j = 0; j < size; ++j)
    sample[j] = magnitude_bits(field.elements[field.begin + sampled(count, size, draw, j)]);
  const auto rank = static_cast<std::ptrdiff_t>(sample_rank(count, size, about));
  const auto at = sample.begin() + rank - 1;
  std::nth_element(sample.begin(), at, sample.end(), std::greater<>());
  return static_cast<double>(addend_f32_from_bits(std::min(*at, kInfinity - 1)));
}

}  // namespace

uint64_t keep_sampled(const Field& field, uint64_t about, uint64_t draw) {
  double least = sampled_threshold(field, about, draw), sure = 0;
  const auto ratio = [&](uint64_t kept) {
    return static_cast<double>(kept) / static_cast<double>(about);
  };
  uint64_t kept = mark_all(field, bits_of(least));
  for (uint32_t tries = 0; tries < kMostTries && least > 0; ++tries) {
    if (ratio(kept) >= kTooFew && ratio(kept) <= kTooMany) return kept;
    if (ratio(kept) > kTooMany) sure = std::max(sure, least);
    least *= ratio(kept) > kTooMany ? kTooMany : kTooFew;
    kept = mark_again(field, bits_of(least));
  }
  // Too many travel sooner than none: where many are equal there is nothing between.
  return ratio(kept) < kTooFew ? mark_again(field, bits_of(sure)) : kept;
}

namespace {

struct Magnitudes {
  double mean = 0, largest = 0;
};

// In one order, whatever the threads: thresholds must be the same.
Magnitudes measure(const Field& field) {
  Magnitudes found;
  const uint64_t count = field.end - field.begin;
  const double sum = add_by_pieces(count, [&](uint64_t i) {
    const double x = std::fabs(static_cast<double>(field.elements[field.begin + i]));
    if (!std::isfinite(x)) return 0.0;
    found.largest = std::max(found.largest, x);
    return x;
  });
  found.mean = sum / static_cast<double>(count);
  return found;
}

}  // namespace

uint64_t keep_bisected(const Field& field, uint64_t about) {
  const Magnitudes found = measure(field);
  double low = found.mean, high = found.largest;
  uint64_t kept = mark_all(field, bits_of(low));
  if (kept < about) {
    high = low;
    low = 0;
    kept = mark_again(field, 0);
  }
  for (uint32_t tries = 0; tries < kMostTries && kept > 2 * about; ++tries) {
    const double middle = (low + high) / 2;
    const uint64_t tried = mark_again(field, bits_of(middle));
    if (tried < about) {
      high = middle;
      if (tries + 1 < kMostTries) continue;
      return mark_again(field, bits_of(low));
    }
    low = middle;
    kept = tried;
  }
  return kept;
}

void keep_drawn(uint64_t begin, uint64_t end, uint64_t count, uint64_t draw, uint64_t* kept) {
  for (uint64_t j = 0; j < count; ++j)
    set_bit(kept, begin + drawn(end - begin, count, draw, j));
}

}  // namespace addend::select
