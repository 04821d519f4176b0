// SPDX-License-Identifier: Apache-2.0
#include "apps/addend/gradient_files.h"

#include <fmt/format.h>

namespace addend::cli {

namespace {

std::string shape_text(const std::vector<uint64_t>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

}  // namespace

Result<std::vector<NpyArray>> read_gradients(const std::vector<std::string>& files) {
  std::vector<NpyArray> gradients;
  for (const std::string& file : files) {
    auto array = read_npy(file);
    if (!array) return array.error();
    if (!gradients.empty()) {
      const NpyArray& first = gradients.front();
      if (array->dtype != first.dtype) {
        return make_error(Errc::kMismatch, fmt::format("{} holds {}, but {} holds {}", file,
                                                       dtype_name(array->dtype), files.front(),
                                                       dtype_name(first.dtype)));
      }
      if (array->shape != first.shape) {
        return make_error(Errc::kMismatch, fmt::format("{} has shape {}, but {} has {}", file,
                                                       shape_text(array->shape), files.front(),
                                                       shape_text(first.shape)));
      }
    }
    gradients.push_back(*std::move(array));
  }
  return gradients;
}

}  // namespace addend::cli
