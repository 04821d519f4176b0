// SPDX-License-Identifier: Apache-2.0
#include "codec/cast/cast.h"

#include <algorithm>
#include <cmath>

#include "base/chunks.h"
#include "codec/cast/kernels.h"
#include "codec/cast/plan.h"
#include "codec/convert.h"
#include "codec/dense/dense.h"
#include "codec/readable_residual.h"

namespace addend::cast {
namespace {

const uint8_t* at(const void* elements, DType dtype, uint64_t i) {
  return static_cast<const uint8_t*>(elements) + i * dtype_bytes(dtype);
}
uint8_t* at(void* elements, DType dtype, uint64_t i) {
  return static_cast<uint8_t*>(elements) + i * dtype_bytes(dtype);
}

class CastCodec final : public CastPlan, public ReadableResidual {
 public:
  using CastPlan::CastPlan;

  Status set_up() { return residual_.reserve(options_.feedback, layout().count, 0); }

  uint64_t memory_bytes() const override { return plane_.capacity() + residual_.memory_bytes(); }
  Status add_residual(float* to) const override {
    residual_.add_to(0, 0, layout().count, to);
    return {};
  }

 private:
  Result<bool> do_round(Round& round) override {
    if (opened_ || layout().count == 0) return false;
    opened_ = true;
    ADDEND_TRY(plane_.reserve(layout().count * 2));
    if (residual_.any()) {
      for_each_part(layout().count, kChunkElements, [&](uint64_t begin, uint64_t end) {
        send(addends(begin), end - begin, at(plane_.as<void>(), options_.to, begin));
      });
    } else {
      convert(layout().dtype, gradient_, layout().count, scale(), options_.to, plane_.as<void>());
    }
    sample();
    round.add({sum_op(options_.to), layout().count, plane_.as<void>(), nullptr, nullptr});
    round.last = true;
    return true;
  }

  Status do_finish(void* gradient) override {
    const DType dtype = layout().dtype;
    if (!residual_.any()) {
      convert(options_.to, plane_.as<void>(), layout().count, 1, dtype, gradient);
      ++step_;
      return {};
    }
    // Part by part: a result may go where the gradient lies, which the residual still has to be
    // read from.
    for_each_part(layout().count, kChunkElements / 2, [&](uint64_t begin, uint64_t end) {
      keep(addends(begin), end - begin, residual_.values() + begin);
      convert(options_.to, at(plane_.as<void>(), options_.to, begin), end - begin, 1, dtype,
              at(gradient, dtype, begin));
    });
    ++step_;
    return {};
  }

  // REQUIRES: there is feedback.
  Addends addends(uint64_t begin) {
    return {layout().dtype, at(gradient_, layout().dtype, begin), residual_.values() + begin,
            scale(), options_.to};
  }

  void sample() {
    static constexpr float kNothingKept[kStretch] = {};
    for (uint64_t s = first_sample(); s < stretches(); s += sample_every()) {
      Addends addends{layout().dtype, at(gradient_, layout().dtype, s * kStretch), kNothingKept,
                      scale(), options_.to};
      if (residual_.any()) addends.residual = residual_.values() + s * kStretch;
      const uint64_t n = std::min(kStretch, layout().count - s * kStretch);
      for (uint64_t i = 0; i < n; ++i) {
        const Sent sent = sent_at(addends, i);
        const auto lost = static_cast<double>(sent.addend) - static_cast<double>(sent.arrived);
        if (!std::isfinite(lost)) continue;
        draft().sampled_energy += std::pow(static_cast<double>(sent.addend), 2);
        draft().sampled_error += lost * lost;
      }
    }
  }

  Buffer plane_;  // 16-bit floats
};

}  // namespace

const std::vector<OptionHelp>& cast_options() {
  static const std::vector<OptionHelp> options = {
      {"to", "bf16|f16", "the 16-bit float that travels (bf16); cast:f16 says the same", true},
      {"feedback", "none|float", "error feedback: residual kept in 4 bytes an element"},
  };
  return options;
}

Result<Options> read_options(const CodecSpec& spec) {
  const std::vector<OptionHelp>& help = cast_options();
  ADDEND_TRY(check_options(spec, help));
  const auto to = read_choice(spec, help[0], 0);
  ADDEND_TRY(to);
  const auto feedback = read_choice(spec, help[1], 0);
  ADDEND_TRY(feedback);
  return Options{*to == 0 ? DType::kBf16 : DType::kF16, static_cast<Feedback>(*feedback)};
}

Result<std::unique_ptr<Codec>> create_cast(const CodecSpec& spec, const Layout& layout) {
  const Result<Options> options = read_options(spec);
  ADDEND_TRY(options);
  if (is_dense(*options, layout)) return create_dense({"dense", {}}, layout);
  auto codec = std::make_unique<CastCodec>(layout, *options);
  ADDEND_TRY(codec->set_up());
  return std::unique_ptr<Codec>(std::move(codec));
}

}  // namespace addend::cast
