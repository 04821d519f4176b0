// SPDX-License-Identifier: Apache-2.0
// Which elements of a segment travel: one function for each way of telling. All are of one worker's
// data, so none may be part of a plan. docs/algorithms/select.md.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/select/histogram.h"

namespace addend::select {

/// Memory of one selection after the other.
struct Scratch {
  std::vector<uint64_t> positions;
  std::vector<uint32_t> bits, sorted, counts;
  uint64_t memory_bytes() const {
    return positions.capacity() * 8 + (bits.capacity() + sorted.capacity() + counts.capacity()) * 4;
  }
};

/// A segment's elements, begin .. end of `elements`, and their bits of a bitmap, all clear, which
/// the functions here set for those that travel. They return how many do. What is not finite always
/// travels, zeros never do.
struct Field {
  const float* elements = nullptr;
  uint64_t begin = 0, end = 0;
  uint64_t* kept = nullptr;
  Scratch* scratch = nullptr;
};

/// The `most` largest magnitudes; of equal ones, those that come first. REQUIRES: the histogram is
/// that of the field.
uint64_t keep_largest(const Field& field, const Histogram& histogram, uint64_t most);

/// Those above the histogram's own threshold for `about` of them: equal ones together or not at
/// all. Where that leaves fewer than half of `about`, all of the bin. REQUIRES: as keep_largest.
uint64_t keep_above(const Field& field, const Histogram& histogram, uint64_t about);

/// Those above the threshold of a sample, of one element in a hundred or more, which is corrected,
/// ten times at the most, until 0.7 to 1.3 times `about` are kept. `draw`: the sample's seed.
uint64_t keep_sampled(const Field& field, uint64_t about, uint64_t draw);

/// Those above a threshold that is found by halving, ten times at the most, what lies between the
/// mean and the largest magnitude (or nothing and the mean), until `about` to twice as many are
/// kept.
uint64_t keep_bisected(const Field& field, uint64_t about);

/// Sets bits of `count` positions out of begin .. end, one in each of as many equal parts: a
/// function of `draw` alone.
void keep_drawn(uint64_t begin, uint64_t end, uint64_t count, uint64_t draw, uint64_t* kept);

}  // namespace addend::select
