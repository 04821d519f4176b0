// SPDX-License-Identifier: Apache-2.0
// What the kernels of the codecs that select offer: plain structures and functions that enqueue on
// a stream and return a CUDA error code, 0 for none. Pointers are to device memory but where they
// say otherwise. They come to the selection that cut.h and select.cc come to.
#pragma once

#include <cstdint>

#include "addend/plane.h"
#include "codec/fingerprint.h"
#include "codec/select/arithmetic.h"
#include "codec/select/histogram.h"
#include "codec/select/options.h"
#include "cuda/memory.h"

namespace addend::select {

/// A segment as kernels read it; none is empty.
struct DevicePart {
  uint64_t begin = 0, end = 0;
  uint64_t kept = 0;   ///< elements that travel, exactly or about
  uint64_t first = 0;  ///< those of the parts before
  Fingerprint draws;
  uint32_t first_piece = 0;   ///< its pieces follow each other
  uint64_t first_sample = 0;  ///< of dgc: those of the parts before
};

/// A CTA's work: kPieceElements of one part, or its last.
struct DevicePiece {
  uint64_t begin = 0, end = 0;
  uint32_t part = 0;
};

/// What the last count of redsync was for; dgc only knows the first and the last.
enum class BisectPhase : uint8_t { kMean, kAll, kMiddle, kDone };

/// What is found of a part in a step. All zeros before it.
struct DeviceCut {
  uint64_t counts[Histogram::kBins];  ///< by what is looked at: bins, or further bits
  uint64_t nonfinite;                 ///< of all its elements
  uint64_t sent;                      ///< of them, those that travel
  // The cut as far as it is known: elements whose leading bits are `bits` are on it, and `wanted`
  // of them travel. Once it is whole: larger magnitudes travel, and the first `wanted` equal ones.
  uint32_t bits;
  uint64_t wanted;
  uint32_t bin_bits;  ///< of threshold: the cut if that one leaves too few
  bool ranked;        ///< some of those that equal it travel, others do not
  float factor;       ///< of dgc: what the gradient is multiplied by
  // Of redsync and dgc: between which magnitudes the cut is looked for; dgc has the threshold that
  // is tried in `low`, and one that keeps too many in `high`.
  uint32_t largest;  ///< bits, of finite elements
  double low, high, middle;
  uint64_t above_low;
  uint32_t tries;
  BisectPhase phase;
};

/// Of all parts. All zeros before a step.
struct DeviceTotals {
  double energy;   ///< of finite elements
  double travels;  ///< of those of them that do
  uint64_t chosen;
};

/// The plan's constants and a step's memory.
struct SelectStep {
  Selector selector;
  bool chooses;  ///< this worker does, by magnitude
  DType dtype;
  const void* gradient;
  const float* owed;
  float* left;  ///< gradient + owed, then what is owed after the step
  const DevicePart* parts;
  uint64_t part_count;
  const DevicePiece* pieces;
  uint64_t piece_count;
  uint32_t* equals;  ///< of each piece: elements at the cut
  double* sums;      ///< of each piece: magnitudes, or squares, added up
  DeviceCut* cuts;   ///< of each part
  DeviceTotals* totals;
  uint64_t step;
  // Of dgc.
  float momentum;
  double most_norm;
  const float* velocity;
  float* next_velocity;
  uint32_t* samples;  ///< magnitudes, part by part, room for the largest sample of each
  const DevicePiece* sample_pieces;
  uint64_t sample_piece_count;
};

/// Where the letter of a step has what. Energies are the bits of doubles.
inline constexpr int kMailEnergy = 0, kMailTravels = 1, kMailChosen = 2;

struct SelectKernels {
  static constexpr const char* kPart = "select";
  static constexpr uint32_t kVersion = 1;

  /// left = gradient + owed, of dgc what it makes of the velocity, too; counts what is not finite,
  /// and magnitudes where this worker chooses.
  int (*add_up)(const SelectStep& step, void* stream);
  /// Finds the cuts of all parts. REQUIRES: add_up.
  int (*find_cuts)(const SelectStep& step, void* stream);
  /// What is beyond the cuts goes from left to `picked`, elements of the layout's type with zeros
  /// between.
  int (*take)(const SelectStep& step, void* picked, void* stream);
  /// The same elements are marked only, those that are zero, too: bits of `bitmap`, which is clear.
  int (*mark)(const SelectStep& step, uint64_t* bitmap, void* stream);
  /// What is drawn goes from left to `values`, side by side.
  int (*draw)(const SelectStep& step, uint64_t count, void* values, void* stream);
  /// `elements`, part by part, become values of the layout's type, and what that leaves of them.
  int (*round)(const SelectStep& step, uint64_t count, float* elements, void* values, void* stream);
  /// The first value of a part is NaN where something that is not finite does not travel, and that
  /// is not owed.
  int (*spoil)(const SelectStep& step, void* values, void* stream);
  /// gradient = values where they were drawn. REQUIRES: zeros.
  int (*scatter)(const SelectStep& step, uint64_t count, const void* values, void* gradient,
                 void* stream);
  /// The letter of the step.
  int (*tell)(const SelectStep& step, cuda::Mail* mail, uint64_t sequence, void* stream);
};

}  // namespace addend::select
