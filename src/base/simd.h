// SPDX-License-Identifier: Apache-2.0
// How kernels ask whether the scalar reference was forced; Highway dispatches among the rest.
#pragma once

#include <atomic>

namespace addend {

/// Process-wide, because Highway's own choice of target is; written by force_simd_target alone.
extern std::atomic<bool> g_scalar_forced;

inline bool scalar_forced() { return g_scalar_forced.load(std::memory_order_relaxed); }

}  // namespace addend
