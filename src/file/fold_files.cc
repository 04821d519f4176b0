// SPDX-License-Identifier: Apache-2.0
// Adding files. Everything that can be refused is refused before the first plane is touched.
#include <algorithm>
#include <cstddef>

#include "addend/file.h"
#include "addend/fold.h"

namespace addend {
namespace {

Error mismatch(const std::string& what) { return make_error(Errc::kMismatch, what); }

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + ")";
}

Status check_planes(const AddFile& acc, const AddFile& in) {
  const bool equal =
      std::equal(acc.planes.begin(), acc.planes.end(), in.planes.begin(), in.planes.end(),
                 [](const Plane& a, const Plane& b) { return a.op == b.op && a.lanes == b.lanes; });
  if (!equal) return mismatch("the planes differ although the plans agree: one file is damaged");
  for (const Plane& plane : acc.planes) {
    if (is_table_sum(plane.op)) {
      return make_error(Errc::kUnsupported, "table sums cannot be added as files");
    }
  }
  return {};
}

}  // namespace

Status fold_files(AddFile& acc, const AddFile& in) {
  if (acc.shape != in.shape) {
    return mismatch("the shapes differ: " + shape_text(acc.shape) + " and " + shape_text(in.shape));
  }
  if (acc.plan != in.plan) {
    return mismatch("the plans differ: only files packed with one plan can be added");
  }
  if (acc.max_contributors != in.max_contributors) {
    return mismatch("the contributor limits differ although the plans agree: one file is damaged");
  }
  ADDEND_TRY(check_planes(acc, in));
  const uint64_t contributors = uint64_t{acc.contributors} + in.contributors;
  if (contributors > acc.max_contributors) {
    return make_error(Errc::kCapacity, "the sum would hold " + std::to_string(contributors) +
                                           " gradients, the plan was made for at most " +
                                           std::to_string(acc.max_contributors));
  }
  for (std::size_t i = 0; i < acc.planes.size; ++i) {
    ADDEND_TRY(fold(acc.planes.planes[i], in.planes.planes[i]));
  }
  acc.contributors = static_cast<uint32_t>(contributors);
  return {};
}

}  // namespace addend
