/* SPDX-License-Identifier: Apache-2.0
 * Messages of the control plane, inside TLS 1.3: a header, a body of a fixed layout, and for two of
 * them a row of 32-bit numbers. Little endian, every field at its natural place, text filled with
 * zeros. docs/formats/protocol.md, "Control plane". */
#pragma once

#include <stdint.h>

#define ADDEND_CONTROL_VERSION 1
#define ADDEND_CONTROL_NAME_BYTES 64
#define ADDEND_CONTROL_TEXT_BYTES 256
#define ADDEND_CONTROL_KEY_BYTES 32
#define ADDEND_CONTROL_MAX_THREADS 64
#define ADDEND_CONTROL_MAX_SLOTS 65536
#define ADDEND_CONTROL_MAX_WORKERS 4096 /* of a tree: 64 leaves of 64 workers */

typedef enum addend_control_type {
  ADDEND_CONTROL_JOIN = 1,     /* worker: addend_control_join, then `positions` numbers */
  ADDEND_CONTROL_TABLE = 2,    /* worker: addend_control_table; answered by TABLE_IS */
  ADDEND_CONTROL_LEAVE = 3,    /* worker: done, nothing is wrong; no body */
  ADDEND_CONTROL_CREATE = 4,   /* operator: addend_control_job; answered by DONE */
  ADDEND_CONTROL_LIST = 5,     /* operator: no body; answered by JOB ... DONE */
  ADDEND_CONTROL_DRAIN = 6,    /* operator: addend_control_drain; answered by DONE */
  ADDEND_CONTROL_WELCOME = 7,  /* server: addend_control_welcome, then `positions` numbers */
  ADDEND_CONTROL_TABLE_IS = 8, /* server: addend_control_number */
  ADDEND_CONTROL_ENDED = 9,    /* server: addend_control_ended; the epoch is over */
  ADDEND_CONTROL_FAILED = 10,  /* server: addend_control_failed; the connection closes */
  ADDEND_CONTROL_JOB = 11,     /* server: addend_control_status */
  ADDEND_CONTROL_DONE = 12,    /* server: no body */
  ADDEND_CONTROL_PROBE = 13,   /* server: addend_control_probe, after a JOIN; answered by PATH */
  ADDEND_CONTROL_PATH = 14     /* worker: addend_control_path */
} addend_control_type;

typedef struct addend_control_header {
  uint32_t bytes; /* behind the header */
  uint16_t type;
  uint16_t version;
} addend_control_header;

#define ADDEND_CONTROL_FLOATS 1u  /* job: sums of floats are allowed */
#define ADDEND_CONTROL_OWN_KEY 2u /* job: `key` is set, and lets workers join this job only */
#define ADDEND_CONTROL_FRESH 4u   /* welcome: some worker has lost its place; nobody can go on */
#define ADDEND_CONTROL_SWITCH \
  8u /* welcome: a switch folds; big endian, and tags that do not change */
#define ADDEND_CONTROL_LEAF \
  16u /* welcome: the server is a leaf of a tree, and what it sends on must fit a frame, too */

typedef struct addend_control_job {
  char name[ADDEND_CONTROL_NAME_BYTES]; /* within its tenant */
  uint32_t world;
  uint32_t slots;
  uint32_t payload_bytes; /* at most; an epoch's is what every worker's path carries */
  uint32_t quorum;
  uint64_t patience_ns;
  uint32_t flags;
  uint32_t reserved; /* 0 */
  uint8_t key[ADDEND_CONTROL_KEY_BYTES];
} addend_control_job;

typedef struct addend_control_drain {
  char name[ADDEND_CONTROL_NAME_BYTES];
  char tenant[ADDEND_CONTROL_NAME_BYTES]; /* whose job; empty: the asker's, or the only one */
} addend_control_drain;

typedef struct addend_control_join {
  addend_control_job job; /* made if the tenant has none of that name */
  uint32_t worker;
  uint32_t udp_port;  /* at the address that this connection comes from */
  uint32_t positions; /* 0: starts anew; else the turns done in each slot since it first joined */
  uint32_t reserved;  /* 0 */
} addend_control_join;

typedef struct addend_control_probe {
  uint32_t number; /* that probes carry in place of an epoch */
  uint32_t boot;
  uint32_t payload_bytes; /* of the longest probe */
  uint32_t threads;       /* each has to be probed, at port[thread] */
  uint16_t port[ADDEND_CONTROL_MAX_THREADS];
  uint8_t secret[ADDEND_CONTROL_KEY_BYTES]; /* of the probes' and echoes' tags */
} addend_control_probe;

typedef struct addend_control_path {
  uint32_t payload_bytes; /* of the longest probe that every thread echoed; 0: some echoed none */
  uint32_t reserved;      /* 0 */
} addend_control_path;

typedef struct addend_control_welcome {
  uint32_t epoch;
  uint32_t boot;
  uint32_t slots;
  uint32_t payload_bytes;
  uint32_t ops;     /* allowed operations: bit n is operation n */
  uint32_t threads; /* slot s belongs to thread s * threads / slots, at port[thread] */
  uint32_t flags;
  uint32_t positions; /* 0, or the turns that all workers have done, of each slot: turn 0 is next */
  uint64_t patience_ns;
  uint32_t quorum;
  uint32_t packets_per_s; /* granted to this worker at each port; 0: no limit */
  uint32_t first_worker;  /* of this server's; in frames and notices it is worker 0 */
  uint32_t world;         /* workers of this server; the job has more if it is a leaf of a tree */
  uint16_t port[ADDEND_CONTROL_MAX_THREADS];
  uint8_t worker_secret[ADDEND_CONTROL_KEY_BYTES];
  uint8_t result_secret[ADDEND_CONTROL_KEY_BYTES];
} addend_control_welcome;

typedef struct addend_control_table {
  uint16_t entries[16];
} addend_control_table;

typedef struct addend_control_number {
  uint32_t number;
  uint32_t reserved;
} addend_control_number;

typedef struct addend_control_ended {
  uint32_t notice; /* addend_notice */
  uint32_t worker; /* or ADDEND_FRAME_EVERYONE */
} addend_control_ended;

typedef struct addend_control_failed {
  uint32_t code; /* as in addend_status */
  uint32_t reserved;
  char text[ADDEND_CONTROL_TEXT_BYTES];
} addend_control_failed;

typedef struct addend_control_status {
  char tenant[ADDEND_CONTROL_NAME_BYTES];
  char name[ADDEND_CONTROL_NAME_BYTES];
  uint32_t epoch; /* 0: waiting for workers */
  uint32_t world;
  uint32_t joined;
  uint32_t slots;
  uint64_t turns;      /* complete and partial, of this epoch */
  uint64_t refused;    /* frames */
  uint64_t waited_for; /* workers, by bit: to join, or for a second or more to contribute */
} addend_control_status;
