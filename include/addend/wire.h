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
  ADDEND_OP_TABLE_SUM_U16 = 10 /* the same into u16 lanes */
} addend_op;

#define ADDEND_OP_COUNT 11

/* Bytes of a lane on the way to the adder, a power of two. Of table sums it is a byte of two lanes,
 * the even one in the low nibble. */
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
      return 1;
  }
  return 0;
}

/* Bytes that `lanes` lanes of this operation occupy on the way to the adder. */
static inline uint64_t addend_op_bytes(addend_op op, uint64_t lanes) {
  if (op == ADDEND_OP_TABLE_SUM_U8 || op == ADDEND_OP_TABLE_SUM_U16) return lanes / 2 + lanes % 2;
  return lanes * addend_op_lane_bytes(op);
}

/* Bytes of the sum that comes back; differs from addend_op_bytes only for table sums. */
static inline uint64_t addend_op_sum_bytes(addend_op op, uint64_t lanes) {
  if (op == ADDEND_OP_TABLE_SUM_U8) return lanes;
  if (op == ADDEND_OP_TABLE_SUM_U16) return lanes * 2;
  return addend_op_bytes(op, lanes);
}

#ifdef __cplusplus
}
#endif
