// SPDX-License-Identifier: Apache-2.0
// The law of devices for quant with an index: the CPU's bytes (quant_twins.h), whatever the union
// is, in every form of the index.
#include <string>

#include "tests/cuda/quant_twins.h"

namespace addend {
namespace {

using testing_support::normal;
using testing_support::uniform;

class CudaQuantIndex : public CudaQuant {};

// Normal numbers on some elements of each worker, in rows of `row` that are live together. `odd`:
// with NaN, infinities, -0.0 and numbers that scale out of float's range among them.
Gradients sparse(const Layout& layout, double density, uint64_t row, uint64_t seed, bool odd) {
  return testing_support::gradients_of(layout, [&](uint32_t w, uint64_t i) -> double {
    const double x = normal(seed + 100 * w, i);
    if (odd && uniform(seed + 7 * w, i) < 0.003) {
      const double values[] = {std::nan(""), -INFINITY, -0.0, 1e-42, 3e38};
      return values[(i + w) % std::size(values)];
    }
    if (odd && i % 3 == 0 && uniform(seed + w, i / row) >= density) return -0.0;
    return uniform(seed + w, i / row) < density ? x : 0.0;
  });
}

TEST_F(CudaQuantIndex, WritesTheCpusBytesForEveryTypeLengthAndDensity) {
  for (const char* spec : {"quant:index=packed", "quant:index=two-level,feedback=float",
                           "quant:index=auto,bits=4,carrier=indices"}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const uint64_t count : {0, 1, 63, 64, 65, 1025, 2049, 5003, 140000}) {
        for (const double density : {0.0, 0.01, 0.4, 1.0}) {
          SCOPED_TRACE(std::string(spec) + " " + dtype_name(dtype) + " " + std::to_string(count) +
                       " " + std::to_string(density));
          const Layout layout = quant_layout(2, count, dtype);
          Twins twins(device_, spec, layout);
          for (uint64_t step = 0; step < 2; ++step) {
            Gradients gradients = sparse(layout, density, 1, 3 * count + step, false);
            ASSERT_TRUE(twins.step(gradients));
          }
        }
      }
    }
  }
}

TEST_F(CudaQuantIndex, WritesTheCpusBytesWithEveryOption) {
  for (const std::string options :
       {"bits=1", "bits=4,carrier=indices", "bits=8", "rotate=none,bits=4", "block=64,bits=4",
        "block=16384,bits=4", "rounding=independent", "bits=4,feedback=float",
        "bits=2,feedback=float,carrier=indices", "bits=4,feedback=float,rotate=none",
        "bits=4,feedback=float,block=256"}) {
    for (const char* form : {"packed", "two-level", "auto"}) {
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        const std::string spec = "quant:" + options + ",index=" + form;
        SCOPED_TRACE(spec + " " + dtype_name(dtype));
        const Layout layout = quant_layout(3, 40 * 2048 + 333, dtype);
        Twins twins(device_, spec, layout);
        for (uint64_t step = 0; step < 4; ++step) {
          Gradients gradients = sparse(layout, 0.1, 64, 7 + step, step % 2 == 1);
          ASSERT_TRUE(twins.step(gradients));
        }
      }
    }
  }
}

// Over more steps than lie between two surveys, with unions that grow, shrink and end, without a
// worker, and misaligned; the residual's scale changes on the way.
TEST_F(CudaQuantIndex, GoesTheCpusWayOverManySteps) {
  for (const char* spec : {"quant:index=auto,feedback=float", "quant:index=two-level,bits=4",
                           "quant:index=packed,feedback=float,carrier=indices,bits=4"}) {
    SCOPED_TRACE(spec);
    Layout layout = quant_layout(3, 300000);
    layout.network = {50, 10};
    Twins twins(device_, spec, layout, 3);
    const double densities[] = {0.02, 0.3, 0.001, 0.0, 0.9};
    for (uint64_t step = 0; step < 20; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      Gradients gradients =
          sparse(layout, densities[step % 5], step < 10 ? 64 : 1, 40 + step, step % 3 == 1);
      step % 6 == 5 ? twins.leave_out(1) : twins.all_take_part();
      if (step == 9) {
        ASSERT_TRUE(twins.cpu(0).scale_residual(0.3));
        ASSERT_TRUE(twins.gpu(0).scale_residual(0.3));
      }
      ASSERT_TRUE(twins.step(gradients));
    }
  }
}

TEST_F(CudaQuantIndex, SegmentsHaveTheCpusBytes) {
  for (const char* spec : {"quant:index=auto", "quant:index=two-level,feedback=float"}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(std::string(spec) + " " + dtype_name(dtype));
      Layout layout = quant_layout(2, 0, dtype);
      const uint64_t counts[] = {5000, 1, 0, 2048, 64, 63, 200097, 12345};
      for (uint64_t id = 0; id < std::size(counts); ++id) {
        layout.segments.push_back({1000 + 7 * id, counts[id]});
        layout.count += counts[id];
      }
      Twins twins(device_, spec, layout);
      for (uint64_t step = 0; step < 4; ++step) {
        Gradients gradients = sparse(layout, 0.2, 64, 3 + step, true);
        ASSERT_TRUE(twins.step(gradients));
      }
      twins.check_segments();
    }
  }
}

TEST_F(CudaQuantIndex, ErrorsAreTheCpusAndACancelledStepLeavesWhatIsOwed) {
  const Layout layout = quant_layout(2, 60000);
  Twins twins(device_, "quant:nonfinite=error,bits=4,feedback=float,index=packed", layout);
  Gradients gradients = sparse(layout, 0.1, 1, 1, false);
  ASSERT_TRUE(twins.step(gradients));
  gradients = sparse(layout, 0.1, 1, 2, true);
  EXPECT_FALSE(twins.step(gradients));
  EXPECT_FALSE(HasFailure());
  gradients = sparse(layout, 0.1, 1, 3, false);
  ASSERT_TRUE(twins.step(gradients));
}

}  // namespace
}  // namespace addend
