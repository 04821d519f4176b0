// SPDX-License-Identifier: Apache-2.0
// parse_add_file on any bytes, as they are and with magic, version, length and checksum put right,
// so that the fuzzer reaches what stands behind them. What is accepted must be written back byte
// for byte, and must fold with itself.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "addend/file.h"
#include "wire/add_file.h"

namespace {

using Bytes = std::vector<uint8_t>;

void require(bool condition) {
  if (!condition) std::abort();
}

/// REQUIRES: room for a header and a checksum.
void put_right(Bytes& bytes) {
  addend_add_file_header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::memcpy(header.magic, ADDEND_ADD_FILE_MAGIC, sizeof(header.magic));
  header.version = ADDEND_ADD_FILE_VERSION;
  header.file_bytes = bytes.size();
  std::memcpy(bytes.data(), &header, sizeof(header));
  const size_t body = bytes.size() - ADDEND_ADD_FILE_CHECKSUM_BYTES;
  const uint64_t checksum = XXH3_64bits(bytes.data(), body);
  std::memcpy(bytes.data() + body, &checksum, sizeof(checksum));
}

void check(std::span<const uint8_t> bytes) {
  auto parsed = addend::parse_add_file(bytes);
  if (!parsed) return;
  const Bytes written = addend::serialize_add_file(*parsed);
  require(std::equal(written.begin(), written.end(), bytes.begin(), bytes.end()));

  auto sum = addend::parse_add_file(written);
  require(sum.has_value());
  const auto folded = addend::fold_files(*sum, *parsed);
  if (folded) {
    require(sum->contributors == 2 * parsed->contributors);
    require(addend::parse_add_file(addend::serialize_add_file(*sum)).has_value());
  } else {
    require(folded.error().code == addend::Errc::kCapacity);
    require(addend::serialize_add_file(*sum) == written);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check(std::span(data, size));
  if (size < sizeof(addend_add_file_header) + ADDEND_ADD_FILE_CHECKSUM_BYTES) return 0;
  Bytes bytes(data, data + size);
  put_right(bytes);
  check(bytes);
  return 0;
}
