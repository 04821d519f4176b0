// SPDX-License-Identifier: Apache-2.0
#include "addend/fold.h"

#include <string>

#include "base/assert.h"
#include "base/float_environment.h"
#include "base/simd.h"
#include "fold/narrow.h"
#include "fold/reference.h"
#include "fold/simd_kernels.h"

namespace addend {

void fold(Op op, void* acc, const void* in, uint64_t lanes) noexcept {
  ADDEND_ASSERT(!is_table_sum(op));
  if (lanes == 0) return;
  const FloatEnvironment ours;
  if (scalar_forced()) return reference::fold(op, acc, in, lanes);
  simd::fold(op, acc, in, lanes);
}

void fold_table(Op op, void* acc, const uint8_t* indices, const void* table,
                uint64_t lanes) noexcept {
  if (is_narrow_sum(op)) return grow_narrow(op, static_cast<uint16_t*>(acc), indices, table, lanes);
  fold_tables(op, acc, &indices, 1, table, lanes);
}

void fold_tables(Op op, void* acc, const uint8_t* const* indices, std::size_t sources,
                 const void* table, uint64_t lanes) noexcept {
  ADDEND_ASSERT(is_table_sum(op));
  if (lanes == 0) return;
  if (is_narrow_sum(op))
    return fold_narrow(op, static_cast<uint8_t*>(acc), {indices, sources}, table, lanes);
  if (!scalar_forced()) return simd::fold_tables(op, acc, indices, sources, table, lanes);
  for (std::size_t s = 0; s < sources; ++s)
    reference::fold_table(op, acc, indices[s], table, lanes);
}

Status fold(Plane& acc, const Plane& in) {
  if (acc.op != in.op || acc.lanes != in.lanes) {
    return make_error(Errc::kMismatch, std::string("cannot fold ") + std::to_string(in.lanes) +
                                           " lanes of " + op_name(in.op) + " into " +
                                           std::to_string(acc.lanes) + " lanes of " +
                                           op_name(acc.op));
  }
  if (is_table_sum(acc.op)) {
    return make_error(Errc::kInvalidArgument,
                      "a table sum has another width than its input: use fold_table");
  }
  fold(acc.op, acc.data, in.data, acc.lanes);
  return {};
}

}  // namespace addend
