// SPDX-License-Identifier: Apache-2.0
// Which instruction set the kernels run on. Part of module `base`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "addend/result.h"

namespace addend {

/// The name of the plain reference implementation; always available.
inline constexpr std::string_view kScalarTarget = "scalar";

/// Targets this build has and this machine can run, best first, "scalar" last ("AVX3_DL", "AVX2",
/// ...).
std::vector<std::string> simd_targets();

/// The target that kernels run on now.
std::string simd_target();

/// Makes every kernel of the process run on the named target; "" returns to the best one. For
/// tests, benchmarks and bug hunts: not to be called while kernels run in other threads.
Status force_simd_target(std::string_view name);

}  // namespace addend
