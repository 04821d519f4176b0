// SPDX-License-Identifier: Apache-2.0
// The text inside a .npy file: a Python dictionary with the keys descr, fortran_order and shape.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "addend/plane.h"
#include "addend/result.h"

namespace addend::file {

struct NpyHeader {
  DType dtype = DType::kF32;
  bool fortran_order = false;
  std::vector<uint64_t> shape;
};

/// Reads just the literals that NumPy writes, not Python. kMalformed where it is no such
/// dictionary, kUnsupported (by name) for a dtype that is no gradient.
Result<NpyHeader> parse_npy_header(std::string_view text);

/// The dictionary as NumPy writes it, in C order and without padding.
std::string format_npy_header(DType dtype, std::span<const uint64_t> shape);

}  // namespace addend::file
