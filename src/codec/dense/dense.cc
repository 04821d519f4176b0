// SPDX-License-Identifier: Apache-2.0
#include "codec/dense/dense.h"

#include "codec/convert.h"
#include "codec/fingerprint.h"
#include "codec/step.h"

namespace addend {
namespace {

class DenseCodec final : public SteppedCodec {
 public:
  explicit DenseCodec(const Layout& layout) : SteppedCodec(layout), step_(layout.first_step) {}

  uint64_t fingerprint() const override { return dense_fingerprint(layout(), step_); }
  std::string_view next_mode() const override { return "dense"; }
  uint64_t memory_bytes() const override { return copy_.capacity(); }

 private:
  Status do_begin(const void* gradient) override {
    gradient_ = gradient;
    plane_ = nullptr;
    return {};
  }

  Result<bool> do_round(Round& round) override {
    if (layout().count == 0 || plane_ != nullptr) return false;
    const Result<void*> plane = add_dense_plane(layout(), {gradient_, lent()}, copy_, round);
    ADDEND_TRY(plane);
    plane_ = *plane;
    return true;
  }

  Status do_finish(void* gradient) override {
    take_dense_plane(layout(), plane_, gradient);
    ++step_;
    return {};
  }

  void do_skip_step() override { ++step_; }

  const void* gradient_ = nullptr;
  const void* plane_ = nullptr;
  Buffer copy_;
  uint64_t step_;
};

}  // namespace

uint64_t dense_fingerprint(const Layout& layout, uint64_t step) {
  return Fingerprint().add("dense").add(layout).add(step).value();
}

Result<void*> add_dense_plane(const Layout& layout, const DenseValues& values, Buffer& copy,
                              Round& round) {
  void* plane = values.lent;
  if (plane == nullptr) {
    ADDEND_TRY(copy.reserve(layout.count * dtype_bytes(layout.dtype)));
    plane = copy.as<void>();
  }
  multiply(layout.dtype, values.gradient, layout.count, static_cast<float>(layout.scale), plane);
  round.add({sum_op(layout.dtype), layout.count, plane, nullptr, nullptr});
  round.last = true;
  return plane;
}

void take_dense_plane(const Layout& layout, const void* plane, void* gradient) {
  multiply(layout.dtype, plane, layout.count, 1, gradient);
}

const std::vector<OptionHelp>& dense_options() {
  static const std::vector<OptionHelp> options;
  return options;
}

Result<std::unique_ptr<Codec>> create_dense(const CodecSpec& spec, const Layout& layout) {
  ADDEND_TRY(check_options(spec, dense_options()));
  return std::unique_ptr<Codec>(std::make_unique<DenseCodec>(layout));
}

}  // namespace addend
