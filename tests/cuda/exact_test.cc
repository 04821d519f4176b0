// SPDX-License-Identifier: Apache-2.0
// exact and dense on a device: the CPU's planes, sums, plans and reports, byte for byte.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "codec/exact/own_kernels.h"
#include "codec/exact/sketch.h"
#include "codec/index/bloom_kernels.h"
#include "tests/cuda/side_by_side.h"
#include "wire/sketch_hash.h"

namespace addend {
namespace {

using namespace testing_support;  // NOLINT: a test

constexpr uint64_t kSeed = 20261116;

class CudaExact : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!device_.missing().empty()) GTEST_SKIP() << device_.missing();
  }

  // Steps with these densities, one after the other.
  void run(const SideBySide& how, const std::vector<double>& densities, bool odd) {
    std::mt19937_64 random(kSeed + how.layout.count);
    SCOPED_TRACE(how.spec + " of " + std::to_string(how.layout.count) + " " +
                 dtype_name(how.layout.dtype) + ", " + std::to_string(how.layout.world) +
                 " workers, misaligned by " + std::to_string(how.misaligned) + ", seed " +
                 std::to_string(kSeed));
    std::vector<std::unique_ptr<Twins>> workers;
    for (uint32_t w = 0; w < how.layout.world; ++w)
      workers.push_back(std::make_unique<Twins>(device_, how, w));
    for (const double density : densities) {
      std::vector<Bytes> inputs;
      for (uint32_t w = 0; w < how.layout.world; ++w)
        inputs.push_back(random_gradient(how.layout, density, odd, random));
      step(workers, inputs);
      if (HasFatalFailure()) return;
      const Report& report = workers[0]->report();
      fallbacks_.emplace(report.fallback);
      stuck_keys_ += report.stuck_keys;
      escaped_values_ += report.escaped_values;
    }
  }

  // All bits of a plane but one a byte come back.
  void expect_undecodable(const char* spec) {
    SCOPED_TRACE(spec);
    Layout layout;
    layout.count = 5000;
    layout.execution = {Execution::Device::kCuda, device_.stream()};
    auto codec = create_codec(*CodecSpec::parse(spec), layout);
    ASSERT_TRUE(codec) << codec.error().message;
    cuda::DeviceBuffer gradient(device_.runtime());
    ASSERT_TRUE(gradient.reserve(5000 * 4));
    device_.write(gradient.as<void>(), Bytes(5000 * 4, 0x3F));
    ASSERT_TRUE((*codec)->begin(gradient.as<void>()));
    Round round;
    ASSERT_TRUE(*(*codec)->next_round(round));
    device_.write(round.planes[0].data, Bytes(op_bytes(Op::kOrU64, round.planes[0].lanes), 0x7F));
    const auto more = (*codec)->next_round(round);
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().code, Errc::kUndecodable);
    EXPECT_EQ(device_.read(gradient.as<void>(), 5000 * 4), Bytes(5000 * 4, 0x3F));
  }

  TestDevice device_;
  // What all runs of a test came to.
  std::set<std::string> fallbacks_;
  uint64_t stuck_keys_ = 0, escaped_values_ = 0;
};

TEST_F(CudaExact, PackedHasTheBytesOfTheCpuAtEveryLength) {
  for (const DType dtype : kTypes) {
    for (const uint64_t count :
         {0,    1,    2,    31,   32,   33,   63,   64,     65,     127,    1000,  1023,
          1024, 1025, 2047, 2048, 2049, 4095, 4097, 131071, 131072, 131073, 300007})
      run(of("exact:mode=packed", dtype, static_cast<uint64_t>(count), 2), {0.05, 0.3}, false);
  }
}

TEST_F(CudaExact, PackedHasTheBytesOfTheCpuAtEveryDensity) {
  for (const DType dtype : kTypes) {
    for (const double density : {0.0, 0.0001, 0.01, 0.2, 0.25, 0.26, 0.5, 0.999, 1.0})
      run(of("exact:mode=packed", dtype, 50021, 3), {density}, false);
  }
}

TEST_F(CudaExact, OddValuesTravelAsOnTheCpu) {
  for (const DType dtype : kTypes) {
    for (const double scale : {1.0, 1.0 / 3, 1e-20}) {
      for (const double density : {0.0, 0.05, 0.6}) {
        SideBySide how = of("exact:mode=packed", dtype, 20011, 1);
        how.layout.scale = scale;
        run(how, {density}, true);
        how.elsewhere = true;
        run(how, {density}, true);
      }
    }
  }
}

TEST_F(CudaExact, MisalignedGradientsInPlaceAndElsewhere) {
  for (const DType dtype : kTypes) {
    for (const uint64_t misaligned : {1, 2, 3, 5}) {
      for (const int where : {0, 1, 2}) {
        SideBySide how = of("exact:mode=packed", dtype, 10007, 2);
        how.misaligned = misaligned;
        how.in_place = where == 1;
        how.elsewhere = where == 2;
        run(how, {0.05, 0.9, 1.0}, false);
      }
    }
  }
}

TEST_F(CudaExact, PlansFollowTheSumsAsOnTheCpu) {
  const std::vector<double> densities = {0.02, 0.02, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.01,
                                         0.01, 0.01, 0.5, 0.0, 0.0, 1.0, 1.0, 0.1, 0.1, 0.1};
  for (const DType dtype : kTypes) {
    run(of("exact:choice=device", dtype, 70001, 2), densities, false);
    run(of("exact:choice=device", dtype, 3001, 2), densities, true);
    run(of("exact:choice=device,density=0.7,probe=3", dtype, 3001, 2), densities, false);
  }
}

// Values that travel as integers, in every form of the index.
TEST_F(CudaExact, ReproducibleValuesHaveTheBytesOfTheCpuAtEveryLength) {
  for (const DType dtype : kTypes) {
    for (const uint64_t count : {0, 1, 31, 64, 1023, 1024, 1025, 2047, 2049, 4097, 131073, 300007})
      run(of("exact:mode=packed,values=reproducible", dtype, count, 2), {0.05, 0.3, 0.0}, false);
  }
}

TEST_F(CudaExact, ReproducibleValuesHaveTheBytesOfTheCpuAtEveryDensity) {
  for (const DType dtype : kTypes) {
    for (const double density : {0.0, 0.0001, 0.01, 0.26, 0.5, 0.9995, 1.0}) {
      run(of("exact:mode=packed,values=reproducible", dtype, 50021, 3), {density}, false);
      run(of("exact:mode=two-level,values=reproducible", dtype, 50021, 3), {density}, false);
    }
  }
}

TEST_F(CudaExact, ReproducibleOddValuesTravelAsOnTheCpu) {
  for (const DType dtype : kTypes) {
    for (const char* tolerance : {"", ",tolerance=0.001", ",tolerance=0.5", ",tolerance=1e-30"}) {
      for (const double scale : {1.0, 1.0 / 3, 1e-20, 1e20}) {
        for (const uint64_t misaligned : {0, 3}) {
          for (const bool odd : {false, true}) {
            const std::string spec = std::string("exact:values=reproducible,mode=") +
                                     (misaligned != 0 ? "two-level" : "packed") + tolerance;
            SideBySide how = of(spec, dtype, 9001, 2);
            how.layout.scale = scale;
            how.misaligned = misaligned;
            how.elsewhere = scale < 1;
            run(how, {0.05, 0.6}, odd);
          }
        }
      }
    }
  }
}

TEST_F(CudaExact, ReproducibleRangesOfAllWidths) {
  for (const uint32_t world : {1, 2, 5}) {
    SideBySide how = of("exact:mode=packed,values=reproducible", DType::kF32, 64 * 1024 + 5, world);
    std::mt19937_64 random(kSeed);
    std::vector<std::unique_ptr<Twins>> workers;
    for (uint32_t w = 0; w < world; ++w)
      workers.push_back(std::make_unique<Twins>(device_, how, w));
    for (int i = 0; i < 3; ++i) {
      std::vector<Bytes> inputs;
      for (uint32_t w = 0; w < world; ++w) {
        inputs.push_back(random_gradient(how.layout, 0.1, false, random));
        // Block b spans 4 b bits from a low one on that moves with the step.
        for (uint64_t at = 0; at < how.layout.count; ++at) {
          float value;
          std::memcpy(&value, inputs.back().data() + at * 4, 4);
          const int span = static_cast<int>(at / 1024) * 4 + 1;
          value = std::ldexp(
              value, static_cast<int>(random() % static_cast<uint64_t>(span)) - 130 + i * 2);
          std::memcpy(inputs.back().data() + at * 4, &value, 4);
        }
      }
      step(workers, inputs);
    }
  }
}

TEST_F(CudaExact, ReproduciblePlansFollowTheSumsAsOnTheCpu) {
  const std::vector<double> densities = {0.02, 0.02, 0.9, 0.9, 0.01, 0.0, 1.0, 0.1, 0.1};
  for (const DType dtype : kTypes)
    run(of("exact:choice=device,values=reproducible", dtype, 70001, 2), densities, true);
}

TEST_F(CudaExact, FiltersHaveTheBytesOfTheCpu) {
  for (const DType dtype : kTypes) {
    for (const char* values : {"", ",values=reproducible"}) {
      const std::string bloom = std::string("exact:mode=bloom") + values;
      for (const uint64_t count : {0, 1, 64, 1000, 2047, 65537, 300007})
        run(of(bloom, dtype, count, 2), {0.002, 0.001, 0.002}, false);
      // More than was expected, on a slow network: what is found is asked for first.
      SideBySide slow = of(bloom + ",density=0.0005", dtype, 300007, 3);
      slow.layout.network.gbit_per_s = 0.01;
      run(slow, {0.02, 0.0005, 0.0, 0.1, 1.0}, false);
      SideBySide how = of(bloom + ",density=0.002", dtype, 131072, 2);
      how.layout.scale = 1.0 / 3;
      how.misaligned = 1;
      run(how, {0.002, 0.001}, true);
      how.elsewhere = true;
      run(how, {0.002, 0.001, 0.0}, false);
    }
  }
  EXPECT_TRUE(fallbacks_.count("refined") == 1 && fallbacks_.count("none") == 1);
}

TEST_F(CudaExact, SketchesHaveTheBytesOfTheCpu) {
  for (const DType dtype : kTypes) {
    for (const char* values : {"", ",values=reproducible"}) {
      const std::string sketch = std::string("exact:mode=sketch") + values;
      for (const uint64_t count : {0, 1, 64, 1000, 2047, 65537, 300007})
        run(of(sketch, dtype, count, 2), {0.05, 0.05, 0.04}, false);
      run(of(sketch + ",lanes=4,density=0.05", dtype, 100003, 3), {0.02, 0.0, 0.02}, false);
      SideBySide how = of(sketch + ",density=0.2", dtype, 50021, 2);
      how.layout.scale = 1.0 / 3;
      how.misaligned = 1;
      run(how, {0.05, 0.03, 0.5}, true);
      how.elsewhere = true;
      run(how, {0.05, 0.0, 0.03}, true);
    }
  }
  // At the threshold of keys a cell, where some stick, and beyond it.
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const char* values = seed % 2 == 0 ? "" : ",values=reproducible";
    SideBySide how =
        of(std::string("exact:mode=sketch,density=0.1") + values, DType::kF32, 20000, 1);
    how.layout.seed = seed;
    run(how, {0.107 + 0.00015 * static_cast<double>(seed)}, false);
  }
  EXPECT_TRUE(fallbacks_.count("packed") == 1 && fallbacks_.count("fix-up") == 1);
  EXPECT_GT(stuck_keys_, 0u);
  EXPECT_GT(escaped_values_, 0u);
}

TEST_F(CudaExact, LargeSketchesOfFourWorkers) {
  run(of("exact:mode=sketch,density=0.05", DType::kF32, (1 << 20) + 17, 4), {0.012, 0.012}, false);
}

// From 32 chunks on keys are sorted to be added up; a step with more of them than the plan has
// cells is not.
TEST_F(CudaExact, SketchesOfManyChunks) {
  constexpr uint64_t kCount = (1 << 24) + 17;
  ASSERT_GE(exact::SketchShape::plan(kCount / 20, 1, 1, 0).chunks, 32u);
  for (const char* values : {"", ",values=reproducible"}) {
    const std::string sketch = std::string("exact:mode=sketch,density=0.05") + values;
    run(of(sketch, DType::kF32, kCount, 2), {0.025, 0.2, 0.02}, false);
    run(of(sketch, DType::kBf16, kCount, 1), {0.05}, false);
  }
}

// Chunks have equal room, which hashes leave enough of: these positions are all in the first one.
TEST_F(CudaExact, SketchesWithMoreKeysInAChunkThanCells) {
  constexpr uint64_t kCount = 1 << 24, kMostChunks = 200;
  const SideBySide how = of("exact:mode=sketch,density=0.05", DType::kF32, kCount, 1);
  const uint64_t seed = addend_random(how.layout.seed ^ how.layout.bucket, 0);
  const auto shape = exact::SketchShape::plan(kCount / 20, 1, 1, seed);
  ASSERT_TRUE(shape.chunks >= 32 && shape.chunks <= kMostChunks);
  std::vector<float> values(kCount);
  uint64_t keys = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    if (addend_sketch_chunk(addend_sketch_hash(shape.seed, i), kMostChunks) != 0) continue;
    values[i] = static_cast<float>(i % 1000 + 1);
    ++keys;
  }
  ASSERT_GT(keys, shape.chunk_cells());
  Bytes gradient(kCount * sizeof(float));
  std::memcpy(gradient.data(), values.data(), gradient.size());
  std::vector<std::unique_ptr<Twins>> worker;
  worker.push_back(std::make_unique<Twins>(device_, how, 0));
  step(worker, {gradient});
  EXPECT_GT(worker[0]->report().stuck_keys, 0u);
}

// More chunks than a CTA can sort by, of tiles whose slots hold nothing.
TEST_F(CudaExact, SketchesOfThousandsOfChunks) {
  constexpr uint64_t kCount = (1 << 25) + 17;
  ASSERT_GT(exact::SketchShape::plan(kCount / 2, 1, 1, 0).chunks, 1000u);
  run(of("exact:mode=sketch,density=0.55", DType::kF32, kCount, 1), {0.55}, false);
}

// Chunks whose sums, or whose words, are more than a CTA's own memory.
TEST_F(CudaExact, SketchesOfOneLargeChunk) {
  const auto cells = [](uint64_t keys) {
    const auto shape = exact::SketchShape::plan(keys, 1, 1, 0);
    return shape.chunks == 1 ? shape.chunk_cells() : 0;
  };
  ASSERT_GT(cells(25000) * 8, 232448u);
  run(of("exact:mode=sketch,density=0.25", DType::kF32, 100003, 1), {0.25}, false);
  ASSERT_GT(cells(30000) * 49 / 8, 232448u);
  run(of("exact:mode=sketch,density=0.3", DType::kF32, 100003, 1), {0.3}, false);
}

// A CTA that peels has 14 bytes a cell and a little; beyond 48 KiB it has to ask.
TEST_F(CudaExact, SketchesAboutAsLargeAsWhatNobodyAsksFor) {
  int sizes = 0;
  for (uint64_t keys = 2000; keys < 4000; ++keys) {
    const uint64_t bytes = exact::SketchShape::plan(keys, 1, 1, 0).chunk_cells() * 14;
    if (bytes <= 48 * 1024 - 600 || bytes >= 48 * 1024 + 100) continue;
    run(of("exact:mode=sketch,density=0.1", DType::kF32, keys * 10, 1), {0.05}, false);
    ++sizes;
  }
  EXPECT_GT(sizes, 0);
}

TEST_F(CudaExact, CellsThatDoNotBelongToTheIndexAreUndecodable) {
  Layout layout;
  layout.count = 5000;
  layout.execution = {Execution::Device::kCuda, device_.stream()};
  const auto codec = create_codec(*CodecSpec::parse("exact:mode=sketch,density=0.1"), layout);
  ASSERT_TRUE(codec) << codec.error().message;
  std::mt19937_64 random(kSeed);
  const Bytes sparse = random_gradient(layout, 0.08, false, random);
  cuda::DeviceBuffer gradient(device_.runtime());
  ASSERT_TRUE(gradient.reserve(sparse.size()));
  device_.write(gradient.as<void>(), sparse);
  ASSERT_TRUE((*codec)->begin(gradient.as<void>()));
  Round round;
  ASSERT_TRUE(*(*codec)->next_round(round));
  Bytes cell = device_.read(round.planes[1].data, 8);
  cell[3] ^= 4;
  device_.write(round.planes[1].data, cell);
  for (auto more = (*codec)->next_round(round); more && *more; more = (*codec)->next_round(round)) {
  }
  const Status ended = (*codec)->finish(gradient.as<void>());
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, Errc::kUndecodable) << ended.error().message;
  EXPECT_EQ(device_.read(gradient.as<void>(), sparse.size()), sparse);
}

TEST_F(CudaExact, OwnNonZerosHaveTheBytesOfTheCpu) {
  for (const DType dtype : kTypes) {
    for (const uint64_t count : {0, 1, 31, 32, 33, 64, 1000, 1024, 1025, 4096, 65537, 300007}) {
      for (const double density : {0.0, 0.0003, 0.02, 0.5, 1.0})
        run(of("exact:mode=gather", dtype, count, 3), {density}, false);
    }
    SideBySide how = of("exact:mode=gather", dtype, 50021, 2);
    how.layout.scale = 1.0 / 3;
    how.misaligned = 1;
    run(how, {0.05, 0.0, 0.6}, true);
    how.elsewhere = true;
    run(how, {0.05, 0.3}, true);
  }
}

// Gradients whose rows are dead, full or neither.
class CudaTwoLevel : public CudaExact {
 protected:
  void run_rows(const SideBySide& how, uint64_t row, double live, bool odd,
                const std::vector<double>& inside_rows = {1.0, 0.6, 0.02, 1.0}) {
    std::mt19937_64 random(kSeed + how.layout.count + row);
    SCOPED_TRACE(how.spec + " of " + std::to_string(how.layout.count) + " " +
                 dtype_name(how.layout.dtype) + ", rows of " + std::to_string(row) + ", " +
                 std::to_string(live) + " live, misaligned by " + std::to_string(how.misaligned) +
                 ", seed " + std::to_string(kSeed));
    std::vector<std::unique_ptr<Twins>> workers;
    for (uint32_t w = 0; w < how.layout.world; ++w)
      workers.push_back(std::make_unique<Twins>(device_, how, w));
    for (const double inside : inside_rows) {
      std::vector<Bytes> inputs;
      for (uint32_t w = 0; w < how.layout.world; ++w) {
        inputs.push_back(random_gradient(how.layout, inside, odd, random));
        clear_rows(how.layout, row, live, random, inputs.back());
      }
      step(workers, inputs);
      if (HasFatalFailure()) return;
    }
  }

 private:
  static void clear_rows(const Layout& layout, uint64_t row, double live, std::mt19937_64& random,
                         Bytes& gradient) {
    std::uniform_real_distribution<double> uniform;
    const uint64_t width = dtype_bytes(layout.dtype);
    for (uint64_t begin = 0; begin < layout.count; begin += row) {
      if (uniform(random) < live) continue;
      const uint64_t end = std::min(begin + row, layout.count);
      std::fill(gradient.begin() + static_cast<std::ptrdiff_t>(begin * width),
                gradient.begin() + static_cast<std::ptrdiff_t>(end * width), uint8_t{0});
      if (uniform(random) < 0.01) gradient[begin * width + width - 1] = 0x80;  // -0.0
    }
  }
};

TEST_F(CudaTwoLevel, HasTheBytesOfTheCpuAtEveryLengthAndBlock) {
  for (const DType dtype : kTypes) {
    for (const uint64_t block : {1, 7, 32, 64, 100, 128, 256, 1000}) {
      for (const uint64_t count : {0, 1, 63, 64, 65, 4095, 4096, 4097, 16384, 70001}) {
        const std::string spec = "exact:mode=two-level,block=" + std::to_string(block);
        run_rows(of(spec, dtype, count, 2), block, 0.1, false);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(CudaTwoLevel, HasTheBytesOfTheCpuAtEveryShareOfLiveRows) {
  for (const DType dtype : kTypes) {
    for (const double live : {0.0, 0.001, 0.05, 0.5, 0.99, 1.0}) {
      run_rows(of("exact:mode=two-level", dtype, 300007, 3), 64, live, false);
      run_rows(of("exact:mode=two-level,block=128", dtype, 300007, 1), 50, live, false);
    }
  }
}

TEST_F(CudaTwoLevel, OddValuesAndMisalignedGradientsAreAsOnTheCpu) {
  for (const DType dtype : kTypes) {
    for (const uint64_t misaligned : {0, 1, 3}) {
      for (const int where : {0, 1, 2}) {
        SideBySide how = of("exact:mode=two-level", dtype, 20011, 2);
        how.layout.scale = where == 0 ? 1.0 / 3 : 1.0;
        how.misaligned = misaligned;
        how.in_place = where == 1;
        how.elsewhere = where == 2;
        run_rows(how, 64, 0.2, true);
        run_rows(how, 10, 0.9, true);
      }
    }
  }
}

TEST_F(CudaTwoLevel, AutoChoosesItAndItsBlocksAsOnTheCpu) {
  const std::vector<double> densities = {1, 1, 1, 0.5, 0.5, 1, 0.01, 0.01, 1, 1,
                                         1, 1, 1, 1,   1,   1, 1,    1,    1, 1};
  for (const DType dtype : kTypes) {
    run_rows(of("exact:choice=device", dtype, 1 << 20, 2), 256, 0.02, false, densities);
    run_rows(of("exact:choice=device", dtype, 300007, 2), 100, 0.05, true, densities);
    run_rows(of("exact:choice=device,block=100", dtype, 300007, 2), 100, 0.05, false, densities);
    // Blocks that a warp looks at together.
    run_rows(of("exact:choice=device,block=5000", dtype, 300007, 2), 5000, 0.05, false, densities);
    if (HasFailure()) return;
  }
  Layout layout;
  layout.count = 1 << 20;
  layout.execution = {Execution::Device::kCuda, device_.stream()};
  const auto codec = create_codec(*CodecSpec::parse("exact"), layout);
  ASSERT_TRUE(codec) << codec.error().message;
  cuda::DeviceBuffer gradient(device_.runtime());
  ASSERT_TRUE(gradient.reserve(layout.count * 4));
  device_.runtime()->fill(gradient.as<void>(), 0, layout.count * 4, device_.stream());
  device_.write(gradient.as<void>(), Bytes(256 * 40, 0x3F));
  for (int i = 0; i < 2; ++i) {
    Round round;
    EXPECT_EQ((*codec)->next_mode(), i == 0 ? "packed" : "two-level");
    ASSERT_TRUE((*codec)->begin(gradient.as<void>()));
    for (auto more = (*codec)->next_round(round); *more; more = (*codec)->next_round(round)) {
    }
    ASSERT_TRUE((*codec)->finish(gradient.as<void>()));
  }
}

TEST_F(CudaTwoLevel, LargeUnionsOfFourWorkers) {
  run_rows(of("exact:mode=two-level", DType::kF32, (1 << 22) + 17, 4), 64, 0.05, false);
}

TEST_F(CudaExact, DenseHasTheBytesOfTheCpu) {
  for (const DType dtype : kTypes) {
    for (const double scale : {1.0, 0.25, 1.0 / 3}) {
      for (const bool in_place : {false, true}) {
        SideBySide how = of("dense", dtype, 9001, 1);
        how.layout.scale = scale;
        how.in_place = in_place;
        how.misaligned = 1;
        run(how, {0.5, 1.0}, true);
      }
    }
  }
}

TEST_F(CudaTwoLevel, OwnRunsHaveTheBytesOfTheCpu) {
  for (const DType dtype : kTypes) {
    for (const uint64_t row : {2, 31, 64, 1024, 5000})
      run_rows(of("exact:mode=gather", dtype, 70001, 3), row, 0.1, false);
  }
}

TEST_F(CudaExact, LargeUnionsOfEightWorkers) {
  run(of("exact:mode=packed", DType::kF32, (1 << 22) + 17, 8), {0.05}, false);
}

TEST_F(CudaExact, ALostIndexBitIsUndecodable) {
  for (const char* spec : {"exact:mode=packed", "exact:mode=two-level"})
    expect_undecodable(spec);
}

TEST_F(CudaExact, TwoStreamsAtOnceDoNotDisturbEachOther) {
  TestDevice other;
  std::mt19937_64 random(kSeed);
  const SideBySide how = of("exact:mode=packed", DType::kF32, 1 << 20, 1);
  Twins first(device_, how, 0), second(other, how, 0);
  for (int i = 0; i < 3; ++i) {
    Round rounds[2];
    const Bytes a = random_gradient(how.layout, 0.05, false, random);
    const Bytes b = random_gradient(how.layout, 0.2, false, random);
    first.begin(a);
    second.begin(b);
    while (first.next(rounds[0]) && second.next(rounds[1])) {
    }
    EXPECT_FALSE(second.next(rounds[1]));
    EXPECT_EQ(first.finish(), a);
    EXPECT_EQ(second.finish(), b);
  }
}

// Codecs of two threads, by which a kernel is launched with other sizes at the same time.
TEST_F(CudaExact, TwoThreadsAtOnceDoNotDisturbEachOther) {
  const auto work = [](uint64_t seed, uint64_t count, const std::vector<std::string>& specs) {
    const TestDevice device;
    std::mt19937_64 random(seed);
    for (const std::string& spec : specs) {
      SCOPED_TRACE(spec + " of " + std::to_string(count) + ", seed " + std::to_string(seed));
      const SideBySide how = of(spec, DType::kF32, count, 1);
      std::vector<std::unique_ptr<Twins>> worker;
      worker.push_back(std::make_unique<Twins>(device, how, 0));
      for (int i = 0; i < 4; ++i)
        step(worker, {random_gradient(how.layout, 0.05, false, random)});
    }
  };
  std::vector<std::string> specs = {"exact:mode=sketch",        "exact:mode=packed",
                                    "topk:0.05,index=packed",   "exact:mode=gather",
                                    "quant:bits=8,block=16384", "exact:mode=bloom",
                                    "exact:choice=device",      "cast:bf16"};
  std::thread first(work, kSeed, 300'007, specs);
  std::reverse(specs.begin(), specs.end());
  std::thread second(work, kSeed + 1, 50'021, specs);
  first.join();
  second.join();
}

TEST_F(CudaExact, AStepThatWasCancelledLeavesTheNextOneRight) {
  for (const char* spec :
       {"exact:mode=packed", "exact:mode=two-level", "exact:mode=bloom", "exact:mode=sketch",
        "exact:mode=gather", "exact:mode=packed,values=reproducible",
        "exact:mode=sketch,values=reproducible"}) {
    SCOPED_TRACE(spec);
    std::mt19937_64 random(kSeed);
    const SideBySide how = of(spec, DType::kF32, 30011, 1);
    Twins twins(device_, how, 0);
    const Bytes odd = random_gradient(how.layout, 0.3, true, random);
    const Bytes plain = random_gradient(how.layout, 0.05, false, random);
    for (int rounds = 0; rounds < 4; ++rounds) {
      Round round;
      if (rounds > 0) {
        twins.begin(odd);
        for (int i = 1; i < rounds && twins.next(round); ++i) {
        }
        twins.cancel();
      }
      twins.begin(plain);
      while (twins.next(round)) {
      }
      EXPECT_EQ(twins.finish(), plain) << "cancelled after " << rounds - 1 << " rounds";
      if (HasFailure()) return;
    }
  }
}

// A codec of packed values finds what another has written: nothing else, and nothing left over.
TEST_F(CudaExact, MoreThanTwoToTheThirtyTwoElements) {
  constexpr uint64_t kCount = (uint64_t{1} << 32) + 12345;
  constexpr uint64_t kAt[] = {
      0, 1, 1ull << 31, (1ull << 32) - 1, 1ull << 32, (1ull << 32) + 77, kCount - 1};
  // A selector owes two floats an element beside the gradient that exact gets.
  const std::pair<const char*, uint64_t> specs[] = {{"exact:mode=packed", 40},
                                                    {"exact:mode=two-level", 40},
                                                    {"exact:mode=bloom", 40},
                                                    {"exact:mode=gather", 40},
                                                    {"topk:0.000001,index=packed", 80}};
  cuda::DeviceInfo info;
  ASSERT_EQ(device_.runtime()->describe(0, &info), 0);
  if (info.memory_bytes < uint64_t{40} << 30) GTEST_SKIP() << "the device has no 40 GiB";
  cuda::DeviceBuffer gradient(device_.runtime()), sum(device_.runtime());
  for (cuda::DeviceBuffer* buffer : {&gradient, &sum})
    ASSERT_TRUE(buffer->reserve(kCount * 2));
  device_.runtime()->fill(gradient.as<void>(), 0, kCount * 2, device_.stream());
  Bytes expected;
  for (uint8_t k = 0; k < std::size(kAt); ++k) {
    const Bytes value = {k, 0x3F};
    device_.write(gradient.as<uint16_t>() + kAt[k], value);
    expected.insert(expected.end(), value.begin(), value.end());
  }
  const auto values_of = [&](const char* spec, const void* from, void* to) {
    Layout layout;
    layout.dtype = DType::kBf16;
    layout.count = kCount;
    layout.execution = {Execution::Device::kCuda, device_.stream()};
    const auto codec = create_codec(*CodecSpec::parse(spec), layout);
    EXPECT_TRUE(codec) << spec << ": " << codec.error().message;
    Bytes values;
    for (int i = 0; codec && i < 2; ++i) {  // the first step shows a filter how large it must be
      Round round;
      EXPECT_TRUE((*codec)->begin(from));
      for (auto more = (*codec)->next_round(round); more && *more;
           more = (*codec)->next_round(round)) {
        if (round.last)
          values = device_.read(round.planes[0].data,
                                op_bytes(round.planes[0].op, round.planes[0].lanes));
      }
      const Status ended = (*codec)->finish(to);
      EXPECT_TRUE(ended) << ended.error().message;
    }
    return values;
  };
  EXPECT_EQ(values_of("exact:mode=packed", gradient.as<void>(), sum.as<void>()), expected);
  for (const auto& [spec, gib] : specs) {
    SCOPED_TRACE(spec);
    if (info.memory_bytes < gib << 30) GTEST_SKIP() << "the device has no " << gib << " GiB";
    device_.runtime()->fill(sum.as<void>(), 0xEE, kCount * 2, device_.stream());
    values_of(spec, gradient.as<void>(), sum.as<void>());
    EXPECT_EQ(values_of("exact:mode=packed", sum.as<void>(), sum.as<void>()), expected);
    for (uint8_t k = 0; k < std::size(kAt); ++k)
      EXPECT_EQ(device_.read(sum.as<uint16_t>() + kAt[k], 2), (Bytes{k, 0x3F})) << kAt[k];
    if (HasFailure()) return;
  }
}

// In a process of its own: a device does not forgive.
TEST_F(CudaExact, AKernelThatFailsIsANamedError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail = [] {
    TestDevice device;
    Layout layout;
    layout.count = 1 << 20;
    layout.execution = {Execution::Device::kCuda, device.stream()};
    const auto codec = create_codec(*CodecSpec::parse("exact:mode=packed"), layout);
    Round round;
    const bool begun = codec && (*codec)->begin(reinterpret_cast<const void*>(uintptr_t{4096}));
    if (!begun || !(*codec)->next_round(round)) std::_Exit(2);
    const auto more = (*codec)->next_round(round);
    std::cerr << (more ? "no error" : more.error().message) << std::endl;
    std::_Exit(more ? 1 : 0);
  };
  EXPECT_EXIT(fail(), ::testing::ExitedWithCode(0), "illegal memory access");
}

// auto on a device never chooses a filter, a sketch or messages.
TEST_F(CudaExact, AutoHasNoMemoryForWhatItNeverChooses) {
  const auto bytes_of = [&](const char* spec) {
    Layout layout;
    layout.count = 1000;
    layout.execution = {Execution::Device::kCuda, device_.stream()};
    const auto codec = create_codec(*CodecSpec::parse(spec), layout);
    EXPECT_TRUE(codec) << spec;
    return codec ? (*codec)->memory_bytes() : 0;
  };
  const uint64_t least = bytes_of("exact");
  EXPECT_EQ(bytes_of("exact:mode=packed"), least);
  for (const char* spec : {"exact:mode=bloom", "exact:mode=sketch", "exact:mode=gather"})
    EXPECT_GT(bytes_of(spec), least) << spec;
}

// Its error is the caller's then, and no longer the thread's.
TEST_F(CudaExact, ACallThatFailedIsNotReportedAgain) {
  const auto bloom = cuda::part<index::BloomKernels>();
  const auto own = cuda::part<exact::OwnKernels>();
  ASSERT_TRUE(bloom && own);
  index::BloomCall nowhere{};
  nowhere.shape.words = 1;
  EXPECT_NE((*bloom)->insert(nowhere, device_.stream()), 0) << "clears a filter at no address";
  cuda::DeviceBuffer words(device_.runtime());
  ASSERT_TRUE(words.reserve(8));
  device_.write(words.as<void>(), Bytes(8, 1));
  EXPECT_EQ((*own)->merge(words.as<uint64_t>(), 1, words.as<uint64_t>(), device_.stream()), 0);
  EXPECT_EQ(device_.runtime()->synchronize(device_.stream()), 0);
}

TEST_F(CudaExact, AGradientThatDoesNotFitIsOutOfMemoryAndUntouched) {
  Layout layout;
  layout.count = uint64_t{1} << 44;
  layout.execution = {Execution::Device::kCuda, device_.stream()};
  auto codec = create_codec(*CodecSpec::parse("exact:mode=packed"), layout);
  ASSERT_TRUE(codec);
  cuda::DeviceBuffer gradient(device_.runtime());
  ASSERT_TRUE(gradient.reserve(64));
  const Bytes before(64, 0x3C);
  device_.write(gradient.as<void>(), before);
  ASSERT_TRUE((*codec)->begin(gradient.as<void>()));
  Round round;
  const auto more = (*codec)->next_round(round);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Errc::kOutOfMemory) << more.error().message;
  EXPECT_EQ(device_.read(gradient.as<void>(), 64), before);
}

}  // namespace
}  // namespace addend
