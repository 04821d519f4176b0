// SPDX-License-Identifier: Apache-2.0
#include "codec/cast/cast.h"

#include <algorithm>
#include <cmath>

#include "base/bits.h"
#include "base/chunks.h"
#include "codec/cast/kernels.h"
#include "codec/convert.h"
#include "codec/dense/dense.h"
#include "codec/feedback.h"
#include "codec/fingerprint.h"
#include "codec/readable_residual.h"

namespace addend::cast {
namespace {

// One stretch in so many is sampled for the report, another one each step.
constexpr uint64_t kStretch = 2048;
constexpr uint64_t kSampleEvery = 512;

struct Options {
  DType to = DType::kBf16;
  Feedback feedback = Feedback::kNone;
};

const uint8_t* at(const void* elements, DType dtype, uint64_t i) {
  return static_cast<const uint8_t*>(elements) + i * dtype_bytes(dtype);
}
uint8_t* at(void* elements, DType dtype, uint64_t i) {
  return static_cast<uint8_t*>(elements) + i * dtype_bytes(dtype);
}

class CastCodec final : public FeedbackCodec, public ReadableResidual {
 public:
  CastCodec(const Layout& layout, const Options& options)
      : FeedbackCodec(layout), options_(options) {}

  Status set_up() { return residual_.reserve(options_.feedback, layout().count, 0); }

  std::string_view next_mode() const override { return "cast"; }
  uint64_t memory_bytes() const override { return plane_.capacity() + residual_.memory_bytes(); }
  void add_residual(float* to) const override { residual_.add_to(0, 0, layout().count, to); }

 private:
  uint64_t base_fingerprint() const override {
    return Fingerprint().add("cast").add(layout()).add(to()).add(feedback()).value();
  }
  uint64_t segment_fingerprint(uint64_t segment) const override {
    const Segment owner = segment_at(segment);
    Fingerprint print;
    print.add(layout().segments.empty() ? "cast bucket" : "cast segment");
    print.add(layout().seed).add(owner.id).add(owner.count);
    return print.add(static_cast<uint64_t>(layout().dtype)).add(to()).add(feedback()).value();
  }
  Residual::Range segment_range(uint64_t segment) const override { return positions_of(segment); }

  Status do_begin(const void* gradient) override {
    gradient_ = gradient;
    opened_ = false;
    draft().mode = "cast";
    return {};
  }

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

  uint64_t to() const { return static_cast<uint64_t>(options_.to); }
  uint64_t feedback() const { return static_cast<uint64_t>(options_.feedback); }

  // REQUIRES: there is feedback.
  Addends addends(uint64_t begin) {
    return {layout().dtype, at(gradient_, layout().dtype, begin), residual_.values() + begin,
            scale(), options_.to};
  }

  void sample() {
    static constexpr float kNothingKept[kStretch] = {};
    const uint64_t stretches = ceil_div(layout().count, kStretch);
    const uint64_t every = std::min(kSampleEvery, stretches);
    for (uint64_t s = step_ % every; s < stretches; s += every) {
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

  const Options options_;
  const void* gradient_ = nullptr;
  bool opened_ = false;
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

Result<std::unique_ptr<Codec>> create_cast(const CodecSpec& spec, const Layout& layout) {
  const std::vector<OptionHelp>& help = cast_options();
  ADDEND_TRY(check_options(spec, help));
  const auto to = read_choice(spec, help[0], 0);
  ADDEND_TRY(to);
  const auto feedback = read_choice(spec, help[1], 0);
  ADDEND_TRY(feedback);
  const Options options{*to == 0 ? DType::kBf16 : DType::kF16, static_cast<Feedback>(*feedback)};
  // Nothing to round, nothing to keep: that is dense, whose planes may lie in the gradient.
  if (layout.dtype == options.to && options.feedback == Feedback::kNone)
    return create_dense({"dense", {}}, layout);
  auto codec = std::make_unique<CastCodec>(layout, options);
  ADDEND_TRY(codec->set_up());
  return std::unique_ptr<Codec>(std::move(codec));
}

}  // namespace addend::cast
