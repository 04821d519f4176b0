// SPDX-License-Identifier: Apache-2.0
// What quant's sums are on average. Figures are statistics of fixed seeds: tests cannot fail by
// chance, and with other seeds each would with the probability that it states.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/gradients.h"
#include "tests/support/lockstep.h"

namespace addend::testing_support {
namespace {

// The sums of many steps on the same gradients, which are what many seeds would give.
struct Estimates {
  std::vector<double> mean, variance;  // by element, of one step's sum
};

Estimates estimate(Lockstep& workers, const std::vector<Bytes>& gradients, uint64_t count,
                   int steps) {
  const DType dtype = workers.codec(0).layout().dtype;
  Estimates e{std::vector<double>(count, 0.0), std::vector<double>(count, 0.0)};
  for (int step = 0; step < steps; ++step) {
    std::vector<Bytes> sums = gradients;
    EXPECT_TRUE(workers.step(sums));
    for (uint64_t i = 0; i < count; ++i) {
      const auto value = static_cast<double>(read(dtype, sums[0], i));
      e.mean[i] += value / steps;
      e.variance[i] += value * value / steps;
    }
  }
  for (uint64_t i = 0; i < count; ++i)
    e.variance[i] = (e.variance[i] - e.mean[i] * e.mean[i]) * steps / (steps - 1);
  return e;
}

// 256 means within five deviations of their own: chance of failure 256 * 6e-7 = 1.5e-4 a case; the
// mean of their squares within 5 * sqrt(2 / 256) of 1: 6e-7. Elements so near a level that the
// steps saw few exceptions (of a size below 1) or none get the deviation of ten more. A type's own
// rounding of a result is to the nearest.
void expect_unbiased(const std::string& spec, const Layout& layout, int steps,
                     const std::vector<uint32_t>& absent = {}) {
  const DType dtype = layout.dtype;
  const double unit = dtype == DType::kF32 ? 0 : dtype == DType::kBf16 ? 0x1p-9 : 0x1p-12;
  Lockstep workers(spec, layout);
  std::vector<Bytes> gradients = standard_normal(layout, 41);
  std::vector<double> truth(layout.count, 0.0);
  for (uint32_t w = 0; w < layout.world; ++w) {
    const bool present = std::find(absent.begin(), absent.end(), w) == absent.end();
    workers.leave_out(w, !present);
    for (uint64_t i = 0; present && i < layout.count; ++i) {
      truth[i] += static_cast<double>(read(dtype, gradients[w], i)) * layout.world /
                  static_cast<double>(layout.world - absent.size());
    }
  }
  const Estimates e = estimate(workers, gradients, layout.count, steps);
  const std::string what = spec + " " + dtype_name(dtype) + " world " +
                           std::to_string(layout.world) + " without " +
                           std::to_string(absent.size());
  double squares = 0;
  for (uint64_t i = 0; i < layout.count; ++i) {
    const double deviation = std::sqrt((e.variance[i] + 10.0 / steps) / steps);
    const double off = std::fabs(e.mean[i] - truth[i]) - unit * std::fabs(truth[i]);
    const double z = std::max(off, 0.0) / deviation;
    EXPECT_LT(z, 5) << what << " element " << i;
    squares += z * z / static_cast<double>(layout.count);
  }
  EXPECT_LT(squares, 1 + 5 * std::sqrt(2.0 / 256)) << what;
}

// Clipping is ruled out: without rotation by the range, with it by the table's.
TEST(QuantAverage, EstimatesAreUnbiasedWhoeverIsMissing) {
  for (const char* rounding : {"correlated", "independent"}) {
    for (const char* base :
         {"quant:rotate=none,rounding=", "quant:block=256,clipped=1e-9,rounding="}) {
      for (const auto& absent : {std::vector<uint32_t>{}, {1}, {0, 2}, {0, 1, 3}})
        expect_unbiased(std::string(base) + rounding, layout_of(4, 256), 1500, absent);
    }
  }
}

// Sums that are rounded once more on the way back, in every type and world.
TEST(QuantAverage, NarrowSumsHaveNoBiasInAnyTypeAndWorld) {
  uint32_t turn = 0;  // every width of what goes up meets some of the others
  for (const uint32_t world : {1u, 2u, 3u, 5u, 17u, 18u, 64u, 257u}) {
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
      for (const char* down : {"4", "8"}) {
        constexpr const char* kBits[] = {"1", "2", "3", "4", "8"};
        Layout layout = layout_of(world, 256);
        layout.dtype = dtype;
        expect_unbiased(
            std::string("quant:rotate=none,bits=") + kBits[turn++ % 5] + ",down=" + down, layout,
            world > 20 ? 300 : 1500);
      }
    }
  }
}

double mean_variance(const std::string& spec, const Layout& layout, bool identical) {
  Lockstep workers(spec, layout);
  std::vector<Bytes> gradients = standard_normal(layout, 7);
  for (uint32_t w = 1; identical && w < layout.world; ++w)
    gradients[w] = gradients[0];
  const Estimates e = estimate(workers, gradients, layout.count, 60);
  double total = 0;
  for (const double variance : e.variance)
    total += variance / static_cast<double>(layout.count);
  return total;
}

// n workers that agree round n f values up or one more: a variance of 1/6 of a gap on average,
// where independent ones have n/6. 2000 elements of 60 steps estimate a ratio to about 1 %.
TEST(QuantAverage, CorrelatedRoundingCancelsAcrossWorkers) {
  for (const uint32_t world : {2u, 4u, 8u}) {
    const Layout layout = layout_of(world, 2000);
    const std::string spec = "quant:rotate=none,granularity=30,clipped=0.01,rounding=";
    const auto ratio = [&](bool identical) {
      return mean_variance(spec + "correlated", layout, identical) /
             mean_variance(spec + "independent", layout, identical);
    };
    const double same = ratio(true), different = ratio(false);
    std::printf("correlated rounding, %u workers: variance x %.4f identical, x %.4f independent\n",
                world, same, different);
    EXPECT_NEAR(same * world, 1, 0.1);
    EXPECT_LT(different, 0.85);
  }
}

// The error of the average of some numbers of steps on the same gradients of four workers, times
// that number. Prints the table of docs/algorithms/quant.md, "Error feedback".
const std::vector<int> kCheckpoints = {1, 16, 64, 256, 1024};

std::vector<double> averaging_errors(const std::string& spec) {
  const Layout layout = layout_of(4, 4096);
  Lockstep workers(spec, layout);
  const std::vector<Bytes> gradients = standard_normal(layout, 3);
  const std::vector<double> truth = sums(scenario_of(layout), gradients);
  double energy = 0;
  for (const double x : truth)
    energy += x * x;
  std::vector<double> total(layout.count, 0.0), errors;
  for (int step = 1; step <= kCheckpoints.back(); ++step) {
    std::vector<Bytes> copy = gradients;
    EXPECT_TRUE(workers.step(copy));
    double error = 0;
    for (uint64_t i = 0; i < layout.count; ++i) {
      total[i] += static_cast<double>(read(DType::kF32, copy[0], i));
      error += std::pow(total[i] - step * truth[i], 2);
    }
    if (std::find(kCheckpoints.begin(), kCheckpoints.end(), step) == kCheckpoints.end()) continue;
    errors.push_back(std::sqrt(error));
    std::printf("%s: %d steps, relative error of the average %.5f\n", spec.c_str(), step,
                std::sqrt(error / energy) / step);
  }
  return errors;
}

// The residual stays bounded, so the error of the average of T steps falls as 1/T, in spite of
// clipping: T times it (what is compared here) stays nearly the same.
TEST(QuantAverage, FeedbackAveragesAConstantGradientAsOneOverTheSteps) {
  for (const std::string table : {",bits=4", ",levels=published,rounding=independent"}) {
    const auto errors = averaging_errors("quant:feedback=float" + table);
    // Four times the steps, about a quarter of the error, once the first residuals are there.
    for (std::size_t i = 2; i < errors.size(); ++i)
      EXPECT_LT(errors[i], 1.4 * errors[i - 1]) << table << " checkpoint " << i;
    const auto none = averaging_errors("quant:feedback=none" + table);
    EXPECT_LT(errors.back(), 0.1 * none.back()) << table;
  }
}

// A byte loses a little of the residual each step, so its average falls a little slower.
TEST(QuantAverage, FeedbackInBytesConvergesToo) {
  const auto errors = averaging_errors("quant:bits=4,feedback=byte");
  const auto none = averaging_errors("quant:bits=4");
  for (std::size_t i = 2; i < errors.size(); ++i)
    EXPECT_LT(errors[i], 1.8 * errors[i - 1])
        << kCheckpoints[i] << " steps: far from 4, which is no progress";
  EXPECT_LT(errors.back(), 0.2 * none.back());
}

// The error of the average over 200 steps, relative to the average, of gradients that stay or that
// drift from one draw to another.
double average_error(const std::string& spec, uint32_t world, bool drift) {
  constexpr uint64_t kSteps = 200;
  const Layout layout = layout_of(world, 2048);
  Lockstep workers(spec, layout);
  const std::vector<Bytes> first = standard_normal(layout, 3), last = standard_normal(layout, 4);
  std::vector<double> lacks(layout.count, 0.0), all(layout.count, 0.0);
  for (uint64_t step = 0; step < kSteps; ++step) {
    const float way = drift ? static_cast<float>(step) / kSteps : 0.0f;
    std::vector<Bytes> gradients = make_gradients(scenario_of(layout), [&](uint32_t w, uint64_t i) {
      return (1 - way) * read(DType::kF32, first[w], i) + way * read(DType::kF32, last[w], i);
    });
    const std::vector<double> truth = sums(scenario_of(layout), gradients);
    EXPECT_TRUE(workers.step(gradients)) << spec;
    for (uint64_t i = 0; i < layout.count; ++i) {
      lacks[i] += truth[i] - static_cast<double>(read(DType::kF32, gradients[0], i));
      all[i] += truth[i];
    }
  }
  double error = 0, energy = 0;
  for (uint64_t i = 0; i < layout.count; ++i) {
    error += lacks[i] * lacks[i];
    energy += all[i] * all[i];
  }
  return std::sqrt(error / energy);
}

// Why quant with feedback takes whole sums by itself also where sums may be narrow: a second
// rounding is nobody's, so its average falls as one over the root of the steps only.
TEST(QuantAverage, FeedbackOfManyWorkersBringsBackWhatWholeSumsLackButNotASecondRounding) {
  for (const uint32_t world : {18u, 64u}) {
    for (const bool drift : {false, true}) {
      const double whole = average_error("quant:feedback=float", world, drift);
      const double narrow = average_error("quant:feedback=float,bits=8,down=8", world, drift);
      const double none = average_error("quant:bits=8,down=8", world, drift);
      std::printf(
          "%u workers, gradients that %s: error of the average of 200 steps %.6f, narrow sums "
          "%.6f, without feedback %.6f\n",
          world, drift ? "drift" : "stay", whole, narrow, none);
      EXPECT_LT(whole, 0.5 * narrow) << world;
      EXPECT_LT(narrow, 0.0015) << world;
      EXPECT_LT(narrow, 1.1 * none) << world;
    }
  }
}

}  // namespace
}  // namespace addend::testing_support
