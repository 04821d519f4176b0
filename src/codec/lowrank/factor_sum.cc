// SPDX-License-Identifier: Apache-2.0
#include "codec/lowrank/factor_sum.h"

#include <utility>

#include "base/buffer.h"
#include "codec/convert.h"
#include "codec/quant/quant.h"

namespace addend::lowrank {
namespace {

uint64_t elements_of(const std::vector<Segment>& parts) {
  uint64_t count = 0;
  for (const Segment& part : parts)
    count += part.count;
  return count;
}

// The plane is the factor itself.
class WholeSum final : public FactorSum {
 public:
  explicit WholeSum(uint64_t count) : count_(count) {}

  Status begin(uint64_t, float* factor) override {
    factor_ = factor;
    return {};
  }
  Result<bool> next_round(Round& round) override {
    if (factor_ == nullptr) return false;
    round.add({Op::kSumF32, count_, std::exchange(factor_, nullptr), nullptr, nullptr});
    round.last = true;
    return true;
  }
  Status finish() override { return {}; }
  Status take_losses(float*) override { return {}; }
  void add_plan(Fingerprint&) const override {}
  uint64_t memory_bytes() const override { return 0; }

 private:
  const uint64_t count_;
  float* factor_ = nullptr;
};

class HalfSum final : public FactorSum {
 public:
  explicit HalfSum(uint64_t count) : count_(count) {}

  Status begin(uint64_t, float* factor) override {
    ADDEND_TRY(lanes_.reserve(count_ * dtype_bytes(DType::kBf16)));
    factor_ = factor;
    opened_ = false;
    return {};
  }
  Result<bool> next_round(Round& round) override {
    if (std::exchange(opened_, true)) return false;
    convert(DType::kF32, factor_, count_, 1, DType::kBf16, lanes_.as<void>());
    round.add({Op::kSumBf16, count_, lanes_.as<void>(), nullptr, nullptr});
    round.last = true;
    return true;
  }
  Status finish() override {
    convert(DType::kBf16, lanes_.as<void>(), count_, 1, DType::kF32, factor_);
    return {};
  }
  // The sum has been read: its lanes are free.
  Status take_losses(float* own) override {
    convert(DType::kF32, own, count_, 1, DType::kBf16, lanes_.as<void>());
    convert(DType::kBf16, lanes_.as<void>(), count_, 1, DType::kF32, own);
    return {};
  }
  void add_plan(Fingerprint& print) const override { print.add("bf16"); }
  uint64_t memory_bytes() const override { return lanes_.capacity(); }

 private:
  const uint64_t count_;
  float* factor_ = nullptr;
  bool opened_ = false;
  Buffer lanes_;
};

// The codec's feedback says what the levels lost; it is taken away after every step, since the next
// one has another basis.
class QuantSum final : public FactorSum {
 public:
  explicit QuantSum(std::unique_ptr<quant::QuantCodec> codec) : codec_(std::move(codec)) {}

  Status begin(uint64_t step, float* factor) override {
    codec_->cancel();  // a step of ours that was
    codec_->begin_at(step);
    factor_ = factor;
    // Here: once the codec has finished, a step that fails would have changed its residual.
    ADDEND_TRY(lost_.reserve(codec_->layout().count * 4));
    return codec_->begin(factor);
  }
  Result<bool> next_round(Round& round) override { return codec_->next_round(round); }
  Status finish() override { return codec_->finish(factor_); }
  Status take_losses(float* own) override {
    const uint64_t count = codec_->layout().count;
    ADDEND_TRY(codec_->take_residual(lost_.as<float>()));
    for (uint64_t i = 0; i < count; ++i)
      own[i] -= lost_.as<float>()[i];
    return {};
  }
  void add_plan(Fingerprint& print) const override { print.add(codec_->plan()); }
  uint64_t memory_bytes() const override { return codec_->memory_bytes() + lost_.capacity(); }

 private:
  std::unique_ptr<quant::QuantCodec> codec_;
  float* factor_ = nullptr;
  Buffer lost_;
};

}  // namespace

Result<std::unique_ptr<FactorSum>> create_factor_sum(Factors as, const Layout& layout,
                                                     const FactorShape& shape) {
  const uint64_t count = elements_of(shape.parts);
  if (as == Factors::kF32) return std::unique_ptr<FactorSum>(new WholeSum(count));
  if (as == Factors::kBf16) return std::unique_ptr<FactorSum>(new HalfSum(count));
  Layout values;
  values.count = count;
  values.world = layout.world;
  values.worker = layout.worker;
  values.seed = Fingerprint().add("lowrank factor").add(shape.name).add(layout.seed).value();
  values.segments = shape.parts;
  Result<quant::Options> options = quant::read_options({"quant", {}}, values);
  ADDEND_TRY(options);
  options->feedback = shape.feedback;
  auto codec = quant::QuantCodec::make(values, *options);
  ADDEND_TRY(codec);
  return std::unique_ptr<FactorSum>(new QuantSum(std::move(*codec)));
}

}  // namespace addend::lowrank
