// SPDX-License-Identifier: Apache-2.0
// How workers that know each other's addresses come to have one connection to each other.
//
// Worker w listens at its address, connects to the workers before it and waits for those behind it.
// The connecting side introduces itself, the other answers; both check that they mean the same
// group. Whoever else connects is dropped, and nobody waits for it.
#pragma once

#include <vector>

#include "addend/reduce.h"
#include "net/descriptor.h"

namespace addend::mesh {

/// A connected, non-blocking socket to every other worker, by worker; none for our own.
Result<std::vector<net::Descriptor>> meet(const MeshOptions& options);

}  // namespace addend::mesh
