// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/random.h"

#include <algorithm>
#include <cmath>

namespace addend::workload {

namespace {

constexpr double kLn2 = 0.6931471805599453;

}  // namespace

double portable_exp2(double x) {
  const double whole = std::floor(x);
  const double t = (x - whole) * kLn2;
  // Taylor series of e^t for t in [0, ln 2): the first omitted term is below 1e-14.
  double sum = 1.0;
  for (int n = 14; n > 0; --n)
    sum = 1.0 + sum * t / n;
  return std::ldexp(sum, static_cast<int>(whole));
}

double portable_log2(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // in [1/2, 1)
  if (mantissa < 0.7071067811865476) {
    mantissa *= 2.0;
    --exponent;
  }
  // ln m = 2 atanh((m - 1) / (m + 1)), and |s| <= 0.172 makes the series converge by 15 bits a term
  // pair.
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = s * s;
  double sum = 0.0;
  for (int n = 19; n > 0; n -= 2)
    sum = sum * square + 1.0 / n;
  return exponent + 2.0 * s * sum / kLn2;
}

ZipfSampler::ZipfSampler(uint64_t ranks, double exponent)
    : ranks_(ranks), exponent_(exponent), log_end_(portable_log2(static_cast<double>(ranks) + 1)) {}

uint64_t ZipfSampler::rank(uint64_t word) const {
  const double u = to_uniform(word);
  const double power = 1.0 - exponent_;
  double x = 0;  // in [1, ranks + 1), by inverting the distribution function of the power law
  if (std::fabs(power) < 1e-9) {
    x = portable_exp2(u * log_end_);
  } else {
    const double end = portable_exp2(power * log_end_);
    x = portable_exp2(portable_log2(1.0 + u * (end - 1.0)) / power);
  }
  const auto floor = static_cast<uint64_t>(std::max(x, 1.0)) - 1;
  return std::min(floor, ranks_ - 1);
}

}  // namespace addend::workload
