// SPDX-License-Identifier: Apache-2.0
// One group over several that have the same workers: each of them folds a share of every round, all
// at the same time, so that what they carry adds up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "addend/reduce.h"

namespace addend {

/// A group, and what it is called in errors.
struct SpreadPart {
  std::string name;
  std::unique_ptr<Reducer> reducer;
};

/// REQUIRES: at least one, all of one world and worker. kUnsupported with a quorum: the groups
/// would each go on without workers of their own choice. A part that fails interrupts the others,
/// and nothing works any more; the error names it.
Result<std::unique_ptr<Reducer>> create_spread_reducer(std::vector<SpreadPart> parts);

/// Share number `i` of `shares`: lanes of every plane, next to those of the share before. A
/// function of the planes' operations and lengths alone, so the same on all workers. Small planes
/// belong to the last share. Shares begin at multiples of 4096 lanes, where bytes of every
/// operation do.
Round share_of(const Round& round, std::size_t i, std::size_t shares);

}  // namespace addend
