// SPDX-License-Identifier: Apache-2.0
// What mesh and hauler do with sockets alike.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <span>

#include <time.h>

#include "addend/result.h"

namespace addend {

/// Makes a connected socket to every rank but `rank` non-blocking and prompt.
Status prepare_sockets(std::span<const int> sockets, uint32_t rank);

inline bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

timespec to_timespec(std::chrono::nanoseconds time);

}  // namespace addend
