// SPDX-License-Identifier: Apache-2.0
#include "codec/residual.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "wire/half.h"

namespace addend {
namespace {

// What overflows is dropped: a residual that is not finite would break its block in every later
// step.
float kept(float x) { return std::isfinite(x) ? x : 0.0f; }

}  // namespace

void Residual::describe(Feedback feedback, uint64_t elements, uint64_t blocks) {
  feedback_ = feedback;
  if (feedback == Feedback::kNone) return;
  elements_ = elements;
  blocks_ = blocks;
}

Status Residual::reserve(Feedback feedback, uint64_t elements, uint64_t blocks) {
  describe(feedback, elements, blocks);
  const uint64_t bytes = elements_ * element_bytes();
  if (bytes == 0) return {};
  ADDEND_TRY(values_.reserve(bytes));
  std::memset(values_.as<void>(), 0, bytes);
  if (feedback == Feedback::kFloat) return {};
  ADDEND_TRY(scales_.reserve(blocks * 4));
  std::memset(scales_.as<void>(), 0, blocks * 4);
  return {};
}

Status Residual::reserve_norms() {
  keeps_norms_ = true;
  ADDEND_TRY(norms_.reserve(blocks_ * 4));
  std::fill(norms().begin(), norms().end(), kNoNorm);
  return {};
}

Status Residual::reserve_draft() {
  drafts_ = true;
  return draft_.reserve(elements_ * 4);
}

void Residual::store_draft(uint64_t begin, uint64_t n, const float* x) {
  std::transform(x, x + n, draft() + begin, kept);
}

void Residual::keep_as_draft(uint64_t begin, uint64_t n) {
  std::copy_n(values_.as<float>() + begin, n, draft() + begin);
}

void Residual::add_to(uint64_t block, uint64_t begin, uint64_t n, float* x, float factor) const {
  // Added to zero first, as on a device: a residual of -0.0 counts as +0.0.
  if (feedback_ == Feedback::kFloat) {
    const float* values = values_.as<float>() + begin;
    for (uint64_t i = 0; i < n; ++i)
      x[i] += (0.0f + values[i]) * factor;
  } else if (feedback_ == Feedback::kByte) {
    const int8_t* values = values_.as<int8_t>() + begin;
    const float scale = scales_.as<float>()[block];
    for (uint64_t i = 0; i < n; ++i)
      x[i] += (0.0f + static_cast<float>(values[i]) * scale) * factor;
  }
}

void Residual::store(uint64_t block, uint64_t begin, uint64_t n, const float* x) {
  if (feedback_ == Feedback::kFloat) {
    float* values = values_.as<float>() + begin;
    for (uint64_t i = 0; i < n; ++i)
      values[i] = kept(x[i]);
  } else if (feedback_ == Feedback::kByte) {
    float largest = 0;
    for (uint64_t i = 0; i < n; ++i)
      largest = std::max(largest, std::fabs(kept(x[i])));
    // Scales below normal floats have no inverse; so little may be dropped.
    const float scale =
        largest >= 127 * std::numeric_limits<float>::min() ? largest / 127.0f : 0.0f;
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    int8_t* values = values_.as<int8_t>() + begin;
    for (uint64_t i = 0; i < n; ++i) {
      values[i] =
          static_cast<int8_t>(std::clamp(std::nearbyint(kept(x[i]) * inverse), -127.0f, 127.0f));
    }
    scales_.as<float>()[block] = scale;
  }
}

void Residual::multiply(double factor) {
  const auto times = [&](float x) {
    return kept(static_cast<float>(static_cast<double>(x) * factor));
  };
  if (feedback_ == Feedback::kFloat) {
    auto* values = values_.as<float>();
    std::transform(values, values + elements_, values, times);
  } else if (feedback_ == Feedback::kByte) {
    auto* scales = scales_.as<float>();
    std::transform(scales, scales + blocks_, scales, times);
  }
  for (uint32_t& norm : norms()) {
    const double scaled = static_cast<double>(addend_f32_from_bits(norm)) * std::fabs(factor);
    if (norm == kNoNorm) continue;
    const bool finite = scaled <= static_cast<double>(std::numeric_limits<float>::max());
    norm = finite ? addend_f32_bits(static_cast<float>(scaled)) : kNoNorm;
  }
}

uint64_t Residual::element_bytes() const {
  return feedback_ == Feedback::kNone ? 0 : feedback_ == Feedback::kFloat ? 4 : 1;
}

uint64_t Residual::state_bytes(const Range& range) const {
  const uint64_t scales = feedback_ == Feedback::kByte ? range.blocks * 4 : 0;
  return range.elements * element_bytes() + scales + (keeps_norms_ ? range.blocks * 4 : 0);
}

void Residual::save(const Range& range, uint8_t* to) const {
  const uint64_t bytes = range.elements * element_bytes();
  if (bytes == 0) return;
  std::memcpy(to, values_.as<uint8_t>() + range.begin * element_bytes(), bytes);
  to += bytes;
  if (feedback_ == Feedback::kByte) {
    std::memcpy(to, scales_.as<float>() + range.first_block, range.blocks * 4);
    to += range.blocks * 4;
  }
  if (keeps_norms_) std::memcpy(to, norms_.as<uint32_t>() + range.first_block, range.blocks * 4);
}

void Residual::load(const Range& range, const uint8_t* from) {
  const uint64_t bytes = range.elements * element_bytes();
  if (bytes == 0) return;
  std::memcpy(values_.as<uint8_t>() + range.begin * element_bytes(), from, bytes);
  from += bytes;
  if (feedback_ == Feedback::kByte) {
    std::memcpy(scales_.as<float>() + range.first_block, from, range.blocks * 4);
    from += range.blocks * 4;
  }
  if (keeps_norms_) std::memcpy(norms_.as<uint32_t>() + range.first_block, from, range.blocks * 4);
}

}  // namespace addend
