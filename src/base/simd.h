// SPDX-License-Identifier: Apache-2.0
// How kernels ask whether the scalar reference was forced; Highway dispatches among the rest.
// Included before Highway by every file with kernels, so that all of them have the same targets:
// one that lacked the target that was forced would run on the oldest.
#pragma once

#include <atomic>

#define HWY_WANT_AVX3_DL 1

namespace addend {

/// Process-wide, because Highway's own choice of target is; written by force_simd_target alone.
extern std::atomic<bool> g_scalar_forced;

inline bool scalar_forced() { return g_scalar_forced.load(std::memory_order_relaxed); }

}  // namespace addend
