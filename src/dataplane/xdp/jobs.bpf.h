/* SPDX-License-Identifier: Apache-2.0
 * The memory that is shared with the server, as the driver's program sees it: which job a frame is
 * of, whether it may be, and whose turn it is at a slot. */
#pragma once

#include "dataplane/xdp/packet.bpf.h"

#define SPINS 200 /* about as long as another core needs; then the frame passes */
#define BURST_NS 100000000ull

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, addend_xdp_directory);
} directory SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, ADDEND_XDP_JOBS);
  __type(key, uint32_t);
  __type(value, addend_xdp_job);
} jobs SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, (ADDEND_XDP_JOBS * ADDEND_XDP_KEYS));
  __type(key, uint32_t);
  __type(value, addend_xdp_key);
} keys SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, ADDEND_XDP_SLOTS);
  __type(key, uint32_t);
  __type(value, addend_xdp_slot);
} slots SEC(".maps");

INLINE uint32_t find_job(uint32_t epoch) {
  const uint32_t zero = 0;
  const addend_xdp_directory* all = bpf_map_lookup_elem(&directory, &zero);
  if (!all) return ADDEND_XDP_JOBS;
#pragma unroll
  for (uint32_t probe = 0; probe < ADDEND_XDP_PROBES; ++probe) {
    const uint64_t entry = all->entries[addend_xdp_place(epoch, probe)];
    if (entry >> 32 == epoch && (uint32_t)entry != 0) return (uint32_t)entry - 1;
  }
  return ADDEND_XDP_JOBS;
}

/* Whether the driver does turns of this shape. Everything else that may be wrong with a frame is
 * for the server to say. */
INLINE int is_eligible(const addend_xdp_job* job, const addend_frame_header* header) {
  if (job->held || header->epoch != job->epoch || header->boot != job->boot) return 0;
  if (header->world != job->world || header->length > job->payload_bytes) return 0;
  if ((uint32_t)header->slot - job->first_slot >= job->slots) return 0;
  if (((job->ops & ADDEND_XDP_OPS) >> header->op & 1) == 0) return 0;
  if (addend_frame_has_table(header->op) &&
      (job->known_tables >> addend_frame_table(header) & 1) == 0)
    return 0;
  return addend_frame_sum_length(header->op, header->length) <= job->payload_bytes;
}

INLINE addend_refusal admit(const addend_xdp_job* job, addend_xdp_worker* worker,
                            const struct arrival* arrival) {
  const uint64_t* address = (const uint64_t*)worker->address;
  if (address[0] != arrival->from[0] || address[1] != arrival->from[1] ||
      worker->port != arrival->from_port)
    return ADDEND_REFUSAL_SOURCE;
  if (job->interval_ns == 0) return ADDEND_REFUSAL_NONE;
  const uint64_t now_ns = bpf_ktime_get_ns(), from_ns = worker->allowed_from_ns;
  if (from_ns > now_ns + BURST_NS) return ADDEND_REFUSAL_RATE;
  worker->allowed_from_ns = (from_ns > now_ns ? from_ns : now_ns) + job->interval_ns;
  return ADDEND_REFUSAL_NONE;
}

INLINE int same_mac(const uint8_t* a, const uint8_t* b) {
  uint32_t a0, b0;
  uint16_t a1, b1;
  __builtin_memcpy(&a0, a, 4);
  __builtin_memcpy(&b0, b, 4);
  __builtin_memcpy(&a1, a + 4, 2);
  __builtin_memcpy(&b1, b + 4, 2);
  return a0 == b0 && a1 == b1;
}

/* Replies to all go back the way that each worker's frames come. */
INLINE void learn_path(struct xdp_md* ctx, addend_xdp_job* job, addend_xdp_worker* worker,
                       const struct arrival* arrival) {
  const uint8_t* data = (const uint8_t*)(long)ctx->data;
  const struct ethhdr* eth = (const struct ethhdr*)data;
  const uint64_t* own = (const uint64_t*)worker->own_address;
  const uint64_t bit = arrival->header.contributors;
  if (data + sizeof(*eth) > (const uint8_t*)(long)ctx->data_end) return;
  if ((job->paths & bit) != 0 && same_mac(worker->mac, eth->h_source) && own[0] == arrival->to[0] &&
      own[1] == arrival->to[1])
    return;
  __builtin_memcpy(worker->mac, eth->h_source, 6);
  __builtin_memcpy(worker->own_mac, eth->h_dest, 6);
  __builtin_memcpy(worker->own_address, arrival->to, 16);
  worker->own_port = arrival->to_port;
  __sync_fetch_and_or(&job->paths, bit);
}

/* Whether the lock was free in time. The server may hold it, and be held up by this very core. */
ALONE int lock_slot(addend_xdp_slot* slot) {
  if (!slot) return 0;
  for (uint32_t i = 0; i < SPINS; ++i) {
    if (__sync_val_compare_and_swap(&slot->lock, 0, 1) == 0) return 1;
  }
  return 0;
}
INLINE void unlock_slot(addend_xdp_slot* slot) { __sync_lock_test_and_set(&slot->lock, 0); }
