/* SPDX-License-Identifier: Apache-2.0
 * Addend's C ABI: the door for every other language. Opaque handles, status codes with messages, no
 * exceptions.
 *
 * Versioning: functions are only added within a major version; structs carry a size that the caller
 * sets, and grow at the end. Threads: handles are not thread-safe unless said; different handles
 * may be used by different threads at once. Memory: gradients stay the caller's; a failed call
 * leaves them untouched, unless the step was begun in place. Handles are freed with their own
 * function, which accepts NULL.
 *
 * A worker's step, with the reduction done by the caller (NCCL, Gloo, anything that can add):
 *
 *   addend_codec_begin(codec, gradient);
 *   while (addend_codec_next_round(codec, &round) == ADDEND_OK && round.plane_count > 0)
 *     for each plane: all-reduce plane.data in place with the operation plane.op;
 *   addend_codec_finish(codec, gradient);
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "addend/wire.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ADDEND_API __attribute__((visibility("default")))
#else
#define ADDEND_API
#endif

#define ADDEND_ABI_VERSION 2

typedef enum addend_status {
  ADDEND_OK = 0,
  ADDEND_INVALID_ARGUMENT = 1, /* the caller's input is wrong; nothing was changed */
  ADDEND_MALFORMED = 2,        /* bytes that claim to be ours are not */
  ADDEND_UNDECODABLE = 3,      /* a sum contradicts itself: an adder lost or altered something */
  ADDEND_CAPACITY = 4,         /* more than the plan was made for */
  ADDEND_MISMATCH = 5,         /* workers do not share one plan */
  ADDEND_TIMEOUT = 6,          /* a deadline passed */
  ADDEND_UNAVAILABLE = 7,      /* a peer or an earlier failure stands in the way */
  ADDEND_IO = 8,
  ADDEND_UNSUPPORTED = 9, /* refused by name */
  ADDEND_OUT_OF_MEMORY = 10,
  ADDEND_CHANGED = 11 /* workers came or went during a step: all begin it again */
} addend_status;

/* The ABI version the library was built with; compare with ADDEND_ABI_VERSION. */
ADDEND_API uint32_t addend_abi_version(void);
/* "0.1.0" */
ADDEND_API const char* addend_version(void);
/* A word for a status: "capacity". */
ADDEND_API const char* addend_status_name(addend_status status);
/* What went wrong in the last call of this thread that failed; valid until the thread's next
 * failing call. */
ADDEND_API const char* addend_last_error(void);

/* ---- Planes ---- */

typedef struct addend_plane {
  addend_op op;
  uint64_t lanes;
  void* data;        /* in: this worker's lanes; out: the sum over workers */
  const void* table; /* table sums: 16 entries of u8 or u16, or none */
  void* sums;        /* table sums: where the sums go */
} addend_plane;

#define ADDEND_MAX_PLANES 4

typedef struct addend_round {
  uint32_t plane_count; /* 0: no more rounds */
  uint32_t last;        /* 1: no round follows, whatever the sums are; 0: there may be more */
  addend_plane planes[ADDEND_MAX_PLANES];
} addend_round;

/* acc (op)= in for `lanes` lanes: what an adder does. Not for table sums. */
ADDEND_API addend_status addend_fold(addend_op op, void* acc, const void* in, uint64_t lanes);
/* acc[i] += table[index i] of several workers, where indices begin in a byte's lowest bits. Of
 * narrow sums acc becomes the sums as they travel back, whatever it was. */
ADDEND_API addend_status addend_fold_tables(addend_op op, void* acc, const uint8_t* const* indices,
                                            size_t sources, const void* table, uint64_t lanes);

/* The same where acc, in and indices are a CUDA device's memory, enqueued on a stream; tables and
 * arrays of addresses are the host's. ADDEND_UNSUPPORTED for narrow sums. */
ADDEND_API addend_status addend_fold_on_device(addend_op op, void* acc, const void* in,
                                               uint64_t lanes, void* stream);
ADDEND_API addend_status addend_fold_tables_on_device(addend_op op, void* acc,
                                                      const uint8_t* const* indices, size_t sources,
                                                      const void* table, uint64_t lanes,
                                                      void* stream);

/* ---- Codecs ---- */

typedef struct addend_codec addend_codec;

/* A part of a gradient with a name of its own: a parameter of a model. */
typedef struct addend_segment {
  uint64_t id; /* the same wherever the segment travels; unique in a layout */
  uint64_t count;
} addend_segment;

/* What all workers agree on. Start from addend_layout_init(&layout, sizeof layout). */
typedef struct addend_layout {
  uint32_t size;
  addend_dtype dtype;
  uint64_t count;  /* elements */
  uint32_t world;  /* workers, 1 to 2^20 */
  uint32_t worker; /* this one; the only field that differs between workers */
  uint64_t seed;
  uint64_t bucket;           /* the caller's name for this gradient */
  double network_latency_us; /* hints for the choice of mode; never change the result */
  double network_gbit_per_s;
  double scale; /* the result is this times the sum: 1.0 / world gives the mean */
  /* Parts of the gradient, in order, or none; copied. What a codec does to a segment, and the state
   * it keeps for it, then depend on the segment's id and not on the bucket. */
  const addend_segment* segments;
  uint64_t segment_count;
  uint64_t first_step; /* a codec made later goes on as one that has run so many steps */
  /* Where the codec runs: gradients and planes are then this device's memory, and everything is
   * enqueued on `stream` (a cudaStream_t; NULL is the default stream). begin, finish and a bucket
   * that has ended say that work is enqueued, not that it is done. Reducers of the host need
   * addend_staged_create. */
  uint32_t device; /* ADDEND_DEVICE_... */
  uint32_t reserved;
  void* stream;
  /* Rows of each segment that is a matrix, 0 for the others; null: no segment is one. Copied. A
   * matrix lies row by row. */
  const uint64_t* segment_rows;
  uint64_t network_gathers; /* 1: the reducer is a mesh, which sends own lanes only; a hint */
  /* 1: the reducer adds narrow sums, and quant may send some; only if no worker is on a device */
  uint64_t network_narrows;
} addend_layout;

#define ADDEND_DEVICE_CPU 0u
#define ADDEND_DEVICE_CUDA 1u

/* Writes the defaults; `size` is sizeof(addend_layout) as the caller was compiled, so that either
 * side may be newer. */
ADDEND_API void addend_layout_init(addend_layout* layout, size_t size);

/* `spec`: "exact", "dense", "exact:mode=sketch,values=reproducible". All workers must pass the same
 * spec and layout. */
ADDEND_API addend_status addend_codec_create(const char* spec, const addend_layout* layout,
                                             addend_codec** codec);
ADDEND_API void addend_codec_destroy(addend_codec* codec);
/* Equal on all workers that may be summed, for the step that begins next or is in progress. */
ADDEND_API uint64_t addend_codec_fingerprint(const addend_codec* codec);
/* The plan of that step: "dense", "cast", "packed", "two-level", "sketch" or "quant", of sparse
 * rows "gather" or "union"; never freed. Equal on all workers, and known before a gradient is. */
ADDEND_API const char* addend_codec_next_mode(const addend_codec* codec);
/* `gradient` must stay unchanged until finish or cancel. */
ADDEND_API addend_status addend_codec_begin(addend_codec* codec, const void* gradient);
/* The same, but the caller gives the gradient's contents up: planes may lie in it, which saves
 * dense rounds a copy in each direction if finish gets this pointer, too. If the step fails or is
 * cancelled, the contents are unspecified. */
ADDEND_API addend_status addend_codec_begin_in_place(addend_codec* codec, void* gradient);
/* Encodes the next round. Its planes must be reduced in place before the next call and belong to
 * the codec. */
ADDEND_API addend_status addend_codec_next_round(addend_codec* codec, addend_round* round);
/* Decodes the sum into `gradient`; nothing is written on failure. */
ADDEND_API addend_status addend_codec_finish(addend_codec* codec, void* gradient);
ADDEND_API void addend_codec_cancel(addend_codec* codec);
/* The next step's plan is dense (addend_codec_next_mode), and somebody else does it who adds
 * gradients as they are: the codec goes on as if it had. */
ADDEND_API addend_status addend_codec_skip_step(addend_codec* codec);

/* Between begin and finish: the sums of this step are without these workers, bit w being worker w
 * (see addend_reducer_missing). The mean of the others stands for their gradients: a worker that is
 * among them gets the others' sum and drops its gradient; what error feedback kept before the step
 * it still keeps. ADDEND_UNSUPPORTED for codecs that need every worker. */
ADDEND_API addend_status addend_codec_set_missing(addend_codec* codec, uint64_t workers);

/* What a restarted worker needs to go on bit for bit (residuals, step). `*size` is set to the bytes
 * needed; they are written if `state` is not NULL and `capacity` is enough, else the call is
 * ADDEND_OK for a NULL state and ADDEND_CAPACITY otherwise. */
ADDEND_API addend_status addend_codec_save_state(const addend_codec* codec, void* state,
                                                 uint64_t capacity, uint64_t* size);
ADDEND_API addend_status addend_codec_load_state(addend_codec* codec, const void* state,
                                                 uint64_t size);
/* The same for segment number `segment` of the layout (0: all of a layout without segments), to be
 * loaded into a codec whose layout holds that segment among others, at the same step (see
 * first_step). Bucket, world and scale may be others. ADDEND_MISMATCH for a state of another
 * worker, segment, plan or step. */
ADDEND_API addend_status addend_codec_save_segment(const addend_codec* codec, uint64_t segment,
                                                   void* state, uint64_t capacity, uint64_t* size);
ADDEND_API addend_status addend_codec_load_segment(addend_codec* codec, uint64_t segment,
                                                   const void* state, uint64_t size);
/* What error feedback keeps, in the gradient's own coordinates: `count` floats, 0 where nothing is
 * kept. Whoever adds it to the next gradient may do without this codec, and nothing is lost.
 * ADDEND_UNSUPPORTED for codecs that keep it on a device, in other coordinates. */
ADDEND_API addend_status addend_codec_read_residual(const addend_codec* codec, float* residual);
/* Multiplies what error feedback keeps, between steps, for gradients that come in other units from
 * now on (another loss scale). Powers of two lose no bit. */
ADDEND_API addend_status addend_codec_scale_residual(addend_codec* codec, double factor);

#define ADDEND_UNKNOWN (~(uint64_t)0)

/* What the last finished step did. Set `size` to sizeof(addend_report). */
typedef struct addend_report {
  uint32_t size;
  uint32_t rounds;
  uint64_t wire_bytes;  /* handed to the reducer by one worker */
  uint64_t dense_bytes; /* what dense would have handed over */
  uint64_t round_bytes[8];
  uint64_t local_nonzeros; /* or ADDEND_UNKNOWN */
  uint64_t union_nonzeros; /* or ADDEND_UNKNOWN */
  uint64_t cells;
  uint64_t stuck_keys;
  uint64_t escaped_values;
  char mode[16];     /* as addend_codec_next_mode says it */
  char fallback[16]; /* "none", "fix-up", "refined", "packed", "dense", "first-step" */
  /* Lossy codecs, on a sample that moves with the step: the energy of what this worker put in, its
   * residual included, and of what its contribution lost. Both 0 where nothing is lost. */
  double sampled_energy;
  double sampled_error;
  uint64_t nonfinite;    /* elements in blocks that are NaN for a NaN or Inf on some worker */
  uint64_t contributors; /* workers in the sum */
  uint64_t missing;      /* workers that are not, as far as the codec was told: bit w is worker w */
} addend_report;

ADDEND_API addend_status addend_codec_report(const addend_codec* codec, addend_report* report);
ADDEND_API uint64_t addend_codec_memory_bytes(const addend_codec* codec);

/* ---- Reducers ---- */

typedef struct addend_reducer addend_reducer;

/* `world` workers that are threads of this process: writes `world` handles. Each belongs to one
 * thread. */
ADDEND_API addend_status addend_local_create(uint32_t world, addend_reducer** reducers);
/* MPI_COMM_WORLD; ADDEND_UNSUPPORTED in a build without MPI. */
ADDEND_API addend_status addend_mpi_create(addend_reducer** reducer);

/* A worker's end of a job at an aggregation server. Start from addend_service_options_init. Text
 * may be NULL where a default is named. */
typedef struct addend_service_options {
  uint32_t size;
  uint32_t world;         /* 1 to 64; at a leaf of a tree 1 to 4096 */
  uint32_t worker;        /* from 0 */
  uint32_t slots;         /* contributions in flight; 512 */
  uint32_t payload_bytes; /* at most: 1408 for an MTU of 1500, 8832 for 9000 */
  uint32_t quorum;        /* 0: every worker must contribute */
  uint64_t patience_ns;   /* 0: until the caller's deadline */
  uint64_t join_timeout_ns;
  const char* aggregator; /* "host:port" of the server's control plane; or several: "a:1,b:1" */
  const char* job;        /* "default" */
  const char* identity;   /* tenant, or "tenant/job"; "default" */
  const uint8_t* key;     /* 32 bytes, or NULL with certificates */
  const char* authority;  /* PEM files */
  const char* certificate;
  const char* certificate_key;
  uint64_t return_timeout_ns; /* for a server that is gone to come back; 0: the caller's deadline */
} addend_service_options;

ADDEND_API void addend_service_options_init(addend_service_options* options, size_t size);
/* Returns when all workers have joined; ADDEND_UNSUPPORTED in a build without the service. */
ADDEND_API addend_status addend_service_create(const addend_service_options* options,
                                               addend_reducer** reducer);

/* Workers in processes of their own, connected to each other by TCP. Start from
 * addend_mesh_options_init. */
typedef struct addend_mesh_options {
  uint32_t size;
  uint32_t world; /* 1 to 256 */
  uint32_t worker;
  int listener;             /* a listening socket, which is taken over; -1: one is made */
  const char* const* peers; /* "host:port" of every worker, the same list on all of them */
  const uint8_t* token;     /* what only workers of this group know, at most 32 bytes */
  uint64_t token_bytes;
  uint64_t join_timeout_ns;
} addend_mesh_options;

ADDEND_API void addend_mesh_options_init(addend_mesh_options* options, size_t size);
/* Returns when all workers are connected. */
ADDEND_API addend_status addend_mesh_create(const addend_mesh_options* options,
                                            addend_reducer** reducer);

/* Reduces with `primary` until that fails because its server or a peer is gone, and from then on
 * with `fallback`, beginning with the round in which it failed. The same worker of the same world
 * in both. Takes both over: they must not be used or destroyed any more, unless this call fails.
 * `on_switch`, if given, is told why, by the thread that reduces. */
typedef void (*addend_switch_function)(void* context, const char* why);
ADDEND_API addend_status addend_fallback_create(addend_reducer* primary, addend_reducer* fallback,
                                                addend_switch_function on_switch, void* context,
                                                addend_reducer** reducer);

/* Takes rounds whose planes are a CUDA device's to a reducer of the host, through pinned memory in
 * chunks of about `chunk_bytes` (0: 4 MiB; the same on all workers); rounds of the host are cut
 * alike, so that workers of both kinds can be in one group if all of them stage. Takes `host` over:
 * it must not be used or destroyed any more, unless this call fails. */
ADDEND_API addend_status addend_staged_create(addend_reducer* host, uint64_t chunk_bytes,
                                              addend_reducer** reducer);

/* The caller's own engine: reduces every plane of `round` in place, within `timeout_ns`. Returns a
 * status; on failure it may call addend_set_error first to say why, and is not called again: the
 * reducer is ADDEND_UNAVAILABLE then. Called from one thread at a time, not the one that
 * created it. */
typedef addend_status (*addend_reduce_function)(void* context, addend_round* round,
                                                uint64_t timeout_ns);
ADDEND_API addend_status addend_custom_create(uint32_t world, uint32_t worker,
                                              addend_reduce_function reduce, void* context,
                                              addend_reducer** reducer);
/* The same for an engine that adds planes of a CUDA device where they are: with device
 * ADDEND_DEVICE_CUDA the planes (not their tables) are that device's memory, written in the order
 * of `stream`, where the function leaves what it enqueues and need not wait; the reducer does,
 * until the timeout. Rounds of the host come with ADDEND_DEVICE_CPU and a null stream. */
typedef addend_status (*addend_device_reduce_function)(void* context, addend_round* round,
                                                       uint32_t device, void* stream,
                                                       uint64_t timeout_ns);
ADDEND_API addend_status addend_custom_create_for_devices(uint32_t world, uint32_t worker,
                                                          addend_device_reduce_function reduce,
                                                          void* context, addend_reducer** reducer);
/* For reduce functions: the message that comes with the status they return. */
ADDEND_API void addend_set_error(const char* message);

/* Reduces every plane of `round` over all workers, in place (table sums: into their sums): for
 * callers that step codecs by hand. Collective; not while a pipeline uses the reducer. Planes are
 * the host's: what a codec on a device hands out goes through a pipeline, or your own engine. */
ADDEND_API addend_status addend_reducer_reduce(addend_reducer* reducer, addend_round* round,
                                               uint64_t timeout_ns);
/* The next round is the first of a step: a service lets workers that it went on without take part
 * again. Call it before the first round of every step on all workers; pipelines do. */
ADDEND_API void addend_reducer_begin_step(addend_reducer* reducer);
/* How many workers suffice for a sum when others are late; 0: all are waited for. */
ADDEND_API uint32_t addend_reducer_quorum(const addend_reducer* reducer);
/* Workers that are not in the sums of this step, bit w being worker w; 0 if all are in them. Known
 * after the first round; a later round that differs is ADDEND_CHANGED on all workers, as is any
 * round if the server restarts meanwhile: cancel the step and begin it again. */
ADDEND_API uint64_t addend_reducer_missing(const addend_reducer* reducer);
/* What the network does: figures of the slowest worker, on all of them. Collective. */
typedef struct addend_link {
  double latency_us; /* of one network step, however small */
  double gbit_per_s;
} addend_link;
ADDEND_API addend_status addend_reducer_measure_link(addend_reducer* reducer, uint64_t timeout_ns,
                                                     addend_link* link);
/* Reducers with several ways to do a round choose by it. The same on all workers. */
ADDEND_API addend_status addend_reducer_set_link(addend_reducer* reducer, const addend_link* link);
ADDEND_API uint32_t addend_reducer_world(const addend_reducer* reducer);
ADDEND_API uint32_t addend_reducer_worker(const addend_reducer* reducer);
ADDEND_API void addend_reducer_destroy(addend_reducer* reducer);

/* ---- Sparse rows ---- */

/* Element type of sparse rows. Integers wrap. */
typedef enum addend_row_element {
  ADDEND_ROW_F32 = 0,
  ADDEND_ROW_BF16 = 1,
  ADDEND_ROW_F16 = 2,
  ADDEND_ROW_F64 = 3,
  ADDEND_ROW_I64 = 4,
  ADDEND_ROW_I32 = 5,
  ADDEND_ROW_I8 = 6,
  ADDEND_ROW_U8 = 7
} addend_row_element;

/* What all workers agree on. Start from addend_row_layout_init(&layout, sizeof layout). */
typedef struct addend_row_layout {
  uint32_t size;
  addend_row_element element;
  uint64_t width;  /* elements a row */
  uint32_t world;  /* workers */
  uint32_t worker; /* this one; the only field that differs between workers */
  uint64_t seed;
  uint64_t id;               /* of the table: a digest of its name */
  double scale;              /* values are multiplied by it before they are added; 1 for integers */
  uint64_t first_step;       /* the number of the first step */
  double network_latency_us; /* the same on all workers: they decide which way values go */
  double network_gbit_per_s;
} addend_row_layout;

/* What addend_codec_begin and addend_pipeline_submit take for a gradient of such a codec. Rows come
 * in any order and may repeat: then all count. Is not written to. */
typedef struct addend_row_gradient {
  const int64_t* rows;
  const void* values; /* count x width elements, naturally aligned */
  uint64_t count;     /* rows; may differ between workers */
} addend_row_gradient;

ADDEND_API void addend_row_layout_init(addend_row_layout* layout, size_t size);
/* A codec that sums rows of a table of which each worker brings some. `spec`: how values travel
 * where they are not gathered; "exact" and "dense" add them as they are. Error feedback is refused.
 * Its modes are "gather" and "union". */
ADDEND_API addend_status addend_row_codec_create(const char* spec, const addend_row_layout* layout,
                                                 addend_codec** codec);
/* What its last finished step found, in the codec's memory until its next step: rows that any
 * worker brought, ascending, each once; and `width` elements for each. Any may be NULL. */
ADDEND_API addend_status addend_row_codec_result(const addend_codec* codec, const int64_t** rows,
                                                 const void** sums, uint64_t* count);

/* ---- The pipeline ---- */

typedef struct addend_pipeline addend_pipeline;

/* All rounds of all buckets run in submission order; workers must submit the same buckets in the
 * same order. `reducer` must outlive the pipeline. depth 0 and deadline 0 mean the defaults (4
 * buckets, 60 seconds a bucket). */
ADDEND_API addend_status addend_pipeline_create(addend_reducer* reducer, uint32_t depth,
                                                uint64_t deadline_ns, addend_pipeline** pipeline);

typedef struct addend_pipeline_options {
  uint32_t size;
  uint32_t depth;       /* buckets in flight; 0: 4 */
  uint64_t deadline_ns; /* of a bucket; 0: 60 seconds */
  /* Threads that encode and decode one gradient at once, at most 64; results do not depend on it.
   * 0: the cores that this process may use divided by the workers on its host, at most 4; 1 where
   * the reducer does not know how many those are. */
  uint32_t threads;
} addend_pipeline_options;

/* The same with all options there are. */
ADDEND_API addend_status addend_pipeline_create_with(addend_reducer* reducer,
                                                     const addend_pipeline_options* options,
                                                     addend_pipeline** pipeline);
/* Queues an in-place all-reduce (sum) and returns; blocks while `depth` buckets are in flight. */
ADDEND_API addend_status addend_pipeline_submit(addend_pipeline* pipeline, addend_codec* codec,
                                                void* gradient, uint64_t* ticket);
/* Blocks until the bucket is decoded or has failed. Once per ticket; may be called from another
 * thread than submit. */
ADDEND_API addend_status addend_pipeline_wait(addend_pipeline* pipeline, uint64_t ticket);

typedef struct addend_part {
  addend_codec* codec;
  void* gradient;
} addend_part;

/* Something that must be the same on all workers, and what to call it in an error. The text
 * outlives the pipeline. */
typedef struct addend_claim {
  const char* what;
  uint64_t value;
} addend_claim;

typedef enum addend_stage {
  ADDEND_STAGE_ENCODE = 0,
  ADDEND_STAGE_AGREE = 1, /* the first round, which also shows that all workers bring the same */
  ADDEND_STAGE_REDUCE = 2,
  ADDEND_STAGE_DECODE = 3
} addend_stage;

/* Times are the monotonic clock's. */
typedef struct addend_span {
  addend_stage stage;
  uint64_t begin_ns, end_ns;
} addend_span;

typedef struct addend_outcome {
  uint64_t ticket;
  addend_status status;
  const char* message; /* of a failure */
  const addend_span* spans;
  uint32_t span_count;
  uint32_t repeats; /* how often it began again because workers came or went */
} addend_outcome;

#define ADDEND_MAX_CLAIMS 5
/* Parts are pieces of one large gradient and travel one after the other; otherwise round k of all
 * of them travels at once. */
#define ADDEND_PIECES 1u
/* Contents are given up if the bucket fails: saves dense rounds a copy in each direction. */
#define ADDEND_IN_PLACE 2u

/* An in-place all-reduce of one or several gradients, each with its codec; all must live until it
 * has ended. */
typedef struct addend_submission {
  uint32_t size;
  uint32_t flags;
  const addend_part* parts;
  uint32_t part_count;
  uint32_t claim_count;
  const addend_claim* claims;
  /* Called by the thread that encodes, before it reads a gradient; may be NULL. A failure may be
   * explained with addend_set_error. */
  addend_status (*prepare)(void* context);
  /* Called once, by the thread that decodes; the outcome is valid during the call. */
  void (*done)(void* context, const addend_outcome* outcome);
  void* context;
  /* Not NULL: a CUDA event of this device, behind whatever writes the gradients. They are not read
   * before, and what else is under way goes on meanwhile. */
  void* ready_event;
  int32_t ready_device;
} addend_submission;

/* Submits. `here` not 0: the work is done in this thread if nothing else is under way. `ended`: 1
 * if that went to its end, as `outcome` says (valid until this thread's next call), and `done` is
 * not called; 0: other threads do the rest, and `done` is called. Only `outcome->ticket` is then
 * set. */
ADDEND_API addend_status addend_pipeline_run(addend_pipeline* pipeline,
                                             const addend_submission* submission, int here,
                                             int* ended, addend_outcome* outcome);
/* Ends what is under way, and whatever is submitted later, with an error. From any thread; the
 * first counts. */
ADDEND_API void addend_pipeline_stop(addend_pipeline* pipeline, addend_status why,
                                     const char* message);
/* The bucket whose sums this worker waits for, and how many of its rounds it has started. From any
 * thread. */
ADDEND_API void addend_pipeline_position(const addend_pipeline* pipeline, uint64_t* ticket,
                                         uint32_t* rounds);
ADDEND_API void addend_pipeline_destroy(addend_pipeline* pipeline);

/* ---- Control ---- */

/* Which codec each bucket gets next (control.h, docs/adaptive.md): no clock, no I/O; equal signals
 * give equal decisions. One thread at a time. */
typedef struct addend_controller addend_controller;

#define ADDEND_LOSS_NONE 0u
#define ADDEND_LOSS_UNBIASED 1u
#define ADDEND_LOSS_BIASED 2u

/* A codec that buckets may get; the first of a setup is dense. */
typedef struct addend_candidate {
  const char* spec;
  uint32_t loss;     /* ADDEND_LOSS_... */
  uint32_t rounds;   /* of a step */
  double factor;     /* above 1: keeps 1 / factor of the elements */
  double bits;       /* on the wire for every element */
  double union_bits; /* and for every element that is non-zero on some rank */
} addend_candidate;

typedef struct addend_control_setup {
  uint32_t size;
  uint32_t world;
  const char* options; /* "policy=auto,floor=safe,window=100"; NULL: all defaults */
  double latency_us;   /* of the link, as a round sees it */
  double gbit_per_s;
  const addend_candidate* candidates;
  uint64_t candidate_count;
  const uint64_t* bucket_elements;
  const uint64_t* bucket_bytes;
  uint64_t bucket_count;
} addend_control_setup;

/* Valid until the controller's next decision. */
typedef struct addend_decision {
  uint32_t size;
  uint32_t steps;           /* of the next window */
  uint32_t reference_steps; /* of them, those that go dense */
  uint32_t reserved;
  uint64_t window;        /* number of the window just over */
  const uint32_t* plan;   /* candidate of each bucket */
  const char* const* why; /* of each bucket, a word; never freed */
  const uint8_t* probe;   /* bucket by bucket and candidate: 1 to measure it on a sampled block */
  double realised_s;      /* a step of the window just over */
  double foreseen_s;      /* what had been predicted for it */
  double predicted_s;     /* a step of the next one */
  double predicted_dense_s;
  double phi; /* fidelity of the plan; 1: nothing is lost */
  double latency_us, gbit_per_s;
} addend_decision;

ADDEND_API addend_status addend_controller_create(const addend_control_setup* setup,
                                                  addend_controller** controller);
ADDEND_API void addend_controller_destroy(addend_controller* controller);
/* Steps of the first window, in which everything goes dense. */
ADDEND_API uint32_t addend_controller_first_steps(const addend_controller* controller);
/* Doubles of one rank's signals: world, steps, step_s, dense_step_s, dense_network_s,
 * learning_rate; for each bucket ready_s, encode_s, network_s, decode_s, bytes, energy,
 * mean_energy, union_density, error, residual, nonfinite, whole_energy, and for each of its
 * candidates encode_s, decode_s, bytes, error, kept, probe_s. NaN: not known. */
ADDEND_API uint64_t addend_controller_signals(const addend_controller* controller);
/* `signals`: of all ranks, in their order, the same on all of them. */
ADDEND_API addend_status addend_controller_decide(addend_controller* controller,
                                                  const double* signals, uint32_t ranks,
                                                  addend_decision* decision);
/* 1 where a window had better end now, because this learning rate is far from the one that was
 * decided by: 1 on any rank ends it on all of them, which they have to ask each other. */
ADDEND_API uint32_t addend_controller_rate_changed(const addend_controller* controller,
                                                   double learning_rate);
/* Everything it saw and decided, from the first window on and up to 64 MiB of signals, as JSON that
 * `addend replay` reads. Sizes as in addend_codec_save_state; the text has no NUL. */
ADDEND_API addend_status addend_controller_trace(const addend_controller* controller, void* text,
                                                 uint64_t capacity, uint64_t* size);
/* Compression factors that "policy=gravac" with these options needs candidates for: writes at most
 * `capacity` of them, and how many there are. */
ADDEND_API addend_status addend_control_factors(const char* options, double* factors,
                                                uint64_t capacity, uint64_t* count);

#ifdef __cplusplus
}
#endif
