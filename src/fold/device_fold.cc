// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "addend/fold.h"
#include "cuda/memory.h"
#include "fold/fold_kernels.h"

namespace addend {

Status fold_on_device(Op op, void* acc, const void* in, uint64_t lanes, void* stream) {
  if (is_table_sum(op)) {
    return make_error(Errc::kInvalidArgument,
                      "a table sum has another width than its input: use fold_tables_on_device");
  }
  const auto device = cuda::Device::of(stream);
  ADDEND_TRY(device);
  const auto kernels = cuda::part<FoldKernels>();
  ADDEND_TRY(kernels);
  const cuda::OnDevice here(*device);
  return device->check((*kernels)->fold(op, acc, in, lanes, stream), "a fold");
}

Status fold_tables_on_device(Op op, void* acc, const uint8_t* const* indices, std::size_t sources,
                             const void* table, uint64_t lanes, void* stream) {
  if (!is_table_sum(op)) return make_error(Errc::kInvalidArgument, "not a table sum");
  if (is_narrow_sum(op)) {
    return make_error(Errc::kUnsupported,
                      std::string(op_name(op)) + " is not added on a device yet");
  }
  const auto device = cuda::Device::of(stream);
  ADDEND_TRY(device);
  const auto kernels = cuda::part<FoldKernels>();
  ADDEND_TRY(kernels);
  const cuda::OnDevice here(*device);
  for (std::size_t first = 0; first < sources; first += FoldKernels::kMaxSources) {
    const auto some =
        static_cast<uint32_t>(std::min<std::size_t>(sources - first, FoldKernels::kMaxSources));
    ADDEND_TRY(device->check(
        (*kernels)->fold_tables(op, acc, indices + first, some, table, lanes, stream), "a fold"));
  }
  return {};
}

}  // namespace addend
