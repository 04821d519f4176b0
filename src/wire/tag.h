/* SPDX-License-Identifier: Apache-2.0
 * The tag that authenticates a frame: a universal hash of the payload, then a pseudo-random
 * function of header and hash. docs/formats/protocol.md, "Authentication". Plain C for g++ and
 * clang-bpf, 32 x 32 -> 64 bit products only; the scalar reference of src/auth's kernel. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ADDEND_TAG_HEADER_WORDS 4 /* 64-bit words of the header that the tag covers */
#define ADDEND_TAG_SHIFT_WORDS 4  /* 32-bit words between the keys of the two hashes */

/* Words of hash key that a payload needs. */
#define ADDEND_TAG_HASH_WORDS(payload_bytes) \
  (((payload_bytes) + 7u) / 8u * 2u + ADDEND_TAG_SHIFT_WORDS)

/* One pair of words (little endian) of the payload under one pair of key words. */
static inline uint64_t addend_tag_hash_pair(uint64_t pair, const uint32_t* key) {
  const uint32_t low = (uint32_t)pair + key[0];
  const uint32_t high = (uint32_t)(pair >> 32) + key[1];
  return (uint64_t)low * high;
}

typedef struct addend_sip_state {
  uint64_t v0, v1, v2, v3;
} addend_sip_state;

static inline uint64_t addend_rotate64(uint64_t x, int bits) {
  return x << bits | x >> (64 - bits);
}

static inline void addend_sip_round(addend_sip_state* s) {
  s->v0 += s->v1;
  s->v2 += s->v3;
  s->v1 = addend_rotate64(s->v1, 13) ^ s->v0;
  s->v3 = addend_rotate64(s->v3, 16) ^ s->v2;
  s->v0 = addend_rotate64(s->v0, 32);
  s->v2 += s->v1;
  s->v0 += s->v3;
  s->v1 = addend_rotate64(s->v1, 17) ^ s->v2;
  s->v3 = addend_rotate64(s->v3, 21) ^ s->v0;
  s->v2 = addend_rotate64(s->v2, 32);
}

/* SipHash-2-4 of `count` 64-bit words (Aumasson and Bernstein, 2012). */
static inline uint64_t addend_siphash(const uint64_t key[2], const uint64_t* words,
                                      uint32_t count) {
  addend_sip_state s = {key[0] ^ 0x736F6D6570736575ull, key[1] ^ 0x646F72616E646F6Dull,
                        key[0] ^ 0x6C7967656E657261ull, key[1] ^ 0x7465646279746573ull};
  for (uint32_t i = 0; i <= count; ++i) {
    const uint64_t word = i < count ? words[i] : (uint64_t)count * 8u << 56;
    s.v3 ^= word;
    addend_sip_round(&s);
    addend_sip_round(&s);
    s.v0 ^= word;
  }
  s.v2 ^= 0xFF;
  for (int i = 0; i < 4; ++i)
    addend_sip_round(&s);
  return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

/* The tag, given the first 32 bytes of the header as they travel (four little endian words) and the
 * payload's two hashes. */
static inline uint64_t addend_tag_finish(const uint64_t key[2], const uint64_t header[4],
                                         uint64_t hash0, uint64_t hash1) {
  const uint64_t words[ADDEND_TAG_HEADER_WORDS + 2] = {header[0], header[1], header[2],
                                                       header[3], hash0,     hash1};
  return addend_siphash(key, words, ADDEND_TAG_HEADER_WORDS + 2);
}

#ifdef __cplusplus
}
#endif
