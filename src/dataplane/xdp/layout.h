/* SPDX-License-Identifier: Apache-2.0
 * The memory that the driver's program and the server share: plain arrays that the server maps, so
 * that it needs no system call once it has given up its privileges. Plain C for g++ and clang-bpf.
 *
 * A slot belongs to the driver or to the server, never to both. Whoever holds the slot's lock may
 * change it, and whom it belongs to. */
#pragma once

#include <stdint.h>

#include "addend/wire.h"
#include "wire/frame.h"
#include "wire/tag.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ADDEND_XDP_PAYLOAD_BYTES 3328 /* with all headers and what drivers keep: one page */
#define ADDEND_XDP_CHUNK_BYTES 128
#define ADDEND_XDP_JOBS 64
#define ADDEND_XDP_SLOTS 8192     /* of all jobs together: 55 MiB */
#define ADDEND_XDP_DIRECTORY 1024 /* a power of two, far more than jobs */
#define ADDEND_XDP_PROBES 4       /* places where an epoch may stand in the directory */
#define ADDEND_XDP_KEYS                                                     \
  (ADDEND_MAX_JOB_WORKERS + 1) /* of a job: its workers', then its results' \
                                */

/* Every operation on integers: a driver has no floating-point registers. */
#define ADDEND_XDP_OPS                                                          \
  (1u << ADDEND_OP_SUM_I32 | 1u << ADDEND_OP_SUM_I64 | 1u << ADDEND_OP_SUM_U8 | \
   1u << ADDEND_OP_SUM_U16 | 1u << ADDEND_OP_OR_U64 | 1u << ADDEND_OP_MAX_U32 | \
   1u << ADDEND_OP_TABLE_SUM_U8 | 1u << ADDEND_OP_TABLE_SUM_U16)

enum addend_xdp_owner { ADDEND_XDP_SERVER = 0, ADDEND_XDP_DRIVER = 1 };
enum addend_xdp_bank_state { ADDEND_XDP_IDLE = 0, ADDEND_XDP_OPEN = 1, ADDEND_XDP_CLOSED = 2 };

typedef struct addend_xdp_bank {
  uint64_t contributors;
  uint64_t opened_ns; /* CLOCK_MONOTONIC */
  uint32_t turn;
  uint16_t length, sum_length;
  uint8_t op, flags, state;
  uint8_t answers; /* that the driver gave to whoever asked again */
  uint32_t unused;
} addend_xdp_bank;

/* What the driver did in a slot since the slot's job began. */
typedef struct addend_xdp_counters {
  uint64_t folded, complete, answered, resent;
  uint64_t stale, duplicate; /* refused as turn and as duplicate */
  uint64_t bytes, sent_bytes;
} addend_xdp_counters;

typedef struct addend_xdp_slot {
  uint32_t lock;  /* 0 or 1 */
  uint32_t owner; /* addend_xdp_owner */
  uint32_t epoch; /* whose slot it is: the driver may have read the directory long ago */
  uint16_t port;  /* where its contributions must be sent to, in network byte order */
  uint16_t unused;
  addend_xdp_bank banks[2];
  addend_xdp_counters counters;
  uint64_t sums[2][(ADDEND_XDP_PAYLOAD_BYTES + ADDEND_XDP_CHUNK_BYTES) / 8];
} addend_xdp_slot;

typedef struct addend_xdp_key {
  uint64_t prf[2];
  /* The last chunk is for the verifier, which cannot see that nobody gets there. */
  uint32_t hash[ADDEND_TAG_HASH_WORDS(ADDEND_XDP_PAYLOAD_BYTES + ADDEND_XDP_CHUNK_BYTES)];
} addend_xdp_key;

/* A worker: where it must send from, and how a frame gets to it, which its frames have shown. */
typedef struct addend_xdp_worker {
  uint8_t address[16]; /* IPv4 as IPv6 sees it */
  uint64_t allowed_from_ns;
  uint8_t mac[6];     /* of the next hop */
  uint8_t own_mac[6]; /* what it knows us by */
  uint8_t own_address[16];
  uint16_t port, own_port; /* in network byte order */
} addend_xdp_worker;

/* What a byte of two indices adds to its two lanes, of 8 and of 16 bits. */
typedef struct addend_xdp_table {
  uint16_t narrow[256];
  uint32_t wide[256];
} addend_xdp_table;

typedef struct addend_xdp_job {
  uint32_t epoch, boot;
  uint32_t first; /* of its slots, among all */
  uint32_t first_slot, slots;
  uint32_t world, payload_bytes, ops, quorum;
  uint32_t known_tables, unused;
  uint64_t held; /* by data threads: if any is set, every frame is the server's */
  uint64_t everyone;
  uint64_t interval_ns; /* between two frames of a worker; 0: no limit */
  uint64_t paths;       /* workers that results can be sent to from here */
  uint64_t refused[ADDEND_REFUSAL_COUNT];
  uint64_t last[ADDEND_MAX_JOB_WORKERS]; /* turns that waited for this worker */
  addend_xdp_worker workers[ADDEND_MAX_JOB_WORKERS];
  addend_xdp_table tables[ADDEND_MAX_JOB_TABLES];
} addend_xdp_job;

/* (epoch << 32 | job + 1), or 0, at one of the places after addend_xdp_place. */
typedef struct addend_xdp_directory {
  uint64_t entries[ADDEND_XDP_DIRECTORY];
} addend_xdp_directory;

static inline uint32_t addend_xdp_place(uint32_t epoch, uint32_t probe) {
  return ((epoch * 0x9E3779B1u >> 16) + probe) & (ADDEND_XDP_DIRECTORY - 1);
}

#ifdef __cplusplus
}
#endif
