// SPDX-License-Identifier: Apache-2.0
#include "addend/simd.h"

#include "gtest/gtest.h"

namespace addend {
namespace {

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
