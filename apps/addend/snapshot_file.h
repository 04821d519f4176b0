// SPDX-License-Identifier: Apache-2.0
// An .add file as its plan explains it. Only for commands that encode or decode: `addend add` does
// without.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "addend/file.h"
#include "addend/result.h"
#include "addend/snapshot.h"

namespace addend::cli {

struct SnapshotFile {
  SnapshotPlan plan;
  std::vector<uint64_t> shape;
  uint32_t contributors = 1;
  Snapshot snapshot;
};

/// Reads a file and makes sure that plan, shape and planes agree.
Result<SnapshotFile> read_snapshot_file(const std::string& path);

}  // namespace addend::cli
