// SPDX-License-Identifier: Apache-2.0
// What the quant codec keeps from step to step, and what it makes of sums that lack workers or lie.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <gtest/gtest.h>

#include "codec/quant/quant.h"
#include "tests/support/quant_gradients.h"
#include "tests/support/quant_workers.h"

namespace addend::quant {
namespace {

using namespace testing_support;

std::vector<double> zeros_of(const Layout& layout) {
  return std::vector<double>(layout.count, 0.0);
}

// Feedback holds back what a step does not deliver; steps without gradients then deliver it, also
// after absences. The residual is in units of one gradient, so the factor N/n of the sums is undone
// here; what sums come to with it is the law of tests/laws/missing_workers_test.cc.
TEST(QuantFeedback, DeliversInTheEndWhatTheContributorsPutIn) {
  for (const char* feedback : {"float", "byte"}) {
    const Layout layout = quant_layout(4, 5000);
    QuantWorkers workers("quant:bits=4,feedback=" + std::string(feedback), layout);
    std::vector<double> missing = zeros_of(layout);
    double last = 0;
    for (uint64_t step = 0; step < 200; ++step) {
      Gradients gradients = gaussian(layout, 1000 * step, step < 20 ? 1 : 0);
      // Everyone is left out at times, at most two at a time.
      uint32_t contributors = 0;
      for (uint32_t w = 0; w < 4; ++w) {
        const bool out = step < 20 && (step % 5 == w || step % 7 == w);
        workers.leave_out(w, out);
        contributors += out ? 0 : 1;
        accumulate(layout, gradients[w], out ? 0 : 1, missing);
      }
      ASSERT_TRUE(workers.step(gradients));
      accumulate(layout, gradients[0], -static_cast<double>(contributors) / 4, missing);
      if (step == 19) last = norm(missing);
    }
    EXPECT_GT(last, 10.0) << feedback << ": something must have been held back";
    // Bytes lose about a 200th of what they hold each step, and never deliver that.
    EXPECT_LT(norm(missing), std::string(feedback) == "float" ? 1e-3 : 10.0) << feedback;
  }
}

// What a state says beside plan and step.
Bytes residual_of(const Codec& codec) {
  const Bytes state = *codec.save_state();
  return {state.begin() + 16, state.end()};
}

// The others' mean stands for its gradient, whatever that was; what it owed before it still owes,
// bit for bit.
TEST(QuantFeedback, AMissingWorkersResidualIsTheOneItHad) {
  const float huge = 3e38f, nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* spec : {"quant:feedback=float", "quant:feedback=byte"}) {
    for (const float odd : {1.0f, huge, nan}) {
      for (const double others : {1.0, 0.0, 1e-20}) {
        const Layout layout = quant_layout(2, 5000);
        QuantWorkers workers(spec, layout);
        Gradients gradients = gaussian(layout, 1);
        ASSERT_TRUE(workers.step(gradients));
        const Bytes owed = residual_of(workers.codec(1));
        ASSERT_NE(owed, Bytes(owed.size(), 0));
        workers.leave_out(1);
        for (uint64_t step = 1; step < 4; ++step) {  // within one period of signs
          gradients = gaussian(layout, step);
          gradients[0] = gaussian(layout, step, others)[0];
          write(DType::kF32, gradients[1], 7, odd);
          ASSERT_TRUE(workers.step(gradients));
          ASSERT_EQ(gradients[0], gradients[1]);
          EXPECT_EQ(workers.report().missing, 2u);
          EXPECT_EQ(workers.report().contributors, 1u);
          EXPECT_EQ(residual_of(workers.codec(1)), owed) << spec << " " << odd << " " << others;
        }
      }
    }
  }
}

// A block that is NaN for everyone delivers nothing of what was owed.
TEST(QuantFeedback, ABrokenBlockKeepsItsResidual) {
  for (const auto& [spec, width] :
       {std::pair("quant:feedback=float", 4), {"quant:feedback=byte", 1}}) {
    const Layout layout = quant_layout(2, 4096);
    QuantWorkers workers(spec, layout);
    Gradients gradients = gaussian(layout, 1);
    ASSERT_TRUE(workers.step(gradients));
    const Bytes owed[] = {residual_of(workers.codec(0)), residual_of(workers.codec(1))};
    gradients = gaussian(layout, 2);
    write(DType::kF32, gradients[1], 5, std::numeric_limits<float>::infinity());
    ASSERT_TRUE(workers.step(gradients));
    ASSERT_TRUE(std::isnan(read(DType::kF32, gradients[0], 0)));
    const auto block = [bytes = 2048 * width](const Bytes& residual, int b) {
      return Bytes(residual.begin() + b * bytes, residual.begin() + (b + 1) * bytes);
    };
    for (uint32_t w = 0; w < 2; ++w) {
      const Bytes owes = residual_of(workers.codec(w));
      EXPECT_EQ(block(owes, 0), block(owed[w], 0)) << spec;
      EXPECT_NE(block(owes, 1), block(owed[w], 1)) << spec << ": the other block went on";
    }
  }
}

TEST(QuantFeedback, AMissingWorkersNaNSpoilsNoLaterStep) {
  const Layout layout = quant_layout(2, 2048);
  QuantWorkers workers("quant:feedback=float", layout);
  Gradients gradients = gaussian(layout, 1);
  write(DType::kF32, gradients[1], 5, std::numeric_limits<float>::quiet_NaN());
  workers.leave_out(1);
  ASSERT_TRUE(workers.step(gradients));
  workers.leave_out(1, false);
  for (uint64_t step = 1; step < 3; ++step) {
    for (uint64_t i = 0; i < layout.count; ++i)
      ASSERT_TRUE(std::isfinite(read(DType::kF32, gradients[0], i))) << step << " " << i;
    gradients = gaussian(layout, step);
    ASSERT_TRUE(workers.step(gradients));
  }
}

TEST(QuantFeedback, OneStepOfHugeNumbersSpoilsNoLaterStep) {
  for (const char* spec : {"quant:feedback=float", "quant:feedback=byte",
                           "quant:feedback=float,bits=1", "quant:feedback=byte,bits=1"}) {
    for (const bool outlier : {false, true}) {
      const Layout layout = quant_layout(3, 4096);
      QuantWorkers workers(spec, layout);
      Gradients gradients = gaussian(layout, 8, outlier ? 1 : 2e36);  // a norm near 1e38
      if (outlier) write(DType::kF32, gradients[0], 5, 3.3e38f);
      workers.leave_out(2);
      ASSERT_TRUE(workers.step(gradients)) << spec;
      workers.leave_out(2, false);
      for (uint64_t step = 1; step < 80; ++step) {
        gradients = gaussian(layout, step);
        ASSERT_TRUE(workers.step(gradients));
      }
      for (uint64_t i = 0; i < layout.count; ++i)
        ASSERT_TRUE(std::isfinite(read(DType::kF32, gradients[0], i))) << spec << " " << i;
    }
  }
}

TEST(QuantFeedback, HoldsDenormalsToo) {
  for (const char* feedback : {"float", "byte"}) {
    const Layout layout = quant_layout(2, 2048);
    QuantWorkers workers("quant:feedback=" + std::string(feedback), layout);
    std::vector<double> total = zeros_of(layout), truth = zeros_of(layout);
    for (int step = 0; step < 16; ++step) {
      Gradients gradients =
          gradients_of(layout, [](uint32_t, uint64_t i) { return i % 3 == 0 ? 1e-41 : -1e-41; });
      for (const Bytes& gradient : gradients)
        accumulate(layout, gradient, 1, truth);
      ASSERT_TRUE(workers.step(gradients));
      accumulate(layout, gradients[0], 1, total);
    }
    for (uint64_t i = 0; i < layout.count; ++i)
      truth[i] -= total[i];
    EXPECT_LT(norm(truth), 0.05 * norm(total)) << feedback;
  }
}

TEST(QuantMissing, ASumOverSomeStandsForAll) {
  for (const char* spec : {"quant", "quant:carrier=indices", "quant:rounding=independent"}) {
    const Layout layout = quant_layout(5, 4096);
    const Gradients before = gaussian(layout, 3);
    for (const auto& absent : {std::vector<uint32_t>{0}, {1, 4}, {0, 2, 3}, {1, 2, 3, 4}}) {
      QuantWorkers workers(spec, layout);
      std::vector<double> error = zeros_of(layout);
      double energy = 0;
      for (const uint32_t w : absent)
        workers.leave_out(w);
      const auto present = static_cast<double>(5 - absent.size());
      for (uint32_t w = 0; w < 5; ++w) {
        if (std::find(absent.begin(), absent.end(), w) == absent.end())
          accumulate(layout, before[w], 5 / present, error);
      }
      energy = norm(error);
      Gradients after = before;
      ASSERT_TRUE(workers.step(after));
      for (uint32_t w = 1; w < 5; ++w)
        ASSERT_EQ(after[w], after[0]);
      accumulate(layout, after[0], -1, error);
      EXPECT_LT(norm(error), 0.25 * energy) << spec << " without " << absent.size();
    }
  }
}

TEST(QuantTampered, AnImpossibleNumberOfContributorsIsUndecodable) {
  for (const uint32_t claimed : {0u, 4u, 0x80000000u, 0xFFFFFFFFu}) {
    const Layout layout = quant_layout(3, 3000);
    QuantWorkers workers("quant:feedback=float", layout), honest("quant:feedback=float", layout);
    const Gradients before = gaussian(layout, 6);
    Gradients after = before, expected = before;
    const Status status =
        workers.step(after, [&](uint32_t round, const Plane& plane, std::span<uint8_t> sums) {
          if (round == 1 && plane.lanes == 1) std::memcpy(sums.data(), &claimed, 4);
        });
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Errc::kUndecodable);
    EXPECT_EQ(after, before);
    ASSERT_TRUE(workers.step(after)) << "nothing was learnt from the failed step";
    ASSERT_TRUE(honest.step(expected));
    EXPECT_EQ(after, expected);
  }
}

TEST(QuantTampered, DamagedNormsBreakTheirBlockOrStayFinite) {
  for (const uint32_t lane :
       {0x7F800000u, 0x7FC00000u, 0xFFFFFFFFu, 0x80000000u, 1u, 0x7F7FFFFFu}) {
    const Layout layout = quant_layout(2, 4096);
    QuantWorkers workers("quant:feedback=byte", layout);
    Gradients gradients = gaussian(layout, 6);
    ASSERT_TRUE(workers.step(gradients, [&](uint32_t round, const Plane&, std::span<uint8_t> sums) {
      if (round == 0) std::memcpy(sums.data(), &lane, 4);
    }));
    const float first = read(DType::kF32, gradients[0], 0);
    EXPECT_EQ(std::isnan(first), lane >= 0x7F800000u) << lane;
    EXPECT_TRUE(std::isfinite(read(DType::kF32, gradients[0], 3000)));
    for (uint64_t step = 0; step < 4; ++step) {
      gradients = gaussian(layout, step);
      ASSERT_TRUE(workers.step(gradients));
      ASSERT_TRUE(std::isfinite(read(DType::kF32, gradients[0], 0))) << lane;
    }
  }
}

TEST(QuantState, RestoresBitForBitAlsoAcrossASignPeriod) {
  for (const char* spec : {"quant:feedback=float", "quant:feedback=byte", "quant",
                           "quant:feedback=float,block=64,carrier=indices"}) {
    const Layout layout = quant_layout(2, 1500);
    QuantWorkers workers(spec, layout);
    for (const uint64_t saved : {7u, 63u, 64u}) {
      for (uint64_t step = 0; step < saved; ++step) {
        Gradients gradients = gaussian(layout, step);
        ASSERT_TRUE(workers.step(gradients));
      }
      QuantWorkers restarted(spec, layout);
      for (uint32_t w = 0; w < 2; ++w)
        ASSERT_TRUE(restarted.codec(w).load_state(*workers.codec(w).save_state()));
      EXPECT_EQ(restarted.codec(0).fingerprint(), workers.codec(1).fingerprint());
      for (uint64_t step = 0; step < 70; ++step) {
        Gradients expected = gaussian(layout, 500 + step), gradients = expected;
        ASSERT_TRUE(workers.step(expected));
        ASSERT_TRUE(restarted.step(gradients));
        ASSERT_EQ(gradients, expected) << spec << " step " << step << " after " << saved;
      }
      EXPECT_EQ(*restarted.codec(1).save_state(), *workers.codec(1).save_state());
    }
  }
}

TEST(QuantState, OfAnotherPlanIsRefusedAndChangesNothing) {
  const Layout layout = quant_layout(2, 1500);
  QuantWorkers workers("quant:feedback=float", layout);
  Gradients gradients = gaussian(layout, 1);
  ASSERT_TRUE(workers.step(gradients));
  const std::vector<uint8_t> state = *workers.codec(0).save_state();
  Layout seeded = layout, longer = layout;
  seeded.seed = 12;
  longer.count = 1501;
  const std::pair<const char*, Layout> others[] = {
      {"quant:feedback=byte", layout},
      {"quant", layout},
      {"quant:feedback=float,bits=3", layout},
      {"quant:feedback=float", seeded},
      {"quant:feedback=float", longer},
      {"quant:feedback=float,rounding=independent", layout},
  };
  for (const auto& [spec, other] : others) {
    QuantWorkers target(spec, other);
    const std::vector<uint8_t> before = *target.codec(0).save_state();
    const Status status = target.codec(0).load_state(state);
    ASSERT_FALSE(status) << spec;
    EXPECT_EQ(status.error().code, Errc::kMismatch);
    EXPECT_EQ(*target.codec(0).save_state(), before);
  }
  EXPECT_FALSE(workers.codec(1).load_state(state)) << "residuals are of one worker";
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{15}, state.size() - 1}) {
    EXPECT_FALSE(workers.codec(0).load_state(std::span(state).first(bytes)));
  }
}

TEST(QuantState, IsForBetweenStepsAndMissingWorkersForWithin) {
  const Layout layout = quant_layout(2, 100);
  QuantWorkers workers("quant:feedback=float", layout);
  Codec& codec = workers.codec(0);
  const Gradients gradients = gaussian(layout, 1);
  const Bytes state = *codec.save_state();
  EXPECT_FALSE(codec.set_missing(1));
  ASSERT_TRUE(codec.begin(gradients[0].data()));
  EXPECT_FALSE(codec.set_missing(3)) << "somebody must be there";
  EXPECT_FALSE(codec.set_missing(4)) << "no such worker";
  EXPECT_TRUE(codec.set_missing(1));
  EXPECT_FALSE(codec.save_state());
  EXPECT_FALSE(codec.load_state(state));
  codec.cancel();
  EXPECT_TRUE(codec.load_state(state));
}

Bytes wire_of(Codec& codec, const Bytes& gradient) {
  Bytes all;
  Round round;
  EXPECT_TRUE(codec.begin(gradient.data()));
  while (*codec.next_round(round)) {
    for (const Plane& plane : round) {
      const auto* data = static_cast<const uint8_t*>(plane.data);
      all.insert(all.end(), data, data + op_bytes(plane.op, plane.lanes));
    }
  }
  codec.cancel();
  return all;
}

TEST(QuantStep, EncodedTwiceGivesTheSamePlanesAndAnotherStepDoesNot) {
  const Layout layout = quant_layout(2, 5000);
  for (const char* spec : {"quant", "quant:carrier=indices", "quant:feedback=float"}) {
    QuantWorkers workers(spec, layout);
    const Gradients gradients = gaussian(layout, 1);
    const Bytes first = wire_of(workers.codec(0), gradients[0]);
    EXPECT_EQ(wire_of(workers.codec(0), gradients[0]), first);
    EXPECT_NE(wire_of(workers.codec(1), gradients[0]), first) << "workers round differently";
    Gradients step = gradients;
    ASSERT_TRUE(workers.step(step));
    EXPECT_NE(wire_of(workers.codec(0), gradients[0]), first) << "another step, another rounding";
  }
}

TEST(QuantStep, UsesTheSameMemoryAgain) {
  const Layout layout = quant_layout(2, 5000);
  for (const char* spec : {"quant:feedback=byte", "quant:carrier=indices"}) {
    QuantWorkers workers(spec, layout);
    uint64_t held = 0;
    for (uint64_t step = 0; step < 6; ++step) {
      Gradients gradients = gaussian(layout, step);
      ASSERT_TRUE(workers.step(gradients));
      if (step > 0) {
        EXPECT_EQ(workers.codec(0).memory_bytes(), held) << spec;
      }
      held = workers.codec(0).memory_bytes();
    }
    EXPECT_GT(held, layout.count);
  }
}

TEST(QuantFingerprint, DiffersByOptionLayoutAndStepAndNotByWorker) {
  const Layout layout = quant_layout(3, 5000);
  Layout bucket = layout, world = layout, seed = layout;
  bucket.bucket = 1;
  world.world = 2;
  seed.seed = 12;
  const std::pair<const char*, Layout> plans[] = {
      {"quant", layout},
      {"quant", bucket},
      {"quant", world},
      {"quant", seed},
      {"quant:bits=3", layout},
      {"quant:bits=auto", layout},
      {"quant:bits=auto,budget=3.5", layout},
      {"quant:levels=uniform", layout},
      {"quant:levels=published", layout},
      {"quant:granularity=30", layout},
      {"quant:granularity=30,clipped=0.01", layout},
      {"quant:rotate=none", layout},
      {"quant:block=1024", layout},
      {"quant:block=whole", layout},
      {"quant:rounding=independent", layout},
      {"quant:feedback=float", layout},
      {"quant:feedback=byte", layout},
      {"quant:carrier=indices", layout},
      {"quant:nonfinite=error", layout},
  };
  std::vector<uint64_t> prints;
  for (const auto& [spec, plan] : plans) {
    QuantWorkers workers(spec, plan);
    Gradients gradients = gaussian(plan, 2);
    for (int step = 0; step < 2; ++step) {
      for (uint32_t w = 1; w < plan.world; ++w)
        EXPECT_EQ(workers.codec(w).fingerprint(), workers.codec(0).fingerprint()) << spec;
      prints.push_back(workers.codec(0).fingerprint());
      ASSERT_TRUE(workers.step(gradients));
    }
  }
  std::sort(prints.begin(), prints.end());
  EXPECT_EQ(std::adjacent_find(prints.begin(), prints.end()), prints.end());
}

}  // namespace
}  // namespace addend::quant
