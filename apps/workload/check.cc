// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "apps/workload/half.h"
#include "apps/workload/random.h"

namespace addend::workload {

namespace {

constexpr uint64_t kBlock = 512;

struct Precision {
  int digits;        ///< significant bits
  int min_exponent;  ///< of the smallest normal number
  double max_finite;

  double epsilon() const { return std::ldexp(1.0, 1 - digits); }
  double least_step() const { return std::ldexp(1.0, min_exponent - digits + 1); }
};

Precision precision(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {24, -126, 0x1.fffffep127};
    case DType::kBf16:
      return {8, -126, 0x1.fep127};
    case DType::kF16:
      return {11, -14, 65504.0};
  }
  return {};
}

/// The reference for one block of elements.
struct Reference {
  std::array<double, kBlock> sum{};
  std::array<double, kBlock> magnitude{};
  std::array<double, kBlock> square{};

  void clear() {
    for (auto* values : {&sum, &magnitude, &square})
      values->fill(0);
  }

  template <typename Load>
  void add(uint64_t n, Load load) {
    for (uint64_t i = 0; i < n; ++i) {
      const double value = load(i);
      sum[i] += value;
      magnitude[i] += std::fabs(value);
      square[i] += value * value;
    }
  }

  void add(DType dtype, const void* input, uint64_t first, uint64_t n) {
    const auto* words = static_cast<const uint16_t*>(input) + (dtype == DType::kF32 ? 0 : first);
    switch (dtype) {
      case DType::kF32:
        add(n, [x = static_cast<const float*>(input) + first](uint64_t i) { return x[i]; });
        break;
      case DType::kBf16:
        add(n, [words](uint64_t i) { return bf16_to_f32(words[i]); });
        break;
      case DType::kF16:
        add(n, [words](uint64_t i) { return f16_to_f32(words[i]); });
        break;
    }
  }
};

class Judge {
 public:
  Judge(DType dtype, std::size_t world)
      : precision_(precision(dtype)), additions_(static_cast<double>(world) - 1) {}

  bool right(double value, double sum, double magnitude) const {
    if (std::isnan(sum)) return std::isnan(value);
    if (std::isinf(sum)) return value == sum;
    // Where partial sums may leave the type's range, some orders of addition overflow and others do
    // not.
    if (std::isinf(value)) return magnitude >= precision_.max_finite;
    return std::fabs(value - sum) <= additions_ * precision_.epsilon() * magnitude;
  }

  /// Far enough from the end of the type's range that neither additions nor a codec's error reach
  /// it.
  bool within_range(double magnitude) const { return magnitude < precision_.max_finite / 4; }

  double least_step() const { return precision_.least_step(); }

  /// Half a unit in the last place, plus what the reference itself may be off by.
  bool rounded_once(double value, double sum, double magnitude) const {
    if (!std::isfinite(sum) || !std::isfinite(value) || value == sum) return true;
    const int exponent = sum == 0 ? precision_.min_exponent : std::ilogb(sum);
    const double unit =
        std::ldexp(1.0, std::max(exponent, precision_.min_exponent) - precision_.digits + 1);
    return std::fabs(value - sum) <= 0.5 * unit + additions_ * 0x1p-53 * magnitude;
  }

 private:
  Precision precision_;
  double additions_;
};

void judge_element(const Judge& judge, double value, double sum, double magnitude,
                   SumCheck& check) {
  if (!judge.right(value, sum, magnitude)) {
    if (check.wrong++ == 0) check.first_wrong = check.elements;
  } else if (!judge.rounded_once(value, sum, magnitude)) {
    ++check.rounded_again;
  }
  if (!std::isfinite(sum)) {
    ++check.non_finite;
    if (std::isfinite(value)) ++check.hidden;
    return;
  }
  if (!std::isfinite(value)) {
    if (judge.within_range(magnitude)) ++check.spread;
    return;
  }
  const double error = std::fabs(value - sum);
  check.max_abs_error = std::max(check.max_abs_error, error);
  check.error_square += error * error;
  check.reference_square += sum * sum;
}

}  // namespace

double SumCheck::relative_l2() const {
  if (reference_square > 0) return std::sqrt(error_square / reference_square);
  return std::sqrt(error_square);
}

double SumCheck::nmse() const {
  if (error_square == 0) return 0;
  return error_square / (static_cast<double>(world) * input_square);
}

uint64_t SumCheck::wrong_within(const Tolerance& tolerance) const {
  if (!tolerance.lossy) return wrong;
  // What lies below the type's smallest step is nobody's fault.
  const double workers = static_cast<double>(world);
  const double floor = workers * std::max(least_step, tolerance.step);
  const bool near = tolerance.range > 0
                        ? max_abs_error <= workers * tolerance.range * input_peak + floor
                        : error_square <= tolerance.nmse * workers * input_square +
                                              static_cast<double>(elements) * floor * floor;
  if (!near) return std::max<uint64_t>(wrong, 1);
  const uint64_t excused = non_finite * tolerance.block;
  return hidden + (spread > excused ? spread : 0);
}

void SumCheck::merge(const SumCheck& other) {
  if (wrong == 0) first_wrong = other.first_wrong;
  elements += other.elements;
  union_nonzeros += other.union_nonzeros;
  wrong += other.wrong;
  rounded_again += other.rounded_again;
  max_abs_error = std::max(max_abs_error, other.max_abs_error);
  error_square += other.error_square;
  reference_square += other.reference_square;
  input_square += other.input_square;
  input_peak = std::max(input_peak, other.input_peak);
  non_finite += other.non_finite;
  hidden += other.hidden;
  spread += other.spread;
  world = std::max(world, other.world);
  least_step = std::max(least_step, other.least_step);
}

SumCheck check_sum(DType dtype, std::span<const void* const> inputs, const void* sum,
                   uint64_t count, uint64_t index_offset) {
  const Judge judge(dtype, inputs.size());
  SumCheck check;
  check.world = inputs.size();
  check.least_step = judge.least_step();
  double largest_square = 0;
  Reference reference;
  for (uint64_t first = 0; first < count; first += kBlock) {
    const uint64_t n = std::min(kBlock, count - first);
    reference.clear();
    for (const void* input : inputs)
      reference.add(dtype, input, first, n);
    for (uint64_t i = 0; i < n; ++i, ++check.elements) {
      const double value = load_element(dtype, sum, first + i);
      // A magnitude that is not zero (or is NaN) makes a position of the union.
      const bool zero = reference.magnitude[i] == 0;
      if (!zero) ++check.union_nonzeros;
      if (zero && value == 0) continue;
      if (std::isfinite(reference.magnitude[i])) {
        check.input_square += reference.square[i];
        largest_square = std::max(largest_square, reference.square[i]);
      }
      judge_element(judge, value, reference.sum[i], reference.magnitude[i], check);
    }
  }
  check.input_peak = std::sqrt(largest_square);
  check.first_wrong += index_offset;
  return check;
}

uint64_t check_piece(DType dtype, uint32_t world, uint64_t count) {
  const uint64_t most = (uint64_t{1} << 20) / dtype_bytes(dtype) / world;
  return std::min(std::bit_floor(std::max<uint64_t>(most, 1)), std::max<uint64_t>(count, 1));
}

uint64_t digest(DType dtype, const void* data, uint64_t count) {
  uint64_t hash = mix(count + kGolden);
  for (uint64_t i = 0; i < count; ++i) {
    const float value = load_element(dtype, data, i);
    if (value == 0) continue;
    hash += mix(std::bit_cast<uint32_t>(value) + (i + 1) * kGolden);
  }
  return hash;
}

}  // namespace addend::workload
