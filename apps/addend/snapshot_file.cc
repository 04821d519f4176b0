// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/snapshot_file.h"

#include <functional>
#include <numeric>
#include <utility>

namespace addend::cli {

Result<SnapshotFile> read_snapshot_file(const std::string& path) {
  auto file = read_add_file(path);
  if (!file) return file.error();
  auto plan = SnapshotPlan::parse(file->plan);
  if (!plan) return make_error(plan.error().code, path + ": " + plan.error().message);
  // The file module has checked that this product does not overflow.
  const uint64_t count =
      std::accumulate(file->shape.begin(), file->shape.end(), uint64_t{1}, std::multiplies<>());
  if (count != plan->count || file->max_contributors != plan->contributors) {
    return make_error(Errc::kMalformed, path + ": corrupted: the header contradicts the plan");
  }
  if (const Status shape = check_snapshot(*plan, file->planes); !shape) {
    return make_error(shape.error().code, path + ": corrupted: " + shape.error().message);
  }
  SnapshotFile out;
  out.plan = std::move(*plan);
  out.shape = std::move(file->shape);
  out.contributors = file->contributors;
  out.snapshot.storage = std::move(file->storage);
  out.snapshot.planes = file->planes;
  return out;
}

}  // namespace addend::cli
