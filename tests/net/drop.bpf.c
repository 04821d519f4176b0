/* SPDX-License-Identifier: Apache-2.0
 * A bad wire: drops DROP_PPM of a million UDP datagrams, at random, lets everything else pass. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>

#ifndef DROP_PPM
#define DROP_PPM 10000
#endif

static __u32 (*const bpf_get_prandom_u32)(void) = (void*)BPF_FUNC_get_prandom_u32;

__attribute__((section("xdp"), used)) int drop(struct xdp_md* context) {
  const void* end = (const void*)(long)context->data_end;
  const struct ethhdr* ethernet = (const void*)(long)context->data;
  const struct iphdr* ip = (const void*)(ethernet + 1);
  if ((const void*)(ip + 1) > end || ip->protocol != IPPROTO_UDP) return XDP_PASS;
  return bpf_get_prandom_u32() % 1000000 < DROP_PPM ? XDP_DROP : XDP_PASS;
}

__attribute__((section("license"), used)) static const char kLicense[] = "Dual BSD/GPL";
