// SPDX-License-Identifier: Apache-2.0
// How a table of kernels becomes a part of libaddend_cuda.so: no file knows of all of them.
#pragma once

#include <cstdint>

namespace addend::cuda {

struct Part {
  const char* name;
  uint32_t version;
  uint64_t bytes;
  const void* table;
  const Part* next;

  static const Part*& first();
};

template <typename Table>
struct Registered {
  explicit Registered(const Table& table)
      : part{Table::kPart, Table::kVersion, sizeof(Table), &table, Part::first()} {
    Part::first() = &part;
  }
  Part part;
};

}  // namespace addend::cuda

/// At the end of a .cu file: `table` is a constant of type Table.
#define ADDEND_CUDA_PART(Table, table) static const ::addend::cuda::Registered<Table> part_(table)
