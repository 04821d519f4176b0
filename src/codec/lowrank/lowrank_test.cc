// SPDX-License-Identifier: Apache-2.0
#include "codec/lowrank/lowrank.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "codec/lowrank/matrices.h"
#include "gtest/gtest.h"
#include "tests/support/tampered_steps.h"
#include "wire/hash.h"

namespace addend::lowrank {
namespace {

using testing_support::Gradient;
using testing_support::TamperedSteps;

Layout layout_of(std::vector<Segment> segments, uint32_t world = 1) {
  Layout layout;
  layout.world = world;
  layout.segments = std::move(segments);
  for (const Segment& segment : layout.segments)
    layout.count += segment.count;
  return layout;
}

float uniform(uint64_t seed, uint64_t i) {
  return static_cast<float>(static_cast<double>(addend_random(seed, i) >> 11) * 0x1p-52 - 1);
}

Gradient bytes_of(const std::vector<float>& values) {
  Gradient bytes(values.size() * 4);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<float> floats_of(const Gradient& bytes) {
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<float> random(uint64_t seed, uint64_t count) {
  std::vector<float> values(count);
  for (uint64_t i = 0; i < count; ++i)
    values[i] = uniform(seed, i);
  return values;
}

// A matrix of this rank and a vector behind it.
std::vector<float> of_rank(uint64_t rank, uint64_t rows, uint64_t columns, uint64_t vector) {
  std::vector<float> values(rows * columns + vector, 0.0f);
  for (uint64_t i = 0; i < rows * columns; ++i) {
    for (uint64_t k = 0; k < rank; ++k) {
      values[i] += uniform(10 + k, i / columns) * uniform(20 + k, i % columns);
    }
  }
  for (uint64_t i = 0; i < vector; ++i)
    values[rows * columns + i] = uniform(30, i);
  return values;
}

TEST(Lowrank, SendsTwoFactorsAndTheRestAsItIs) {
  const Layout layout = layout_of({{1, 600, 20}, {2, 7}, {3, 300, 300}, {4, 35, 5}}, 2);
  auto workers = TamperedSteps::create("lowrank:rank=3", layout);
  ASSERT_TRUE(workers);
  std::vector<Gradient> gradients(2, bytes_of(random(1, layout.count)));
  const std::vector<float> sent = floats_of(gradients[0]);
  ASSERT_TRUE(workers->step(gradients));
  const Report& report = workers->report();
  EXPECT_EQ(report.mode, "lowrank");
  EXPECT_EQ(report.rounds, 2u);
  // One of 300 rows of 1 and one of 5 x 7 are larger as factors of rank 3.
  EXPECT_EQ(report.round_bytes[0], 4u * (3 * 20 + 7 + 300 + 35));
  EXPECT_EQ(report.round_bytes[1], 4u * 3 * 30);
  const std::vector<float> sum = floats_of(gradients[1]);
  for (uint64_t i = 600; i < layout.count; ++i)
    ASSERT_EQ(sum[i], 2 * sent[i]);
}

// One power iteration finds all of a matrix that has no more.
TEST(Lowrank, AMatrixOfItsRankArrivesWhole) {
  for (const uint64_t rank : {1, 2, 5}) {
    const Layout layout = layout_of({{1, 40 * 3000, 40}, {2, 9}}, 3);
    auto workers = TamperedSteps::create("lowrank:rank=" + std::to_string(rank), layout);
    ASSERT_TRUE(workers);
    const std::vector<float> values = of_rank(rank, 40, 3000, 9);
    std::vector<Gradient> gradients(3, bytes_of(values));
    ASSERT_TRUE(workers->step(gradients));
    const std::vector<float> sum = floats_of(gradients[0]);
    double error = 0, energy = 0;
    for (uint64_t i = 0; i < layout.count; ++i) {
      error += std::pow(static_cast<double>(sum[i]) - 3 * static_cast<double>(values[i]), 2);
      energy += std::pow(3 * static_cast<double>(values[i]), 2);
    }
    EXPECT_LT(error, 1e-8 * energy) << rank;
    EXPECT_LT(workers->report().sampled_error, 1e-8 * workers->report().sampled_energy);
  }
}

// Warm start: over steps the iteration finds the largest direction, which one step does not.
TEST(Lowrank, TheIterationGoesOnFromStepToStep) {
  const Layout layout = layout_of({{1, 64 * 64, 64}});
  std::vector<float> values = of_rank(1, 64, 64, 0);
  const std::vector<float> noise = random(9, values.size());
  for (uint64_t i = 0; i < values.size(); ++i)
    values[i] += 0.5f * noise[i];
  auto workers = TamperedSteps::create("lowrank:rank=1", layout);
  ASSERT_TRUE(workers);
  double errors[6];
  for (double& error : errors) {
    // Without what earlier steps left, each is asked the same question.
    ASSERT_TRUE(workers->worker(0).scale_residual(1e-30));
    std::vector<Gradient> gradients = {bytes_of(values)};
    ASSERT_TRUE(workers->step(gradients));
    error = 0;
    const std::vector<float> sum = floats_of(gradients[0]);
    for (uint64_t i = 0; i < values.size(); ++i)
      error += std::pow(static_cast<double>(sum[i] - values[i]), 2);
  }
  EXPECT_LT(errors[1], 0.9 * errors[0]);
  EXPECT_NEAR(errors[5], errors[4], 0.01 * errors[4]);
}

TEST(Lowrank, FeedbackBringsEverythingInTheEnd) {
  const Layout layout = layout_of({{1, 30 * 50, 30}});
  const std::vector<float> values = random(4, layout.count);
  auto workers = TamperedSteps::create("lowrank:rank=2", layout);
  ASSERT_TRUE(workers);
  std::vector<double> average(layout.count, 0.0);
  constexpr int kSteps = 300;
  for (int s = 0; s < kSteps; ++s) {
    std::vector<Gradient> gradients = {bytes_of(values)};
    ASSERT_TRUE(workers->step(gradients));
    const std::vector<float> sum = floats_of(gradients[0]);
    for (uint64_t i = 0; i < layout.count; ++i)
      average[i] += static_cast<double>(sum[i]) / kSteps;
  }
  double error = 0, energy = 0;
  for (uint64_t i = 0; i < layout.count; ++i) {
    error += std::pow(average[i] - static_cast<double>(values[i]), 2);
    energy += std::pow(static_cast<double>(values[i]), 2);
  }
  EXPECT_LT(error, 0.02 * energy);
}

TEST(Lowrank, FactorsOfFewerBitsTakeFewerBytesAndOweWhatTheyLose) {
  const Layout layout = layout_of({{1, 512 * 1024, 512}, {2, 9}}, 2);
  const std::vector<float> values = of_rank(2, 512, 1024, 9);
  uint64_t bytes[3];
  const char* specs[] = {"lowrank:rank=2", "lowrank:rank=2,factors=bf16",
                         "lowrank:rank=2,factors=quant"};
  for (int s = 0; s < 3; ++s) {
    auto workers = TamperedSteps::create(specs[s], layout);
    ASSERT_TRUE(workers);
    std::vector<double> average(layout.count, 0.0);
    constexpr int kSteps = 12;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Gradient> gradients(2, bytes_of(values));
      const Status status = workers->step(gradients);
      ASSERT_TRUE(status) << status.error().message;
      ASSERT_EQ(gradients[0], gradients[1]);
      const std::vector<float> sum = floats_of(gradients[0]);
      for (uint64_t i = 0; i < layout.count; ++i)
        average[i] += static_cast<double>(sum[i]) / 2 / kSteps;
    }
    double error = 0, energy = 0;
    for (uint64_t i = 0; i < layout.count; ++i) {
      error += std::pow(average[i] - static_cast<double>(values[i]), 2);
      energy += std::pow(static_cast<double>(values[i]), 2);
    }
    EXPECT_LT(error, 1e-5 * energy) << specs[s];
    bytes[s] = workers->report().wire_bytes - 9 * 4;
    EXPECT_EQ(workers->report().rounds, s == 2 ? 4u : 2u);
  }
  EXPECT_EQ(bytes[0], 4u * 2 * (512 + 1024));
  EXPECT_EQ(bytes[1] * 2, bytes[0]);
  EXPECT_LT(static_cast<double>(bytes[2]), 0.26 * static_cast<double>(bytes[0]));
}

TEST(Lowrank, ZerosStayZerosAndAreNoDeadEnd) {
  const Layout layout = layout_of({{1, 400, 20}});
  auto workers = TamperedSteps::create("lowrank:rank=1,factors=quant", layout);
  ASSERT_TRUE(workers);
  const std::vector<float> zeros(400, 0.0f);
  std::vector<Gradient> gradients = {bytes_of(zeros)};
  for (int s = 0; s < 2; ++s) {
    ASSERT_TRUE(workers->step(gradients));
    ASSERT_EQ(floats_of(gradients[0]), zeros);
  }
  const std::vector<float> values = of_rank(1, 20, 20, 0);
  gradients = {bytes_of(values)};
  ASSERT_TRUE(workers->step(gradients));
  const std::vector<float> sum = floats_of(gradients[0]);
  for (uint64_t i = 0; i < 400; ++i)
    ASSERT_NEAR(sum[i], values[i], 0.05);
}

TEST(Lowrank, WithoutAMatrixThatPaysItIsDense) {
  const std::vector<std::vector<Segment>> cases = {
      {}, {{1, 100}}, {{1, 100, 10}, {2, 5}}, {{1, 100, 100}}, {{1, 0, 0}, {2, 100, 1}}};
  for (const std::vector<Segment>& segments : cases) {
    Layout layout = layout_of(segments);
    if (segments.empty()) layout.count = 100;
    const auto codec = create_codec(*CodecSpec::parse("lowrank:rank=5"), layout);
    const auto dense = create_codec({"dense", {}}, layout);
    ASSERT_TRUE(codec && dense);
    EXPECT_EQ((*codec)->fingerprint(), (*dense)->fingerprint());
    EXPECT_EQ((*codec)->next_mode(), "dense");
  }
}

TEST(Lowrank, WorkersShareShapesRanksAndTheFactorThatTheyLearnt) {
  const auto fingerprint = [](const char* spec, const Layout& layout) {
    return (*create_codec(*CodecSpec::parse(spec), layout))->fingerprint();
  };
  const Layout layout = layout_of({{1, 3600, 60}});
  const uint64_t usual = fingerprint("lowrank", layout);
  EXPECT_EQ(fingerprint("lowrank:rank=4", layout), usual);
  EXPECT_NE(fingerprint("lowrank:rank=2", layout), usual);
  EXPECT_EQ(fingerprint("lowrank:factors=f32", layout), usual);
  EXPECT_NE(fingerprint("lowrank:factors=bf16", layout), usual);
  EXPECT_NE(fingerprint("lowrank:factors=quant", layout), usual);
  EXPECT_NE(fingerprint("lowrank", layout_of({{1, 3600, 72}})), usual);
  auto going = TamperedSteps::create("lowrank", layout),
       other = TamperedSteps::create("lowrank", layout);
  std::vector<Gradient> a = {bytes_of(random(1, 3600))}, b = {bytes_of(random(2, 3600))};
  ASSERT_TRUE(going->step(a) && other->step(b));
  EXPECT_NE(going->worker(0).fingerprint(), other->worker(0).fingerprint());
}

TEST(Lowrank, RefusesRanksAndShapesByName) {
  for (const char* spec : {"lowrank:rank=0", "lowrank:rank=65", "lowrank:rank=x",
                           "lowrank:feedback=none", "lowrank:factors=f16", "lowrank:4"}) {
    const auto parsed = CodecSpec::parse(spec);
    if (!parsed) continue;
    const auto codec = create_codec(*parsed, layout_of({{1, 3600, 60}}));
    ASSERT_FALSE(codec) << spec;
    EXPECT_EQ(codec.error().code, Errc::kInvalidArgument) << spec;
  }
  const auto ragged = create_codec(*CodecSpec::parse("dense"), layout_of({{77, 100, 7}}));
  ASSERT_FALSE(ragged);
  EXPECT_EQ(ragged.error().code, Errc::kInvalidArgument);
  EXPECT_NE(ragged.error().message.find("segment 77"), std::string::npos);
}

TEST(Lowrank, AStateOfAnotherWorldKeepsItsResidualAndLeavesTheFactor) {
  Layout layout = layout_of({{1, 3600, 60}}, 2);
  auto two = TamperedSteps::create("lowrank", layout);
  std::vector<Gradient> gradients(2, bytes_of(random(1, 3600)));
  ASSERT_TRUE(two->step(gradients));
  const auto state = *two->worker(0).save_segment(0);
  layout.first_step = 1;
  auto same = TamperedSteps::create("lowrank", layout);
  ASSERT_TRUE(same->worker(0).load_segment(0, state));
  EXPECT_EQ(same->worker(0).fingerprint(), two->worker(0).fingerprint());
  layout.world = 3;
  auto three = TamperedSteps::create("lowrank", layout);
  ASSERT_TRUE(three->worker(0).load_segment(0, state));
  EXPECT_EQ(three->worker(0).fingerprint(), three->worker(1).fingerprint())
      << "those that come without a state agree with those that have one";
  const auto moved = *three->worker(0).save_segment(0);
  const std::size_t residual = 3600 * 4;
  ASSERT_EQ(moved.size(), state.size());
  EXPECT_EQ(std::memcmp(moved.data() + moved.size() - residual,
                        state.data() + state.size() - residual, residual),
            0);
}

}  // namespace
}  // namespace addend::lowrank
