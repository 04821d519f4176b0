/* SPDX-License-Identifier: Apache-2.0
 * What the driver's program does with a payload: hash it, fold it into a bank, write a bank's sums
 * in its place. */
#pragma once

#include "dataplane/xdp/kernel.bpf.h"

/* What a tag is made of: the header's first words as they travel, then the payload's hashes. */
struct tagged {
  uint64_t words[ADDEND_TAG_HEADER_WORDS + 2];
};

/* In this order and no other: a core has ten registers here, and what the compiler would rather
 * keep for later lands in memory. */
#define READ(pointer) (*(const volatile uint32_t*)(pointer))
#define HASH_PAIR(low, high, k)                                             \
  {                                                                         \
    const uint32_t first = (low), second = (high);                          \
    h0 += (uint64_t)(first + READ(k)) * (uint32_t)(second + READ((k) + 1)); \
    h1 += (uint64_t)(first + READ((k) + ADDEND_TAG_SHIFT_WORDS)) *          \
          (uint32_t)(second + READ((k) + ADDEND_TAG_SHIFT_WORDS + 1));      \
    FIX(h0);                                                                \
    FIX(h1);                                                                \
  }

/* The last bytes of a payload, fewer than 8, as the little endian number they begin. */
INLINE int read_tail(const uint8_t* p, const uint8_t* end, uint32_t left, uint64_t* pair) {
  *pair = 0;
  for (uint32_t i = 0; i < 7; ++i) {
    if (i >= left) break;
    if (p + i + 1 > end) return -1;
    *pair |= (uint64_t)p[i] << (8 * i);
  }
  return 0;
}

/* A pair of payload words, at byte `at` of r0, under the key words at byte `at` of r1; r2 and r3
 * are h0 and h1. The second hash's keys of a pair are the first hash's of the next but one, so each
 * is read once and stays in a register, number `a` or `b`, until then. By hand, because that takes
 * all ten registers, and a compiler that lacks one goes through memory. */
/* clang-format off */
#define HASH_NEXT(at, a, b)                 \
  "r8 = *(u32 *)(r0 + " #at ")\n"           \
  "r9 = *(u32 *)(r0 + " #at " + 4)\n"       \
  "w" #a " += w8\n"                         \
  "w" #b " += w9\n"                         \
  "r" #a " *= r" #b "\n"                    \
  "r2 += r" #a "\n"                         \
  "r" #a " = *(u32 *)(r1 + " #at " + 16)\n" \
  "r" #b " = *(u32 *)(r1 + " #at " + 20)\n" \
  "w8 += w" #a "\n"                         \
  "w9 += w" #b "\n"                         \
  "r8 *= r9\n"                              \
  "r3 += r8\n"
#define HASH_CHUNK                                                                            \
  HASH_NEXT(0, 4, 5) HASH_NEXT(8, 6, 7) HASH_NEXT(16, 4, 5) HASH_NEXT(24, 6, 7)               \
  HASH_NEXT(32, 4, 5) HASH_NEXT(40, 6, 7) HASH_NEXT(48, 4, 5) HASH_NEXT(56, 6, 7)             \
  HASH_NEXT(64, 4, 5) HASH_NEXT(72, 6, 7) HASH_NEXT(80, 4, 5) HASH_NEXT(88, 6, 7)             \
  HASH_NEXT(96, 4, 5) HASH_NEXT(104, 6, 7) HASH_NEXT(112, 4, 5) HASH_NEXT(120, 6, 7)
/* clang-format on */
_Static_assert(CHUNK == 128 && ADDEND_TAG_SHIFT_WORDS * 4 == 16, "HASH_CHUNK says so");

/* The two hashes of a contribution's payload at offset `at`. */
ALONE int hash_payload(struct xdp_md* ctx, uint32_t at, uint32_t length, const addend_xdp_key* key,
                       struct tagged* out) {
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  const uint8_t* p = (const uint8_t*)(long)ctx->data;
  uint64_t h0 = 0, h1 = 0, pair;
  if (!key || !out || at > MOST_AT || length > ADDEND_XDP_PAYLOAD_BYTES) return -1;
  const uint32_t* k = key->hash;
  uint64_t k0 = k[0], k1 = k[1], k2 = k[2], k3 = k[3];
  p += at;
  for (uint32_t i = 0; i < CHUNKS && i < length / CHUNK; ++i) {
    FIX(end);
    FIX(p);
    FIX(k);
    if (p + CHUNK > end) return -1;
    register const uint8_t* r0 __asm__("r0") = p;
    register const uint32_t* r1 __asm__("r1") = k;
    register uint64_t r2 __asm__("r2") = h0, r3 __asm__("r3") = h1;
    register uint64_t r4 __asm__("r4") = k0, r5 __asm__("r5") = k1;
    register uint64_t r6 __asm__("r6") = k2, r7 __asm__("r7") = k3;
    __asm__ volatile(HASH_CHUNK
                     : "+r"(r2), "+r"(r3), "+r"(r4), "+r"(r5), "+r"(r6), "+r"(r7)
                     : "r"(r0), "r"(r1)
                     : "r8", "r9", "memory");
    h0 = r2, h1 = r3, k0 = r4, k1 = r5, k2 = r6, k3 = r7;
    p += CHUNK;
    k += CHUNK / 4;
  }
  length %= CHUNK;
  for (uint32_t i = 0; i < CHUNK / 8 - 1 && length >= 8; ++i) {
    FIX(end);
    FIX(p);
    if (p + 8 > end) return -1;
    const uint32_t* words = (const uint32_t*)p;
    HASH_PAIR(words[0], words[1], k);
    p += 8;
    k += 2;
    length -= 8;
  }
  if (length > 0) {
    if (read_tail(p, end, length, &pair) != 0) return -1;
    HASH_PAIR((uint32_t)pair, (uint32_t)(pair >> 32), k);
  }
  out->words[ADDEND_TAG_HEADER_WORDS] = h0;
  out->words[ADDEND_TAG_HEADER_WORDS + 1] = h1;
  return 0;
}

ALONE uint64_t tag_of(const addend_xdp_key* key, const struct tagged* tagged) {
  if (!key || !tagged) return 0;
  return addend_siphash(key->prf, tagged->words, ADDEND_TAG_HEADER_WORDS + 2);
}

/* Lanes side by side in 64 bits, which must not carry into each other. */
INLINE uint64_t add_lanes(uint64_t a, uint64_t b, uint64_t tops) {
  return ((a & ~tops) + (b & ~tops)) ^ ((a ^ b) & tops);
}
INLINE uint64_t max_lanes(uint64_t a, uint64_t b) {
  const uint32_t a0 = (uint32_t)a, b0 = (uint32_t)b, a1 = a >> 32, b1 = b >> 32;
  return (uint64_t)(a1 > b1 ? a1 : b1) << 32 | (a0 > b0 ? a0 : b0);
}
#define TOPS_8 0x8080808080808080ull
#define TOPS_16 0x8000800080008000ull
#define TOPS_32 0x8000000080000000ull

INLINE uint64_t fold_word(uint32_t op, uint64_t a, uint64_t b) {
  switch (op) {
    case ADDEND_OP_SUM_I32:
      return add_lanes(a, b, TOPS_32);
    case ADDEND_OP_SUM_I64:
      return a + b;
    case ADDEND_OP_SUM_U8:
      return add_lanes(a, b, TOPS_8);
    case ADDEND_OP_SUM_U16:
      return add_lanes(a, b, TOPS_16);
    case ADDEND_OP_OR_U64:
      return a | b;
    default:
      return max_lanes(a, b);
  }
}

/* Whole chunks, `type` by `type`, `expression` of the lanes a and b. */
#define FOLD_CHUNKS(type, expression)                                       \
  for (uint32_t i = 0; i < CHUNKS && length >= CHUNK; ++i) {                \
    FIX(end);                                                               \
    FIX(p);                                                                 \
    FIX(acc);                                                               \
    if (p + CHUNK > end) return -1;                                         \
    type* sums = (type*)acc;                                                \
    const type* lanes = (const type*)p;                                     \
    _Pragma("unroll") for (int j = 0; j < CHUNK / (int)sizeof(type); ++j) { \
      const type a = sums[j], b = lanes[j];                                 \
      sums[j] = (expression);                                               \
    }                                                                       \
    p += CHUNK;                                                             \
    acc += CHUNK / 8;                                                       \
    length -= CHUNK;                                                        \
  }

#define FIRST 0x100u /* in place of an operation: overwrite */

/* Folds the whole chunks of a payload of `length` bytes at offset `at` into a bank; `how` is the
 * operation or FIRST, and the bank in bit 16. Not for table sums. */
ALONE int fold_chunks(struct xdp_md* ctx, uint32_t at, uint32_t length, addend_xdp_slot* slot,
                      uint32_t how) {
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  const uint8_t* p = (const uint8_t*)(long)ctx->data;
  if (!slot || at > MOST_AT || length > ADDEND_XDP_PAYLOAD_BYTES) return -1;
  uint64_t* acc = slot->sums[how >> 16 & 1];
  const uint32_t op = how & 0xFFFF;
  p += at;
  if (op == FIRST) {
    FOLD_CHUNKS(uint64_t, ((void)a, b))
  } else if (op == ADDEND_OP_SUM_I32) {
    FOLD_CHUNKS(uint32_t, a + b)
  } else if (op == ADDEND_OP_OR_U64) {
    FOLD_CHUNKS(uint64_t, a | b)
  } else if (op == ADDEND_OP_SUM_I64) {
    FOLD_CHUNKS(uint64_t, a + b)
  } else if (op == ADDEND_OP_SUM_U8) {
    FOLD_CHUNKS(uint64_t, add_lanes(a, b, TOPS_8))
  } else if (op == ADDEND_OP_SUM_U16) {
    FOLD_CHUNKS(uint64_t, add_lanes(a, b, TOPS_16))
  } else {
    FOLD_CHUNKS(uint32_t, a > b ? a : b)
  }
  return 0;
}

/* Folds what the chunks left over, fewer than CHUNK bytes. Sums are whole words, whatever the
 * length: what lies behind it is nobody's. */
ALONE int fold_rest(struct xdp_md* ctx, uint32_t at, uint32_t length, addend_xdp_slot* slot,
                    uint32_t how) {
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  const uint8_t* p = (const uint8_t*)(long)ctx->data;
  uint64_t pair;
  if (!slot || at > MOST_AT || length > ADDEND_XDP_PAYLOAD_BYTES) return -1;
  const uint32_t done = length & ~(CHUNK - 1u), op = how & 0xFFFF;
  uint64_t* acc = slot->sums[how >> 16 & 1] + done / 8;
  length &= CHUNK - 1u;
  p += at + done;
  for (uint32_t i = 0; i < CHUNK / 8 && length >= 8; ++i) {
    FIX(end);
    FIX(p);
    if (p + 8 > end) return -1;
    *acc = op == FIRST ? *(const uint64_t*)p : fold_word(op, *acc, *(const uint64_t*)p);
    p += 8;
    acc += 1;
    length -= 8;
  }
  if (length > 0) {
    if (read_tail(p, end, length, &pair) != 0) return -1;
    *acc = op == FIRST ? pair : fold_word(op, *acc, pair);
  }
  return 0;
}

/* The same for table sums: `how` has the table's number in its low bits, FIRST, WIDE for lanes of
 * 16 bits, and the bank. Two lanes a byte, so half or a quarter of a payload comes in; 8 bytes at
 * once, then one by one. */
#define WIDE 0x200u
#define INDICES 8
ALONE int fold_table(struct xdp_md* ctx, uint32_t at, addend_xdp_slot* slot,
                     const addend_xdp_job* job, uint32_t how) {
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  const uint8_t* p = (const uint8_t*)(long)ctx->data;
  if (!slot || !job || at > MOST_AT) return -1;
  const addend_xdp_table* table = &job->tables[how & (ADDEND_MAX_JOB_TABLES - 1)];
  const uint32_t bank = how >> 16 & 1;
  const uint64_t keep = (how & FIRST) ? 0 : ~0ull;
  const uint32_t width = (how & WIDE) ? 4 : 2; /* bytes of sums for each that comes in */
  uint32_t left = slot->banks[bank].length;
  /* Bytes of sums. Bounded by itself: Linux 6.1 does not see that `width` and WIDE go together. */
  uint64_t done = 0;
  p += at;
  for (uint32_t i = 0; i < ADDEND_XDP_PAYLOAD_BYTES / 2 / INDICES && left >= INDICES; ++i) {
    FIX(end);
    FIX(p);
    FIX(done);
    if (p + INDICES > end || done > sizeof(slot->sums[0]) - INDICES * 4) return -1;
    uint64_t* sums = (uint64_t*)((uint8_t*)slot->sums[bank] + done);
    if (width == 4) {
#pragma unroll
      for (int j = 0; j < INDICES; j += 2) {
        const uint64_t more = table->wide[p[j]] | (uint64_t)table->wide[p[j + 1]] << 32;
        sums[j / 2] = add_lanes(sums[j / 2] & keep, more, TOPS_16);
      }
    } else {
#pragma unroll
      for (int j = 0; j < INDICES; j += 4) {
        const uint64_t more = table->narrow[p[j]] | (uint64_t)table->narrow[p[j + 1]] << 16 |
                              (uint64_t)table->narrow[p[j + 2]] << 32 |
                              (uint64_t)table->narrow[p[j + 3]] << 48;
        sums[j / 4] = add_lanes(sums[j / 4] & keep, more, TOPS_8);
      }
    }
    p += INDICES;
    done += INDICES * width;
    left -= INDICES;
  }
  for (uint32_t i = 0; i < INDICES && left > 0; ++i) {
    FIX(end);
    FIX(p);
    FIX(done);
    if (p + 1 > end || done > sizeof(slot->sums[0]) - 4) return -1;
    uint8_t* acc = (uint8_t*)slot->sums[bank] + done;
    if (width == 4) {
      uint32_t* sum = (uint32_t*)acc;
      *sum = (uint32_t)add_lanes(*sum & keep, table->wide[*p], TOPS_16);
    } else {
      uint16_t* sum = (uint16_t*)acc;
      *sum = (uint16_t)add_lanes(*sum & keep, table->narrow[*p], TOPS_8);
    }
    ++p;
    done += width;
    --left;
  }
  return 0;
}

/* Copies a bank's sums into the packet, whose size they have, and hashes them under way. */
ALONE int write_sums(struct xdp_md* ctx, uint32_t at, const addend_xdp_slot* slot,
                     const addend_xdp_key* key, struct tagged* out) {
  const uint8_t* end = (const uint8_t*)(long)ctx->data_end;
  uint8_t* p = (uint8_t*)(long)ctx->data;
  uint64_t h0 = 0, h1 = 0;
  if (!slot || !key || !out || at > MOST_AT) return -1;
  const uint32_t bank = out->words[ADDEND_TAG_HEADER_WORDS] & 1; /* the caller says which */
  uint32_t length = slot->banks[bank].sum_length;
  const uint64_t* acc = slot->sums[bank];
  const uint32_t* k = key->hash;
  if (length > ADDEND_XDP_PAYLOAD_BYTES) return -1;
  p += at;
  for (uint32_t i = 0; i < CHUNKS && length >= CHUNK; ++i) {
    FIX(end);
    FIX(p);
    FIX(k);
    FIX(acc);
    if (p + CHUNK > end) return -1;
    const uint32_t* sums = (const uint32_t*)acc;
    uint32_t* words = (uint32_t*)p;
#pragma unroll
    for (int j = 0; j < CHUNK / 4; j += 2) {
      const uint32_t low = sums[j], high = sums[j + 1];
      words[j] = low;
      words[j + 1] = high;
      HASH_PAIR(low, high, k + j);
    }
    p += CHUNK;
    acc += CHUNK / 8;
    k += CHUNK / 4;
    length -= CHUNK;
  }
  for (uint32_t i = 0; i < CHUNK / 8 && length >= 8; ++i) {
    FIX(end);
    FIX(p);
    if (p + 8 > end) return -1;
    const uint64_t pair = *acc;
    *(uint64_t*)p = pair;
    HASH_PAIR((uint32_t)pair, (uint32_t)(pair >> 32), k);
    p += 8;
    acc += 1;
    k += 2;
    length -= 8;
  }
  if (length > 0) {
    const uint64_t pair = *acc & (~0ull >> (64 - 8 * (length & 7)));
    for (uint32_t i = 0; i < 7; ++i) {
      if (i >= length) break;
      if (p + i + 1 > end) return -1;
      p[i] = (uint8_t)(pair >> (8 * i));
    }
    HASH_PAIR((uint32_t)pair, (uint32_t)(pair >> 32), k);
  }
  out->words[ADDEND_TAG_HEADER_WORDS] = h0;
  out->words[ADDEND_TAG_HEADER_WORDS + 1] = h1;
  return 0;
}
