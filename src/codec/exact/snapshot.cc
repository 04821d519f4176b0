// SPDX-License-Identifier: Apache-2.0
#include "addend/snapshot.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/bits.h"
#include "base/float_environment.h"
#include "codec/exact/reproducible.h"
#include "codec/exact/snapshot_plan.h"
#include "codec/index/kernels.h"

namespace addend {
namespace {

using exact::BitRange;
using exact::Fixed;
using exact::KeySet;
using exact::Sketch;
using exact::SketchShape;

Status check_gradient(const GradientView& gradient, DType dtype, uint64_t count) {
  if (gradient.data == nullptr && gradient.count > 0) {
    return make_error(Errc::kInvalidArgument, "the gradient is null");
  }
  if (gradient.dtype == dtype && gradient.count == count) return {};
  return make_error(Errc::kMismatch, "a gradient of " + std::to_string(gradient.count) + " " +
                                         dtype_name(gradient.dtype) + " does not fit a plan for " +
                                         std::to_string(count) + " " + dtype_name(dtype));
}

// The bitmap and the values of a gradient's non-zeros, in memory of its own.
struct Scanned {
  Buffer bitmap, values;
  uint64_t nonzeros = 0;

  Status scan(const GradientView& gradient) {
    const uint32_t width = dtype_bytes(gradient.dtype);
    const uint64_t capacity = gradient.count + 64;
    ADDEND_TRY(bitmap.reserve(words_for(gradient.count) * 8));
    ADDEND_TRY(values.reserve(capacity * width + Buffer::kSlack));
    nonzeros = index::scan(width, gradient.data, gradient.count, bitmap.as<uint64_t>(),
                           values.as<void>(), capacity)
                   .nonzeros;
    return {};
  }
};

// Spreads the bits that the digits have to spare over both ends, for gradients that join later.
void set_range(const BitRange& range, SnapshotPlan* plan) {
  const Fixed format = Fixed::holding(range, plan->contributors);
  const int bits = static_cast<int>(format.digits * format.digit_bits);
  const bool empty = range.top < range.low;
  // Nothing seen: the middle of the range of ordinary gradients.
  const int low = empty ? -40 : range.low;
  const int spare = bits - (empty ? 1 : range.top - range.low + 1);
  plan->quantum = std::max(low - spare / 2, exact::kLowestBit);
  plan->top = plan->quantum + bits - 1;
  plan->cell_words = format.words();
  plan->non_finite = format.special;
}

void set_shape(uint64_t seed, SnapshotPlan* plan) {
  const SketchShape shape = SketchShape::plan_whole(plan->capacity, plan->cell_words, seed);
  plan->seed = shape.seed;
  plan->hashes = shape.hashes;
  plan->starts = shape.starts;
  plan->chunks = shape.chunks;
  plan->table_rows = shape.table_rows;
  plan->cells = shape.cells();
}

Status plan_sketch(std::span<const GradientView> gradients, const SnapshotOptions& options,
                   SnapshotPlan* plan) {
  const uint64_t words = words_for(plan->count);
  Buffer index;
  ADDEND_TRY(index.reserve(words * 8));
  auto* bits = index.as<uint64_t>();
  std::memset(bits, 0, words * 8);
  BitRange range;
  Scanned scanned;
  for (const GradientView& gradient : gradients) {
    ADDEND_TRY(scanned.scan(gradient));
    for (uint64_t w = 0; w < words; ++w)
      bits[w] |= scanned.bitmap.as<uint64_t>()[w];
    for (uint64_t i = 0; i < scanned.nonzeros; ++i) {
      range.include(load_float(gradient.dtype, scanned.values.as<void>(), i));
    }
  }
  const uint64_t keys = popcount({bits, words});
  const double wanted = std::ceil(static_cast<double>(keys) * (1 + options.spare));
  plan->capacity =
      std::clamp<uint64_t>(static_cast<uint64_t>(std::min(wanted, 0x1p56)), keys, plan->count);
  set_range(range, plan);
  set_shape(options.seed, plan);
  return {};
}

// Operations and lengths of a plan's planes.
Round shape_of(const SnapshotPlan& plan) {
  Round round;
  if (plan.dense) {
    round.add({sum_op(plan.dtype), plan.count, nullptr, nullptr, nullptr});
  } else {
    round.add({Op::kOrU64, words_for(plan.count), nullptr, nullptr, nullptr});
    round.add({Op::kSumI64, plan.cells * plan.cell_words, nullptr, nullptr, nullptr});
  }
  return round;
}

// What to say of a union that does not peel.
Error inseparable(const SnapshotPlan& plan, uint64_t keys) {
  const std::string both = "the union has " + std::to_string(keys) +
                           " non-zeros and the plan has room for " + std::to_string(plan.capacity);
  if (keys <= plan.capacity) {
    return make_error(Errc::kCapacity,
                      both +
                          ", but this seed's hashes do not separate them, as happens once in "
                          "10^9 plans: pack again with another seed");
  }
  return make_error(Errc::kCapacity, both + ", " + std::to_string(keys - plan.capacity) +
                                         " too few: pack again with a larger spare, or with these "
                                         "gradients in the set");
}

}  // namespace

Result<SnapshotPlan> plan_snapshots(std::span<const GradientView> gradients,
                                    const SnapshotOptions& options) {
  const FloatEnvironment ours;
  if (gradients.empty()) return make_error(Errc::kInvalidArgument, "no gradients to plan for");
  if (!options.codec.options.empty()) {
    return make_error(Errc::kInvalidArgument,
                      "snapshots take no codec options: exact and dense have one form each");
  }
  if (options.codec.name != "exact" && options.codec.name != "dense") {
    return make_error(Errc::kUnsupported, "snapshots of codec '" + options.codec.name +
                                              "' are not supported; there are: exact, dense");
  }
  if (options.contributors < gradients.size() || options.contributors > exact::kMaxWorld) {
    return make_error(Errc::kInvalidArgument,
                      "contributors must be between the number of gradients and 2^20");
  }
  if (!(options.spare >= 0 && options.spare <= 1e6)) {
    return make_error(Errc::kInvalidArgument, "spare must be between 0 and 1000000");
  }
  SnapshotPlan plan;
  plan.dense = options.codec.name == "dense";
  plan.dtype = gradients[0].dtype;
  plan.count = gradients[0].count;
  plan.contributors = options.contributors;
  for (const GradientView& gradient : gradients) {
    ADDEND_TRY(check_gradient(gradient, plan.dtype, plan.count));
  }
  if (!plan.dense) ADDEND_TRY(plan_sketch(gradients, options, &plan));
  return plan;
}

Status check_snapshot(const SnapshotPlan& plan, const Round& planes) {
  const Round expected = shape_of(plan);
  bool same = planes.size == expected.size;
  for (std::size_t i = 0; same && i < expected.size; ++i) {
    same = planes.planes[i].op == expected.planes[i].op &&
           planes.planes[i].lanes == expected.planes[i].lanes;
  }
  if (same) return {};
  return make_error(Errc::kMalformed, "the planes do not have the shape that the plan says");
}

Result<Snapshot> allocate_snapshot(const SnapshotPlan& plan) {
  Snapshot snapshot;
  snapshot.planes = shape_of(plan);
  for (Plane& plane : snapshot.planes) {
    snapshot.storage.emplace_back(ceil_div(op_bytes(plane.op, plane.lanes), 8), 0);
    plane.data = snapshot.storage.back().data();
  }
  return snapshot;
}

Result<Snapshot> encode_snapshot(const SnapshotPlan& plan, const GradientView& gradient) {
  const FloatEnvironment ours;
  ADDEND_TRY(check_gradient(gradient, plan.dtype, plan.count));
  Result<Snapshot> snapshot = allocate_snapshot(plan);
  ADDEND_TRY(snapshot);
  if (plan.dense) {
    const uint64_t bytes = plan.count * dtype_bytes(plan.dtype);
    if (bytes > 0) std::memcpy(snapshot->planes.planes[0].data, gradient.data, bytes);
    return snapshot;
  }
  Scanned scanned;
  ADDEND_TRY(scanned.scan(gradient));
  const Fixed format = exact::snapshot_format(plan);
  const SketchShape shape = exact::snapshot_shape(plan);
  Buffer numbers;
  ADDEND_TRY(numbers.reserve(scanned.nonzeros * shape.words * 8));
  for (uint64_t i = 0; i < scanned.nonzeros; ++i) {
    const float value = load_float(plan.dtype, scanned.values.as<void>(), i);
    if (!format.holds(value)) {
      return make_error(Errc::kCapacity,
                        "the value " + std::to_string(value) + " (non-zero number " +
                            std::to_string(i) + ") lies outside the plan's range, bits 2^" +
                            std::to_string(plan.quantum) + " to 2^" + std::to_string(plan.top) +
                            (plan.non_finite ? "" : ", finite only") +
                            "; plan again with this gradient");
    }
    exact::to_fixed(format, value, numbers.as<int64_t>() + i * shape.words);
  }
  const KeySet keys{scanned.bitmap.as<uint64_t>(), words_for(plan.count), scanned.nonzeros};
  Sketch sketch;
  ADDEND_TRY(sketch.insert(shape, keys, numbers.as<int64_t>(),
                           static_cast<uint64_t*>(snapshot->planes.planes[1].data)));
  if (keys.words > 0) std::memcpy(snapshot->planes.planes[0].data, keys.bitmap, keys.words * 8);
  return snapshot;
}

Status decode_snapshot(const SnapshotPlan& plan, const Snapshot& snapshot, void* out) {
  const FloatEnvironment ours;
  ADDEND_TRY(check_snapshot(plan, snapshot.planes));
  const uint32_t width = dtype_bytes(plan.dtype);
  const auto* index = static_cast<const uint64_t*>(snapshot.planes.planes[0].data);
  if (plan.dense) {
    if (plan.count > 0) std::memcpy(out, index, plan.count * width);
    return {};
  }
  const uint64_t words = words_for(plan.count);
  if (plan.count % 64 != 0 && (index[words - 1] & ~low_mask(plan.count % 64)) != 0) {
    return make_error(Errc::kUndecodable, "the index marks positions past the end of the gradient");
  }
  const KeySet keys{index, words, popcount({index, words})};
  const SketchShape shape = exact::snapshot_shape(plan);
  if (keys.count > shape.cells()) return inseparable(plan, keys.count);
  // Peeling consumes the cells, and the snapshot is the caller's.
  Buffer cells, packed;
  ADDEND_TRY(cells.reserve(shape.lanes_total() * 8));
  ADDEND_TRY(packed.reserve(keys.count * width + Buffer::kSlack));
  std::memcpy(cells.as<void>(), snapshot.planes.planes[1].data, shape.lanes_total() * 8);
  Sketch sketch;
  ADDEND_TRY(sketch.peel(shape, keys, cells.as<uint64_t>()));
  if (sketch.stuck().count > 0) return inseparable(plan, keys.count);
  const Fixed format = exact::snapshot_format(plan);
  for (uint64_t i = 0; i < keys.count; ++i) {
    const int64_t* number = sketch.values() + i * shape.words;
    store_float(plan.dtype, packed.as<void>(), i, exact::from_fixed(format, plan.dtype, number));
  }
  ADDEND_TRY(sketch.settle(shape, nullptr, cells.as<uint64_t>()));
  index::unpack(width, packed.as<void>(), index, plan.count, out,
                plan.count * width >= index::kStreamBytes);
  return {};
}

uint64_t snapshot_nonzeros(const SnapshotPlan& plan, const Snapshot& snapshot) {
  if (plan.dense) return plan.count;
  return popcount(
      {static_cast<const uint64_t*>(snapshot.planes.planes[0].data), words_for(plan.count)});
}

}  // namespace addend
