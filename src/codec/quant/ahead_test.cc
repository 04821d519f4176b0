// SPDX-License-Identifier: Apache-2.0
// Steps whose scales are the norms of the step before: one round, and nothing lost in the end.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "codec/quant/quant.h"
#include "tests/support/quant_gradients.h"
#include "tests/support/quant_workers.h"

namespace addend::quant {
namespace {

using namespace testing_support;

const std::vector<std::string> kSpecs = {
    "quant:norms=ahead,feedback=float", "quant:norms=ahead,feedback=byte",
    "quant:norms=ahead,feedback=float,bits=4,carrier=indices,block=64",
    "quant:norms=ahead,feedback=float,rotate=none"};

/// A sequence of steps, and what has not come back yet of all that went in.
struct Owed {
  Owed(const std::string& spec, const Layout& at) : layout(at), workers(spec, at), sum(at.count) {}

  void step(uint64_t seed, double scale) {
    Gradients gradients = gaussian(layout, seed, scale);
    for (const Bytes& gradient : gradients)
      accumulate(layout, gradient, 1, sum);
    ASSERT_TRUE(workers.step(gradients));
    accumulate(layout, gradients[0], -1, sum);
  }
  double left() const { return norm(sum); }

  Layout layout;
  QuantWorkers workers;
  std::vector<double> sum;
};

TEST(NormsAhead, TakeOneRoundFromTheSecondStepOn) {
  for (const std::string& spec : kSpecs) {
    Owed owed(spec, quant_layout(4, 5000));
    for (uint64_t step = 0; step < 4; ++step) {
      owed.step(step, 1);
      EXPECT_EQ(owed.workers.report().rounds, step == 0 ? 2u : 1u) << spec;
    }
  }
}

// Norms that grow and fall by far more than the head-room, blocks that were silent, and a long
// silence: what is clipped or held back comes in the end.
TEST(NormsAhead, DeliverInTheEndWhatGrewOrWasSilentBefore) {
  for (const std::string& spec : kSpecs) {
    Owed owed(spec, quant_layout(4, 5000));
    const double scales[] = {1, 1, 100, 0.01, 0, 0, 0, 1, 1, 1e-12, 1e6, 1};
    double put_in = 0;
    for (uint64_t step = 0; step < std::size(scales); ++step) {
      owed.step(step, scales[step]);
      put_in = std::max(put_in, scales[step] * 200);
    }
    EXPECT_GT(owed.left(), 1e-3 * put_in) << spec << ": something must have been held back";
    for (uint64_t step = 0; step < 200; ++step)
      owed.step(100 + step, 0);
    EXPECT_LT(owed.left(), (spec.find("byte") == std::string::npos ? 1e-6 : 1e-2) * put_in) << spec;
  }
}

TEST(NormsAhead, ABlockThatWasSilentComesLateAndWhole) {
  for (const std::string& spec : kSpecs) {
    Owed owed(spec, quant_layout(4, 5000));
    owed.step(0, 0);
    owed.step(1, 1);
    const double held_back = owed.left();
    EXPECT_GT(held_back, 0) << spec;
    for (uint64_t step = 0; step < 200; ++step)
      owed.step(100 + step, 0);
    EXPECT_LT(owed.left(), 1e-2 * held_back) << spec;
  }
}

// Head-room costs a little resolution, and growing norms a little clipping.
TEST(NormsAhead, LoseLittleMoreThanNormsOfTheStep) {
  const Layout layout = quant_layout(4, 1 << 15);
  const auto error_of = [&](const std::string& spec) {
    QuantWorkers workers(spec, layout);
    double error = 0, energy = 0;
    for (uint64_t step = 0; step < 40; ++step) {
      // Norms vary by a fifth from step to step, and fall slowly.
      const double scale = std::exp(-0.02 * static_cast<double>(step)) *
                           (1 + 0.2 * std::sin(2.4 * static_cast<double>(step)));
      Gradients gradients = gaussian(layout, 77 * step, scale);
      std::vector<double> sum(layout.count);
      for (const Bytes& gradient : gradients)
        accumulate(layout, gradient, 1, sum);
      EXPECT_TRUE(workers.step(gradients));
      for (uint64_t i = 0; i < layout.count; ++i) {
        const double got = static_cast<double>(read(layout.dtype, gradients[0], i));
        error += std::pow(got - sum[i], 2);
        energy += sum[i] * sum[i];
      }
    }
    return error / energy;
  };
  for (const std::string bits : {"4", "6"}) {
    const std::string spec = "quant:feedback=float,bits=" + bits;
    const double now = error_of(spec), ahead = error_of(spec + ",norms=ahead");
    std::printf("%s bits: error of steps %.6f, with norms ahead %.6f\n", bits.c_str(), now, ahead);
    EXPECT_LT(ahead, 2 * now + 0.005) << bits;
  }
}

TEST(NormsAhead, ABrokenBlockIsBrokenInItsOwnStepAndOnlyThere) {
  const float odd[] = {std::numeric_limits<float>::quiet_NaN(),
                       -std::numeric_limits<float>::infinity()};
  for (const std::string& spec : kSpecs) {
    for (const uint64_t bad : {0u, 1u, 4u}) {
      const Layout layout = quant_layout(3, 6000);
      QuantWorkers workers(spec, layout);
      for (uint64_t step = 0; step < 8; ++step) {
        Gradients gradients = gaussian(layout, step);
        if (step == bad) write(layout.dtype, gradients[1], 3000, odd[step % 2]);
        ASSERT_TRUE(workers.step(gradients));
        uint64_t broken = 0;
        for (uint64_t i = 0; i < layout.count; ++i) {
          ASSERT_EQ(std::isnan(read(layout.dtype, gradients[0], i)),
                    std::isnan(read(layout.dtype, gradients[2], i)));
          broken += std::isnan(read(layout.dtype, gradients[0], i)) ? 1 : 0;
        }
        const bool small = spec.find("block=64") != std::string::npos;
        ASSERT_EQ(broken, step != bad ? 0 : small ? 64u : 2048u) << spec << " step " << step;
        ASSERT_EQ(workers.report().nonfinite, broken) << spec;
        // Of the broken block the norm before it stays, if there was one.
        if (step > 1) {
          ASSERT_EQ(workers.report().rounds, 1u) << spec << " step " << step;
        }
      }
    }
  }
  QuantWorkers strict("quant:norms=ahead,feedback=float,nonfinite=error", quant_layout(3, 6000));
  const Layout layout = quant_layout(3, 6000);
  for (uint64_t step = 0; step < 4; ++step) {
    Gradients gradients = gaussian(layout, step);
    if (step == 2) write(layout.dtype, gradients[1], 3000, odd[0]);
    EXPECT_EQ(static_cast<bool>(strict.step(gradients)), step != 2);
  }
}

TEST(NormsAhead, AreSavedSoThatARestartChangesNoBit) {
  for (const std::string& spec : kSpecs) {
    const Layout layout = quant_layout(3, 5000);
    QuantWorkers through(spec, layout), before(spec, layout), after(spec, layout);
    for (uint64_t step = 0; step < 10; ++step) {
      Gradients expected = gaussian(layout, step), actual = expected;
      ASSERT_TRUE(through.step(expected));
      if (step == 5) {
        for (uint32_t w = 0; w < 3; ++w)
          ASSERT_TRUE(after.codec(w).load_state(*before.codec(w).save_state()));
      }
      ASSERT_TRUE((step < 5 ? before : after).step(actual));
      ASSERT_EQ(actual, expected) << spec << " step " << step;
    }
    EXPECT_EQ(after.report().rounds, 1u) << spec;
  }
}

TEST(NormsAhead, WorkersThatKnowOtherNormsAreToldApart) {
  const Layout layout = quant_layout(2, 5000);
  QuantWorkers one(kSpecs[0], layout), other(kSpecs[0], layout);
  Gradients gradients = gaussian(layout, 1), others = gaussian(layout, 2);
  ASSERT_EQ(one.codec(0).fingerprint(), other.codec(1).fingerprint());
  ASSERT_TRUE(one.step(gradients) && other.step(others));
  EXPECT_EQ(one.codec(0).fingerprint(), one.codec(1).fingerprint());
  EXPECT_NE(one.codec(0).fingerprint(), other.codec(1).fingerprint());
}

TEST(NormsAhead, ADamagedStateAsksForNormsAgain) {
  const Layout layout = quant_layout(2, 5000);
  QuantWorkers workers(kSpecs[0], layout);
  Gradients gradients = gaussian(layout, 1), more = gaussian(layout, 2);
  ASSERT_TRUE(workers.step(gradients));
  for (uint32_t w = 0; w < 2; ++w) {
    auto state = *workers.codec(w).save_state();
    state.back() = 0x7F;  // the last norm is no number
    state[state.size() - 2] = 0xC0;
    ASSERT_TRUE(workers.codec(w).load_state(state));
  }
  ASSERT_TRUE(workers.step(more));
  EXPECT_EQ(workers.report().rounds, 2u);
}

TEST(NormsAhead, ACancelledStepChangesNothing) {
  const Layout layout = quant_layout(2, 5000);
  QuantWorkers workers(kSpecs[0], layout);
  Gradients gradients = gaussian(layout, 1), more = gaussian(layout, 2);
  ASSERT_TRUE(workers.step(gradients));
  const uint64_t print = workers.codec(0).fingerprint();
  const auto state = *workers.codec(0).save_state();
  Round round;
  ASSERT_TRUE(workers.codec(0).begin(more[0].data()));
  ASSERT_TRUE(*workers.codec(0).next_round(round));
  EXPECT_TRUE(round.last);
  workers.codec(0).cancel();
  EXPECT_EQ(workers.codec(0).fingerprint(), print);
  EXPECT_EQ(*workers.codec(0).save_state(), state);
}

// A worker that was left out keeps what it owed, and its norm was not among the scales.
TEST(NormsAhead, MissingWorkersAreMadeUpFor) {
  for (const std::string& spec : kSpecs) {
    const Layout layout = quant_layout(4, 5000);
    QuantWorkers workers(spec, layout);
    std::vector<double> missing(layout.count);
    for (uint64_t step = 0; step < 220; ++step) {
      Gradients gradients =
          gaussian(layout, 1000 * step, step < 20 ? 1 + static_cast<double>(step % 3) : 0);
      uint32_t contributors = 0;
      for (uint32_t w = 0; w < 4; ++w) {
        const bool out = step < 20 && (step % 5 == w || step % 7 == w);
        workers.leave_out(w, out);
        contributors += out ? 0 : 1;
        accumulate(layout, gradients[w], out ? 0 : 1, missing);
      }
      ASSERT_TRUE(workers.step(gradients));
      accumulate(layout, gradients[0], -static_cast<double>(contributors) / 4, missing);
    }
    EXPECT_LT(norm(missing), spec.find("byte") == std::string::npos ? 1e-2 : 10.0) << spec;
  }
}

}  // namespace
}  // namespace addend::quant
