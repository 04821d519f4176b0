// SPDX-License-Identifier: Apache-2.0
// Codecs that select, on a device: the CPU's planes, sums and residuals, byte for byte.
#include "tests/cuda/side_by_side.h"
#include "wire/element.h"

namespace addend {
namespace {

using namespace testing_support;  // NOLINT: a test

constexpr uint64_t kSeed = 20261118;

class CudaSelect : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!device_.missing().empty()) GTEST_SKIP() << device_.missing();
  }

  void run(const SideBySide& how, int steps, double density, bool odd) {
    std::mt19937_64 random(kSeed + how.layout.count);
    SCOPED_TRACE(how.spec + " of " + std::to_string(how.layout.count) + " " +
                 dtype_name(how.layout.dtype) + " in " +
                 std::to_string(how.layout.segments.size()) + " segments, misaligned by " +
                 std::to_string(how.misaligned) + ", seed " + std::to_string(kSeed));
    std::vector<std::unique_ptr<Twins>> workers;
    for (uint32_t w = 0; w < how.layout.world; ++w)
      workers.push_back(std::make_unique<Twins>(device_, how, w));
    for (int i = 0; i < steps; ++i) {
      std::vector<Bytes> inputs;
      for (uint32_t w = 0; w < how.layout.world; ++w)
        inputs.push_back(random_gradient(how.layout, density, odd, random));
      step(workers, inputs);
      for (auto& worker : workers)
        worker->compare_states();
      if (HasFailure()) return;
    }
  }

  TestDevice device_;
};

const char* const kSpecs[] = {"random:0.1",
                              "threshold:0.05,index=packed",
                              "topk:0.05,index=packed",
                              "redsync:0.05,index=packed",
                              "dgc:0.05,index=packed",
                              "dgc:0.02,index=packed,momentum=0.5,clip=1,warmup=3",
                              "leader:0.1"};

void cut_into_segments(Layout& layout) {
  uint64_t left = layout.count, id = 7;
  for (const uint64_t count : {5ull, 0ull, 1000ull, 16384ull, 16385ull, 40001ull}) {
    const uint64_t mine = std::min<uint64_t>(count, left);
    layout.segments.push_back({id++, mine});
    left -= mine;
  }
  layout.segments.push_back({id, left});
}

TEST_F(CudaSelect, HasTheBytesOfTheCpuAtEveryLength) {
  for (const char* spec : kSpecs) {
    for (const DType dtype : kTypes) {
      for (const uint64_t count : {0, 1, 31, 64, 2049, 70001})
        run(of(spec, dtype, count, 2), 3, 1, false);
      if (HasFailure()) return;
    }
  }
}

TEST_F(CudaSelect, SegmentsScalesAndMisalignedGradientsInPlaceAndElsewhere) {
  for (const char* spec : kSpecs) {
    for (const DType dtype : kTypes) {
      for (const int where : {0, 1, 2}) {
        SideBySide how = of(spec, dtype, 150011, 2);
        cut_into_segments(how.layout);
        how.layout.scale = 1.0 / 3;
        how.misaligned = static_cast<uint64_t>(where);
        how.in_place = where == 1;
        how.elsewhere = where == 2;
        run(how, 3, 0.9, false);
        if (HasFailure()) return;
      }
    }
  }
}

// Many that are equal, and fewer that are not zero than should travel.
TEST_F(CudaSelect, OfEqualElementsTheFirstTravel) {
  for (const char* spec : kSpecs) {
    for (const double density : {0.02, 1.0}) {
      std::mt19937_64 random(kSeed);
      SideBySide how = of(spec, DType::kF32, 50021, 2);
      cut_into_segments(how.layout);
      SCOPED_TRACE(how.spec);
      std::vector<std::unique_ptr<Twins>> workers;
      for (uint32_t w = 0; w < 2; ++w)
        workers.push_back(std::make_unique<Twins>(device_, how, w));
      for (int i = 0; i < 3; ++i) {
        std::vector<Bytes> inputs;
        for (uint32_t w = 0; w < 2; ++w) {
          inputs.push_back(random_gradient(how.layout, density, false, random));
          auto* elements = reinterpret_cast<float*>(inputs.back().data());
          for (uint64_t j = 0; j < how.layout.count; ++j)
            elements[j] = elements[j] == 0 ? 0.0f : elements[j] < 0 ? -2.0f : 2.0f;
        }
        step(workers, inputs);
        for (auto& worker : workers)
          worker->compare_states();
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CudaSelect, OddValuesTravelAsOnTheCpu) {
  for (const char* spec : kSpecs) {
    for (const DType dtype : kTypes)
      run(of(spec, dtype, 40009, 1), 2, 0.9, true);
    if (HasFailure()) return;
  }
}

// Without a NaN a norm is infinite, by which nothing is clipped.
TEST_F(CudaSelect, InfinitiesTravelAsOnTheCpu) {
  for (const char* spec : kSpecs) {
    for (const DType dtype : kTypes) {
      SCOPED_TRACE(std::string(spec) + " " + dtype_name(dtype));
      std::mt19937_64 random(kSeed);
      SideBySide how = of(spec, dtype, 40009, 1);
      cut_into_segments(how.layout);
      std::vector<std::unique_ptr<Twins>> worker;
      worker.push_back(std::make_unique<Twins>(device_, how, 0));
      for (int i = 0; i < 3; ++i) {
        std::vector<Bytes> input = {random_gradient(how.layout, 1, false, random)};
        for (const uint64_t at : {2u, 1009u, 39999u})
          store_float(dtype, input[0].data(), at, at == 1009 ? -HUGE_VALF : HUGE_VALF);
        step(worker, input);
        worker[0]->compare_states();
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CudaSelect, EveryWayOfTheIndexAndUnionsThatTravelAsTheyAre) {
  for (const char* spec : {"topk:0.01,index=two-level", "topk:1,index=packed",
                           "topk:0.01,index=sketch", "topk:0.01,index=bloom",
                           "topk:0.01,index=gather", "topk:0.01,index=sketch,values=reproducible"})
    run(of(spec, DType::kF32, 60013, 2), 3, 1, false);
}

TEST_F(CudaSelect, AStepThatWasCancelledOwesNothing) {
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    std::mt19937_64 random(kSeed);
    const SideBySide how = of(spec, DType::kF32, 5003, 1);
    Twins twins(device_, how, 0);
    for (int i = 0; i < 4; ++i) {
      Round round;
      twins.begin(random_gradient(how.layout, 1, false, random));
      EXPECT_TRUE(twins.next(round));
      if (i % 2 == 0) {
        twins.cancel();
      } else {
        while (twins.next(round)) {
        }
        twins.finish();
      }
      twins.compare_states();
      if (HasFailure()) return;
    }
  }
}

TEST_F(CudaSelect, AStateGoesFromOneToTheOther) {
  for (const char* spec : kSpecs) {
    SCOPED_TRACE(spec);
    std::mt19937_64 random(kSeed);
    const SideBySide how = of(spec, DType::kBf16, 5003, 1);
    std::vector<std::unique_ptr<Twins>> worker;
    worker.push_back(std::make_unique<Twins>(device_, how, 0));
    step(worker, {random_gradient(how.layout, 1, false, random)});
    worker[0]->exchange_states(0.5);
    step(worker, {random_gradient(how.layout, 1, false, random)});
    worker[0]->compare_states();
    worker[0]->compare_residuals();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace addend
