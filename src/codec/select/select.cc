// SPDX-License-Identifier: Apache-2.0
#include "codec/select/select.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/bits.h"
#include "base/chunks.h"
#include "codec/index/kernels.h"
#include "codec/select/arithmetic.h"
#include "codec/select/mark.h"
#include "wire/element.h"

namespace addend::select {
namespace {

// Elements that a thread takes at once: clearing and adding up a histogram must not count.
constexpr uint64_t kAtOnce = uint64_t{1} << 18;

double square(float x) { return static_cast<double>(x) * static_cast<double>(x); }

}  // namespace

SelectCodec::SelectCodec(const Layout& layout, const Options& options)
    : SelectPlan(layout, options) {
  uint64_t begin = 0;
  for (uint64_t s = 0; s < std::max<uint64_t>(layout.segments.size(), 1); ++s) {
    const Segment segment = segment_at(s);
    parts_.push_back({segment.id, begin, begin + segment.count});
    begin += segment.count;
  }
}

Status SelectCodec::set_up() {
  const uint64_t count = layout().count;
  ADDEND_TRY(residual_.reserve(Feedback::kFloat, count, 0));
  ADDEND_TRY(sums_.reserve(count * 4));
  const bool guesses = options_.selector == Selector::kTopk ||
                       options_.selector == Selector::kThreshold ||
                       options_.selector == Selector::kLeader;
  ADDEND_TRY(chosen_.reserve(count, guesses));
  if (!has_velocity()) return {};
  ADDEND_TRY(velocity_.reserve(count * 4));
  ADDEND_TRY(next_velocity_.reserve(count * 4));
  if (count > 0) std::memset(velocity_.as<void>(), 0, count * 4);
  return {};
}

uint64_t SelectCodec::memory_bytes() const {
  uint64_t bytes = residual_.memory_bytes() + chosen_.memory_bytes() +
                   by_thread_.capacity() * sizeof(Histogram) + scratch_.memory_bytes();
  for (const Buffer* buffer : {&sums_, &velocity_, &next_velocity_})
    bytes += buffer->capacity();
  return bytes;
}

uint64_t SelectCodec::words() const { return words_for(layout().count); }

// ---- what later steps depend on

Status SelectCodec::save_learnt(uint64_t segment, uint8_t* to) const {
  if (learnt_bytes(segment) == 0) return {};
  std::memcpy(to, velocity_.as<float>() + parts_[segment].begin, learnt_bytes(segment));
  return {};
}
Status SelectCodec::load_learnt(uint64_t segment, const uint8_t* from) {
  if (learnt_bytes(segment) == 0) return {};
  std::memcpy(velocity_.as<float>() + parts_[segment].begin, from, learnt_bytes(segment));
  return {};
}

Status SelectCodec::multiply_residual(double factor) {
  residual_.multiply(factor);
  for (uint64_t i = 0; has_velocity() && i < layout().count; ++i) {
    float& velocity = velocity_.as<float>()[i];
    const auto scaled = static_cast<float>(static_cast<double>(velocity) * factor);
    velocity = std::isfinite(scaled) ? scaled : 0.0f;
  }
  return {};
}

// ---- a step

Status SelectCodec::do_begin(const void* gradient) {
  gradient_ = gradient;
  selected_ = false;
  draft().mode = next_mode();
  return {};
}

Addends SelectCodec::addends(uint64_t begin) {
  const DType dtype = layout().dtype;
  return {dtype, static_cast<const uint8_t*>(gradient_) + begin * dtype_bytes(dtype),
          residual_.values() + begin};
}

bool SelectCodec::streams() const { return layout().count * 4 >= index::kStreamBytes; }

void SelectCodec::add_up(Part& part, Histogram* histogram) {
  part.finite = true;
  if (has_velocity()) {
    accelerate(part);
  } else if (histogram != nullptr) {
    histogram->clear();
    count_part(part, *histogram);
    part.finite = histogram->nonfinite() == 0;
  } else {
    std::atomic<bool> finite = true;
    for_each_part(part.end - part.begin, kAtOnce, [&](uint64_t begin, uint64_t end) {
      const uint64_t at = part.begin + begin;
      if (!add_owed(addends(at), end - begin, sums_.as<float>() + at)) finite = false;
    });
    part.finite = finite;
  }
}

void SelectCodec::count_part(const Part& part, Histogram& histogram) {
  const uint64_t count = part.end - part.begin;
  if (by_thread_.size() < loop_threads()) by_thread_.resize(loop_threads());
  if (count <= kAtOnce) {
    return count_magnitudes(addends(part.begin), count, sums_.as<float>() + part.begin, histogram);
  }
  for (Histogram& one : by_thread_)
    one.clear();
  for_each_chunk(ceil_div(count, kAtOnce), [&](uint64_t chunk, uint32_t thread) {
    const uint64_t at = part.begin + chunk * kAtOnce;
    count_magnitudes(addends(at), std::min(kAtOnce, part.end - at), sums_.as<float>() + at,
                     by_thread_[thread]);
  });
  for (const Histogram& one : by_thread_)
    histogram.add(one);
}

// What a worker's gradient is multiplied by so that all of them together have no larger norm, if
// they are alike: each may have a part that shrinks with the root of the world. No factor makes an
// infinite norm a finite one: 0 would lose what is finite, and the step is broken anyway.
float SelectCodec::clipping(const Part& part) const {
  if (options_.clip == 0) return 1;
  const double energy = add_by_pieces(part.count(), [&](uint64_t i) {
    return square(load_float(layout().dtype, gradient_, part.begin + i));
  });
  const double most = most_norm();
  const double norm = std::sqrt(energy);
  return norm > most && std::isfinite(norm) ? static_cast<float>(most / norm) : 1.0f;
}

// Momentum belongs to each element: it goes on while the element waits.
void SelectCodec::accelerate(Part& part) {
  const float factor = clipping(part);
  const auto momentum = static_cast<float>(options_.momentum);
  std::atomic<bool> finite = true;
  for_each_part(part.end - part.begin, kAtOnce, [&](uint64_t begin, uint64_t end) {
    for (uint64_t i = part.begin + begin; i < part.begin + end; ++i) {
      const float gradient = load_float(layout().dtype, gradient_, i) * factor;
      const float velocity = velocity_.as<float>()[i] * momentum + gradient;
      next_velocity_.as<float>()[i] = velocity;
      sums_.as<float>()[i] = residual_.values()[i] + velocity;
      if (!std::isfinite(sums_.as<float>()[i])) finite = false;
    }
  });
  part.finite = finite;
}

Field SelectCodec::field_of(const Part& part) {
  return {sums_.as<float>(), part.begin, part.end, chosen_.bitmap(), &scratch_};
}

void SelectCodec::settle() {
  auto* sums = sums_.as<float>();
  for (const Part& part : parts_) {
    for (uint64_t i = part.begin; !part.finite && i < part.end; ++i) {
      if (!std::isfinite(sums[i])) sums[i] = 0;
      if (has_velocity() && !std::isfinite(next_velocity_.as<float>()[i]))
        next_velocity_.as<float>()[i] = 0;
    }
  }
  residual_.exchange(sums_);
  std::swap(velocity_, next_velocity_);
  ++step_;
}

}  // namespace addend::select
