/* SPDX-License-Identifier: Apache-2.0
 * The frame that workers and an aggregator exchange over UDP: a fixed header, then lanes of one
 * plane. docs/formats/protocol.md has the words. Plain C without a library, for g++ and clang-bpf;
 * a number here is part of the format.
 *
 *    0        1        2        3        4        5        6        7
 *   +--------+--------+--------+--------+--------+--------+--------+--------+
 * 0 | magic  |version | kind   | flags  |              epoch                |
 * 8 |              turn                 |      slot       | worker | world  |
 * 16| op     | count  |     length      |              boot                 |
 * 24|                             contributors                              |
 * 32|                                 tag                                   |
 *   +-----------------------------------------------------------------------+
 *
 * The header is in network byte order, so that a switch can parse it; lanes are little endian
 * unless a flag says otherwise. With IPv6 (40) and UDP (8) a payload of 1408 makes 1496 bytes. */
#pragma once

#include <stdint.h>

#include "addend/wire.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ADDEND_FRAME_MAGIC 0xAD
#define ADDEND_FRAME_VERSION 1
#define ADDEND_FRAME_HEADER_BYTES 40
#define ADDEND_FRAME_PAYLOAD_BYTES 1408     /* fits an MTU of 1500 */
#define ADDEND_FRAME_MAX_PAYLOAD_BYTES 8832 /* fits an MTU of 9000 */
#define ADDEND_FRAME_EVERYONE 0xFF          /* worker of a frame that concerns all or nobody */
#define ADDEND_MAX_JOB_WORKERS 64
#define ADDEND_MAX_JOB_TABLES 16

typedef struct addend_frame_header {
  uint8_t magic;
  uint8_t version;
  uint8_t kind;   /* addend_frame_kind */
  uint8_t flags;  /* ADDEND_FRAME_*, and the table's number in the upper half */
  uint32_t epoch; /* names the job, and its life: a new one after every restart */
  uint32_t turn;  /* which use of the slot, from 0 */
  uint16_t slot;
  uint8_t worker;        /* contribution: the sender; notice: whom it is about */
  uint8_t world;         /* workers of the job */
  uint8_t op;            /* addend_op; in a notice its addend_notice */
  uint8_t count;         /* bits set in contributors */
  uint16_t length;       /* bytes of payload */
  uint32_t boot;         /* drawn by the aggregator when it starts */
  uint64_t contributors; /* whose lanes are folded in the payload: bit w is worker w */
  uint64_t tag;          /* authenticates everything before it, and the payload */
} addend_frame_header;

typedef enum addend_frame_kind {
  ADDEND_FRAME_CONTRIBUTION = 1, /* worker to aggregator: one worker's lanes */
  ADDEND_FRAME_RESULT = 2,       /* aggregator to workers: the folded lanes */
  ADDEND_FRAME_NOTICE = 3,       /* aggregator to workers, no payload: this epoch is over */
  ADDEND_FRAME_PROBE = 4,        /* worker to aggregator, before an epoch: does this length pass? */
  ADDEND_FRAME_ECHO = 5          /* aggregator to worker: it did, and this is as long */
} addend_frame_kind;

#define ADDEND_FRAME_BIG_ENDIAN 1u /* lanes are in network byte order */
#define ADDEND_FRAME_PARTIAL 2u    /* result: closed at a quorum, without some workers */
#define ADDEND_FRAME_RESENT 4u     /* contribution: not the first try */
#define ADDEND_FRAME_ENTRY 8u      /* a step begins here: absent workers may come back */
#define ADDEND_FRAME_KNOWN_FLAGS 15u
#define ADDEND_FRAME_TABLE_SHIFT 4 /* table sums: number of the job's table */

/* Why an epoch ended. */
typedef enum addend_notice {
  ADDEND_NOTICE_TIMEOUT = 1,  /* a worker's contribution did not come in time */
  ADDEND_NOTICE_MISMATCH = 2, /* a worker sent another operation, length or table than the others */
  ADDEND_NOTICE_CLOSED = 3,   /* the job was drained, or a worker left it */
  ADDEND_NOTICE_PATH = 4,     /* the path to a worker no longer carries the job's frames */
  ADDEND_NOTICE_LEAF = 128    /* added to these: the worker is a leaf of the job's tree */
} addend_notice;

/* Why an aggregator did not fold a frame; every data plane counts by these. */
typedef enum addend_refusal {
  ADDEND_REFUSAL_NONE = 0,
  ADDEND_REFUSAL_TRUNCATED = 1,    /* shorter than a header */
  ADDEND_REFUSAL_MAGIC = 2,        /* not a frame, or of another version */
  ADDEND_REFUSAL_KIND = 3,         /* not a contribution, or with unknown flags */
  ADDEND_REFUSAL_LENGTH = 4,       /* not the datagram's, not whole lanes, or beyond the job's */
  ADDEND_REFUSAL_OP = 5,           /* unknown, not allowed in this job, or without its table */
  ADDEND_REFUSAL_EPOCH = 6,        /* no such job, or a past life of it */
  ADDEND_REFUSAL_BOOT = 7,         /* meant for an aggregator that has restarted */
  ADDEND_REFUSAL_WORLD = 8,        /* another number of workers than the job's */
  ADDEND_REFUSAL_CONTRIBUTORS = 9, /* not exactly the sender, or a sender outside of the job */
  ADDEND_REFUSAL_SLOT = 10,        /* outside of the job's slots */
  ADDEND_REFUSAL_SOURCE = 11,      /* not from the address that this worker registered */
  ADDEND_REFUSAL_TAG = 12,         /* not authentic */
  ADDEND_REFUSAL_RATE = 13,        /* over the packet rate that was granted */
  ADDEND_REFUSAL_TURN = 14,        /* neither in progress, nor kept, nor the next */
  ADDEND_REFUSAL_DUPLICATE = 15,   /* folded before; the turn is still in progress */
  ADDEND_REFUSAL_LATE = 16,        /* a turn goes, or was closed at a quorum, without this worker */
  ADDEND_REFUSAL_MISMATCH = 17,    /* differs in shape from what others contributed */
  ADDEND_REFUSAL_ENDED = 18        /* the epoch is over */
} addend_refusal;

#define ADDEND_REFUSAL_COUNT 19

static inline uint16_t addend_be16(uint16_t value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  return __builtin_bswap16(value);
#else
  return value;
#endif
}
static inline uint32_t addend_be32(uint32_t value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  return __builtin_bswap32(value);
#else
  return value;
#endif
}
static inline uint64_t addend_be64(uint64_t value) {
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  return __builtin_bswap64(value);
#else
  return value;
#endif
}

/* Between the wire's byte order and the machine's, in either direction. */
static inline void addend_frame_swap(addend_frame_header* header) {
  header->epoch = addend_be32(header->epoch);
  header->turn = addend_be32(header->turn);
  header->slot = addend_be16(header->slot);
  header->length = addend_be16(header->length);
  header->boot = addend_be32(header->boot);
  header->contributors = addend_be64(header->contributors);
  header->tag = addend_be64(header->tag);
}

/* clang-format off */
#define ADDEND_FRAME_FIELDS(X) \
  X(magic) X(version) X(kind) X(flags) X(epoch) X(turn) X(slot) X(worker) X(world) X(op) X(count) \
  X(length) X(boot) X(contributors) X(tag)
/* clang-format on */

/* The header at the beginning of a datagram, in the machine's byte order; and back. Field by field:
 * a copy of the whole that is then swapped stalls a processor at loads that span two recent stores,
 * which costs more than the rest of the parsing. */
static inline addend_frame_header addend_frame_read(const uint8_t* bytes) {
  addend_frame_header header;
#define ADDEND_READ_FIELD(field)                                                          \
  __builtin_memcpy(&header.field, bytes + __builtin_offsetof(addend_frame_header, field), \
                   sizeof(header.field));
  ADDEND_FRAME_FIELDS(ADDEND_READ_FIELD)
#undef ADDEND_READ_FIELD
  addend_frame_swap(&header);
  return header;
}

static inline void addend_frame_write(addend_frame_header header, uint8_t* bytes) {
  addend_frame_swap(&header);
#define ADDEND_WRITE_FIELD(field)                                                         \
  __builtin_memcpy(bytes + __builtin_offsetof(addend_frame_header, field), &header.field, \
                   sizeof(header.field));
  ADDEND_FRAME_FIELDS(ADDEND_WRITE_FIELD)
#undef ADDEND_WRITE_FIELD
}

/* Whether frames of this operation name a table of their job's. */
static inline int addend_frame_has_table(uint8_t op) {
  return addend_op_table_bytes((addend_op)op) != 0;
}

/* Lanes in a contribution of `length` bytes; indices come in whole bytes, so in pairs or more. */
static inline uint32_t addend_frame_lanes(uint8_t op, uint32_t length) {
  if (op >= ADDEND_OP_TABLE_SUM_U8) return length * 8u / addend_op_index_bits((addend_op)op);
  return length / addend_op_lane_bytes((addend_op)op);
}

/* A contribution is as long as some number of these. */
static inline uint32_t addend_frame_unit(uint8_t op) {
  if (op >= ADDEND_OP_NARROW_SUM_3_4) return 3; /* 8 indices */
  return addend_op_lane_bytes((addend_op)op);
}

/* Bytes of the sum of contributions of `length` bytes. */
static inline uint32_t addend_frame_sum_length(uint8_t op, uint32_t length) {
  if (op == ADDEND_OP_TABLE_SUM_U8) return length * 2u;
  if (op == ADDEND_OP_TABLE_SUM_U16) return length * 4u;
  if (op < ADDEND_OP_NARROW_SUM_1_4) return length;
  return (uint32_t)addend_op_sum_bytes((addend_op)op, addend_frame_lanes(op, length));
}

/* The same while the turn is open, and as leaves of a tree send it on. */
static inline uint32_t addend_frame_growing_length(uint8_t op, uint32_t length) {
  if (op < ADDEND_OP_NARROW_SUM_1_4) return addend_frame_sum_length(op, length);
  return addend_frame_lanes(op, length) * 2u;
}

/* Whether such contributions and their sums have room in a job with this payload, `relayed`: also
 * as a leaf of a tree sends them on. A frame has at most as many lanes of narrow sums as a payload
 * has bytes: twice that is then room for them to grow. */
static inline int addend_frame_fits(uint8_t op, uint32_t length, uint32_t payload_bytes,
                                    int relayed) {
  return length <= payload_bytes && addend_frame_sum_length(op, length) <= payload_bytes &&
         addend_frame_growing_length(op, length) <= (relayed ? 1 : 2) * payload_bytes;
}

static inline uint32_t addend_frame_table(const addend_frame_header* header) {
  return (uint32_t)header->flags >> ADDEND_FRAME_TABLE_SHIFT;
}

/* What can be said of a contribution without knowing its job. `header` is in the machine's byte
 * order, `datagram_bytes` counts it too. REQUIRES: datagram_bytes >= ADDEND_FRAME_HEADER_BYTES. */
static inline addend_refusal addend_contribution_check(const addend_frame_header* header,
                                                       uint32_t datagram_bytes) {
  if (header->magic != ADDEND_FRAME_MAGIC || header->version != ADDEND_FRAME_VERSION)
    return ADDEND_REFUSAL_MAGIC;
  /* Only planes that speak big endian may take such lanes; this check serves those that do not. */
  if (header->kind != ADDEND_FRAME_CONTRIBUTION ||
      (header->flags & 0xFu & ~(ADDEND_FRAME_RESENT | ADDEND_FRAME_ENTRY)) != 0)
    return ADDEND_REFUSAL_KIND;
  if (header->op >= ADDEND_OP_COUNT) return ADDEND_REFUSAL_OP;
  if (!addend_frame_has_table(header->op) && addend_frame_table(header) != 0)
    return ADDEND_REFUSAL_OP;
  if (header->length == 0 || header->length > ADDEND_FRAME_MAX_PAYLOAD_BYTES ||
      (uint32_t)header->length + ADDEND_FRAME_HEADER_BYTES != datagram_bytes ||
      header->length % addend_frame_unit(header->op) != 0)
    return ADDEND_REFUSAL_LENGTH;
  if (header->world == 0 || header->world > ADDEND_MAX_JOB_WORKERS) return ADDEND_REFUSAL_WORLD;
  if (header->worker >= header->world || header->count != 1 ||
      header->contributors != (uint64_t)1 << header->worker)
    return ADDEND_REFUSAL_CONTRIBUTORS;
  return ADDEND_REFUSAL_NONE;
}

#ifdef __cplusplus
}
#endif
