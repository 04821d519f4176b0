// SPDX-License-Identifier: Apache-2.0
#include "codec/select/device_select.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <string>
#include <utility>

#include "base/bits.h"
#include "codec/cast/cast_kernels.h"
#include "codec/exact/device_exact.h"

namespace addend::select {

DeviceSelect::DeviceSelect(const Layout& layout, const Options& options, const cuda::Device& device,
                           const SelectKernels& kernels)
    : SelectPlan(layout, options), device_(device), kernels_(kernels) {
  cut_pieces();
  if (has_velocity()) cut_samples();
}

void DeviceSelect::cut_pieces() {
  uint64_t begin = 0;
  for (uint64_t s = 0; s < std::max<uint64_t>(layout().segments.size(), 1); ++s) {
    const Segment segment = segment_at(s);
    const uint64_t end = begin + segment.count;
    if (segment.count == 0) continue;
    const auto number = static_cast<uint32_t>(parts_.size());
    parts_.push_back({begin, end, kept_of(segment.count), total_, draws_of(segment.id),
                      static_cast<uint32_t>(pieces_.size())});
    total_ += parts_.back().kept;
    for (; begin < end; begin += std::min(kPieceElements, end - begin))
      pieces_.push_back({begin, std::min(begin + kPieceElements, end), number});
  }
}

// Samples are largest when the density has come down.
void DeviceSelect::cut_samples() {
  uint64_t begin = 0;
  for (DevicePart& part : parts_) {
    const uint64_t count = part.end - part.begin;
    const uint64_t kept = select::kept_of(options_, count, options_.warmup);
    const uint64_t end = begin + sample_size(count, kept);
    part.first_sample = begin;
    const auto number = static_cast<uint32_t>(&part - parts_.data());
    for (; begin < end; begin += std::min(kPieceElements, end - begin))
      sample_pieces_.push_back({begin, std::min(begin + kPieceElements, end), number});
  }
}

Status DeviceSelect::set_up() {
  const cuda::OnDevice here(device_);
  const uint64_t bytes = layout().count * 4;
  residual_.describe(Feedback::kFloat, layout().count, 0);
  ADDEND_TRY(mail_.open());
  for (cuda::DeviceBuffer& kept : kept_) {
    ADDEND_TRY(kept.reserve(bytes));
    ADDEND_TRY(clear(kept, bytes));
  }
  ADDEND_TRY(upload(parts_on_, parts_.data(), parts_.size() * sizeof(DevicePart)));
  ADDEND_TRY(upload(pieces_on_, pieces_.data(), pieces_.size() * sizeof(DevicePiece)));
  ADDEND_TRY(equals_.reserve(pieces_.size() * sizeof(uint32_t)));
  ADDEND_TRY(sums_.reserve(pieces_.size() * sizeof(double)));
  ADDEND_TRY(cuts_.reserve(parts_.size() * sizeof(DeviceCut)));
  if (has_velocity()) ADDEND_TRY(set_up_velocity());
  return totals_.reserve(sizeof(DeviceTotals));
}

Status DeviceSelect::set_up_velocity() {
  const uint64_t bytes = layout().count * 4;
  for (cuda::DeviceBuffer& velocity : velocities_) {
    ADDEND_TRY(velocity.reserve(bytes));
    ADDEND_TRY(clear(velocity, bytes));
  }
  const std::vector<DevicePiece>& pieces = sample_pieces_;
  ADDEND_TRY(upload(sample_pieces_on_, pieces.data(), pieces.size() * sizeof(DevicePiece)));
  return samples_.reserve(pieces.empty() ? 0 : pieces.back().end * sizeof(uint32_t));
}

// Densities change a few times in all.
Status DeviceSelect::follow_warmup() {
  bool changed = false;
  for (DevicePart& part : parts_) {
    const uint64_t kept = kept_of(part.end - part.begin);
    changed = changed || kept != part.kept;
    part.kept = kept;
  }
  if (!changed) return {};
  return upload(parts_on_, parts_.data(), parts_.size() * sizeof(DevicePart));
}

uint64_t DeviceSelect::memory_bytes() const {
  uint64_t total =
      parts_.capacity() * sizeof(DevicePart) + pieces_.capacity() * sizeof(DevicePiece);
  for (const cuda::DeviceBuffer* buffer :
       {&kept_[0], &kept_[1], &parts_on_, &pieces_on_, &equals_, &sums_, &cuts_, &totals_,
        &velocities_[0], &velocities_[1], &samples_, &sample_pieces_on_})
    total += buffer->capacity();
  return total;
}

Status DeviceSelect::clear(const cuda::DeviceBuffer& buffer, uint64_t bytes) const {
  return check(device_.runtime->fill(buffer.as<void>(), 0, bytes, stream()), "clearing");
}

Status DeviceSelect::do_begin(const void* gradient) {
  gradient_ = gradient;
  selected_ = false;
  draft().mode = next_mode();
  return {};
}

Status DeviceSelect::add_up(bool chooses) {
  if (has_velocity()) ADDEND_TRY(follow_warmup());
  args_ = {options_.selector,
           chooses,
           layout().dtype,
           gradient_,
           owed().as<float>(),
           kept_[1 - current_].as<float>(),
           parts_on_.as<DevicePart>(),
           parts_.size(),
           pieces_on_.as<DevicePiece>(),
           pieces_.size(),
           equals_.as<uint32_t>(),
           sums_.as<double>(),
           cuts_.as<DeviceCut>(),
           totals_.as<DeviceTotals>(),
           step_,
           static_cast<float>(options_.momentum),
           most_norm(),
           velocities_[current_].as<float>(),
           velocities_[1 - current_].as<float>(),
           samples_.as<uint32_t>(),
           sample_pieces_on_.as<DevicePiece>(),
           sample_pieces_.size()};
  ADDEND_TRY(clear(cuts_, parts_.size() * sizeof(DeviceCut)));
  ADDEND_TRY(clear(totals_, sizeof(DeviceTotals)));
  return check(kernels_.add_up(args_, stream()), "adding what is owed");
}

Status DeviceSelect::tell() {
  return check(kernels_.tell(args_, mail_.address(), mail_.expect(), stream()), "telling the host");
}

// It was written before the sums were there.
Status DeviceSelect::take_letter() {
  const Result<const cuda::Mail*> mail = mail_.wait();
  ADDEND_TRY(mail);
  const uint64_t* found = (*mail)->numbers;
  const auto energy = std::bit_cast<double>(found[kMailEnergy]);
  const auto travels = std::bit_cast<double>(found[kMailTravels]);
  draft().sampled_energy = energy;
  draft().sampled_error = std::max(energy - travels, 0.0);
  draft().local_nonzeros = found[kMailChosen];
  return {};
}

void DeviceSelect::settle() {
  current_ = 1 - current_;
  ++step_;
}

Status DeviceSelect::fetch_residual(const Residual::Range& range, uint8_t* to) const {
  return copy(to, owed().as<float>() + range.begin, range.elements * 4);
}
Status DeviceSelect::put_residual(const Residual::Range& range, const uint8_t* from) {
  return copy(owed().as<float>() + range.begin, from, range.elements * 4);
}
Status DeviceSelect::multiply_residual(double factor) {
  const auto kernels = cuda::part<cast::CastKernels>();
  ADDEND_TRY(kernels);
  const cuda::OnDevice here(device_);
  for (const auto* pair : {&kept_, &velocities_}) {
    if (pair == &velocities_ && !has_velocity()) continue;
    auto* values = (*pair)[current_].as<float>();
    ADDEND_TRY(check((*kernels)->multiply(values, layout().count, factor, stream()),
                     "scaling what is owed"));
  }
  return {};
}

Status DeviceSelect::save_learnt(uint64_t segment, uint8_t* to) const {
  if (!has_velocity()) return {};
  const Residual::Range range = positions_of(segment);
  return copy(to, velocities_[current_].as<float>() + range.begin, range.elements * 4);
}
Status DeviceSelect::load_learnt(uint64_t segment, const uint8_t* from) {
  if (!has_velocity()) return {};
  const Residual::Range range = positions_of(segment);
  return copy(velocities_[current_].as<float>() + range.begin, from, range.elements * 4);
}

Status DeviceSelect::add_residual(float* to) const {
  std::vector<float> kept(layout().count);
  ADDEND_TRY(copy(kept.data(), owed().as<float>(), kept.size() * 4));
  std::transform(kept.begin(), kept.end(), to, to, std::plus<>());
  return {};
}

// Done when it returns.
Status DeviceSelect::copy(void* to, const void* from, uint64_t bytes) const {
  if (bytes == 0) return {};
  const cuda::OnDevice here(device_);
  ADDEND_TRY(check(device_.runtime->copy(to, from, bytes, stream()), "copying"));
  return check(device_.runtime->synchronize(stream()), "copying");
}

Status DeviceSelect::upload(cuda::DeviceBuffer& buffer, const void* from, uint64_t bytes) const {
  ADDEND_TRY(buffer.reserve(bytes));
  return copy(buffer.as<void>(), from, bytes);
}

namespace {

/// Each worker chooses for itself; what it chose is a gradient with zeros between, which exact
/// carries.
class DeviceUnionSelect final : public DeviceSelect {
 public:
  using DeviceSelect::DeviceSelect;

  Status make() {
    Result<std::unique_ptr<Codec>> carrier =
        exact::create_exact_on_device(options_.carrier, layout());
    ADDEND_TRY(carrier);
    carrier_ = std::move(*carrier);
    ADDEND_TRY(set_up());
    const cuda::OnDevice here(device_);
    return picked_.reserve(layout().count * dtype_bytes(layout().dtype));
  }

  uint64_t memory_bytes() const override {
    return DeviceSelect::memory_bytes() + carrier_->memory_bytes() + picked_.capacity();
  }

 private:
  void add_plan(Fingerprint& print) const override { print.add(carrier_->fingerprint()); }

  Result<bool> do_round(Round& round) override {
    if (layout().count == 0) return false;
    const cuda::OnDevice here(device_);
    if (!selected_) {
      carrier_->cancel();  // a step that was given up has left it where it was
      ADDEND_TRY(add_up(options_.selector != Selector::kRedsync));
      ADDEND_TRY(check(kernels_.find_cuts(args_, stream()), "finding where to cut"));
      ADDEND_TRY(check(kernels_.take(args_, picked_.as<void>(), stream()), "selecting"));
      ADDEND_TRY(tell());
      ADDEND_TRY(carrier_->begin(picked_.as<void>()));
      selected_ = true;
    }
    const Result<bool> more = carrier_->next_round(round);
    if (more && !*more) ADDEND_TRY(take_letter());
    return more;
  }

  Status do_finish(void* gradient) override {
    if (layout().count > 0) {
      ADDEND_TRY(carrier_->finish(gradient));
      const Report& carried = carrier_->report();
      draft().union_nonzeros = carried.union_nonzeros;
      draft().cells = carried.cells;
      draft().stuck_keys = carried.stuck_keys;
      draft().escaped_values = carried.escaped_values;
      draft().fallback = carried.fallback;
    }
    settle();
    return {};
  }

  std::unique_ptr<Codec> carrier_;
  cuda::DeviceBuffer picked_{device_.runtime};
};

}  // namespace

Result<std::unique_ptr<Codec>> create_select_on_device(const CodecSpec& spec,
                                                       const Layout& layout) {
  const Result<Options> options = read_options(spec);
  ADDEND_TRY(options);
  const auto device = cuda::Device::of(layout.execution.stream);
  ADDEND_TRY(device);
  const auto kernels = cuda::part<SelectKernels>();
  ADDEND_TRY(kernels);
  if (agrees_on_positions(options->selector))
    return create_agreed_on_device(layout, *options, *device, **kernels);
  auto codec = std::make_unique<DeviceUnionSelect>(layout, *options, *device, **kernels);
  ADDEND_TRY(codec->make());
  return std::unique_ptr<Codec>(std::move(codec));
}

}  // namespace addend::select
