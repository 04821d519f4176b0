// SPDX-License-Identifier: Apache-2.0
// Planes and rounds: the only things that travel between workers. Part of module `wire`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "addend/wire.h"

namespace addend {

/// Element type of a gradient.
enum class DType : uint8_t {
  kF32 = ADDEND_DTYPE_F32,
  kBf16 = ADDEND_DTYPE_BF16,
  kF16 = ADDEND_DTYPE_F16,
};

/// A reduce operation together with its lane type.
enum class Op : uint8_t {
  kSumF32 = ADDEND_OP_SUM_F32,
  kSumBf16 = ADDEND_OP_SUM_BF16,
  kSumF16 = ADDEND_OP_SUM_F16,
  kSumI32 = ADDEND_OP_SUM_I32,
  kSumI64 = ADDEND_OP_SUM_I64,
  kSumU8 = ADDEND_OP_SUM_U8,
  kSumU16 = ADDEND_OP_SUM_U16,
  kOrU64 = ADDEND_OP_OR_U64,
  kMaxU32 = ADDEND_OP_MAX_U32,
  kTableSumU8 = ADDEND_OP_TABLE_SUM_U8,
  kTableSumU16 = ADDEND_OP_TABLE_SUM_U16,
  kNarrowSum14 = ADDEND_OP_NARROW_SUM_1_4,
  kNarrowSum18 = ADDEND_OP_NARROW_SUM_1_8,
  kNarrowSum24 = ADDEND_OP_NARROW_SUM_2_4,
  kNarrowSum28 = ADDEND_OP_NARROW_SUM_2_8,
  kNarrowSum44 = ADDEND_OP_NARROW_SUM_4_4,
  kNarrowSum48 = ADDEND_OP_NARROW_SUM_4_8,
  kNarrowSum84 = ADDEND_OP_NARROW_SUM_8_4,
  kNarrowSum88 = ADDEND_OP_NARROW_SUM_8_8,
  kNarrowSum34 = ADDEND_OP_NARROW_SUM_3_4,
  kNarrowSum38 = ADDEND_OP_NARROW_SUM_3_8,
};

inline constexpr std::size_t kOpCount = ADDEND_OP_COUNT;

inline uint64_t op_bytes(Op op, uint64_t lanes) {
  return addend_op_bytes(static_cast<addend_op>(op), lanes);
}
inline uint64_t op_sum_bytes(Op op, uint64_t lanes) {
  return addend_op_sum_bytes(static_cast<addend_op>(op), lanes);
}
/// Sums are lanes of their own, of another width than the contributions.
constexpr bool is_table_sum(Op op) { return op >= Op::kTableSumU8; }
/// Table sums that come back in few bits: docs/formats/planes.md, "Narrow sums".
constexpr bool is_narrow_sum(Op op) { return op >= Op::kNarrowSum14; }
inline uint32_t op_table_bytes(Op op) { return addend_op_table_bytes(static_cast<addend_op>(op)); }
/// A plane may be cut for adders at multiples of this many lanes.
constexpr uint64_t op_lane_align(Op op) {
  return is_narrow_sum(op) ? ADDEND_NARROW_GROUP_LANES : 16;
}

constexpr uint32_t dtype_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

/// The plane operation that sums gradients of this type.
constexpr Op sum_op(DType dtype) { return static_cast<Op>(static_cast<uint8_t>(dtype)); }

constexpr const char* dtype_name(DType dtype) {
  constexpr const char* kNames[] = {"f32", "bf16", "f16"};
  return kNames[static_cast<std::size_t>(dtype)];
}
constexpr const char* op_name(Op op) {
  constexpr const char* kNames[] = {
      "sum_f32",        "sum_bf16",       "sum_f16",        "sum_i32",        "sum_i64",
      "sum_u8",         "sum_u16",        "or_u64",         "max_u32",        "table_sum_u8",
      "table_sum_u16",  "narrow_sum_1_4", "narrow_sum_1_8", "narrow_sum_2_4", "narrow_sum_2_8",
      "narrow_sum_4_4", "narrow_sum_4_8", "narrow_sum_8_4", "narrow_sum_8_8", "narrow_sum_3_4",
      "narrow_sum_3_8"};
  return kNames[static_cast<std::size_t>(op)];
}

/// Where a codec runs, and the memory of its planes is.
struct Execution {
  enum class Device : uint8_t { kCpu, kCuda };
  Device device = Device::kCpu;
  /// kCuda: a cudaStream_t, which everything is ordered by; null is the device's default stream.
  void* stream = nullptr;
};

/// A flat array of equal lanes with one reduce operation. It does not own its memory: a codec lends
/// its workspace until the next call on that codec. The memory is where the codec executes (host or
/// device).
struct Plane {
  Op op = Op::kOrU64;
  uint64_t lanes = 0;
  /// In: this worker's lanes. Out: the fold of all workers' lanes (not for table sums, whose input
  /// has another width).
  void* data = nullptr;
  /// Table sums only: 16 entries of u8 or u16, the same on all workers (none where lanes are
  /// levels), and where the sums go.
  const void* table = nullptr;
  void* sums = nullptr;
  /// A hint to reducers, or null: world + 1 ascending lane numbers, the same on all workers, kept
  /// as long as `data`. Worker w's lanes are those from bounds[w] to bounds[w + 1], and zero on
  /// every other worker: whoever sends each worker's own lanes only has the fold without folding.
  /// REQUIRES: or_u64.
  const uint64_t* bounds = nullptr;
};

/// Planes that travel together. A fixed array: making a round never allocates.
struct Round {
  static constexpr std::size_t kMaxPlanes = 4;
  std::array<Plane, kMaxPlanes> planes;
  std::size_t size = 0;
  /// No round follows in this step, whatever the sums are. Clear where that depends on them.
  bool last = false;
  /// Whose memory the planes are; contents are there in the order of its stream.
  Execution execution;

  void clear() {
    size = 0;
    last = false;
    execution = {};
  }
  void add(const Plane& plane) { planes[size++] = plane; }
  Plane* begin() { return planes.data(); }
  Plane* end() { return planes.data() + size; }
  const Plane* begin() const { return planes.data(); }
  const Plane* end() const { return planes.data() + size; }
  uint64_t bytes() const {
    uint64_t total = 0;
    for (const Plane& plane : *this)
      total += op_bytes(plane.op, plane.lanes);
    return total;
  }
};

}  // namespace addend
