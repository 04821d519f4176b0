// SPDX-License-Identifier: Apache-2.0
#include "codec/dense/dense.h"

#include <cstring>

#include "base/buffer.h"
#include "codec/fingerprint.h"
#include "codec/step.h"

namespace addend {
namespace {

// Works on a copy: the caller's gradient must survive a failed reduction.
class DenseCodec final : public SteppedCodec {
 public:
  explicit DenseCodec(const Layout& layout) : SteppedCodec(layout) {}

  uint64_t fingerprint() const override {
    return Fingerprint().add("dense").add(layout()).add(step_).value();
  }
  uint64_t memory_bytes() const override { return values_.capacity(); }

 private:
  Status do_begin(const void* gradient) override {
    const uint64_t bytes = draft().dense_bytes;
    ADDEND_TRY(values_.reserve(bytes));
    if (bytes > 0) std::memcpy(values_.as<void>(), gradient, bytes);
    sent_ = layout().count == 0;
    return {};
  }

  Result<bool> do_round(Round& round) override {
    if (sent_) return false;
    sent_ = true;
    round.add({sum_op(layout().dtype), layout().count, values_.as<void>(), nullptr, nullptr});
    return true;
  }

  Status do_finish(void* gradient) override {
    if (draft().dense_bytes > 0) std::memcpy(gradient, values_.as<void>(), draft().dense_bytes);
    ++step_;
    return {};
  }

  Buffer values_;
  bool sent_ = false;
  uint64_t step_ = 0;
};

}  // namespace

const std::vector<OptionHelp>& dense_options() {
  static const std::vector<OptionHelp> options;
  return options;
}

Result<std::unique_ptr<Codec>> create_dense(const CodecSpec& spec, const Layout& layout) {
  ADDEND_TRY(check_options(spec, dense_options()));
  return std::unique_ptr<Codec>(std::make_unique<DenseCodec>(layout));
}

}  // namespace addend
