/* SPDX-License-Identifier: Apache-2.0
 * The aggregator in the driver: contributions to turns of integers are checked, folded and answered
 * here; whatever is not plain passes, untouched, to the server's socket. The state machine is
 * src/aggregate/slots.cc; docs/decisions/0050-a-slot-has-one-owner.md says how the two share a job.
 */
#include "dataplane/xdp/jobs.bpf.h"

#define COPY_MARK 0x03 /* first byte of a destination that is no machine's: see send_to_all */

/* No helper that is called here is reserved for other licenses. */
char program_license[] SEC("license") = "Apache-2.0";

/* Replies leave through a map with as many entries as there are receivers, all of them our own
 * interface: that is how a driver's program gets copies of a packet. By world. */
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
  __uint(max_entries, ADDEND_MAX_JOB_WORKERS + 1);
  __type(key, uint32_t);
  __array(
      values, struct {
        __uint(type, BPF_MAP_TYPE_DEVMAP);
        __uint(max_entries, 1);
        __uint(key_size, sizeof(uint32_t));
        __uint(value_size, sizeof(struct bpf_devmap_val));
      });
} copies SEC(".maps");

/* Which copy of which reply this core is sending. */
struct copying {
  uint32_t serial;        /* of the last reply to all */
  uint32_t sending, copy; /* the reply whose copies are leaving, and the number of the latest */
};
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, struct copying);
} copying SEC(".maps");

/* --- The state machine, as far as it is the driver's */

enum verdict {
  PASS,    /* the server decides; nothing was changed */
  DROP,    /* done */
  ANSWER,  /* the result goes to the sender */
  FOLD,    /* into an open turn that goes on */
  COMPLETE /* fold; then the result goes to all */
};

INLINE enum verdict decide(const addend_xdp_job* job, addend_xdp_slot* slot,
                           const addend_frame_header* header) {
  const addend_xdp_bank* bank = &slot->banks[header->turn & 1];
  const addend_xdp_bank* sibling = &slot->banks[~header->turn & 1];
  if (bank->state != ADDEND_XDP_IDLE && header->turn == bank->turn) {
    const int known = (bank->contributors & header->contributors) != 0;
    /* A result that is asked for again and again may not get through from here; from the server's
     * socket it will. */
    if (bank->state == ADDEND_XDP_CLOSED)
      return known && bank->answers < 2 * job->world ? ANSWER : PASS;
    const uint8_t shape = 0xF0 | ADDEND_FRAME_ENTRY;
    if (bank->op != header->op || bank->length != header->length ||
        ((bank->flags ^ header->flags) & shape) != 0)
      return PASS; /* a mismatch */
    if (known) {
      ++slot->counters.duplicate;
      return DROP;
    }
    if ((bank->contributors | header->contributors) != job->everyone) return FOLD;
    return (job->paths & job->everyone) == job->everyone ? COMPLETE : PASS;
  }
  const int follows = header->turn == bank->turn + 2 && header->turn == sibling->turn + 1;
  if (!follows || sibling->state == ADDEND_XDP_OPEN) {
    if (job->quorum > 0) return PASS; /* somebody who was left behind gets an answer */
    ++slot->counters.stale;
    return DROP;
  }
  return job->everyone == header->contributors ? COMPLETE : FOLD;
}

INLINE void open_bank(addend_xdp_bank* bank, const addend_frame_header* header) {
  bank->contributors = 0;
  bank->answers = 0;
  bank->opened_ns = bpf_ktime_get_ns();
  bank->turn = header->turn;
  bank->op = header->op;
  bank->flags = header->flags & (0xF0 | ADDEND_FRAME_ENTRY);
  bank->length = header->length;
  bank->sum_length = (uint16_t)addend_frame_sum_length(header->op, header->length);
  bank->state = ADDEND_XDP_OPEN;
}

INLINE int fold_in(struct xdp_md* ctx, uint32_t at, addend_xdp_job* job, addend_xdp_slot* slot,
                   const addend_frame_header* header) {
  const uint32_t number = header->turn & 1;
  addend_xdp_bank* bank = &slot->banks[number];
  if (bank->state != ADDEND_XDP_OPEN || bank->turn != header->turn) open_bank(bank, header);
  const uint32_t first = bank->contributors == 0 ? FIRST : 0;
  int failed;
  if (addend_frame_has_table(header->op)) {
    const uint32_t wide = header->op == ADDEND_OP_TABLE_SUM_U16 ? WIDE : 0;
    failed = fold_table(ctx, at, slot, job, number << 16 | first | wide | header->flags >> 4);
  } else {
    const uint32_t how = number << 16 | (first ? FIRST : header->op);
    failed = fold_chunks(ctx, at, header->length, slot, how);
    if (!failed && header->length % CHUNK != 0)
      failed = fold_rest(ctx, at, header->length, slot, how);
  }
  if (failed) return -1;
  bank->contributors |= header->contributors;
  ++slot->counters.folded;
  if (header->flags & ADDEND_FRAME_RESENT) ++slot->counters.resent;
  return 0;
}

INLINE int make_room(struct xdp_md* ctx, uint32_t bytes) {
  if (bytes < LEAST_PACKET) bytes = LEAST_PACKET;
  const int more = (int)bytes - (int)(ctx->data_end - ctx->data);
  return more == 0 ? 0 : (int)bpf_xdp_adjust_tail(ctx, more);
}

/* --- Replies */

INLINE void make_header(const addend_xdp_job* job, const addend_xdp_bank* bank, uint16_t slot,
                        addend_frame_header* header) {
  header->magic = ADDEND_FRAME_MAGIC;
  header->version = ADDEND_FRAME_VERSION;
  header->kind = ADDEND_FRAME_RESULT;
  header->flags = bank->flags;
  header->epoch = job->epoch;
  header->turn = bank->turn;
  header->slot = slot;
  header->worker = ADDEND_FRAME_EVERYONE;
  header->world = (uint8_t)job->world;
  header->op = bank->op;
  header->count = (uint8_t)__builtin_popcountll(bank->contributors);
  header->length = bank->sum_length;
  header->boot = job->boot;
  header->contributors = bank->contributors;
  header->tag = 0;
  addend_frame_swap(header);
}

/* A result in place of the contribution: of a bank, in bit 0 of `which`, of the slot whose number
 * begins at bit 16. */
ALONE int write_result(struct xdp_md* ctx, const struct arrival* arrival, const addend_xdp_job* job,
                       const addend_xdp_slot* slot, uint32_t which) {
  struct tagged tagged = {{0}};
  addend_frame_header header;
  if (!arrival || !job || !slot) return -1;
  const addend_xdp_bank* bank = &slot->banks[which & 1];
  const uint32_t key_number = arrival->job * ADDEND_XDP_KEYS + ADDEND_MAX_JOB_WORKERS;
  const addend_xdp_key* key = bpf_map_lookup_elem(&keys, &key_number);
  if (!key) return -1;
  make_header(job, bank, (uint16_t)(which >> 16), &header);
  const uint32_t bytes = ADDEND_FRAME_HEADER_BYTES + bank->sum_length;
  __builtin_memcpy(tagged.words, &header, ADDEND_TAG_HEADER_WORDS * 8);
  tagged.words[ADDEND_TAG_HEADER_WORDS] = which & 1;
  if (write_sums(ctx, arrival->at + ADDEND_FRAME_HEADER_BYTES, slot, key, &tagged) != 0) return -1;
  header.tag = addend_be64(tag_of(key, &tagged));
  if (turn_around(ctx, arrival, bytes, &header) != 0) return -1;
  return arrival->is_v6 ? finish_ipv6(ctx, bytes) : 0;
}

INLINE int send_to_sender(void) {
  const uint32_t one = 1;
  void* map = bpf_map_lookup_elem(&copies, &one);
  return map ? (int)bpf_redirect_map(map, 0, 0) : XDP_DROP;
}

/* Copies of a packet are alike, and the program that sees them leave (`readdress`) does not know
 * which is which. It counts: copies of one reply leave in a row, on the core that made them. The
 * destination says so, and holds the job's number and the reply's. */
INLINE int send_to_all(struct xdp_md* ctx, const addend_xdp_job* job, uint32_t job_number) {
  const uint32_t zero = 0, world = job->world;
  struct copying* state = bpf_map_lookup_elem(&copying, &zero);
  void* map = bpf_map_lookup_elem(&copies, &world);
  uint8_t* data = (uint8_t*)(long)ctx->data;
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  if (!state || !map || data + sizeof(struct ethhdr) > end) return XDP_DROP;
  const uint32_t serial = ++state->serial;
  data[0] = COPY_MARK;
  data[1] = (uint8_t)job_number;
  __builtin_memcpy(data + 2, &serial, 4);
  return (int)bpf_redirect_map(map, 0, BPF_F_BROADCAST);
}

/* --- The programs */

SEC("xdp/devmap")
int readdress(struct xdp_md* ctx) {
  const uint32_t zero = 0;
  uint8_t* data = (uint8_t*)(long)ctx->data;
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  struct ethhdr* eth = (struct ethhdr*)data;
  if ((const uint8_t*)(eth + 1) > end) return XDP_DROP;
  if (data[0] != COPY_MARK) return XDP_PASS; /* an answer to one */
  struct copying* state = bpf_map_lookup_elem(&copying, &zero);
  const uint32_t job_number = data[1];
  const addend_xdp_job* job = bpf_map_lookup_elem(&jobs, &job_number);
  uint32_t serial;
  if (!state || !job) return XDP_DROP;
  __builtin_memcpy(&serial, data + 2, 4);
  state->copy = state->sending == serial ? state->copy + 1 : 0;
  state->sending = serial;
  if (state->copy >= ADDEND_MAX_JOB_WORKERS) return XDP_DROP;
  const addend_xdp_worker* worker = &job->workers[state->copy & (ADDEND_MAX_JOB_WORKERS - 1)];
  const uint64_t *to = (const uint64_t*)worker->address,
                 *own = (const uint64_t*)worker->own_address;
  __builtin_memcpy(eth->h_dest, worker->mac, 6);
  __builtin_memcpy(eth->h_source, worker->own_mac, 6);
  struct udphdr* udp;
  if (eth->h_proto == bpf_htons(ETH_P_IP)) {
    struct iphdr* ip = (struct iphdr*)(eth + 1);
    udp = (struct udphdr*)(ip + 1);
    if ((const uint8_t*)(udp + 1) > end) return XDP_DROP;
    ip->saddr = (uint32_t)(own[1] >> 32);
    ip->daddr = (uint32_t)(to[1] >> 32);
    finish_ipv4(ip);
  } else {
    struct ipv6hdr* ip = (struct ipv6hdr*)(eth + 1);
    udp = (struct udphdr*)(ip + 1);
    if ((const uint8_t*)(udp + 1) > end) return XDP_DROP;
    uint64_t sum = (uint16_t)~udp->check;
    uint32_t* addresses = (uint32_t*)&ip->saddr;
    uint32_t fresh[8];
    __builtin_memcpy(fresh, worker->own_address, 16);
    __builtin_memcpy(fresh + 4, worker->address, 16);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum += (uint64_t)(uint32_t)~addresses[i] + fresh[i];
      addresses[i] = fresh[i];
    }
    sum += (uint64_t)(uint16_t)~udp->source + worker->own_port;
    sum += (uint64_t)(uint16_t)~udp->dest + worker->port;
    const uint16_t check = fold_checksum(sum);
    udp->check = check == 0 ? 0xFFFF : check;
  }
  udp->source = worker->own_port;
  udp->dest = worker->port;
  return XDP_PASS;
}

/* Whether a frame is authentic. */
ALONE int is_authentic(struct xdp_md* ctx, const struct arrival* arrival,
                       const addend_xdp_key* key) {
  const uint8_t* frame = (const uint8_t*)(long)ctx->data;
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  struct tagged tagged = {{0}};
  if (!arrival || !key || arrival->at > MOST_AT) return 0;
  frame += arrival->at;
  if (frame + ADDEND_FRAME_HEADER_BYTES > end) return 0;
  __builtin_memcpy(tagged.words, frame, ADDEND_TAG_HEADER_WORDS * 8);
  const uint32_t at = arrival->at + ADDEND_FRAME_HEADER_BYTES;
  if (hash_payload(ctx, at, arrival->header.length, key, &tagged) != 0) return 0;
  return tag_of(key, &tagged) == arrival->header.tag;
}

/* What becomes of an authentic frame; if it is to be answered, the packet has the answer's size.
 * REQUIRES: the slot is locked. */
ALONE int take(struct xdp_md* ctx, const struct arrival* arrival, addend_xdp_job* job,
               addend_xdp_slot* slot) {
  if (!arrival || !job || !slot) return PASS;
  const addend_frame_header* header = &arrival->header;
  if (slot->owner != ADDEND_XDP_DRIVER || slot->epoch != header->epoch || job->held ||
      slot->port != arrival->to_port)
    return PASS;
  addend_xdp_bank* bank = &slot->banks[header->turn & 1];
  const enum verdict verdict = decide(job, slot, header);
  if (verdict == PASS) return PASS;
  const uint32_t at = arrival->at + ADDEND_FRAME_HEADER_BYTES;
  const uint32_t sum_length =
      verdict == ANSWER ? bank->sum_length : addend_frame_sum_length(header->op, header->length);
  /* A driver may have no room for a longer packet; the server has. */
  if ((verdict == ANSWER || verdict == COMPLETE) && make_room(ctx, at + sum_length) != 0)
    return PASS;
  slot->counters.bytes += arrival->bytes;
  if (verdict == DROP) return DROP;
  if (verdict == ANSWER) {
    ++slot->counters.answered;
    ++bank->answers;
    return ANSWER;
  }
  if (fold_in(ctx, at, job, slot, header) != 0) return DROP;
  if (verdict == FOLD) return FOLD;
  bank->state = ADDEND_XDP_CLOSED;
  ++slot->counters.complete;
  __sync_fetch_and_add(&job->last[header->worker & (ADDEND_MAX_JOB_WORKERS - 1)], 1);
  return COMPLETE;
}

/* A frame that may be for us, or -1. */
INLINE int read_frame(struct xdp_md* ctx, struct arrival* arrival) {
  const uint8_t* data = (const uint8_t*)(long)ctx->data;
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  if (parse(data, end, arrival) != 0) return -1;
  const uint8_t* frame = data + (arrival->is_v6 ? 62 : 42);
  if (frame + ADDEND_FRAME_HEADER_BYTES > end || frame[0] != ADDEND_FRAME_MAGIC) return -1;
  arrival->header = addend_frame_read(frame);
  if (addend_contribution_check(&arrival->header, arrival->bytes) != ADDEND_REFUSAL_NONE) return -1;
  arrival->job = find_job(arrival->header.epoch);
  return 0;
}

SEC("xdp")
int aggregate(struct xdp_md* ctx) {
  struct arrival arrival;
  if (read_frame(ctx, &arrival) != 0) return XDP_PASS;
  addend_xdp_job* job = bpf_map_lookup_elem(&jobs, &arrival.job);
  if (!job || !is_eligible(job, &arrival.header)) return XDP_PASS;
  const uint32_t number = arrival.header.worker & (ADDEND_MAX_JOB_WORKERS - 1);
  const uint32_t key_number = arrival.job * ADDEND_XDP_KEYS + number;
  const uint32_t slot_number = job->first + arrival.header.slot - job->first_slot;
  const addend_xdp_key* key = bpf_map_lookup_elem(&keys, &key_number);
  addend_xdp_slot* slot = bpf_map_lookup_elem(&slots, &slot_number);
  if (!key || !slot) return XDP_PASS;
  const addend_refusal refusal = admit(job, &job->workers[number], &arrival);
  if (refusal == ADDEND_REFUSAL_SOURCE) {
    __sync_fetch_and_add(&job->refused[ADDEND_REFUSAL_SOURCE], 1);
    return XDP_DROP;
  }
  if (refusal == ADDEND_REFUSAL_RATE) {
    __sync_fetch_and_add(&job->refused[ADDEND_REFUSAL_RATE], 1);
    return XDP_DROP;
  }
  if (!is_authentic(ctx, &arrival, key)) {
    __sync_fetch_and_add(&job->refused[ADDEND_REFUSAL_TAG], 1);
    return XDP_DROP;
  }
  learn_path(ctx, job, &job->workers[number], &arrival);
  if (!lock_slot(slot)) return XDP_PASS;
  const int verdict = take(ctx, &arrival, job, slot);
  int action = verdict == PASS ? XDP_PASS : XDP_DROP;
  if (verdict == ANSWER || verdict == COMPLETE) {
    const uint32_t which = (arrival.header.turn & 1) | (uint32_t)arrival.header.slot << 16;
    if (write_result(ctx, &arrival, job, slot, which) == 0) {
      const int to_all = verdict == COMPLETE && job->world > 1;
      const uint32_t bytes =
          ADDEND_FRAME_HEADER_BYTES + slot->banks[arrival.header.turn & 1].sum_length;
      slot->counters.sent_bytes += to_all ? bytes * job->world : bytes;
      action = to_all ? send_to_all(ctx, job, arrival.job) : send_to_sender();
    }
  }
  unlock_slot(slot);
  return action;
}
