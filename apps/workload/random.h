// SPDX-License-Identifier: Apache-2.0
// Counter-based randomness for workloads: every draw is a function of (names of the stream, index),
// so any part of a gradient can be drawn again by anybody. Uses no libm function whose last bit
// differs between libraries: the same seed gives the same gradient on every machine.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>

namespace addend::workload {

inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words whose output
/// passes for random.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// A random sequence with random access. Streams of different names are unrelated. Cheap value
/// type.
class Stream {
 public:
  explicit constexpr Stream(std::initializer_list<uint64_t> names) {
    for (uint64_t name : names)
      key_ = mix(key_ + kGolden + mix(name + kGolden));
  }
  constexpr uint64_t bits(uint64_t index) const { return mix(key_ + (index + 1) * kGolden); }

 private:
  uint64_t key_ = 0;
};

/// Uniform in [0, 1), from the upper 53 bits.
constexpr double to_uniform(uint64_t word) {
  return static_cast<double>(static_cast<int64_t>(word >> 11)) * 0x1p-53;
}

/// Uniform in [0, n) for n > 0; the bias is below n * 2^-64.
constexpr uint64_t to_index(uint64_t word, uint64_t n) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(word) * n) >> 64);
}

/// Normal with mean 0 and deviation 1: the sum of 64 coin tosses, smoothed by a triangular density
/// between neighbours. Within 1 % of the normal density to 3 deviations, bounded by 8.3; exact
/// arithmetic up to one final rounding.
inline double to_normal(uint64_t word) {
  constexpr double kInverseDeviation = 0.24870800207353277;  // 1 / sqrt(64 / 4 + 1 / 6)
  const uint64_t dither = mix(word ^ kGolden);
  const auto upper = static_cast<int64_t>(dither >> 32);
  const auto lower = static_cast<int64_t>(dither & 0xffffffff);
  const double triangle = static_cast<double>(upper + lower) * 0x1p-32 - 1.0;
  return (static_cast<double>(std::popcount(word) - 32) + triangle) * kInverseDeviation;
}

/// 2^x and log2(x), relative error below 1e-12, with the same bits everywhere. REQUIRES: |x| <
/// 1000; x > 0 and normal.
double portable_exp2(double x);
double portable_log2(double x);

/// Ranks 0, 1, 2, ... of decreasing popularity: rank r has weight about (r + 1)^-exponent (the
/// integral of the power law over [r + 1, r + 2]). Exponent 1 is the log-uniform sampler of sampled
/// softmax.
class ZipfSampler {
 public:
  /// REQUIRES: ranks > 0, exponent >= 0.
  ZipfSampler(uint64_t ranks, double exponent);
  uint64_t rank(uint64_t word) const;

 private:
  uint64_t ranks_;
  double exponent_;
  double log_end_;  ///< log2(ranks + 1)
};

}  // namespace addend::workload
