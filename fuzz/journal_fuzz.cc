// SPDX-License-Identifier: Apache-2.0
// Any bytes as a server's saved jobs. A checksum refuses nearly all of them, so the input's own is
// also put right: what is taken then survives being written and read once more.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "fuzz/input.h"
#include "service/journal.h"

namespace {

void check(std::span<const uint8_t> bytes) {
  const auto jobs = addend::service::decode_jobs(bytes);
  if (!jobs) return;
  const std::vector<uint8_t> once = addend::service::encode_jobs(*jobs);
  const auto again = addend::service::decode_jobs(once);
  addend::fuzz::require(again.has_value() && again->size() == jobs->size());
  addend::fuzz::require(addend::service::encode_jobs(*again) == once);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check({data, size});
  if (size < sizeof(uint64_t)) return 0;
  std::vector<uint8_t> bytes(data, data + size);
  const uint64_t right =
      addend::service::checksum_of(std::span(bytes).first(size - sizeof(uint64_t)));
  std::copy_n(reinterpret_cast<const uint8_t*>(&right), sizeof(right), bytes.end() - sizeof(right));
  check(bytes);
  return 0;
}
