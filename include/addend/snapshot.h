// SPDX-License-Identifier: Apache-2.0
// Snapshots: a gradient encoded in one piece under a stored plan, so that strangers can fold
// snapshots without rounds and without decoding. Part of module `codec`; docs/formats/add-file.md
// has the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "addend/codec.h"
#include "addend/plane.h"
#include "addend/result.h"

namespace addend {

/// A gradient in host memory.
struct GradientView {
  const void* data = nullptr;
  uint64_t count = 0;
  DType dtype = DType::kF32;
};

struct SnapshotOptions {
  CodecSpec codec{"exact", {}};  ///< exact (always a sketch of integers) or dense; no options
  uint64_t seed = 1;
  /// Most snapshots that may ever be added together; integer ranges are sized for it.
  uint32_t contributors = 1024;
  /// Room for positions that only later gradients have, as a fraction of the set's union.
  double spare = 0.0;
};

/// Everything that snapshots must share to be addable. Immutable value.
struct SnapshotPlan {
  bool dense = false;  ///< values as they are, instead of an index and a sketch
  DType dtype = DType::kF32;
  uint64_t count = 0;
  uint32_t contributors = 0;
  uint64_t seed = 0;        ///< of the sketch's hashes
  uint64_t capacity = 0;    ///< union non-zeros that always decode (0 for dense)
  uint64_t cells = 0;       ///< sketch cells
  uint32_t cell_words = 0;  ///< i64 lanes a cell
  int32_t quantum = 0;      ///< exponent of the smallest bit that is carried
  int32_t top = 0;          ///< exponent of the largest bit that is carried
  bool non_finite = false;  ///< cells have a lane for NaN and infinities
  uint32_t hashes = 0, starts = 0, chunks = 0, table_rows = 0;  ///< the sketch's shape

  /// Fixed little-endian bytes, equal iff the plans are equal.
  std::vector<uint8_t> serialize() const;
  /// Refuses (kMalformed) anything that serialize did not write.
  static Result<SnapshotPlan> parse(std::span<const uint8_t> bytes);
};

/// A snapshot's planes with the memory they stand in. The planes' operations and lengths are a
/// function of the plan. Move-only: a copy's planes would point into the original.
struct Snapshot {
  Snapshot() = default;
  Snapshot(Snapshot&&) = default;
  Snapshot& operator=(Snapshot&&) = default;

  std::vector<std::vector<uint64_t>> storage;  ///< one 8-byte aligned block a plane
  Round planes;
};

/// Chooses one plan that holds the sum of all of `gradients`. They must agree in dtype and count.
Result<SnapshotPlan> plan_snapshots(std::span<const GradientView> gradients,
                                    const SnapshotOptions& options);

/// kMalformed unless the planes' operations and lengths are the plan's. Allocates nothing: call it
/// before trusting a file.
Status check_snapshot(const SnapshotPlan& plan, const Round& planes);

/// Zeroed planes of the plan's shape: where a reader puts a file's bytes.
Result<Snapshot> allocate_snapshot(const SnapshotPlan& plan);

/// kCapacity if a value lies outside the range that the plan carries.
Result<Snapshot> encode_snapshot(const SnapshotPlan& plan, const GradientView& gradient);

/// Decodes a (summed) snapshot into `out`, which has room for plan.count elements. kCapacity if the
/// union outgrew the plan (the message says what capacity would do; a little more than the plan's
/// capacity often decodes), kUndecodable if the planes contradict each other. On error `out` is not
/// written. A union within the capacity decodes but for one seed in 10^9.
Status decode_snapshot(const SnapshotPlan& plan, const Snapshot& snapshot, void* out);

/// Non-zeros in the snapshot's index (the union, for a sum); the element count for dense. REQUIRES:
/// check_snapshot passed.
uint64_t snapshot_nonzeros(const SnapshotPlan& plan, const Snapshot& snapshot);

}  // namespace addend
