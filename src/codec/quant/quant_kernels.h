// SPDX-License-Identifier: Apache-2.0
// What the kernels of quant offer to the codec that runs on a device: plain structures and
// functions that enqueue on a stream and return a CUDA error code, 0 for none. Pointers are to
// device memory but where they say otherwise. reference.h is the specification; these write the
// same bytes.
#pragma once

#include <cstdint>

#include "codec/quant/scales.h"
#include "codec/quant/thresholds.h"
#include "cuda/memory.h"

namespace addend::quant {

/// A Block as kernels read it.
struct DeviceBlock {
  uint64_t begin = 0, place = 0;
  uint64_t owner = 0, number = 0;
  uint64_t threshold_name = 0;
  uint32_t elements = 0, size = 0;
};

/// The entry of one cell of a level table: what rounding needs, in eight bytes. Levels and gaps are
/// whole numbers up to 255, which bf16 holds.
struct DeviceCell {
  float lower = 0;        ///< the level at or below the cell
  uint8_t code_down = 0;  ///< what travels when rounded down: that level, or its number
  uint8_t code_up = 0;    ///< and when rounded up
  uint16_t gap = 0;       ///< to the next level, as bf16
};
inline constexpr uint64_t kDeviceCells = 256;

/// The size of blocks that one warp each codes in registers, if all of their elements are there and
/// they are rotated; all others take the way of a CTA each, through shared memory.
inline constexpr uint32_t kWarpBlock = 2048;
ADDEND_HOST_DEVICE constexpr bool suits_warp(bool rotates, uint64_t size, uint64_t elements) {
  return rotates && size == kWarpBlock && elements == kWarpBlock;
}
/// The largest block that fits a CTA's shared memory.
inline constexpr uint32_t kMostDeviceBlock = 16384;

/// How levels travel.
enum class DeviceCarrier : uint8_t { kNibbles, kU8, kU16, kU32 };

/// A residual on the device: floats, or bytes and a scale a block (then `scales` is not null).
struct DeviceResidual {
  void* values = nullptr;
  float* scales = nullptr;
};

/// What the folded norms say about a step.
struct BlockCount {
  uint64_t live = 0;    ///< blocks that travel
  uint64_t lanes = 0;   ///< of those
  uint64_t broken = 0;  ///< elements in broken blocks
};
struct Survey {
  uint64_t live = 0;
  uint32_t all_live = 0;  ///< 1: block b's lanes start at its place
  uint32_t every = 0;     ///< one live block in so many is sampled, from number `phase` on
  uint32_t phase = 0;
  // While CTAs count; zeros before and after.
  uint32_t tickets = 0;
  BlockCount counting;
};

/// A block's part in a step.
struct BlockPart {
  uint64_t begin = 0, place = 0;
  uint64_t signs = 0;      ///< names its stream
  float norm = 0;          ///< shared, times prescale
  float prescale = 0;      ///< 0 where the block does not travel
  float scale = 0;         ///< elements to table units
  Affine values;           ///< levels to elements
  uint32_t threshold = 0;  ///< where it starts in the step's thresholds
};

/// The report's sample of one block, in the gradient's units.
struct Sample {
  double energy = 0, error = 0;
};

/// The plan's constants and a step's memory.
struct DeviceStep {
  const void* gradient = nullptr;
  uint8_t dtype = 0;  ///< a DType
  Grid grid;
  const DeviceBlock* blocks = nullptr;
  const uint32_t* sizes = nullptr;  ///< of each block, once more
  uint64_t block_count = 0;
  const uint32_t* warp_blocks = nullptr;  ///< numbers of blocks that a warp codes
  uint64_t warp_count = 0;
  const uint32_t* cta_blocks = nullptr;  ///< of the others
  uint64_t cta_count = 0;
  uint32_t largest = 0;  ///< size of any block

  uint64_t seed = 0, epoch = 0;  ///< of the signs
  uint64_t step = 0;
  ThresholdDraw draw;
  DeviceResidual owed;  ///< before the step; null without feedback

  uint32_t* norms = nullptr;  ///< one a block
  Survey* survey = nullptr;
  BlockPart* parts = nullptr;   ///< of each block
  uint64_t* lanes = nullptr;    ///< first lane of each block, where not all are live
  uint32_t* sampled = nullptr;  ///< block of each sample, where not all are live
  float* thresholds = nullptr;  ///< 2 * kThresholds
  const DeviceCell* cells = nullptr;
  DeviceCarrier carrier = DeviceCarrier::kU8;
};

/// Where a survey's letter has what.
inline constexpr int kMailLive = 0, kMailLanes = 1, kMailBroken = 2;

/// How many workers are in the sums, as these say, and as was expected; 0: as many as there are, or
/// fewer. Counted on the device: null where nothing was summed.
struct DeviceCount {
  const uint32_t* counted = nullptr;
  uint32_t expected = 0;
};

struct QuantKernels {
  static constexpr const char* kPart = "quant";
  static constexpr uint32_t kVersion = 3;

  /// norms = what this worker says in round 0.
  int (*norms)(const DeviceStep& step, void* stream);
  /// Reads the folded norms: survey, parts, lanes, sampled; draws the thresholds, sets
  /// *contributors to 1, and tells the host.
  int (*survey)(const DeviceStep& step, uint32_t* contributors, cuda::Mail* mail, uint64_t sequence,
                void* stream);
  /// Writes the lanes of all live blocks, with feedback also `next`, what is owed after the step,
  /// and the samples (memory that the host reads).
  int (*encode)(const DeviceStep& step, void* lanes, DeviceResidual next, Sample* samples,
                void* stream);
  /// Tells the host how many workers are in the sums.
  int (*contributors)(const uint32_t* contributors, cuda::Mail* mail, uint64_t sequence,
                      void* stream);
  /// gradient = the decoded sums. `carrier` says the width of a sum's lane. A gradient is left as
  /// it is where the sums cannot be those of so many workers.
  int (*decode)(const DeviceStep& step, const void* sums, DeviceCarrier carrier,
                const SumScale& scale, DeviceCount count, void* gradient, void* stream);
  /// Moves what is owed from the signs of the step's epoch to those of the next, in place.
  int (*turn)(const DeviceStep& step, DeviceResidual owed, void* stream);
  /// What is owed for elements as they lie in the gradient, not rotated: what their levels did not
  /// say. Broken blocks keep what they have there.
  int (*keep)(const DeviceStep& step, float* owed, void* stream);
  /// Multiplies n floats in double; what is then not finite becomes 0.
  int (*multiply)(float* values, uint64_t n, double factor, void* stream);
};

}  // namespace addend::quant
