// SPDX-License-Identifier: Apache-2.0
#include "codec/dense/device_dense.h"

#include "codec/fingerprint.h"
#include "codec/step.h"

namespace addend {
namespace {

class DeviceDenseCodec final : public SteppedCodec {
 public:
  DeviceDenseCodec(const Layout& layout, const cuda::Device& device)
      : SteppedCodec(layout), device_(device), copy_(device.runtime), step_(layout.first_step) {}

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
    const cuda::OnDevice here(device_);
    const Result<void*> plane =
        add_dense_plane(layout(), {gradient_, lent()}, device_, copy_, round);
    ADDEND_TRY(plane);
    plane_ = *plane;
    return true;
  }

  Status do_finish(void* gradient) override {
    const cuda::OnDevice here(device_);
    ADDEND_TRY(take_dense_plane(layout(), device_, plane_, gradient));
    ++step_;
    return {};
  }

  void do_skip_step() override { ++step_; }

  const cuda::Device device_;
  const void* gradient_ = nullptr;
  const void* plane_ = nullptr;
  cuda::DeviceBuffer copy_;
  uint64_t step_;
};

}  // namespace

Result<void*> add_dense_plane(const Layout& layout, const DenseValues& values,
                              const cuda::Device& device, cuda::DeviceBuffer& copy, Round& round) {
  const auto kernels = cuda::part<index::IndexKernels>();
  ADDEND_TRY(kernels);
  void* plane = values.lent;
  if (plane == nullptr) {
    ADDEND_TRY(copy.reserve(layout.count * dtype_bytes(layout.dtype)));
    plane = copy.as<void>();
  }
  const auto factor = static_cast<float>(layout.scale);
  ADDEND_TRY(device.check((*kernels)->multiply(layout.dtype, values.gradient, layout.count, factor,
                                               plane, device.stream),
                          "scaling a gradient"));
  round.add({sum_op(layout.dtype), layout.count, plane, nullptr, nullptr});
  round.last = true;
  return plane;
}

Status take_dense_plane(const Layout& layout, const cuda::Device& device, const void* plane,
                        void* gradient) {
  if (plane == gradient || layout.count == 0) return {};
  const uint64_t bytes = layout.count * dtype_bytes(layout.dtype);
  return device.check(device.runtime->copy(gradient, plane, bytes, device.stream), "copying a sum");
}

Result<std::unique_ptr<Codec>> create_dense_on_device(const CodecSpec& spec, const Layout& layout) {
  ADDEND_TRY(check_options(spec, dense_options()));
  const auto device = cuda::Device::of(layout.execution.stream);
  ADDEND_TRY(device);
  return std::unique_ptr<Codec>(std::make_unique<DeviceDenseCodec>(layout, *device));
}

}  // namespace addend
