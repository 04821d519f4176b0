// SPDX-License-Identifier: Apache-2.0
// cast on a device: the CPU's planes, sums and residuals, byte for byte.
#include "tests/cuda/side_by_side.h"

namespace addend {
namespace {

using namespace testing_support;  // NOLINT: a test

constexpr uint64_t kSeed = 20261116;

class CudaCast : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!device_.missing().empty()) GTEST_SKIP() << device_.missing();
  }

  void run(const SideBySide& how, int steps, bool odd) {
    std::mt19937_64 random(kSeed + how.layout.count);
    SCOPED_TRACE(how.spec + " of " + std::to_string(how.layout.count) + " " +
                 dtype_name(how.layout.dtype) + ", misaligned by " +
                 std::to_string(how.misaligned) + ", seed " + std::to_string(kSeed));
    std::vector<std::unique_ptr<Twins>> workers;
    for (uint32_t w = 0; w < how.layout.world; ++w)
      workers.push_back(std::make_unique<Twins>(device_, how, w));
    for (int i = 0; i < steps; ++i) {
      std::vector<Bytes> inputs;
      for (uint32_t w = 0; w < how.layout.world; ++w)
        inputs.push_back(random_gradient(how.layout, 0.9, odd, random));
      step(workers, inputs);
      if (HasFatalFailure()) return;
    }
    for (auto& worker : workers)
      worker->compare_states();
  }

  TestDevice device_;
};

TEST_F(CudaCast, HasTheBytesOfTheCpuAtEveryLength) {
  for (const DType dtype : kTypes) {
    for (const char* to : {"cast:bf16", "cast:f16"}) {
      for (const char* feedback : {"", ",feedback=float"}) {
        for (const uint64_t count : {0, 1, 7, 8, 9, 2047, 2048, 2049, 100003})
          run(of(std::string(to) + feedback, dtype, count, 2), 3, false);
      }
    }
  }
}

TEST_F(CudaCast, ScalesAndMisalignedGradientsInPlaceAndElsewhere) {
  for (const DType dtype : kTypes) {
    for (const uint64_t misaligned : {0, 1, 3}) {
      for (const int where : {0, 1, 2}) {
        SideBySide how = of("cast:bf16,feedback=float", dtype, 10007, 2);
        how.layout.scale = 1.0 / 3;
        how.misaligned = misaligned;
        how.in_place = where == 1;
        how.elsewhere = where == 2;
        run(how, 3, false);
        how.spec = "cast:f16";
        run(how, 1, false);
      }
    }
  }
}

TEST_F(CudaCast, OddValuesTravelAsOnTheCpu) {
  for (const DType dtype : kTypes) {
    for (const char* spec : {"cast:bf16", "cast:f16"})
      run(of(spec, dtype, 20011, 1), 1, true);
  }
}

TEST_F(CudaCast, AStepThatWasCancelledOwesNothing) {
  std::mt19937_64 random(kSeed);
  const SideBySide how = of("cast:bf16,feedback=float", DType::kF32, 5003, 1);
  Twins twins(device_, how, 0);
  for (int i = 0; i < 4; ++i) {
    Round round;
    twins.begin(random_gradient(how.layout, 1, false, random));
    EXPECT_TRUE(twins.next(round));
    if (i % 2 == 0) {
      twins.cancel();
    } else {
      EXPECT_FALSE(twins.next(round));
      twins.finish();
    }
    twins.compare_states();
  }
}

TEST_F(CudaCast, AStateGoesFromOneToTheOther) {
  std::mt19937_64 random(kSeed);
  const SideBySide how = of("cast:f16,feedback=float", DType::kF32, 5003, 1);
  std::vector<std::unique_ptr<Twins>> worker;
  worker.push_back(std::make_unique<Twins>(device_, how, 0));
  step(worker, {random_gradient(how.layout, 1, false, random)});
  worker[0]->exchange_states(0.5);
  step(worker, {random_gradient(how.layout, 1, false, random)});
  worker[0]->compare_states();
}

}  // namespace
}  // namespace addend
