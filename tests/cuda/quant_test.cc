// SPDX-License-Identifier: Apache-2.0
// The law of devices: quant on a CUDA device writes the CPU codec's bytes (quant_twins.h).
#include <cstring>
#include <string>

#include "tests/cuda/quant_twins.h"

namespace addend {
namespace {

TEST_F(CudaQuant, WritesTheCpusBytesAtEveryLength) {
  for (const uint64_t count :
       {0, 1, 15, 63, 64, 65, 100, 1000, 2047, 2048, 2049, 2064, 4096, 6000, 70000}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      SCOPED_TRACE(std::to_string(count) + " " + dtype_name(dtype));
      Twins twins(device_, "quant", quant_layout(2, count, dtype));
      Gradients gradients = mixture(quant_layout(2, count, dtype), count, false);
      ASSERT_TRUE(twins.step(gradients));
    }
  }
}

TEST_F(CudaQuant, WritesTheCpusBytesWithEveryOption) {
  for (const std::string spec : {"quant:bits=1",
                                 "quant:bits=2,carrier=indices",
                                 "quant:bits=3",
                                 "quant:bits=4",
                                 "quant:bits=4,carrier=indices",
                                 "quant:bits=5",
                                 "quant:bits=6",
                                 "quant:bits=7",
                                 "quant:bits=8",
                                 "quant:levels=uniform,bits=4",
                                 "quant:levels=published,bits=4",
                                 "quant:rounding=independent",
                                 "quant:rotate=none,bits=4",
                                 "quant:block=64,bits=4",
                                 "quant:block=1024,bits=4,carrier=indices",
                                 "quant:block=16384,bits=4",
                                 "quant:bits=4,feedback=float",
                                 "quant:bits=4,feedback=float,carrier=indices",
                                 "quant:bits=4,feedback=byte",
                                 "quant:bits=4,feedback=byte,carrier=indices",
                                 "quant:bits=4,feedback=byte,block=1024",
                                 "quant:bits=4,feedback=float,block=4096",
                                 "quant:bits=4,feedback=float,rotate=none"}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      SCOPED_TRACE(spec + " " + dtype_name(dtype));
      const Layout layout = quant_layout(3, 16 * 2048 + 333, dtype);
      Twins twins(device_, spec, layout);
      for (uint64_t step = 0; step < 3; ++step) {
        Gradients gradients = mixture(layout, 7 + step, true);
        ASSERT_TRUE(twins.step(gradients));
      }
    }
  }
}

TEST_F(CudaQuant, WritesTheCpusBytesWhateverTheGradientIsAlignedTo) {
  for (const uint64_t shift : {1, 2, 3, 4, 5, 8}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const char* spec :
           {"quant", "quant:bits=4,feedback=float", "quant:bits=4,feedback=byte"}) {
        SCOPED_TRACE(std::to_string(shift) + " " + dtype_name(dtype) + " " + spec);
        const Layout layout = quant_layout(1, 5 * 2048 + 100, dtype);
        Twins twins(device_, spec, layout, shift);
        Gradients gradients = mixture(layout, shift, false);
        ASSERT_TRUE(twins.step(gradients));
      }
    }
  }
}

// 4 bits of so many workers travel in u8, u16 and i32; no world is so large here, but its lanes
// are.
TEST_F(CudaQuant, WritesTheCpusBytesInLanesOfEveryWidth) {
  for (const char* options : {"bits=4", "bits=4,feedback=float", "bits=4,feedback=byte",
                              "bits=4,carrier=indices", "bits=8"}) {
    for (const uint32_t world : {1u, 4u, 24u, 5000u}) {
      if (world == 5000 && std::strstr(options, "indices") != nullptr) continue;  // refused
      const std::string spec = std::string("quant:") + options;
      SCOPED_TRACE(std::to_string(world) + " " + spec);
      Layout layout = quant_layout(world, 16 * 2048 + 70);
      layout.scale = 1.0 / world;
      const uint32_t workers = std::min(world, 3u);
      Twins twins(device_, spec, layout, 0, workers);
      Gradients gradients = mixture(quant_layout(workers, layout.count), world, true);
      ASSERT_TRUE(twins.step(gradients));
    }
  }
}

TEST_F(CudaQuant, SegmentsHaveTheCpusBytes) {
  Layout layout = quant_layout(2, 0);
  const uint64_t counts[] = {5000, 1, 0, 2048, 64, 63, 4097, 12345};
  for (uint64_t id = 0; id < std::size(counts); ++id) {
    layout.segments.push_back({1000 + 7 * id, counts[id]});
    layout.count += counts[id];
  }
  for (const char* spec : {"quant", "quant:bits=4,feedback=float", "quant:bits=4,feedback=byte"}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      layout.dtype = dtype;
      Twins twins(device_, spec, layout);
      for (uint64_t step = 0; step < 2; ++step) {
        Gradients gradients = mixture(layout, 3 + step, true);
        ASSERT_TRUE(twins.step(gradients));
      }
      twins.check_segments();
    }
  }
}

// Over a change of signs; a cancelled step and a step without this worker leave what is owed.
TEST_F(CudaQuant, FeedbackGoesTheCpusWayOverManySteps) {
  for (const char* spec :
       {"quant:bits=4,feedback=float", "quant:bits=2,feedback=float,carrier=indices",
        "quant:bits=4,feedback=byte"}) {
    SCOPED_TRACE(spec);
    const Layout layout = quant_layout(3, 16 * 2048 + 777);
    Twins twins(device_, spec, layout);
    for (uint64_t step = 0; step < 18; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      Gradients gradients = mixture(layout, 40 + step, step % 3 == 1);
      step == 5 ? twins.leave_out(1) : twins.all_take_part();
      if (step == 9) {
        ASSERT_TRUE(twins.cpu(0).scale_residual(0.3));
        ASSERT_TRUE(twins.gpu(0).scale_residual(0.3));
      }
      ASSERT_TRUE(twins.step(gradients));
    }
  }
}

TEST_F(CudaQuant, AStateMovesBetweenCpuAndDevice) {
  const Layout layout = quant_layout(2, 3 * 2048 + 100);
  const char* spec = "quant:bits=4,feedback=float";
  Twins before(device_, spec, layout), after(device_, spec, layout);
  Gradients gradients = mixture(layout, 1, false);
  ASSERT_TRUE(before.step(gradients));
  for (uint32_t w = 0; w < 2; ++w) {
    const auto a = before.cpu(w).save_state(), b = before.gpu(w).save_state();
    ASSERT_TRUE(a && b);
    ASSERT_TRUE(after.gpu(w).load_state(*a));
    ASSERT_TRUE(after.cpu(w).load_state(*b));
    EXPECT_FALSE(after.gpu(1 - w).load_state(*a));
  }
  gradients = mixture(layout, 2, false);
  ASSERT_TRUE(after.step(gradients));
}

TEST_F(CudaQuant, ACancelledStepLeavesWhatIsOwed) {
  const Layout layout = quant_layout(1, 4 * 2048);
  Twins twins(device_, "quant:bits=4,feedback=float", layout);
  Gradients gradients = mixture(layout, 1, false);
  ASSERT_TRUE(twins.step(gradients));
  const auto before = twins.gpu(0).save_state();
  Held held(device_, layout.count * 4, 0);
  held.put(mixture(layout, 2, false)[0]);
  Round round;
  ASSERT_TRUE(twins.gpu(0).begin(held.data()));
  ASSERT_TRUE(twins.gpu(0).next_round(round));
  ASSERT_TRUE(twins.gpu(0).next_round(round));
  twins.gpu(0).cancel();
  EXPECT_EQ(*twins.gpu(0).save_state(), *before);
  gradients = mixture(layout, 3, false);
  ASSERT_TRUE(twins.step(gradients));
}

TEST_F(CudaQuant, ErrorsAreTheCpus) {
  const Layout layout = quant_layout(2, 6 * 2048);
  Twins twins(device_, "quant:nonfinite=error,bits=4,feedback=float", layout);
  Gradients gradients = mixture(layout, 1, true);
  EXPECT_FALSE(twins.step(gradients));
  EXPECT_FALSE(HasFailure());
}

// Sums are decoded before the host has looked at the count that came with them.
TEST_F(CudaQuant, SumsOfAnImpossibleNumberOfWorkersLeaveTheGradient) {
  for (const char* spec : {"quant:bits=4", "quant:block=16384,bits=4", "quant:index=packed"}) {
    for (const uint64_t missing : {0, 2}) {
      for (const uint32_t count : {0u, 1u, 3u, 4u, 77u}) {
        if (missing == 0 && count > 0 && count <= 3) continue;  // fewer may have come
        SCOPED_TRACE(std::string(spec) + ", " + std::to_string(count) + " of 3");
        Layout layout = quant_layout(3, 5 * 2048 + 7);
        layout.execution = {Execution::Device::kCuda, stream_};
        auto codec = create_codec(*CodecSpec::parse(spec), layout);
        ASSERT_TRUE(codec);
        Held held(device_, layout.count * 4, 0);
        auto gradient = mixture(layout, 1, false)[0];
        gradient.resize(layout.count * 4);
        held.put(gradient);
        ASSERT_TRUE((*codec)->begin(held.data()));
        ASSERT_TRUE((*codec)->set_missing(missing));
        for (bool more = true; more;) {
          Round round;
          const Result<bool> next = (*codec)->next_round(round);
          ASSERT_TRUE(next) << next.error().message;
          more = *next;
          for (std::size_t p = 0; more && p < round.size; ++p) {
            const Plane& plane = round.planes[p];
            if (plane.op != Op::kSumI32 || plane.lanes != 1) continue;
            ASSERT_EQ(device_.runtime->copy(plane.data, &count, 4, device_.stream), 0);
          }
        }
        const Status ended = (*codec)->finish(held.data());
        ASSERT_FALSE(ended);
        EXPECT_EQ(ended.error().code, Errc::kUndecodable) << ended.error().message;
        EXPECT_EQ(held.get(), gradient);
      }
    }
  }
}

TEST_F(CudaQuant, WhatDoesNotRunYetIsRefusedByName) {
  Layout layout = quant_layout(2, 100);
  layout.execution = {Execution::Device::kCuda, stream_};
  for (const char* option :
       {"bits=auto", "block=whole", "index=auto,bits=auto", "index=auto,block=whole",
        "norms=ahead,feedback=float", "down=4", "down=8"}) {
    SCOPED_TRACE(option);
    const auto codec = create_codec(*CodecSpec::parse(std::string("quant:") + option), layout);
    ASSERT_FALSE(codec);
    EXPECT_EQ(codec.error().code, Errc::kUnsupported);
    EXPECT_NE(codec.error().message.find("does not run on a device yet"), std::string::npos);
  }
}

}  // namespace
}  // namespace addend
