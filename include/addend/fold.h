// SPDX-License-Identifier: Apache-2.0
// The arithmetic of planes: everything an adder has to know. No codec stands behind it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "addend/plane.h"
#include "addend/result.h"

namespace addend {

/// acc[i] = acc[i] (op) in[i] for `lanes` lanes. REQUIRES: not a table sum; buffers do not overlap
/// unless equal; natural alignment of the lane type. Thread-safe on distinct accumulators.
/// docs/formats/planes.md defines each operation.
void fold(Op op, void* acc, const void* in, uint64_t lanes) noexcept;

/// acc[i] += table[index i] for `lanes` lanes, where `indices` holds two 4-bit indices a byte, even
/// lane in the low nibble. `op` is kTableSumU8 (acc and table are u8) or kTableSumU16 (u16), or a
/// narrow sum, whose indices have its own width and whose sums grow in u16 lanes (the table is u8)
/// until narrow_sums. Wraps: the planner picks tables that cannot.
void fold_table(Op op, void* acc, const uint8_t* indices, const void* table,
                uint64_t lanes) noexcept;

/// Sums that fold_table has made of all workers' lanes, as they travel back: op_sum_bytes(op,
/// lanes) bytes at `out`. A function of the sums alone, whatever order they grew in. REQUIRES: a
/// narrow sum.
void narrow_sums(Op op, const uint16_t* sums, uint64_t lanes, uint8_t* out) noexcept;

/// The same as fold_table for `sources` workers' indices at once: the accumulator is read and
/// written once instead of once a worker. Of narrow sums `acc` becomes the sums of these sources,
/// whatever it was, as they travel back.
void fold_tables(Op op, void* acc, const uint8_t* const* indices, std::size_t sources,
                 const void* table, uint64_t lanes) noexcept;

/// fold and fold_tables where the memory is a CUDA device's, enqueued on `stream`; `table` and the
/// array of pointers are the host's. The same bytes, NaN payloads aside. kUnsupported where there
/// is no device.
Status fold_on_device(Op op, void* acc, const void* in, uint64_t lanes, void* stream);
Status fold_tables_on_device(Op op, void* acc, const uint8_t* const* indices, std::size_t sources,
                             const void* table, uint64_t lanes, void* stream);

/// Folds plane `in` into plane `acc`; refuses planes of different operation or length, and table
/// sums.
Status fold(Plane& acc, const Plane& in);

}  // namespace addend
