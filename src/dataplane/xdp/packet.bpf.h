/* SPDX-License-Identifier: Apache-2.0
 * Ethernet, IP and UDP around a frame: taken apart, and turned around with a reply inside. */
#pragma once

#include "dataplane/xdp/payload.bpf.h"

#define LEAST_PACKET 60 /* what Ethernet wants */
#define DO_NOT_FRAGMENT 0x4000

/* A frame in a packet. */
struct arrival {
  uint32_t at;    /* where it begins */
  uint32_t bytes; /* header included */
  uint32_t is_v6;
  uint32_t job;
  uint16_t from_port, to_port; /* in network byte order */
  uint64_t from[2], to[2];     /* addresses, IPv4 as IPv6 sees it */
  addend_frame_header header;  /* in the machine's byte order */
};

INLINE void map_v4(uint64_t* address, uint32_t v4) {
  address[0] = 0;
  address[1] = (uint64_t)v4 << 32 | 0xFFFF0000u;
}

/* Whether this is a whole, plain UDP datagram; others are the kernel's business. */
INLINE int parse(const uint8_t* data, const uint8_t* end, struct arrival* out) {
  const struct ethhdr* eth = (const struct ethhdr*)data;
  if (data + sizeof(*eth) > end) return -1;
  const struct udphdr* udp;
  uint32_t l4_bytes;
  if (eth->h_proto == bpf_htons(ETH_P_IP)) {
    const struct iphdr* ip = (const struct iphdr*)(eth + 1);
    if ((const uint8_t*)(ip + 1) > end) return -1;
    if (ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_UDP) return -1;
    if ((ip->frag_off & bpf_htons(0x3FFF)) != 0) return -1;
    map_v4(out->from, ip->saddr);
    map_v4(out->to, ip->daddr);
    l4_bytes = bpf_ntohs(ip->tot_len) - (uint32_t)sizeof(*ip);
    udp = (const struct udphdr*)(ip + 1);
    out->is_v6 = 0;
  } else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
    const struct ipv6hdr* ip = (const struct ipv6hdr*)(eth + 1);
    if ((const uint8_t*)(ip + 1) > end) return -1;
    if (ip->version != 6 || ip->nexthdr != IPPROTO_UDP) return -1;
    __builtin_memcpy(out->from, &ip->saddr, 16);
    __builtin_memcpy(out->to, &ip->daddr, 16);
    l4_bytes = bpf_ntohs(ip->payload_len);
    udp = (const struct udphdr*)(ip + 1);
    out->is_v6 = 1;
  } else {
    return -1;
  }
  if ((const uint8_t*)(udp + 1) > end) return -1;
  if (bpf_ntohs(udp->len) != l4_bytes) return -1;
  if (l4_bytes < sizeof(*udp) + ADDEND_FRAME_HEADER_BYTES) return -1;
  out->from_port = udp->source;
  out->to_port = udp->dest;
  out->bytes = l4_bytes - (uint32_t)sizeof(*udp);
  out->at = (uint32_t)((const uint8_t*)(udp + 1) - data);
  return 0;
}

INLINE uint16_t fold_checksum(uint64_t sum) {
  sum = (sum & 0xFFFFFFFF) + (sum >> 32);
  sum = (sum & 0xFFFF) + (sum >> 16 & 0xFFFF) + (sum >> 32);
  sum = (sum & 0xFFFF) + (sum >> 16);
  sum = (sum & 0xFFFF) + (sum >> 16);
  return (uint16_t)~sum;
}

INLINE void finish_ipv4(struct iphdr* ip) {
  const uint32_t* words = (const uint32_t*)ip;
  ip->check = 0;
  uint64_t sum = 0;
#pragma unroll
  for (int i = 0; i < 5; ++i)
    sum += words[i];
  ip->check = fold_checksum(sum);
}

/* The sum of a packet's 32-bit words from the UDP header on, for IPv6, which wants a checksum. */
ALONE uint64_t sum_words(struct xdp_md* ctx, uint32_t at, uint32_t bytes) {
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  const uint8_t* p = (const uint8_t*)(long)ctx->data;
  uint64_t sum = 0, pair;
  if (at > MOST_AT || bytes > 4096) return 0;
  p += at;
  for (uint32_t i = 0; i < 4096 / CHUNK && bytes >= CHUNK; ++i) {
    FIX(end);
    FIX(p);
    if (p + CHUNK > end) return 0;
    const uint32_t* words = (const uint32_t*)p;
#pragma unroll
    for (int j = 0; j < CHUNK / 4; ++j)
      sum += words[j];
    p += CHUNK;
    bytes -= CHUNK;
  }
  for (uint32_t i = 0; i < CHUNK / 4 && bytes >= 4; ++i) {
    FIX(end);
    FIX(p);
    if (p + 4 > end) return 0;
    sum += *(const uint32_t*)p;
    p += 4;
    bytes -= 4;
  }
  if (bytes > 0) {
    if (read_tail(p, end, bytes, &pair) != 0) return 0;
    sum += pair;
  }
  return sum;
}

/* Turns the packet, which has the reply's size, around. `frame` is the finished header. */
INLINE int turn_around(struct xdp_md* ctx, const struct arrival* arrival, uint32_t bytes,
                       const addend_frame_header* frame) {
  uint8_t* data = (uint8_t*)(long)ctx->data;
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  struct ethhdr* eth = (struct ethhdr*)data;
  struct udphdr* udp;
  uint8_t mac[6];
  const uint16_t l4_bytes = (uint16_t)(bytes + sizeof(*udp));
  if ((const uint8_t*)(eth + 1) > end) return -1;
  __builtin_memcpy(mac, eth->h_dest, 6);
  __builtin_memcpy(eth->h_dest, eth->h_source, 6);
  __builtin_memcpy(eth->h_source, mac, 6);
  if (arrival->is_v6) {
    struct ipv6hdr* ip = (struct ipv6hdr*)(eth + 1);
    udp = (struct udphdr*)(ip + 1);
    if ((const uint8_t*)(udp + 1) + ADDEND_FRAME_HEADER_BYTES > end) return -1;
    ip->payload_len = bpf_htons(l4_bytes);
    ip->hop_limit = 64;
    __builtin_memcpy(&ip->saddr, arrival->to, 16);
    __builtin_memcpy(&ip->daddr, arrival->from, 16);
  } else {
    struct iphdr* ip = (struct iphdr*)(eth + 1);
    udp = (struct udphdr*)(ip + 1);
    if ((const uint8_t*)(udp + 1) + ADDEND_FRAME_HEADER_BYTES > end) return -1;
    ip->tos = 0;
    ip->tot_len = bpf_htons((uint16_t)(l4_bytes + sizeof(*ip)));
    ip->id = 0;
    ip->frag_off = bpf_htons(DO_NOT_FRAGMENT);
    ip->ttl = 64;
    ip->saddr = (uint32_t)(arrival->to[1] >> 32);
    ip->daddr = (uint32_t)(arrival->from[1] >> 32);
    finish_ipv4(ip);
  }
  udp->source = arrival->to_port;
  udp->dest = arrival->from_port;
  udp->len = bpf_htons(l4_bytes);
  udp->check = 0; /* IPv4: none, the tag covers more */
  __builtin_memcpy(udp + 1, frame, ADDEND_FRAME_HEADER_BYTES);
  return 0;
}

/* IPv6 datagrams need a checksum. */
INLINE int finish_ipv6(struct xdp_md* ctx, uint32_t bytes) {
  const uint32_t at = sizeof(struct ethhdr) + sizeof(struct ipv6hdr);
  const uint32_t l4_bytes = bytes + (uint32_t)sizeof(struct udphdr);
  uint64_t sum = sum_words(ctx, at, l4_bytes);
  uint8_t* data = (uint8_t*)(long)ctx->data;
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  struct ipv6hdr* ip = (struct ipv6hdr*)(data + sizeof(struct ethhdr));
  struct udphdr* udp = (struct udphdr*)(ip + 1);
  if ((const uint8_t*)(udp + 1) > end) return -1;
  const uint32_t* addresses = (const uint32_t*)&ip->saddr;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    sum += addresses[i];
  sum += bpf_htonl(l4_bytes) + (uint64_t)bpf_htonl(IPPROTO_UDP);
  const uint16_t check = fold_checksum(sum);
  udp->check = check == 0 ? 0xFFFF : check;
  return 0;
}
