// SPDX-License-Identifier: Apache-2.0
// The plane is CastCodec's. The residual is kept twice (decision 0079): sending writes what is owed
// then, and finish makes it the one that counts.
#include "codec/cast/device_cast.h"

#include <algorithm>
#include <array>

#include "base/bits.h"
#include "codec/cast/cast_kernels.h"
#include "codec/cast/plan.h"
#include "codec/dense/device_dense.h"

namespace addend::cast {
namespace {

class DeviceCastCodec final : public CastPlan {
 public:
  DeviceCastCodec(const Layout& layout, const Options& options, const cuda::Device& device,
                  const CastKernels& kernels)
      : CastPlan(layout, options), device_(device), kernels_(kernels) {}

  Status open() {
    const cuda::OnDevice here(device_);
    residual_.describe(options_.feedback, layout().count, 0);
    ADDEND_TRY(sampled_.open());
    ADDEND_TRY(samples_.reserve((stretches() / sample_every() + 1) * sizeof(Sample)));
    ADDEND_TRY(plane_.reserve(layout().count * 2));
    if (!residual_.any()) return {};
    for (cuda::DeviceBuffer& kept : kept_) {
      const uint64_t bytes = layout().count * 4;
      ADDEND_TRY(kept.reserve(bytes));
      ADDEND_TRY(check(device_.runtime->fill(kept.as<void>(), 0, bytes, stream()), "clearing"));
    }
    return {};
  }

  uint64_t memory_bytes() const override {
    return plane_.capacity() + kept_[0].capacity() + kept_[1].capacity() + samples_.capacity();
  }

 private:
  Result<bool> do_round(Round& round) override {
    if (layout().count == 0) return false;
    const cuda::OnDevice here(device_);
    if (opened_) {
      ADDEND_TRY(take_samples());
      return false;
    }
    opened_ = true;
    const SendCall call{
        layout().dtype, gradient_,   owed().as<float>(), kept_[1 - current_].as<float>(),
        scale(),        options_.to, layout().count,     plane_.as<void>()};
    ADDEND_TRY(check(kernels_.send(call, stream()), "casting"));
    const SampleCall which{first_sample(), sample_every(), kStretch, samples_.device<Sample>()};
    ADDEND_TRY(check(kernels_.sample(call, which, sampled_.address(), sampled_.expect(), stream()),
                     "sampling"));
    round.add({sum_op(options_.to), layout().count, plane_.as<void>(), nullptr, nullptr});
    round.last = true;
    return true;
  }

  // They were written before the sums were there.
  Status take_samples() {
    ADDEND_TRY(sampled_.wait());
    const uint64_t samples = ceil_div(stretches() - first_sample(), sample_every());
    for (uint64_t s = 0; s < samples; ++s) {
      draft().sampled_energy += samples_.host<Sample>()[s].energy;
      draft().sampled_error += samples_.host<Sample>()[s].error;
    }
    return {};
  }

  Status do_finish(void* gradient) override {
    const cuda::OnDevice here(device_);
    ADDEND_TRY(check(kernels_.take(options_.to, plane_.as<void>(), layout().count, layout().dtype,
                                   gradient, stream()),
                     "casting back"));
    if (residual_.any()) current_ = 1 - current_;
    ++step_;
    return {};
  }

  Status fetch_residual(const Residual::Range& range, uint8_t* to) const override {
    return copy(to, owed().as<float>() + range.begin, range.elements * 4);
  }
  Status put_residual(const Residual::Range& range, const uint8_t* from) override {
    return copy(owed().as<float>() + range.begin, from, range.elements * 4);
  }
  Status multiply_residual(double factor) override {
    if (!residual_.any()) return {};
    const cuda::OnDevice here(device_);
    return check(kernels_.multiply(owed().as<float>(), layout().count, factor, stream()),
                 "scaling what is owed");
  }

  // Done when it returns.
  Status copy(void* to, const void* from, uint64_t bytes) const {
    if (!residual_.any() || bytes == 0) return {};
    const cuda::OnDevice here(device_);
    ADDEND_TRY(check(device_.runtime->copy(to, from, bytes, stream()), "copying"));
    return check(device_.runtime->synchronize(stream()), "copying");
  }

  const cuda::DeviceBuffer& owed() const { return kept_[current_]; }
  void* stream() const { return layout().execution.stream; }
  Status check(int code, const char* doing) const { return device_.check(code, doing); }

  const cuda::Device device_;
  const CastKernels& kernels_;
  uint32_t current_ = 0;  // which of kept_ is owed
  cuda::DeviceBuffer plane_{device_.runtime};
  std::array<cuda::DeviceBuffer, 2> kept_{cuda::DeviceBuffer(device_.runtime),
                                          cuda::DeviceBuffer(device_.runtime)};
  cuda::PinnedBuffer samples_{device_.runtime};
  cuda::Mailbox sampled_{device_};
};

}  // namespace

Result<std::unique_ptr<Codec>> create_cast_on_device(const CodecSpec& spec, const Layout& layout) {
  const Result<Options> options = read_options(spec);
  ADDEND_TRY(options);
  if (is_dense(*options, layout)) return create_dense_on_device({"dense", {}}, layout);
  const auto device = cuda::Device::of(layout.execution.stream);
  ADDEND_TRY(device);
  const auto kernels = cuda::part<CastKernels>();
  ADDEND_TRY(kernels);
  auto codec = std::make_unique<DeviceCastCodec>(layout, *options, *device, **kernels);
  ADDEND_TRY(codec->open());
  return std::unique_ptr<Codec>(std::move(codec));
}

}  // namespace addend::cast
