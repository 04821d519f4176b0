/* SPDX-License-Identifier: Apache-2.0
 * Addend: the few facts that the CPU, the GPU, a BPF program and foreign languages must agree on.
 * Plain C, no library. A number here is part of the wire format (docs/formats/planes.md): values
 * are never reused or renumbered. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element type of a gradient. */
typedef enum addend_dtype {
  ADDEND_DTYPE_F32 = 0,
  ADDEND_DTYPE_BF16 = 1,
  ADDEND_DTYPE_F16 = 2
} addend_dtype;

/* What an adder does with two planes: one operation, one lane type. */
typedef enum addend_op {
  ADDEND_OP_SUM_F32 = 0,
  ADDEND_OP_SUM_BF16 = 1, /* rounds to nearest even once per addition */
  ADDEND_OP_SUM_F16 = 2,  /* rounds to nearest even once per addition */
  ADDEND_OP_SUM_I32 = 3,  /* wraps */
  ADDEND_OP_SUM_I64 = 4,  /* wraps */
  ADDEND_OP_SUM_U8 = 5,   /* may not overflow: adders differ (MPI libraries wrap or saturate) */
  ADDEND_OP_SUM_U16 = 6,  /* may not overflow, likewise */
  ADDEND_OP_OR_U64 = 7,
  ADDEND_OP_MAX_U32 = 8,
  ADDEND_OP_TABLE_SUM_U8 =
      9, /* 4-bit indices mapped through a 16-entry table, added into u8 lanes */
  ADDEND_OP_TABLE_SUM_U16 = 10, /* the same into u16 lanes */
  /* The first number is the bits of an index (of 8: the level itself), the second those of a sum on
   * the way back, which is exact where it fits and otherwise rounded without bias. */
  ADDEND_OP_NARROW_SUM_1_4 = 11,
  ADDEND_OP_NARROW_SUM_1_8 = 12,
  ADDEND_OP_NARROW_SUM_2_4 = 13,
  ADDEND_OP_NARROW_SUM_2_8 = 14,
  ADDEND_OP_NARROW_SUM_4_4 = 15,
  ADDEND_OP_NARROW_SUM_4_8 = 16,
  ADDEND_OP_NARROW_SUM_8_4 = 17,
  ADDEND_OP_NARROW_SUM_8_8 = 18,
  ADDEND_OP_NARROW_SUM_3_4 = 19,
  ADDEND_OP_NARROW_SUM_3_8 = 20
} addend_op;

#define ADDEND_OP_COUNT 21

/* Narrow sums come back in groups of lanes, each with a header. */
#define ADDEND_NARROW_GROUP_LANES 512
#define ADDEND_NARROW_HEADER_BYTES 5

static inline int addend_op_is_narrow(addend_op op) { return op >= ADDEND_OP_NARROW_SUM_1_4; }
static inline uint32_t addend_op_index_bits(addend_op op) {
  if (op >= ADDEND_OP_NARROW_SUM_3_4) return 3;
  return addend_op_is_narrow(op) ? 1u << (op - ADDEND_OP_NARROW_SUM_1_4) / 2 : 4;
}
static inline uint32_t addend_op_narrow_bits(addend_op op) {
  return 4u << (op - ADDEND_OP_NARROW_SUM_1_4) % 2;
}

/* Bytes of the table that table sums look up: 16 entries. */
static inline uint32_t addend_op_table_bytes(addend_op op) {
  if (op == ADDEND_OP_TABLE_SUM_U16) return 32;
  return op < ADDEND_OP_TABLE_SUM_U8 || addend_op_index_bits(op) == 8 ? 0 : 16;
}

/* Bytes of a lane on the way to the adder, a power of two. Of table sums it is a byte of several
 * lanes, the first one in the lowest bits. */
static inline uint32_t addend_op_lane_bytes(addend_op op) {
  switch (op) {
    case ADDEND_OP_SUM_F32:
    case ADDEND_OP_SUM_I32:
    case ADDEND_OP_MAX_U32:
      return 4;
    case ADDEND_OP_SUM_BF16:
    case ADDEND_OP_SUM_F16:
    case ADDEND_OP_SUM_U16:
      return 2;
    case ADDEND_OP_SUM_I64:
    case ADDEND_OP_OR_U64:
      return 8;
    case ADDEND_OP_SUM_U8:
    case ADDEND_OP_TABLE_SUM_U8:
    case ADDEND_OP_TABLE_SUM_U16:
    case ADDEND_OP_NARROW_SUM_1_4:
    case ADDEND_OP_NARROW_SUM_1_8:
    case ADDEND_OP_NARROW_SUM_2_4:
    case ADDEND_OP_NARROW_SUM_2_8:
    case ADDEND_OP_NARROW_SUM_4_4:
    case ADDEND_OP_NARROW_SUM_4_8:
    case ADDEND_OP_NARROW_SUM_8_4:
    case ADDEND_OP_NARROW_SUM_8_8:
    case ADDEND_OP_NARROW_SUM_3_4:
    case ADDEND_OP_NARROW_SUM_3_8:
      return 1;
  }
  return 0;
}

/* Bytes that `lanes` lanes of this operation occupy on the way to the adder. */
static inline uint64_t addend_op_bytes(addend_op op, uint64_t lanes) {
  if (op >= ADDEND_OP_TABLE_SUM_U8) {
    const uint32_t bits = addend_op_index_bits(op);
    return lanes / 8 * bits + (lanes % 8 * bits + 7) / 8;
  }
  return lanes * addend_op_lane_bytes(op);
}

/* Bytes of the sum that comes back; differs from addend_op_bytes only for table sums. */
static inline uint64_t addend_op_sum_bytes(addend_op op, uint64_t lanes) {
  if (op == ADDEND_OP_TABLE_SUM_U8) return lanes;
  if (op == ADDEND_OP_TABLE_SUM_U16) return lanes * 2;
  if (addend_op_is_narrow(op)) {
    const uint64_t groups =
        lanes / ADDEND_NARROW_GROUP_LANES + (lanes % ADDEND_NARROW_GROUP_LANES != 0);
    const uint64_t whole = addend_op_narrow_bits(op) == 4 ? lanes / 2 + lanes % 2 : lanes;
    return groups * ADDEND_NARROW_HEADER_BYTES + whole;
  }
  return addend_op_bytes(op, lanes);
}

#ifdef __cplusplus
}
#endif
