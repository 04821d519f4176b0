// SPDX-License-Identifier: Apache-2.0
// Gradients shaped like those of real models: layer shapes, the share of a table's rows that a
// batch touches, and the power law by which rows repeat across workers. The values are random;
// nothing is trained here.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "addend/plane.h"
#include "addend/result.h"
#include "apps/workload/gradient.h"

namespace addend::workload {

/// One gradient that is all-reduced as a whole.
struct Bucket {
  std::string name;
  uint64_t count = 0;
  /// Writes the gradient of one worker and step, all `count` elements.
  std::function<void(const Draw&, std::span<float>)> fill;
};

struct Model {
  std::string name;
  std::string description;
  std::vector<Bucket> buckets;

  uint64_t count() const;
};

struct ModelOptions {
  double scale =
      1.0;  ///< of table rows, batch and layer sizes; 1 is about 10 to 20 million parameters
  uint64_t seed = 1;
};

/// "recommender", "language", "vision".
std::vector<std::string> model_names();

/// kInvalidArgument for an unknown name or a scale outside (0, 16].
Result<Model> make_model(std::string_view name, const ModelOptions& options);

/// Draws a bucket's gradient as `dtype` into `out`, which has room for bucket.count elements.
void draw_bucket(const Bucket& bucket, const Draw& draw, DType dtype, void* out);

}  // namespace addend::workload
