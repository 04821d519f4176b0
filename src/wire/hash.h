/* SPDX-License-Identifier: Apache-2.0
 * The hash family of the sketch and of derived seeds. Plain C for g++, nvcc and clang-bpf; changing
 * it changes the format. */
#pragma once

#include <stdint.h>

#include "wire/half.h"

/* A bijective 64-bit finaliser with full avalanche (the constants are those of splitmix64, public
 * domain). */
ADDEND_HOST_DEVICE static inline uint64_t addend_mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 31;
  return x;
}

/* The i-th number of the stream that `seed` names: random access, no state. */
ADDEND_HOST_DEVICE static inline uint64_t addend_random(uint64_t seed, uint64_t i) {
  return addend_mix64(seed + (i + 1u) * 0x9E3779B97F4A7C15ull);
}

/* Maps 32 random bits to [0, range) without division. */
ADDEND_HOST_DEVICE static inline uint32_t addend_reduce32(uint32_t random, uint32_t range) {
  return (uint32_t)(((uint64_t)random * range) >> 32);
}
