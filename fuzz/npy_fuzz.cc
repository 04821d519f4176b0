// SPDX-License-Identifier: Apache-2.0
// parse_npy on any bytes: what it accepts agrees with the bytes that were there, and its header
// survives being written.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "addend/file.h"
#include "file/npy_header.h"
#include "file/shape.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto array = addend::parse_npy(std::span(data, size));
  if (!array) return 0;
  require(addend::file::element_count(array->shape) == array->count);
  require(array->count * addend::dtype_bytes(array->dtype) <= size);
  require(array->storage.size() <= size / 8 + 1);

  const std::string text = addend::file::format_npy_header(array->dtype, array->shape);
  const auto header = addend::file::parse_npy_header(text);
  require(header.has_value());
  require(header->dtype == array->dtype && header->shape == array->shape);
  require(!header->fortran_order);
  return 0;
}
