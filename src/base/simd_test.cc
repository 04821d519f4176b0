// SPDX-License-Identifier: Apache-2.0
#include "addend/simd.h"

#include "base/simd.h"
#include "gtest/gtest.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/simd_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace addend::HWY_NAMESPACE {
namespace {

const char* target_kernel() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace addend::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace addend {
namespace {

HWY_EXPORT(target_kernel);

// What tests/link/simd_targets_test.py says of files is then true of what runs.
TEST(Simd, AKernelRunsOnTheTargetThatIsForced) {
  for (const std::string& target : simd_targets()) {
    if (target == kScalarTarget) continue;
    ASSERT_TRUE(force_simd_target(target));
    EXPECT_EQ(HWY_DYNAMIC_DISPATCH(target_kernel)(), target);
  }
  ASSERT_TRUE(force_simd_target(""));
}

TEST(Simd, ForcesEveryTargetItListsByName) {
  const std::vector<std::string> targets = simd_targets();
  ASSERT_EQ(targets.back(), kScalarTarget);
  for (const std::string& target : targets) {
    ASSERT_TRUE(force_simd_target(target));
    EXPECT_EQ(simd_target(), target);
    EXPECT_EQ(simd_targets(), targets);
    EXPECT_EQ(simd_target(), target) << "listing must not change the choice";
  }
  ASSERT_TRUE(force_simd_target(""));
  EXPECT_EQ(simd_target(), targets.front());
}

TEST(Simd, RefusesAnUnknownTargetAndNamesTheKnownOnes) {
  const Status status = force_simd_target("AVX9000");
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("scalar"), std::string::npos);
}

}  // namespace
}  // namespace addend
#endif
