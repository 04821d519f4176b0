// SPDX-License-Identifier: Apache-2.0
// The end of a QuantCodec's step: decoding the sums, and what error feedback keeps.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "codec/element.h"
#include "codec/quant/quant.h"

namespace addend::quant {

// The mean of the contributors stands for every worker, so a sum over fewer is an unbiased sum over
// all.
void QuantCodec::decode_block(uint64_t b, double contributors, void* gradient) {
  const Block at = block(b);
  const Part& part = parts_[b];
  auto* x = rotated_.as<float>();
  auto* out = scratch_.as<float>();
  if (part.norm == 0) {
    const float fill = part.broken ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
    for (uint64_t i = 0; i < at.elements; ++i)
      store_float(layout().dtype, gradient, at.begin + i, fill);
    return;
  }
  const Coding& coding = codings_[part.coding];
  const double prescale = static_cast<double>(prescale_of(part.norm));
  const double norm = static_cast<double>(part.norm) * prescale;
  const double range = rotates() ? coding.table.half_range * norm / at.size : norm;
  const double unit = 2 * range / coding.table.granularity * layout().world;
  const auto factor = static_cast<float>(unit / contributors),
             offset = static_cast<float>(-range * layout().world);
  const LanePlane& plane = planes_[static_cast<std::size_t>(coding.lane)];
  const Buffer& sums = options_.carrier == Carrier::kIndices ? plane.sums : plane.data;
  if (coding.lane == Lane::kU8) {
    dequantise(sums.as<uint8_t>() + part.lane, at.size, factor, offset, x);
  } else if (coding.lane == Lane::kU16) {
    dequantise(sums.as<uint16_t>() + part.lane, at.size, factor, offset, x);
  } else {
    dequantise(sums.as<uint32_t>() + part.lane, at.size, factor, offset, x);
  }
  const bool direct = layout().dtype == DType::kF32 && at.elements == at.size && prescale == 1;
  float* to = direct ? static_cast<float*>(gradient) + at.begin : out;
  if (rotates()) {
    unrotate(x, signs(b, step_ / sign_period()), at.size, to);
  } else {
    std::memcpy(to, x, at.size * 4);
  }
  if (direct) return;
  for (uint64_t i = 0; i < at.elements; ++i) {
    store_float(layout().dtype, gradient, at.begin + i,
                static_cast<float>(static_cast<double>(to[i]) / prescale));
  }
}

// What this worker's levels did not say stays behind for the next step: everything, if they are not
// in the sum. The levels are found again (rounding is a function of the seeds), so that a step that
// is cancelled has changed nothing.
void QuantCodec::keep_residual(uint64_t b) {
  const Block at = block(b);
  const Part& part = parts_[b];
  if (part.broken) return;
  auto* rotated = rotated_.as<float>();
  auto* scratch = scratch_.as<float>();
  if (part.norm == 0) {
    // Gradient and residual cancelled on every worker: nothing is owed any more.
    std::fill_n(scratch, at.size, 0.0f);
    return residual_.store(b, at.begin, at.size, scratch);
  }
  const float prescale = prescale_of(part.norm);
  load_rotated(at, b, prescale);
  if (excluded_) {
    std::fill_n(scratch, at.size, 0.0f);
  } else {
    const Coding& coding = codings_[part.coding];
    quantise_levels(quantiser(b, part, part.norm * prescale), rotated, at.size,
                    levels_.as<uint8_t>());
    const double range =
        (rotates() ? coding.table.half_range : 1) * static_cast<double>(part.norm * prescale);
    dequantise(levels_.as<uint8_t>(), at.size,
               static_cast<float>(2 * range / coding.table.granularity), static_cast<float>(-range),
               scratch);
  }
  for (uint64_t i = 0; i < at.size; ++i)
    scratch[i] = (rotated[i] - scratch[i]) / prescale;
  residual_.store(b, at.begin, at.size, scratch);
}

// At the end of a sign period the residual moves to the next period's coordinates.
void QuantCodec::turn_residual() {
  if (!residual_.any() || !rotates() || (step_ + 1) % sign_period() != 0) return;
  const uint64_t epoch = step_ / sign_period();
  auto* rotated = rotated_.as<float>();
  auto* scratch = scratch_.as<float>();
  for (uint64_t b = 0; b < blocks(); ++b) {
    const Block at = block(b);
    std::fill_n(rotated, at.size, 0.0f);
    residual_.add_to(b, at.begin, at.size, rotated);
    for (uint64_t i = 0; i < at.size; ++i)
      rotated[i] /= static_cast<float>(at.size);
    unrotate(rotated, signs(b, epoch), at.size, scratch);
    rotate(scratch, signs(b, epoch + 1), at.size, rotated);
    residual_.store(b, at.begin, at.size, rotated);
  }
}

Status QuantCodec::do_finish(void* gradient) {
  if (!silent_ && layout().count > 0 && (contributors_ == 0 || contributors_ > layout().world)) {
    return make_error(Errc::kUndecodable, "the sums claim " + std::to_string(contributors_) +
                                              " contributors of " + std::to_string(layout().world));
  }
  for (uint64_t b = 0; layout().count > 0 && b < blocks(); ++b) {
    if (residual_.any()) keep_residual(b);
    decode_block(b, contributors_, gradient);
  }
  if (layout().count > 0) turn_residual();
  ++step_;
  return {};
}

Status QuantCodec::do_exclude() {
  excluded_ = true;
  return {};
}

Result<std::vector<uint8_t>> QuantCodec::do_save_state() const {
  const uint64_t header[] = {state_fingerprint(), step_};
  std::vector<uint8_t> state(sizeof(header) + residual_.state_bytes());
  std::memcpy(state.data(), header, sizeof(header));
  residual_.save(state.data() + sizeof(header));
  return state;
}

Status QuantCodec::do_load_state(std::span<const uint8_t> state) {
  uint64_t header[2] = {};
  if (state.size() != sizeof(header) + residual_.state_bytes()) {
    return make_error(Errc::kMismatch,
                      "the saved state is not of a codec with this layout and feedback");
  }
  std::memcpy(header, state.data(), sizeof(header));
  if (header[0] != state_fingerprint()) {
    return make_error(
        Errc::kMismatch,
        "the saved state is of another plan or worker: spec, layout and seed must be the same");
  }
  step_ = header[1];
  residual_.load(state.data() + sizeof(header));
  return {};
}

}  // namespace addend::quant
