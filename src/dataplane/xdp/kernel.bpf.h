/* SPDX-License-Identifier: Apache-2.0
 * What every part of the driver's program begins with. Functions that are not static are verified
 * on their own: the verifier's work is then the sum, not the product, of their paths. Every loop
 * has a bound, as kernels before 5.17 want it. */
#pragma once

/* The kernel's types come first. */
/* clang-format off */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
/* clang-format on */

#include "dataplane/xdp/layout.h"

#define INLINE static __attribute__((always_inline)) inline
#define ALONE __attribute__((noinline)) /* verified on its own */
/* Keeps the compiler from inventing pointers of its own, which the verifier would not know. */
#define FIX(variable) __asm__ volatile("" : "+r"(variable))
#define CHUNK ADDEND_XDP_CHUNK_BYTES
#define CHUNKS (ADDEND_XDP_PAYLOAD_BYTES / CHUNK)
#define MOST_AT 128 /* no frame begins further into a packet */
