// SPDX-License-Identifier: Apache-2.0
#include "codec/lowrank/basis.h"

#include <algorithm>
#include <cmath>

#include "wire/hash.h"

namespace addend::lowrank {
namespace {

// Squared: less than this of a column is what f32 rounded.
constexpr double kNothingLeft = 0x1p-40;
constexpr uint64_t kPartialSums = 8;

// Products of two f32 are exact in binary64; element i is added to partial sum i mod 8.
double dot(const float* a, const float* b, uint64_t length) {
  double sums[kPartialSums] = {};
  uint64_t i = 0;
  for (; i + kPartialSums <= length; i += kPartialSums) {
    for (uint64_t s = 0; s < kPartialSums; ++s)
      sums[s] += static_cast<double>(a[i + s]) * static_cast<double>(b[i + s]);
  }
  for (uint64_t s = 0; i + s < length; ++s)
    sums[s] += static_cast<double>(a[i + s]) * static_cast<double>(b[i + s]);
  for (uint64_t half = kPartialSums / 2; half > 0; half /= 2) {
    for (uint64_t s = 0; s < half; ++s)
      sums[s] += sums[s + half];
  }
  return sums[0];
}

// v = a v + b u
void combine(float* v, double a, const float* u, double b, uint64_t length) {
  for (uint64_t i = 0; i < length; ++i)
    v[i] = static_cast<float>(a * static_cast<double>(v[i]) + b * static_cast<double>(u[i]));
}

// Squares of finite f32 do not overflow a binary64, so only what is not finite shows.
bool all_finite(const Columns& columns) {
  const uint64_t count = columns.rank * columns.length;
  return std::isfinite(dot(columns.data, columns.data, count));
}

void make_orthonormal(const Columns& columns, uint64_t k) {
  float* v = columns.column(k);
  const double before = dot(v, v, columns.length);
  for (int twice = 0; twice < 2; ++twice) {  // the second pass takes what rounding left
    for (uint64_t e = 0; e < k; ++e) {
      const float* earlier = columns.column(e);
      combine(v, 1, earlier, -dot(earlier, v, columns.length), columns.length);
    }
  }
  const double left = dot(v, v, columns.length);
  if (left > kNothingLeft * before) {
    combine(v, 1 / std::sqrt(left), v, 0, columns.length);
  } else {
    std::fill(v, v + columns.length, 0.0f);
  }
}

bool is_zero(const Columns& columns, uint64_t k) {
  return dot(columns.column(k), columns.column(k), columns.length) == 0;
}

void draw(const Columns& columns, uint64_t k, uint64_t seed) {
  for (uint64_t i = 0; i < columns.length; ++i) {
    const auto bits = static_cast<uint32_t>(addend_random(seed, k * columns.length + i) >> 40);
    columns.column(k)[i] = static_cast<float>(bits) * 0x1p-23f - 1;
  }
}

}  // namespace

bool orthonormalise(const Columns& columns) {
  if (!all_finite(columns)) return false;
  for (uint64_t k = 0; k < columns.rank; ++k)
    make_orthonormal(columns, k);
  return true;
}

bool complete(const Columns& columns, uint64_t seed) {
  if (!orthonormalise(columns)) return false;
  bool drawn = false;
  for (uint64_t k = 0; k < columns.rank; ++k) {
    if (!is_zero(columns, k)) continue;
    draw(columns, k, seed);
    drawn = true;
  }
  return !drawn || orthonormalise(columns);
}

}  // namespace addend::lowrank
