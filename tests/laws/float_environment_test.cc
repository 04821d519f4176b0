// SPDX-License-Identifier: Apache-2.0
// Sums are the same whatever the caller's thread does with subnormals and however it rounds.
#include <cfenv>
#include <cmath>
#include <string>
#include <vector>

#include "addend/simd.h"
#include "addend/snapshot.h"
#include "gtest/gtest.h"
#include "tests/support/flushed.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

const std::vector<std::string> kSpecs = {
    "dense",
    "cast:bf16",
    "cast:f16,feedback=float",
    "exact:mode=packed",
    "exact:mode=two-level",
    "exact:mode=bloom,density=0.01",
    "exact:mode=sketch",
    "exact:mode=packed,values=reproducible",
    "exact:mode=sketch,values=reproducible",
    "exact:mode=packed,values=reproducible,tolerance=0.01",
    "quant",
    "quant:feedback=float",
    "quant:feedback=byte,bits=auto",
    "quant:rotate=none,carrier=indices",
    "quant:bits=8,down=4",
    "quant:bits=3,down=8",
    "quant:index=auto,feedback=float",
    "lowrank:rank=2",
    "topk:density=0.1,index=packed",
    "dgc:density=0.1",
};

// Subnormals of the gradient's type or of the one that travels, and numbers whose sums and products
// are some.
std::vector<Bytes> tiny(const std::string& spec, const Layout& layout, uint64_t seed) {
  const bool as_bf16 = spec.find("cast:bf16") == 0, as_f16 = spec.find("cast:f16") == 0;
  const Scenario s{layout.dtype, layout.count, layout.world, 0.2, Overlap::kRandom, seed};
  const double unit = layout.dtype == DType::kF16 || as_f16     ? 0x1p-24
                      : layout.dtype == DType::kBf16 || as_bf16 ? 0x1p-133
                                                                : 0x1p-149;
  return make_gradients(s, [&](uint32_t w, uint64_t i) {
    const double magnitude = 1 + std::floor(uniform(seed + w, i) * 5000);
    return static_cast<float>((i % 2 == 0 ? magnitude : -magnitude) * unit);
  });
}

std::vector<Bytes> three_steps(const std::string& spec, const Layout& layout,
                               const std::vector<std::vector<Bytes>>& steps) {
  Lockstep workers(spec, layout);
  std::vector<Bytes> results;
  for (std::vector<Bytes> gradients : steps) {
    const Status status = workers.step(gradients);
    EXPECT_TRUE(status) << spec << ": " << status.error().message;
    results.push_back(gradients[1]);
  }
  return results;
}

void expect_the_same(const std::string& target) {
  for (const std::string& spec : kSpecs) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const double scale : {1.0, 1.0 / 3}) {
        Layout layout = layout_of(3, 3000);
        layout.dtype = dtype;
        layout.scale = scale;
        layout.segments = {{1, 2800, 40}, {2, 200}};
        const std::vector<std::vector<Bytes>> steps = {tiny(spec, layout, 1), tiny(spec, layout, 2),
                                                       tiny(spec, layout, 3)};
        const std::vector<Bytes> expected = three_steps(spec, layout, steps);
        EXPECT_NE(expected[0], Bytes(expected[0].size(), 0));
        const std::string what = spec + " " + dtype_name(dtype) + " on " + target;
        {
          const Flushed caller;
          EXPECT_EQ(three_steps(spec, layout, steps), expected) << what;
        }
        std::fesetround(FE_UPWARD);
        const std::vector<Bytes> upward = three_steps(spec, layout, steps);
        std::fesetround(FE_TONEAREST);
        EXPECT_EQ(upward, expected) << what;
      }
    }
  }
}

TEST(FloatEnvironment, ChangesNoSum) {
  for (const std::string& target : simd_targets()) {
    ASSERT_TRUE(force_simd_target(target));
    expect_the_same(target);
  }
  ASSERT_TRUE(force_simd_target(""));
}

TEST(FloatEnvironment, ChangesNoSnapshot) {
  Layout layout = layout_of(1, 3000);
  const Bytes gradient = tiny("exact", layout, 4)[0];
  const GradientView view{gradient.data(), layout.count, DType::kF32};
  const Flushed caller;
  const auto plan = plan_snapshots({&view, 1}, {});
  ASSERT_TRUE(plan) << plan.error().message;
  const auto snapshot = encode_snapshot(*plan, view);
  ASSERT_TRUE(snapshot) << snapshot.error().message;
  Bytes decoded(gradient.size(), 0xA5);
  ASSERT_TRUE(decode_snapshot(*plan, *snapshot, decoded.data()));
  EXPECT_EQ(decoded, gradient);
}

}  // namespace
}  // namespace addend::testing_support
