// SPDX-License-Identifier: Apache-2.0
// Where kernels come from: libaddend_cuda.so, loaded the first time that somebody asks for a
// device. It is looked for beside the file that this code is in, then where the system looks for
// libraries. Once loaded it stays.
#pragma once

#include <cstdint>

#include "addend/result.h"
#include "cuda/runtime.h"

namespace addend::cuda {

/// The named table of the library. kUnsupported where there is no library, or one of another
/// version.
Result<const void*> find_part(const char* name, uint32_t version, uint64_t bytes);

template <typename Table>
Result<const Table*> part() {
  const Result<const void*> found = find_part(Table::kPart, Table::kVersion, sizeof(Table));
  ADDEND_TRY(found);
  return static_cast<const Table*>(*found);
}

/// The runtime, once it was seen to have a device: kUnsupported says why it has none.
Result<const RuntimeTable*> runtime();

/// What a code of the runtime means, `doing` being what failed.
Status check(const RuntimeTable& runtime, int code, const char* doing);

}  // namespace addend::cuda
