// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/model.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "apps/workload/half.h"

namespace addend::workload {
namespace {

Model model_of(std::string_view name, double scale) {
  auto model = make_model(name, {.scale = scale, .seed = 3});
  EXPECT_TRUE(model);
  return *std::move(model);
}

double density(const Bucket& bucket, const Draw& draw) {
  std::vector<float> gradient(bucket.count);
  draw_bucket(bucket, draw, DType::kF32, gradient.data());
  const auto zeros = std::count(gradient.begin(), gradient.end(), 0.0f);
  return 1 - static_cast<double>(zeros) / static_cast<double>(bucket.count);
}

TEST(Model, SizesAreThoseOfTheDemo) {
  EXPECT_NEAR(static_cast<double>(model_of("recommender", 1).count()), 21.2e6, 0.2e6);
  EXPECT_NEAR(static_cast<double>(model_of("language", 1).count()), 11.4e6, 0.2e6);
  EXPECT_NEAR(static_cast<double>(model_of("vision", 1).count()), 7.5e6, 0.3e6);
}

TEST(Model, TablesAreSparseAndLayersAreDense) {
  const Model recommender = model_of("recommender", 0.1);
  EXPECT_LT(density(recommender.buckets[0], {0, 0}), 0.02);
  EXPECT_GT(density(recommender.buckets[0], {0, 0}), 0.002);
  EXPECT_LT(density(recommender.buckets[1], {0, 0}), 0.2);
  EXPECT_GT(density(recommender.buckets[4], {0, 0}), 0.999);
  for (const Bucket& bucket : model_of("vision", 0.01).buckets) {
    EXPECT_GT(density(bucket, {0, 0}), 0.999) << bucket.name;
  }
}

TEST(Model, BothPairsOfTablesTouchTheSameRowsWithOtherValues) {
  const Model model = model_of("recommender", 0.02);
  std::vector<float> mf(model.buckets[0].count);
  std::vector<float> mlp(model.buckets[2].count);
  draw_bucket(model.buckets[0], {1, 2}, DType::kF32, mf.data());
  draw_bucket(model.buckets[2], {1, 2}, DType::kF32, mlp.data());
  for (std::size_t i = 0; i < mf.size(); ++i)
    ASSERT_EQ(mf[i] != 0, mlp[i] != 0) << i;
  EXPECT_NE(mf, mlp);
}

TEST(Model, WorkersAndStepsSeeOtherBatches) {
  const Model model = model_of("language", 0.05);
  const Bucket& embedding = model.buckets.back();
  std::vector<float> first(embedding.count);
  std::vector<float> other(embedding.count);
  draw_bucket(embedding, {0, 0}, DType::kF32, first.data());
  draw_bucket(embedding, {0, 0}, DType::kF32, other.data());
  EXPECT_EQ(first, other);
  draw_bucket(embedding, {1, 0}, DType::kF32, other.data());
  EXPECT_NE(first, other);
  draw_bucket(embedding, {0, 1}, DType::kF32, other.data());
  EXPECT_NE(first, other);
}

TEST(Model, HalfPrecisionIsTheRoundedGradient) {
  const Model model = model_of("vision", 0.01);
  const Bucket& bucket = model.buckets.front();
  std::vector<float> wide(bucket.count);
  std::vector<uint16_t> narrow(bucket.count);
  draw_bucket(bucket, {0, 0}, DType::kF32, wide.data());
  draw_bucket(bucket, {0, 0}, DType::kBf16, narrow.data());
  for (std::size_t i = 0; i < wide.size(); ++i)
    ASSERT_EQ(narrow[i], f32_to_bf16(wide[i]));
}

TEST(Model, RefusesUnknownNamesAndScales) {
  EXPECT_FALSE(make_model("resnet", {}));
  EXPECT_FALSE(make_model("vision", {.scale = 0}));
  EXPECT_FALSE(make_model("vision", {.scale = 17}));
}

}  // namespace
}  // namespace addend::workload
