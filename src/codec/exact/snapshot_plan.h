// SPDX-License-Identifier: Apache-2.0
// The plan of a snapshot as the parts of the exact codec see it.
#pragma once

#include "addend/snapshot.h"
#include "codec/exact/fixed.h"
#include "codec/exact/sketch.h"

namespace addend::exact {

/// REQUIRES: the plan was made by plan_snapshots or accepted by SnapshotPlan::parse, and is not
/// dense.
SketchShape snapshot_shape(const SnapshotPlan& plan);
Fixed snapshot_format(const SnapshotPlan& plan);

}  // namespace addend::exact
