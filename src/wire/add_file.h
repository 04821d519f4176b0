/* SPDX-License-Identifier: Apache-2.0
 * The .add container: a sum of compressed gradients with the plan they share.
 * docs/formats/add-file.md has the words.
 *
 *   header | shape (dims x u64) | plane table (planes x addend_add_file_plane)
 *     | plan | payloads | checksum (u64)
 *
 * Little endian. The plan and each payload are followed by zero bytes up to the next multiple of 8.
 * The checksum is XXH3-64 (seed 0) of everything before it. */
#pragma once

#include <stdint.h>

/* A first byte above 127 and both kinds of line end, so that text tools and text-mode transfers
 * show at once. */
#define ADDEND_ADD_FILE_MAGIC "\211ADD\r\n\032\n"
#define ADDEND_ADD_FILE_MAGIC_BYTES 8
#define ADDEND_ADD_FILE_VERSION 1
#define ADDEND_ADD_FILE_ALIGNMENT 8
#define ADDEND_ADD_FILE_CHECKSUM_BYTES 8
#define ADDEND_ADD_FILE_MAX_DIMS 64
#define ADDEND_ADD_FILE_MAX_PLANES 4

typedef struct addend_add_file_header {
  uint8_t magic[ADDEND_ADD_FILE_MAGIC_BYTES];
  uint32_t version;
  uint32_t flags;            /* none defined: 0 */
  uint64_t file_bytes;       /* whole file, checksum included */
  uint32_t contributors;     /* gradients in this sum: 1 to max_contributors */
  uint32_t max_contributors; /* most that may ever be added */
  uint32_t plan_bytes;       /* without padding */
  uint32_t dims;
  uint32_t planes;
  uint32_t reserved; /* 0 */
} addend_add_file_header;

typedef struct addend_add_file_plane {
  uint32_t op;       /* addend_op, not a table sum */
  uint32_t reserved; /* 0 */
  uint64_t lanes;
} addend_add_file_plane;
