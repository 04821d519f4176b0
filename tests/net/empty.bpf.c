/* SPDX-License-Identifier: Apache-2.0
 * What any aggregator in a driver must do: of WORLD datagrams to PORT the last goes back to all, in
 * as many copies, and the others go nowhere. Nothing is checked, added or addressed: the copies are
 * all the last sender's. */

/* The kernel's types come first. */
/* clang-format off */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
/* clang-format on */

struct {
  __uint(type, BPF_MAP_TYPE_DEVMAP);
  __uint(max_entries, WORLD);
  __uint(key_size, sizeof(__u32));
  __uint(value_size, sizeof(__u32));
} empty_copies SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u64);
} seen SEC(".maps");

static inline __attribute__((always_inline)) void turn_around(struct ethhdr* ethernet,
                                                              struct iphdr* ip,
                                                              struct udphdr* udp) {
  __u8 mac[ETH_ALEN];
  __builtin_memcpy(mac, ethernet->h_dest, ETH_ALEN);
  __builtin_memcpy(ethernet->h_dest, ethernet->h_source, ETH_ALEN);
  __builtin_memcpy(ethernet->h_source, mac, ETH_ALEN);
  const __be32 address = ip->saddr;
  ip->saddr = ip->daddr;
  ip->daddr = address;
  udp->dest = udp->source;
  udp->source = bpf_htons(PORT);
  udp->check = 0;
}

SEC("xdp")
int empty(struct xdp_md* context) {
  const void* end = (const void*)(long)context->data_end;
  struct ethhdr* ethernet = (void*)(long)context->data;
  struct iphdr* ip = (void*)(ethernet + 1);
  struct udphdr* udp = (void*)(ip + 1);
  const __u32 zero = 0;
  if ((const void*)(udp + 1) > end || ip->protocol != IPPROTO_UDP || udp->dest != bpf_htons(PORT))
    return XDP_PASS;
  __u64* number = bpf_map_lookup_elem(&seen, &zero);
  if (!number || ++*number % WORLD != 0) return XDP_DROP;
  turn_around(ethernet, ip, udp);
  return (int)bpf_redirect_map(&empty_copies, 0, BPF_F_BROADCAST);
}

char program_license[] SEC("license") = "Dual BSD/GPL";
