// SPDX-License-Identifier: Apache-2.0
// What sums without some workers come to over many steps: every gradient counts once, whoever is
// missing how often, and an absence is not paid back. Seeds are fixed: nothing here fails by
// chance.
#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

constexpr uint32_t kWorld = 4;

// Every feedback, carrier, rounding and kind of table. Tables that clip much only with feedback,
// which brings back what was clipped.
const std::vector<std::string> kSpecs = {
    "quant",
    "quant:feedback=float",
    "quant:feedback=byte",
    "quant:bits=8",
    "quant:bits=8,feedback=byte",
    "quant:bits=2,feedback=float",
    "quant:bits=auto",
    "quant:bits=auto,feedback=float",
    "quant:carrier=indices",
    "quant:carrier=indices,feedback=float",
    "quant:rounding=independent",
    "quant:rounding=independent,feedback=float",
    "quant:rotate=none",
    "quant:rotate=none,feedback=float",
    "quant:levels=uniform",
    "quant:levels=published,feedback=float",
    "quant:block=whole,feedback=byte",
    "quant:bits=8,down=8",
    "quant:norms=ahead,feedback=float",
    "quant:bits=4,down=4,feedback=float",
    "quant:bits=3,down=8,feedback=float",
    "quant:index=packed",
    "quant:index=auto,feedback=float",
    "quant:index=auto,bits=4,down=8",
    "quant:index=packed,bits=8,down=4,feedback=float",
    "quant:norms=ahead,feedback=float,bits=8,down=8",
};

// Who is missing in a step: each with probability `rate`, but never all.
uint64_t draw_missing(double rate, uint64_t step) {
  for (uint64_t again = 0;; ++again) {
    uint64_t missing = 0;
    for (uint32_t w = 0; w < kWorld; ++w) {
      if (uniform(911 + again, step * kWorld + w) < rate) missing |= uint64_t{1} << w;
    }
    if (missing != (uint64_t{1} << kWorld) - 1) return missing;
  }
}

Status step_without(Lockstep& workers, uint64_t missing, std::vector<Bytes>& gradients) {
  for (uint32_t w = 0; w < kWorld; ++w)
    workers.leave_out(w, (missing >> w & 1) != 0);
  return workers.step(gradients);
}

double inner(const std::vector<double>& a, const std::vector<double>& b) {
  double total = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    total += a[i] * b[i];
  return total;
}

std::vector<double> doubles(const Bytes& gradient) {
  std::vector<double> values(gradient.size() / 4);
  for (uint64_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(read(DType::kF32, gradient, i));
  return values;
}

// Constant gradients at right angles to each other: worker w's alone in its quarter of the
// elements, so that what the average holds of each can be told apart.
std::vector<Bytes> quarters(const Layout& layout) {
  return make_gradients(scenario_of(layout), [&](uint32_t w, uint64_t i) {
    return i % kWorld == w ? static_cast<float>(normal(5, i)) : 0.0f;
  });
}

// Gains of the time average over the true mean: of the whole sum, and of each worker's gradient.
struct Gains {
  double sum = 0;
  double worker[kWorld] = {};
  double drawn[kWorld] = {};  // what this draw of steps gives each: N/n in the steps it attended
};

Gains gains(const std::string& spec, double rate, const std::vector<Bytes>& gradients,
            const Layout& layout) {
  constexpr int kSteps = 200;
  Lockstep workers(spec, layout);
  std::vector<double> average(layout.count, 0.0);
  Gains gain;
  for (int step = 0; step < kSteps; ++step) {
    const uint64_t missing = draw_missing(rate, static_cast<uint64_t>(step));
    for (uint32_t w = 0; w < kWorld; ++w) {
      if ((missing >> w & 1) == 0)
        gain.drawn[w] += static_cast<double>(kWorld) / (kWorld - std::popcount(missing)) / kSteps;
    }
    std::vector<Bytes> sums = gradients;
    EXPECT_TRUE(step_without(workers, missing, sums)) << spec;
    const std::vector<double> sum = doubles(sums[step % kWorld]);  // also those that were missing
    for (uint64_t i = 0; i < layout.count; ++i)
      average[i] += sum[i] / kSteps;
  }
  const std::vector<double> truth = sums(scenario_of(layout), gradients);
  gain.sum = inner(average, truth) / inner(truth, truth);
  for (uint32_t w = 0; w < kWorld; ++w) {
    const std::vector<double> own = doubles(gradients[w]);
    gain.worker[w] = inner(average, own) / inner(own, own);
  }
  return gain;
}

// The mean of the contributors stands for those that are missing. On average over steps, whatever
// the rate, the result is then the sum: neither the factor N/n nor a residual may add to it. The
// sum's gain depends on the draw of steps only through the workers' norms; a worker's own is what
// its draw gives it.
TEST(MissingWorkers, EveryGradientCountsOnceAtEveryRate) {
  const Layout layout = layout_of(kWorld, 1024);
  const std::vector<Bytes> gradients = quarters(layout);
  std::vector<Bytes> equal = standard_normal(layout, 3);
  std::fill(equal.begin() + 1, equal.end(), equal[0]);
  for (const std::string& spec : kSpecs) {
    for (const double rate : {0.0, 0.11, 0.26, 0.5}) {
      const Gains apart = gains(spec, rate, gradients, layout);
      const Gains same = gains(spec, rate, equal, layout);
      std::printf("%-42s missing %.2f: gain %.4f equal, %.4f apart\n", spec.c_str(), rate, same.sum,
                  apart.sum);
      EXPECT_NEAR(same.sum, 1, 0.005) << spec << " missing " << rate;
      EXPECT_NEAR(apart.sum, 1, 0.01) << spec << " missing " << rate;
      for (uint32_t w = 0; w < kWorld; ++w)
        EXPECT_NEAR(apart.worker[w], apart.drawn[w], 0.04) << spec << " missing " << rate;
    }
  }
}

// The largest norm of a sum in so many steps.
double largest_norm(Lockstep& workers, const std::vector<Bytes>& gradients, uint64_t missing,
                    int steps) {
  double largest = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<Bytes> sums = gradients;
    EXPECT_TRUE(step_without(workers, missing, sums));
    const std::vector<double> sum = doubles(sums[0]);
    largest = std::max(largest, std::sqrt(inner(sum, sum)));
  }
  return largest;
}

TEST(MissingWorkers, NoStepAfterAnAbsenceIsLargerThanOthers) {
  const Layout layout = layout_of(kWorld, 1024);
  std::vector<Bytes> equal = standard_normal(layout, 3);
  std::fill(equal.begin() + 1, equal.end(), equal[0]);
  for (const std::string& spec : kSpecs) {
    for (const std::vector<Bytes>& gradients : {standard_normal(layout, 8), equal}) {
      for (const int absence : {1, 20, 50}) {
        Lockstep workers(spec, layout);
        const double usual = largest_norm(workers, gradients, 0, 40);
        largest_norm(workers, gradients, 4, absence);
        EXPECT_LT(largest_norm(workers, gradients, 0, 10), 1.1 * usual)
            << spec << " after " << absence << " steps";
      }
    }
  }
}

// So many that quant narrows sums by itself where it may. The bound is that of eight bits and of
// the fewest workers, whose mean has the most noise of the gradients that are not alike.
TEST(MissingWorkers, AreMadeUpForInNarrowSumsOfMany) {
  for (const char* spec : {"quant", "quant:index=auto"}) {
    Layout layout = layout_of(20, 1500);
    layout.network.narrows = true;
    Lockstep workers(spec, layout);
    for (uint64_t step = 0; step < 6; ++step) {
      std::vector<Bytes> gradients = standard_normal(layout, step);
      std::vector<double> truth(layout.count, 0.0);
      uint32_t present = 0;
      for (uint32_t w = 0; w < layout.world; ++w) {
        const bool out = step > 0 && addend_random(step, w) % 3 == 0;
        workers.leave_out(w, out);
        if (out) continue;
        ++present;
        const std::vector<double> own = doubles(gradients[w]);
        for (uint64_t i = 0; i < layout.count; ++i)
          truth[i] += own[i];
      }
      ASSERT_TRUE(workers.step(gradients)) << spec;
      double error = 0;
      for (uint64_t i = 0; i < layout.count; ++i) {
        truth[i] *= static_cast<double>(layout.world) / present;
        const auto sum = static_cast<double>(read(DType::kF32, gradients[step], i));
        error += std::pow(sum - truth[i], 2);
      }
      EXPECT_LE(error, 0.002 * inner(truth, truth)) << spec << " step " << step;
      for (const Bytes& other : gradients)
        ASSERT_EQ(other, gradients[0]) << spec;
    }
  }
}

// Codecs whose sums need everyone say so; none takes a sum without a worker for one with it.
TEST(MissingWorkers, AreRefusedByTheOtherCodecs) {
  Layout layout = layout_of(kWorld, 100);
  layout.segments = {{1, 100, 10}};
  for (const char* spec : {"dense", "cast", "cast:f16,feedback=float", "exact",
                           "exact:values=reproducible", "exact:mode=sketch", "lowrank:rank=1",
                           "topk", "threshold", "dgc", "redsync", "random", "leader"}) {
    Lockstep workers(spec, layout);
    std::vector<Bytes> gradients = standard_normal(layout, 1);
    const Status status = step_without(workers, 2, gradients);
    ASSERT_FALSE(status) << spec;
    EXPECT_EQ(status.error().code, Errc::kUnsupported) << spec;
  }
  EXPECT_EQ(codec_names().size(), 11u) << "another codec must be in one of the lists here";
}

}  // namespace
}  // namespace addend::testing_support
